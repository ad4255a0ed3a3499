"""Puts the parts of a server process together and runs it."""

from __future__ import annotations

from pathlib import Path

import uvloop

from weir.config import Settings
from weir.engine.process import EngineClient
from weir.server.admin import check_address
from weir.server.app import App
from weir.server.prompts import NoTokenizer
from weir.server.scheduling import patient_threads
from weir.server.tokenizer_pool import TokenizerPool
from weir.telemetry.telemetry import Telemetry


def serve(settings: Settings) -> int:
    """Serve until told to stop; the process's exit code. Raises ConfigError for settings that cannot work."""
    check_address(settings.server.admin_address)
    return uvloop.run(_serve(settings))


async def _serve(settings: Settings) -> int:
    model = settings.model
    observer = Telemetry(settings, model.served_model_name or Path(model.model).name)
    engine, tokenizer = EngineClient(settings), make_tokenizer(settings)
    # gRPC must not exist yet in a process that starts another one.
    engine.start()
    tokenizer.start()
    with patient_threads():
        app = App(settings, engine, tokenizer, observer)
    return await app.run()


def make_tokenizer(settings: Settings) -> TokenizerPool | NoTokenizer:
    """The tokenizer of the model folder, which need not have one for random weights."""
    folder = Path(settings.model.model)
    if settings.model.load_format == "dummy" and not (folder / "tokenizer.json").exists():
        return NoTokenizer()
    return TokenizerPool(folder, settings.server)
