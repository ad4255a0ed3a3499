"""Workload files: what to ask, in the format {"name", "requests": [{"prompt_token_ids": [...], "max_tokens": N}]}."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

_FORMAT = '{"requests": [{"prompt_token_ids": [...], "max_tokens": N}, ...]}'


class WorkloadError(ValueError):
    """The file is no workload, or the served model cannot run it; the message says where."""


@dataclass(frozen=True, slots=True)
class Served:
    """What the model that is measured takes.

    `encode` and `encode_chat` give the token ids of a text, and of a conversation that begins with it as the user's
    turn. Both raise one of `refusals` for what the model cannot take.
    """

    vocab_size: int
    max_model_len: int
    encode: Callable[[str], list[int]]
    encode_chat: Callable[[str], list[int]]
    refusals: tuple[type[Exception], ...]


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One request: greedy, exactly `max_tokens` tokens (end-of-sequence is ignored).

    `said`: a user's turn. Over gRPC it is sent as a message, and the server makes `prompt_token_ids` of it.
    """

    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    said: str | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order in which they are sent."""

    name: str
    items: tuple[WorkItem, ...]

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return sum(len(item.prompt_token_ids) for item in self.items)

    @property
    def output_tokens(self) -> int:
        """Output tokens of all requests."""
        return sum(item.max_tokens for item in self.items)


# What to run is known before the model is; its prompts often only after.
Source = Callable[[Served], Workload]


def read_workload(path: str | Path) -> Workload:
    """Raises WorkloadError when the file cannot be read or a request is malformed."""
    data = read_json(path)
    requests = data.get("requests") if isinstance(data, dict) else None
    if not isinstance(requests, list):
        raise WorkloadError(f"{path} is no workload: expected {_FORMAT}")
    if not requests:
        raise WorkloadError(f"{path} has no requests")
    return Workload(
        str(data.get("name", Path(path).stem)),
        tuple(_item(f"{path}: request {number}", request) for number, request in enumerate(requests)),
    )


def read_json(path: str | Path) -> Any:
    """Raises WorkloadError for a file that cannot be read or holds no JSON."""
    try:
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"{path} is not JSON: {error}") from None


def _item(where: str, request: Any) -> WorkItem:
    fields = request if isinstance(request, dict) else {}
    ids, max_tokens = fields.get("prompt_token_ids"), fields.get("max_tokens")
    if not isinstance(ids, list) or not ids or not all(map(_is_integer, ids)):
        raise WorkloadError(f"{where} needs prompt_token_ids, a list of at least one integer")
    if not _is_integer(max_tokens) or max_tokens < 1:
        raise WorkloadError(f"{where} needs max_tokens, an integer of at least 1")
    return WorkItem(tuple(ids), max_tokens)


def _is_integer(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def check_fits(workload: Workload, served: Served) -> None:
    """Raises WorkloadError naming the first request that the served model can never take."""
    for number, item in enumerate(workload.items):
        tokens = len(item.prompt_token_ids) + item.max_tokens - 1
        if tokens > served.max_model_len:
            raise WorkloadError(
                f"request {number} of {workload.name} takes {tokens} tokens of context, and the model has "
                f"{served.max_model_len}"
            )
        for token in item.prompt_token_ids:
            if not 0 <= token < served.vocab_size:
                raise WorkloadError(
                    f"request {number} of {workload.name} has the token id {token}, and the model's are 0 to "
                    f"{served.vocab_size - 1}"
                )


def arrival_times(count: int, rate: float | None, seed: int = 0) -> list[float]:
    """When each request is sent, in seconds from the start: a Poisson process of `rate` a second, or all at once."""
    if rate is None:
        return [0.0] * count
    gaps = random.Random(seed)
    now, times = 0.0, []
    for _ in range(count):
        now += gaps.expovariate(rate)
        times.append(now)
    return times
