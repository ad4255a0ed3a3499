"""Prompts of random token ids: their content does not matter to speed, and no tokenizer is needed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from weir.bench.workload import Served, WorkItem, Workload

# Below lie the control tokens of many vocabularies.
_LOWEST_ID = 100


@dataclass(frozen=True, slots=True)
class RandomPrompts:
    """`requests` prompts of `prompt_tokens` each, every one answered with `output_tokens`."""

    requests: int
    prompt_tokens: int
    output_tokens: int
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> RandomPrompts:
        """N,IN,OUT. Raises ValueError."""
        parts = text.split(",")
        if len(parts) != 3 or not all(part.strip().isascii() and part.strip().isdigit() for part in parts):
            raise ValueError(f"must be N,IN,OUT, as in 64,512,128, got {text!r}")
        numbers = [int(part) for part in parts]
        if min(numbers) < 1:
            raise ValueError(f"must be three numbers of at least 1, got {text!r}")
        return cls(*numbers)

    def __call__(self, served: Served) -> Workload:
        """The workload, the same for the same seed and vocabulary."""
        dice = random.Random(self.seed)
        lowest = min(_LOWEST_ID, served.vocab_size // 2)
        items = tuple(
            WorkItem(
                tuple(dice.randrange(lowest, served.vocab_size) for _ in range(self.prompt_tokens)), self.output_tokens
            )
            for _ in range(self.requests)
        )
        return Workload(f"random {self.requests} x {self.prompt_tokens} + {self.output_tokens}", items)
