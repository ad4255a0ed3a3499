"""The tokenizer process: prompts in, token ids out, one at a time.

A call into a tokenizer cannot be interrupted, and a chat template is a program of whoever made the model. Here both
hold up nobody, and an end by force, or for lack of memory, costs no more than the one prompt.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import resource
import signal
import socket
import struct
from array import array
from enum import IntEnum
from multiprocessing import parent_process
from pathlib import Path
from typing import TYPE_CHECKING

from weir.models.errors import ModelError, PromptError
from weir.v1 import inference_pb2 as pb

if TYPE_CHECKING:
    from weir.models.tokenizer import Tokenizer

HEADER = struct.Struct("=BI")
"""Of every frame: a Kind, and the bytes that follow."""

_PR_SET_PDEATHSIG = 1


class Kind(IntEnum):
    """What a frame holds."""

    PROMPT = 0
    """To the process: a serialised Prompt with a text or a chat."""
    READY = 1
    """From the process, once: the pickled bytes of each token."""
    NOT_LOADED = 2
    """Instead of READY, and the last: why the model folder has no usable tokenizer."""
    IDS = 3
    """Token ids, as int32."""
    REFUSED = 4
    """Why this prompt cannot be tokenised."""
    BROKEN = 5
    """An exception that nobody expected."""


def tokenizer_main(folder: Path, connection: socket.socket, memory_bytes: int, niceness: int) -> None:
    """Load the tokenizer, say READY, and serve until the server is gone."""
    # A terminal's Ctrl-C goes to the server too, which decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_the_server()
    os.nice(niceness)
    # One prompt at a time has no use for threads, whose address space would count.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # Running out of memory is expected here, and no reason for pages of log.
    os.environ["RUST_BACKTRACE"] = "0"
    with connection, connection.makefile("rb") as requests:
        try:
            from weir.models.tokenizer import Tokenizer  # late: whoever starts the process does without

            tokenizer = Tokenizer(folder)
        except ModelError as error:
            _send(connection, Kind.NOT_LOADED, str(error).encode())
            return
        _limit_memory(memory_bytes)
        _send(connection, Kind.READY, pickle.dumps(tokenizer.token_bytes))
        while header := requests.read(HEADER.size):
            _, size = HEADER.unpack(header)
            _send(connection, *_answer(tokenizer, requests.read(size), memory_bytes))


def _answer(tokenizer: Tokenizer, data: bytes, memory_bytes: int) -> tuple[Kind, bytes]:
    try:
        prompt = pb.Prompt.FromString(data)
        if prompt.WhichOneof("input") == "text":
            ids = tokenizer.encode(prompt.text)
        else:
            ids = tokenizer.encode_chat([{"role": m.role, "content": m.content} for m in prompt.chat.messages])
        return Kind.IDS, array("i", ids).tobytes()
    except PromptError as error:
        return Kind.REFUSED, str(error).encode()
    except MemoryError:
        return Kind.REFUSED, f"takes more than {memory_bytes} bytes of memory to tokenise".encode()
    except Exception as error:
        return Kind.BROKEN, f"{type(error).__name__}: {error}".encode()


def _send(connection: socket.socket, kind: Kind, data: bytes) -> None:
    connection.sendall(HEADER.pack(kind, len(data)) + data)


def _die_with_the_server() -> None:
    """Have the kernel end this process with its parent, also in the middle of a call."""
    server = parent_process()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if server is not None and os.getppid() != server.pid:
        raise SystemExit(1)  # it was gone before


def _limit_memory(more_bytes: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
