"""The engines that are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})
_VLLM: Mapping[str, str] = MappingProxyType(
    {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1"}
)


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine, with the settings that its runner gives it.

    environment: name of the environment under .cache/peers and of its pins under requirements/peers; None: weir's own.
    package: whose pinned version stands in the table.
    once: too slow for every round; run in the first only.
    """

    name: str
    title: str
    runner: str
    environment: str | None
    package: str
    variables: Mapping[str, str] = field(default_factory=lambda: _NO_VARIABLES)
    once: bool = False


ENGINES = (
    Engine("weir", "weir", "run_weir", None, "weir"),
    Engine("openvino", "OpenVINO GenAI", "run_openvino", "openvino", "openvino-genai"),
    # By default a core is left to its scheduler; with few cores it is faster without.
    Engine("vllm", "vLLM (CPU)", "run_vllm", "vllm", "vllm-cpu", {**_VLLM, "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}),
    Engine("vllm_default", "vLLM (CPU), default threads", "run_vllm", "vllm", "vllm-cpu", _VLLM),
    Engine("llama_cpp", "llama.cpp", "run_llama_cpp", "llama_cpp", "llama-cpp-python"),
    Engine(
        "transformers", "transformers, static batches", "run_transformers", "transformers", "transformers", once=True
    ),
    Engine(
        "transformers_cb",
        "transformers, continuous batching",
        "run_transformers_cb",
        "transformers",
        "transformers",
        once=True,
    ),
)
BY_NAME: Mapping[str, Engine] = MappingProxyType({engine.name: engine for engine in ENGINES})
