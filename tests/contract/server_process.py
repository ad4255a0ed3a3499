"""`weir serve` in a process of its own, over a tiny model with random weights, with a tokenizer or without."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from weir.client import Client

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "eos_token_id": 0,
    "bos_token_id": 1,
}


class ServerProcess:
    """Started on construction, with further flags; ready after `ready()`. `prefix` is a command that starts it.

    `complete` may add files to the model.
    """

    def __init__(
        self,
        folder: Path,
        *flags: str,
        prefix: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        complete: Callable[[Path], object] = lambda model: None,
    ) -> None:
        model = folder / "tiny"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(CONFIG))
        complete(model)
        self.target = f"127.0.0.1:{free_port()}"
        self.log_file = folder / "server.log"
        self.process = subprocess.Popen(
            [
                *(*prefix, sys.executable, "-m", "weir.cli", "serve", "--model", str(model), "--load-format", "dummy"),
                *("--host", "127.0.0.1", "--port", self.target.rpartition(":")[2], "--admin-address", "127.0.0.1:0"),
                *("--metrics-port", "0", "--kv-memory", "32MiB", "--kernels", "reference", "--threads", "1"),
                *flags,
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
            stderr=self.log_file.open("w"),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """A test that failed leaves nothing running."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def ready(self) -> Client:
        """A client, once the model is loaded."""
        client = Client(self.target, max_attempts=1)
        client.wait_ready(120)
        return client

    def engine_pid(self) -> int:
        """The child that computes: the one that loaded torch, and so holds the most memory."""
        listing = subprocess.run(
            ["ps", "--ppid", str(self.process.pid), "-o", "rss=,pid="], check=True, capture_output=True, text=True
        )
        return max((int(rss), int(pid)) for rss, pid in (line.split() for line in listing.stdout.splitlines()))[1]

    def terminate(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
