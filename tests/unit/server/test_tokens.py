"""Bearer tokens: who gets in, as whom, and what becomes of it when the file changes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from weir.config import ConfigError, ServerSettings
from weir.server.security import Credentials, bind
from weir.server.tokens import Callers, TokenFile, token_file
from weir.telemetry.metrics import Metrics

from tests.unit.server.echo_server import METHODS, Echo, Serve, call, levels, replace


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text("# team a\nalpha-token\n\n  beta-token  \n")
    file.chmod(0o600)
    return file


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ((("authorization", "Bearer alpha-token"),), None),
        ((("authorization", "bearer beta-token"),), None),
        ((("authorization", "Bearer alpha-toke"),), grpc.StatusCode.UNAUTHENTICATED),
        ((("authorization", "Bearer # team a"),), grpc.StatusCode.UNAUTHENTICATED),
        ((("authorization", "Basic alpha-token"),), grpc.StatusCode.UNAUTHENTICATED),
        ((("authorization", "alpha-token"),), grpc.StatusCode.UNAUTHENTICATED),
        ((("authorization", "Bearer "),), grpc.StatusCode.UNAUTHENTICATED),
        ((), grpc.StatusCode.UNAUTHENTICATED),
    ],
)
@pytest.mark.parametrize("method", METHODS)
async def test_only_a_known_bearer_token_opens_each_kind_of_method(
    serve: Serve, tokens: Path, method: str, metadata: tuple[tuple[str, str], ...], code: grpc.StatusCode | None
) -> None:
    port = await serve(ServerSettings(auth_tokens_file=str(tokens)))
    if code is None:
        assert await asyncio.to_thread(call, port, method, metadata) == [b"hello"]
    else:
        with pytest.raises(grpc.RpcError) as refused:
            await asyncio.to_thread(call, port, method, metadata)
        assert refused.value.code() == code
        assert dict(refused.value.trailing_metadata())["grpc-retry-pushback-ms"] == "-1"


async def test_health_needs_no_token_and_an_unknown_method_is_still_unknown(serve: Serve, tokens: Path) -> None:
    port = await serve(ServerSettings(auth_tokens_file=str(tokens)))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == 1
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await channel.unary_unary("/test.Echo/Nothing")(b"", timeout=10)
        assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_tokens_change_without_a_restart(tokens: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = TokenFile(str(tokens))
    assert file.grant("alpha-token")
    replace(tokens, b"gamma-token\n")
    assert file.grant("gamma-token")
    assert file.grant("alpha-token") is None
    assert all("gamma-token" not in record.getMessage() for record in caplog.records)


LOST = {"emptied": b"# nothing\n", "no text": b"\xff\n", "a wrong line": b"alpha-token\ntenant=gold\n"}


@pytest.mark.parametrize("loss", ["removed", *LOST])
def test_tokens_that_are_taken_away_stay_good_for_a_while_and_then_none_is(
    tokens: Path, loss: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    file = TokenFile(str(tokens), grace_s=60.0, clock=clock)
    if loss == "removed":
        tokens.unlink()
    else:
        replace(tokens, LOST[loss])
    assert file.grant("alpha-token")
    assert file.is_unusable()
    clock.now += 59.9
    assert file.grant("alpha-token")
    assert levels(caplog) == ["ERROR"]
    clock.now += 0.1
    assert file.grant("alpha-token") is None
    assert file.is_unusable()
    assert levels(caplog) == ["ERROR", "ERROR"]
    replace(tokens, b"alpha-token\n")
    assert file.grant("alpha-token")
    assert not file.is_unusable()


def test_a_file_that_is_written_anew_in_two_steps_loses_nobody(tokens: Path) -> None:
    clock = Clock()
    file = TokenFile(str(tokens), grace_s=60.0, clock=clock)
    tokens.write_text("")
    assert file.grant("alpha-token")
    clock.now += 1.0
    tokens.write_text("gamma-token\n")
    assert file.grant("gamma-token")
    assert file.grant("alpha-token") is None
    clock.now += 100.0
    assert file.grant("gamma-token")


async def test_a_server_whose_tokens_were_taken_away_answers_nobody_and_its_metrics_say_so(
    serve: Serve, tokens: Path
) -> None:
    metrics = Metrics("tiny")
    settings = ServerSettings(auth_tokens_file=str(tokens), auth_tokens_grace_s=0.0)
    metrics.credentials.view = credentials = Credentials(token_file(settings))
    server = grpc.aio.server(interceptors=Callers(credentials.tokens).interceptors())
    server.add_generic_rpc_handlers((Echo(),))
    port = bind(server, "127.0.0.1:0", settings, credentials)
    await server.start()
    known = (("authorization", "Bearer alpha-token"),)
    assert b"weir_auth_tokens_unusable 0\n" in metrics.text()
    assert await asyncio.to_thread(call, port, "/test.Echo/UnaryUnary", known) == [b"hello"]
    await asyncio.to_thread(tokens.unlink)
    assert b"weir_auth_tokens_unusable 1\n" in metrics.text()
    with pytest.raises(grpc.RpcError) as refused:
        await asyncio.to_thread(call, port, "/test.Echo/UnaryUnary", known)
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    await server.stop(0)


@pytest.mark.parametrize(("mode", "warned"), [(0o600, 0), (0o640, 0), (0o644, 1), (0o666, 1), (0o620, 1)])
def test_a_file_of_tokens_that_others_can_read_or_change_is_worth_a_warning(
    tokens: Path, mode: int, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    tokens.chmod(mode)
    TokenFile(str(tokens))
    assert levels(caplog) == ["WARNING"] * warned
    assert all(f"mode {mode:04o}" in record.getMessage() for record in caplog.records)


def test_a_file_without_tokens_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("# none yet\n")
    with pytest.raises(ConfigError, match="holds no token"):
        TokenFile(str(tmp_path / "tokens"))
    with pytest.raises(ConfigError, match="auth-tokens-file"):
        token_file(ServerSettings(auth_tokens_file=str(tmp_path / "missing")))
