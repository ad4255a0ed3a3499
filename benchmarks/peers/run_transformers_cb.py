"""transformers' continuous batching, the machinery of generate_batch(), with each request's own max_new_tokens."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

from .child import KV_GIB, MAX_RUNNING, Item, Setup, Times, main
from .run_transformers import load_model

_PAGE_TOKENS = 256


class ContinuousBatches:
    """A loaded model and the manager's settings; a run has its own manager, as in generate_batch()."""

    def __init__(self, model: PreTrainedModel, longest: int) -> None:
        self._model = model
        config = model.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        page_bytes = 2 * 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * _PAGE_TOKENS
        self._config = ContinuousBatchingConfig(
            page_size=_PAGE_TOKENS,
            num_blocks=max(KV_GIB * 2**30 // page_bytes, -(-longest // _PAGE_TOKENS)),
            max_batch_tokens=512,
            max_requests_per_batch=MAX_RUNNING,
            allow_block_sharing=False,
        )

    def run(self, items: Sequence[Item]) -> Times:
        greedy = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
        manage = self._model.continuous_batching_context_manager
        with manage(greedy, continuous_batching_config=self._config) as manager:
            times = Times.start(len(items))
            for number, item in enumerate(items):
                manager.add_request(
                    item.prompt, str(number), max_new_tokens=item.max_tokens, record_timestamps=True, eos_token_id=-1
                )
            ended = 0
            while ended < len(items):
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    if result.error:
                        raise RuntimeError(result.error)
                    times.at(int(result.request_id), result.generated_tokens, result.timestamps)
                    ended += 1
                elif result is None and not manager.is_running():
                    raise RuntimeError("the generation thread ended")
        return times


def load(setup: Setup) -> ContinuousBatches:
    """The model in bf16."""
    return ContinuousBatches(load_model(setup), setup.longest)


if __name__ == "__main__":
    main(load)
