"""One module for each command of `weir`: `add_arguments(parser)` and `run(args) -> exit code`."""
