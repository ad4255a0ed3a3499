"""weir in process, without prefix cache."""

from __future__ import annotations

import time
from collections.abc import Sequence

from weir.config import EngineSettings, ModelSettings, Settings
from weir.engine.core import EngineCore
from weir.engine.load import load_engine
from weir.engine.request import Delta, Failed, GenerateRequest, SamplingParams

from .child import KV_GIB, MAX_RUNNING, Item, Setup, Times, main


class Weir:
    """The engine that `weir serve` runs, driven in this process."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core

    def run(self, items: Sequence[Item]) -> Times:
        times = Times.start(len(items))
        for number, item in enumerate(items):
            params = SamplingParams(item.max_tokens, temperature=0.0, ignore_eos=True)
            self._core.submit(GenerateRequest(str(number), tuple(item.prompt), params, arrival=time.monotonic()))
        while self._core.has_work:
            for event in self._core.step().events:
                if isinstance(event, Delta):
                    times.add(int(event.request_id), event.token_ids)
                elif isinstance(event, Failed):
                    raise event.error
        return times


def load(setup: Setup) -> Weir:
    """bf16, the settings of `weir serve` but for the prefix cache and the size of the KV pool."""
    engine = EngineSettings(
        kv_memory_bytes=KV_GIB * 2**30, max_running=MAX_RUNNING, prefix_cache=False, threads=setup.threads
    )
    model = ModelSettings(model=str(setup.model), dtype="bfloat16", device="cpu", max_model_len=setup.longest)
    return Weir(load_engine(Settings(model=model, engine=engine)))


if __name__ == "__main__":
    main(load)
