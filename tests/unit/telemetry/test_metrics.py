"""The exposed series: names, types and labels from the first scrape on, and the numbers of a few known steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from prometheus_client.core import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families as parse_text
from weir.telemetry.metrics import Metrics
from weir.telemetry.series import Counter, Family, Histogram, counter

from tests.unit.telemetry.factories import BUDGET, EngineStub, Progress, decode, engine_info, prefill, step

parse_openmetrics: Callable[[str], Iterable[Metric]] = openmetrics_parser.text_string_to_metric_families

Sample = tuple[str, tuple[tuple[str, str], ...]]


def samples(text: bytes) -> dict[Sample, float]:
    """Every sample of a scrape, but those of the process, by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse_text(text.decode())
        for sample in family.samples
        if not sample.name.startswith("process_")
    }


def value(metrics: Metrics, name: str, **labels: str) -> float:
    """The one sample of `name` that has these labels."""
    found = [
        number
        for (sample, have), number in samples(metrics.text()).items()
        if sample == name and set(labels.items()) <= set(have)
    ]
    assert len(found) == 1, f"{name}{labels}: {found}"
    return found[0]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("tiny")


def test_a_bucket_holds_values_up_to_and_with_its_bound() -> None:
    histogram = Histogram((0.1, 1.0))
    for observed in (0.05, 0.1, 0.100001, 1.0, 7.0):
        histogram.observe(observed)
    assert histogram.counts == [2, 2, 1]
    assert histogram.sum == pytest.approx(8.250001)


def test_bucket_bounds_that_do_not_rise_are_refused() -> None:
    with pytest.raises(ValueError, match="must rise"):
        Histogram((1.0, 1.0))


def test_a_counter_is_named_total_and_nothing_else_is() -> None:
    with pytest.raises(ValueError, match="ends in _total"):
        counter("weir_steps", "Steps.", Counter())
    with pytest.raises(ValueError, match="ends in _total"):
        Family("weir_steps_total", "Steps.", "gauge")


def test_every_series_exists_at_zero_before_the_first_request(metrics: Metrics) -> None:
    first = samples(metrics.text())
    for name, number in first.items():
        assert number == (1 if name[0] == "vllm:cache_config_info" else 0), name

    metrics.watch(EngineStub(), engine_info())
    metrics.engine.step(step(decodes=(decode("a"),)))
    metrics.requests.time_to_first_token.observe(0.2)

    def names(found: dict[Sample, float]) -> set[Sample]:
        relabelled = ("weir_engine_info", "vllm:cache_config_info")
        return {key for key in found if key[0] not in relabelled}

    assert names(samples(metrics.text())) == names(first)


def test_the_fast_text_holds_the_same_samples_as_the_library_writes(metrics: Metrics) -> None:
    metrics.watch(EngineStub(replace(BUDGET, queued=0)), engine_info())
    metrics.engine.step(step(decodes=(decode("a"), decode("b")), prefills=(prefill("c", 0, 33),)))
    metrics.requests.inter_token.observe(0.033, count=3)
    ours = samples(metrics.text())
    library = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse_openmetrics(metrics.openmetrics().decode())
        for sample in family.samples
        if not sample.name.startswith("process_")
    }
    assert ours == library
    types = {family.name: family.type for family in parse_text(metrics.text().decode())}
    assert types == {family.name: family.type for family in parse_openmetrics(metrics.openmetrics().decode())}


# Name -> type, from vLLM's v1/metrics/loggers.py and the endpoint picker's metric protocol.
VLLM_TYPES = {
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:cache_config_info": "gauge",
    "vllm:num_preemptions": "counter",
    "vllm:prefix_cache_queries": "counter",
    "vllm:prefix_cache_hits": "counter",
    "vllm:prompt_tokens": "counter",
    "vllm:generation_tokens": "counter",
    "vllm:request_success": "counter",
    "vllm:iteration_tokens_total": "histogram",
    "vllm:request_prompt_tokens": "histogram",
    "vllm:request_generation_tokens": "histogram",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:request_time_per_output_token_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:request_queue_time_seconds": "histogram",
    "vllm:request_prefill_time_seconds": "histogram",
    "vllm:request_decode_time_seconds": "histogram",
    "vllm:request_inference_time_seconds": "histogram",
}


def test_the_alias_set_has_the_names_types_and_labels_of_vllm(metrics: Metrics) -> None:
    families = [family for family in parse_text(metrics.text().decode()) if family.name.startswith("vllm:")]
    assert {family.name: family.type for family in families} == VLLM_TYPES
    for family in families:
        if family.name != "vllm:cache_config_info":
            assert all(sample.labels["model_name"] == "tiny" for sample in family.samples), family.name
    reasons = {s.labels["finished_reason"] for f in families if f.name == "vllm:request_success" for s in f.samples}
    assert reasons == {"stop", "length", "abort"}


def test_the_gauges_an_endpoint_picker_reads_have_one_series_each_and_a_ratio_within_one(metrics: Metrics) -> None:
    metrics.watch(EngineStub(), engine_info())
    assert value(metrics, "vllm:num_requests_waiting") == 3
    assert value(metrics, "vllm:num_requests_running") == 5
    assert value(metrics, "vllm:kv_cache_usage_perc") == 0.25  # 1024 of 4096
    assert value(metrics, "vllm:cache_config_info", block_size="16", num_gpu_blocks="256") == 1


def test_the_alias_set_can_be_left_out() -> None:
    assert b"vllm:" not in Metrics("tiny", vllm_names=False).text()


def test_the_budget_is_read_when_it_is_scraped(metrics: Metrics) -> None:
    metrics.watch(EngineStub(), engine_info())
    expected = {
        "weir_kv_total_tokens": 4096,
        "weir_kv_free_tokens": 3000,
        "weir_kv_used_tokens": 1024,
        "weir_kv_cached_tokens": 72,
        "weir_kv_reserved_peak_tokens": 2048,
        "weir_kv_used_ratio": 0.25,
        "weir_running_requests": 5,
        "weir_queue_requests": 3,
        "weir_queue_tokens": 700,
        "weir_queue_wait_estimate_seconds": 1.5,
        "weir_engine_info": 1,
    }
    for name, number in expected.items():
        assert value(metrics, name) == number, name


def test_steps_are_counted_by_kind_with_their_tokens_and_phases(metrics: Metrics) -> None:
    engine = metrics.engine
    engine.step(step(1, prefills=(prefill("a", 0, 100), prefill("b", 0, 28)), duration_ns=200_000_000))
    engine.step(step(2, decodes=(decode("a"),), prefills=(prefill("b", 28, 40),), duration_ns=50_000_000))
    engine.step(step(3, decodes=(decode("a"), decode("b")), duration_ns=20_000_000, preempted=("b",)))
    assert value(metrics, "weir_step_duration_seconds_count", kind="prefill") == 1
    assert value(metrics, "weir_step_duration_seconds_sum", kind="prefill") == pytest.approx(0.2)
    assert value(metrics, "weir_step_duration_seconds_count", kind="mixed") == 1
    assert value(metrics, "weir_step_duration_seconds_sum", kind="decode") == pytest.approx(0.02)
    assert value(metrics, "weir_prefill_tokens_total") == 168
    assert value(metrics, "weir_decode_tokens_total") == 3
    assert value(metrics, "weir_step_tokens_sum") == 171
    assert value(metrics, "weir_step_choices_sum") == 6
    assert value(metrics, "vllm:iteration_tokens_total_sum") == 171
    assert value(metrics, "weir_step_phase_seconds_total", phase="device") == pytest.approx(0.042)
    assert value(metrics, "weir_preemptions_total") == 1


def test_the_queue_gets_older_while_the_engine_is_stalled(metrics: Metrics) -> None:
    metrics.watch(EngineStub(), engine_info())
    metrics.engine.step(step(decodes=(decode("a"),), oldest_queued_s=4.0))
    first = value(metrics, "weir_queue_age_seconds")
    assert first >= 4.0
    assert value(metrics, "weir_queue_age_seconds") > first


def test_the_heartbeat_ages_only_while_the_engine_is_busy(metrics: Metrics) -> None:
    engine = EngineStub(state=Progress(busy=False, step_age_s=500.0))
    metrics.watch(engine, engine_info())
    assert value(metrics, "weir_engine_heartbeat_age_seconds") == 0
    engine.state = Progress(busy=True, step_age_s=61.0)
    assert value(metrics, "weir_engine_heartbeat_age_seconds") == 61


def test_openmetrics_carries_the_trace_of_the_newest_observation_of_a_bucket(metrics: Metrics) -> None:
    metrics.requests.time_to_first_token.observe(0.3, trace_id="0af7651916cd43dd8448eb211c80319c")
    exemplars = {
        sample.labels["le"]: sample.exemplar
        for family in parse_openmetrics(metrics.openmetrics().decode())
        if family.name == "weir_time_to_first_token_seconds"
        for sample in family.samples
        if sample.name.endswith("_bucket") and sample.exemplar
    }
    assert list(exemplars) == ["0.5"]
    assert exemplars["0.5"].labels == {"trace_id": "0af7651916cd43dd8448eb211c80319c"}
    assert exemplars["0.5"].value == 0.3
    assert b"trace_id" not in metrics.text()


def test_label_values_are_escaped_as_the_format_asks() -> None:
    metrics = Metrics('a "quoted" \\ name')
    assert value(metrics, "vllm:num_requests_running", model_name='a "quoted" \\ name') == 0
