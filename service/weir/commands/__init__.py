"""One module for each command of `weir`: `add_arguments(parser)` and `run(args) -> exit code`."""

import os

# gRPC reads this when it is imported, which is after this line. What it would print of its own accord are lines for its
# developers, in the middle of an answer; the errors that matter come back as errors. Set it to INFO to see them.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
