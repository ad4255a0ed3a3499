"""transformers' generate(): static batches of 16, padded on the left; a batch runs to its longest output."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from .child import Item, Setup, Times, main

_BATCH = 16


class StaticBatches:
    """A loaded model."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model

    def run(self, items: Sequence[Item]) -> Times:
        times = Times.start(len(items))
        for first in range(0, len(items), _BATCH):
            self._batch(times, first, items[first : first + _BATCH])
        return times

    def _batch(self, times: Times, first: int, items: Sequence[Item]) -> None:
        width = max(len(item.prompt) for item in items)
        ids = torch.zeros(len(items), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, item in enumerate(items):
            ids[row, width - len(item.prompt) :] = torch.tensor(item.prompt)
            mask[row, width - len(item.prompt) :] = 1
        most = max(item.max_tokens for item in items)

        class Clock:
            """generate() hands every new token of the batch to its streamer; the first call is the prompt."""

            def __init__(self) -> None:
                self.step = -1

            def put(self, tokens: torch.Tensor) -> None:
                if self.step >= 0:
                    for row, (token, item) in enumerate(zip(tokens.tolist(), items, strict=True)):
                        if self.step < item.max_tokens:
                            times.add(first + row, [token])
                self.step += 1

            def end(self) -> None:
                pass

        with torch.inference_mode():
            self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=most,
                min_new_tokens=most,
                do_sample=False,
                pad_token_id=0,
                streamer=Clock(),
            )


def load_model(setup: Setup) -> PreTrainedModel:
    """The model in bf16."""
    torch.set_num_threads(setup.threads)
    return AutoModelForCausalLM.from_pretrained(setup.model, dtype=torch.bfloat16, local_files_only=True).eval()


def load(setup: Setup) -> StaticBatches:
    """The model in bf16, with torch's own attention."""
    return StaticBatches(load_model(setup))


if __name__ == "__main__":
    main(load)
