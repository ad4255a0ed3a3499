"""Puts the parts of a server process together and runs it."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import uvloop

from weir.config import ConfigError, Settings, TenantSettings
from weir.engine.process import EngineClient
from weir.exit_codes import OK
from weir.models.check import check_model
from weir.models.errors import ModelError
from weir.server.app import App
from weir.server.checks import check_server
from weir.server.prompts import NoTokenizer
from weir.server.scheduling import patient_threads
from weir.server.signals import StopSignals, end_within
from weir.server.tokenizer_pool import TokenizerPool
from weir.server.tokens import tenants_of_tokens
from weir.telemetry.logging import configure_logging
from weir.telemetry.telemetry import Telemetry

# What a process gets that was asked to end twice: to send the last statuses, and to kill its engine.
ASKED_TWICE_S = 2.0
# For threads that still work on what nobody waits for any more, such as a long prompt's tokens.
LAST_THREADS_S = 1.0


def serve(settings: Settings) -> int:
    """Serve until told to stop; the process's exit code. Raises ConfigError for settings that cannot work."""
    check_server(settings.server)
    check_folder(settings)
    return uvloop.run(_serve(with_tenants_of_tokens(settings)))


def with_tenants_of_tokens(settings: Settings) -> Settings:
    """The settings with a place for each tenant that the token file names: who has a token of its own is told apart.

    Raises ConfigError for a wrong file.
    """
    named = {tenant: TenantSettings() for tenant in sorted(tenants_of_tokens(settings.server))}
    engine = settings.engine.model_copy(update={"tenants": named | settings.engine.tenants})
    return settings.model_copy(update={"engine": engine})


def check_folder(settings: Settings) -> None:
    """Raise ConfigError for a model that cannot be served, as far as that is known without reading its weights."""
    try:
        check_model(Path(settings.model.model), random_weights=settings.model.load_format == "dummy")
    except ModelError as error:
        raise ConfigError(f"--model: {error}") from None


async def _serve(settings: Settings) -> int:
    # Before there is another process, which this one must not leave behind.
    signals = StopSignals(asyncio.get_running_loop(), lambda: end_within(ASKED_TWICE_S, OK))
    model = settings.model
    observer = Telemetry(settings, model.served_model_name or Path(model.model).name)
    engine, tokenizer = EngineClient(settings, partial(configure_logging, settings.telemetry)), make_tokenizer(settings)
    # gRPC must not exist yet in a process that starts another one.
    engine.start()
    tokenizer.start()
    try:
        with patient_threads():
            app = App(settings, engine, tokenizer, observer)
    except BaseException:
        tokenizer.close()
        await engine.stop(0.0)
        raise
    exit_code = await app.run(signals)
    end_within(LAST_THREADS_S, exit_code)
    return exit_code


def make_tokenizer(settings: Settings) -> TokenizerPool | NoTokenizer:
    """The tokenizer of the model folder, which need not have one for random weights."""
    folder = Path(settings.model.model)
    if settings.model.load_format == "dummy" and not (folder / "tokenizer.json").exists():
        return NoTokenizer()
    return TokenizerPool(folder, settings.server)
