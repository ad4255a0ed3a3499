"""OpenVINO GenAI: its continuous-batching pipeline, stepped here so that tokens are seen as they come."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino  # type: ignore[import-not-found]
import openvino_genai  # type: ignore[import-not-found]

from .child import KV_GIB, MAX_RUNNING, Item, Setup, Times, main


class OpenVino:
    """A loaded pipeline."""

    def __init__(self, pipeline: openvino_genai.ContinuousBatchingPipeline) -> None:
        self._pipeline = pipeline
        self._sent = 0

    def run(self, items: Sequence[Item]) -> Times:
        times = Times.start(len(items))
        handles = {}
        for number, item in enumerate(items):
            config = openvino_genai.GenerationConfig(max_new_tokens=item.max_tokens, ignore_eos=True, do_sample=False)
            prompt = openvino.Tensor(np.array([item.prompt], dtype=np.int64))
            handles[number] = self._pipeline.add_request(self._sent, prompt, config)
            self._sent += 1
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            for number, handle in handles.items():
                while handle.can_read():
                    for output in handle.read().values():
                        times.add(number, list(output.generated_ids))
        return times


def load(setup: Setup) -> OpenVino:
    """bf16 for inference and KV, chunks of prompts beside decodes in steps of 512 tokens, no prefix cache."""
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = KV_GIB
    scheduler.max_num_batched_tokens = 512
    scheduler.max_num_seqs = MAX_RUNNING
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = False
    properties = {
        "INFERENCE_PRECISION_HINT": "bf16",
        "KV_CACHE_PRECISION": "bf16",
        "INFERENCE_NUM_THREADS": setup.threads,
    }
    return OpenVino(openvino_genai.ContinuousBatchingPipeline(str(setup.model), scheduler, "CPU", properties))


if __name__ == "__main__":
    main(load)
