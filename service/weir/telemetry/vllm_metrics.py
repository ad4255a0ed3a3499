"""The metric names of vLLM over the same instruments, for dashboards and endpoint pickers that know those names.

Names, types and labels follow vLLM's `v1/metrics/loggers.py`; colons, `perc` for a 0..1 ratio and a histogram that
ends in `_total` are theirs. One series each: a picker takes the newest series of a gauge, not their sum.
"""

from __future__ import annotations

from weir.telemetry.engine_metrics import EngineMetrics
from weir.telemetry.request_metrics import RequestMetrics
from weir.telemetry.series import Family, counter, counters, gauge, histogram


def vllm_families(engine: EngineMetrics, requests: RequestMetrics, model_name: str) -> list[Family]:
    """The alias set for one served model."""
    labels = (("model_name", model_name), ("engine", "0"))
    info = engine.info
    block_size = info.block_size if info is not None else 0
    num_blocks = info.kv_total_tokens // info.block_size if info is not None else 0
    cache = (("block_size", str(block_size)), ("num_gpu_blocks", str(num_blocks)), ("engine", "0"))
    return [
        gauge("vllm:num_requests_running", "Requests in the batch.", lambda: engine.budget.running, labels),
        gauge("vllm:num_requests_waiting", "Requests in the queue.", lambda: engine.budget.queued, labels),
        gauge("vllm:kv_cache_usage_perc", "KV cache usage; 1 is 100 percent.", engine.used_ratio, labels),
        gauge("vllm:cache_config_info", "The KV cache, in the labels.", lambda: 1, cache),
        counter("vllm:num_preemptions_total", "Preemptions.", engine.preemptions, labels),
        counter("vllm:prefix_cache_queries_total", "Tokens looked up.", requests.prefix_query_tokens, labels),
        counter("vllm:prefix_cache_hits_total", "Tokens found.", requests.prefix_hit_tokens, labels),
        counter("vllm:prompt_tokens_total", "Prefill tokens.", requests.prompt_tokens, labels),
        counter("vllm:generation_tokens_total", "Generated tokens.", requests.output_tokens, labels),
        counters(
            "vllm:request_success_total", "Finished requests.", "finished_reason", requests.finished_choices, labels
        ),
        histogram("vllm:iteration_tokens_total", "Tokens in a step.", engine.step_tokens, labels),
        histogram("vllm:request_prompt_tokens", "Prompt length.", requests.prompt_length, labels),
        histogram("vllm:request_generation_tokens", "Output length.", requests.output_length, labels),
        histogram("vllm:time_to_first_token_seconds", "TTFT.", requests.time_to_first_token, labels),
        histogram("vllm:inter_token_latency_seconds", "Between tokens.", requests.inter_token, labels),
        histogram(
            "vllm:request_time_per_output_token_seconds", "Mean per request.", requests.time_per_output_token, labels
        ),
        histogram("vllm:e2e_request_latency_seconds", "From arrival to the end.", requests.duration, labels),
        histogram("vllm:request_queue_time_seconds", "In the queue.", requests.queue, labels),
        histogram("vllm:request_prefill_time_seconds", "In prefill.", requests.prefill, labels),
        histogram("vllm:request_decode_time_seconds", "In decode.", requests.decode, labels),
        histogram("vllm:request_inference_time_seconds", "Admitted.", requests.inference, labels),
    ]
