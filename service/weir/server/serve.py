"""Puts the parts of a server process together and runs it."""

from __future__ import annotations

from pathlib import Path

import uvloop

from weir.config import ConfigError, Settings
from weir.engine.process import EngineClient
from weir.models.check import check_model
from weir.models.errors import ModelError
from weir.models.tokenizer import Tokenizer as ModelTokenizer
from weir.server.admin import check_address
from weir.server.app import App
from weir.server.prompts import NoTokenizer, Tokenizer
from weir.server.scheduling import patient_threads
from weir.telemetry.telemetry import Telemetry


def serve(settings: Settings) -> int:
    """Serve until told to stop; the process's exit code. Raises ConfigError for settings that cannot work."""
    check_address(settings.server.admin_address)
    check_folder(settings)
    return uvloop.run(_serve(settings))


def check_folder(settings: Settings) -> None:
    """Raise ConfigError for a model that cannot be served, as far as that is known without reading its weights."""
    try:
        check_model(Path(settings.model.model), random_weights=settings.model.load_format == "dummy")
    except ModelError as error:
        raise ConfigError(f"--model: {error}") from None


async def _serve(settings: Settings) -> int:
    model = settings.model
    observer = Telemetry(settings, model.served_model_name or Path(model.model).name)
    engine = EngineClient(settings)
    # gRPC must not exist yet in a process that starts another one.
    engine.start()
    with patient_threads():
        app = App(settings, engine, lambda: load_tokenizer(settings), observer)
    return await app.run()


def load_tokenizer(settings: Settings) -> Tokenizer:
    """The model folder's tokenizer. Raises ModelError."""
    folder = Path(settings.model.model)
    if settings.model.load_format == "dummy" and not (folder / "tokenizer.json").exists():
        return NoTokenizer()
    return ModelTokenizer(folder)
