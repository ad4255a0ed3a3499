"""A real engine of random weights behind the real server, small enough to start in seconds."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from weir.config import EngineSettings, ModelSettings, ServerSettings, Settings, TelemetrySettings, TenantSettings
from weir.engine.process import EngineClient
from weir.server.app import App
from weir.server.prompts import NoTokenizer
from weir.telemetry.telemetry import Telemetry

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True)
class TinyServer:
    app: App
    engine: EngineClient
    telemetry: Telemetry

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.app.port}"


@asynccontextmanager
async def tiny_server(
    folder: Path,
    telemetry: TelemetrySettings | None = None,
    max_queue_requests: int = 1024,
    metrics_port: int = 0,
    tenants: dict[str, TenantSettings] | None = None,
    prefix_cache_sharing: Literal["tenant", "all"] = "tenant",
) -> AsyncIterator[TinyServer]:
    """A server that computes 32 tokens a step, so that prompts are cut into chunks; ready, and stopped afterwards."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    settings = Settings(
        model=ModelSettings(model=str(folder), served_model_name="tiny", load_format="dummy", device="cpu"),
        engine=EngineSettings(
            kv_memory_bytes=8 * 2**20,
            max_running=8,
            max_batch_tokens=32,
            max_queue_requests=max_queue_requests,
            threads=1,
            tenants=tenants or {},
            prefix_cache_sharing=prefix_cache_sharing,
        ),
        server=ServerSettings(
            host="127.0.0.1",
            port=0,
            admin_address="127.0.0.1:0",
            metrics_host="127.0.0.1",
            metrics_port=metrics_port,
        ),
        telemetry=telemetry or TelemetrySettings(),
    )
    observer, engine = Telemetry(settings, "tiny"), EngineClient(settings)
    engine.start()
    app = App(settings, engine, NoTokenizer(), observer)
    await app.start()
    try:
        await engine.ready()
        yield TinyServer(app, engine, observer)
    finally:
        await app.shut_down()
