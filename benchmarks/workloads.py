"""The workloads: mixed64 from its file, the others made here. Token ids are random: speed does not depend on them."""

from __future__ import annotations

import json
import random
from pathlib import Path

from weir.bench.workload import WorkItem, Workload, read_workload

MIXED64 = Path(__file__).with_name("mixed64.json")
NAMES = ("mixed64", "one stream", "long decode", "prefill")
_LONG_PROMPT, _LONG_OUTPUT = 4096, 256


def workload(name: str, vocab_size: int) -> Workload:
    """One of NAMES. Raises KeyError for any other.

    long decode: outputs are long enough for every stream to decode at once after the last prompt is computed.
    """
    if name == "mixed64":
        return read_workload(MIXED64)
    requests, prompt, output = {
        "one stream": (1, 128, 256),
        "long decode": (16, _LONG_PROMPT, _LONG_OUTPUT),
        "prefill": (8, 2048, 1),
    }[name]
    dice = random.Random(name)
    low = min(100, vocab_size // 2)  # below lie the control tokens of many vocabularies

    def tokens() -> tuple[int, ...]:
        return tuple(dice.randrange(low, vocab_size) for _ in range(prompt))

    return Workload(name, tuple(WorkItem(tokens(), output) for _ in range(requests)))


def cut(work: Workload, requests: int, max_tokens: int) -> Workload:
    """A small part of a workload, to see that everything runs."""
    items = tuple(WorkItem(i.prompt_token_ids, min(i.max_tokens, max_tokens)) for i in work.items[:requests])
    return Workload(work.name, items)


def write_workload(work: Workload, path: Path) -> None:
    """Write the format that `weir bench --workload` reads."""
    requests = [{"prompt_token_ids": list(i.prompt_token_ids), "max_tokens": i.max_tokens} for i in work.items]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"name": work.name, "requests": requests}))
