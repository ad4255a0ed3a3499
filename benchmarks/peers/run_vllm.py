"""vLLM on the CPU: its own engine loop, with tokens read as they come and no detokenising."""

from __future__ import annotations

import os
from collections.abc import Sequence

from vllm import LLM, SamplingParams, TokensPrompt  # type: ignore[import-not-found]
from vllm.sampling_params import RequestOutputKind  # type: ignore[import-not-found]

from .child import MAX_RUNNING, Item, Setup, Times, main

_MIN_LENGTH = 2048


class Vllm:
    """A loaded LLM."""

    def __init__(self, llm: LLM) -> None:
        self._engine = llm.llm_engine
        self._runs = 0

    def run(self, items: Sequence[Item]) -> Times:
        self._runs += 1
        times = Times.start(len(items))
        for number, item in enumerate(items):
            params = SamplingParams(
                temperature=0.0,
                max_tokens=item.max_tokens,
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            )
            self._engine.add_request(f"{self._runs}/{number}", TokensPrompt(prompt_token_ids=item.prompt), params)
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                number = int(output.request_id.split("/")[1].split("-")[0])
                times.add(number, list(output.outputs[0].token_ids))
        return times


def load(setup: Setup) -> Vllm:
    """bf16 weights and KV, whole prompts in steps of 2,048 tokens, no prefix cache."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return Vllm(
        LLM(
            str(setup.model),
            dtype="bfloat16",
            max_model_len=max(_MIN_LENGTH, setup.longest),
            max_num_seqs=MAX_RUNNING,
            max_num_batched_tokens=2048,
            enable_prefix_caching=False,
        )
    )


if __name__ == "__main__":
    main(load)
