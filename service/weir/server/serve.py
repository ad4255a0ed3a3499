"""Puts the parts of a server process together and runs it."""

from __future__ import annotations

from pathlib import Path

import uvloop

from weir.config import ConfigError, Settings
from weir.engine.process import EngineClient
from weir.models.check import check_model
from weir.models.errors import ModelError
from weir.server.admin import check_address
from weir.server.app import App
from weir.server.prompts import NoTokenizer, Tokenizer
from weir.server.scheduling import patient_threads
from weir.telemetry.telemetry import Telemetry


def serve(settings: Settings) -> int:
    """Serve until told to stop; the process's exit code. Raises ConfigError for settings that cannot work."""
    check_address(settings.server.admin_address)
    # Before anything slow begins: a wrong folder is said at once.
    tokenizer = load_tokenizer(settings)
    return uvloop.run(_serve(settings, tokenizer))


async def _serve(settings: Settings, tokenizer: Tokenizer) -> int:
    model = settings.model
    observer = Telemetry(settings, model.served_model_name or Path(model.model).name)
    engine = EngineClient(settings)
    # gRPC must not exist yet in a process that starts another one.
    engine.start()
    with patient_threads():
        app = App(settings, engine, lambda: tokenizer, observer)
    return await app.run()


def load_tokenizer(settings: Settings) -> Tokenizer:
    """The model folder's tokenizer, with the rest of the folder checked. Raises ConfigError, naming the setting."""
    model = settings.model
    try:
        tokenizer = check_model(Path(model.model), random_weights=model.load_format == "dummy")
    except ModelError as error:
        raise ConfigError(f"--model: {error}") from None
    return NoTokenizer() if tokenizer is None else tokenizer
