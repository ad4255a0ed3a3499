"""Bearer tokens: who gets in, as whom, and what becomes of it when the file changes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from weir.config import ConfigError, EngineSettings, ServerSettings, Settings, TenantSettings
from weir.server.security import Credentials, bind
from weir.server.serve import with_tenants_of_tokens
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


BOUND = "plain\ntenant=gold gold-token\ntenant=batch batch-token\ntenant=* gateway-token\n"
DENIED = grpc.StatusCode.PERMISSION_DENIED


@pytest.fixture
def bound(tokens: Path) -> Path:
    """A file whose tokens are for tenants."""
    tokens.write_text(BOUND)
    return tokens


def status(port: int, method: str, *metadata: tuple[str, str]) -> grpc.StatusCode | None:
    """How a call ended; None: well."""
    try:
        assert call(port, method, metadata) == [b"hello"]
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return None


@pytest.mark.parametrize(
    ("token", "tenant", "expected"),
    [
        ("gold-token", None, None),
        ("gold-token", "", None),
        ("gold-token", "gold", None),
        ("gold-token", "batch", DENIED),
        ("gold-token", "Gold", DENIED),
        ("gold-token", "*", DENIED),
        ("batch-token", "gold", DENIED),
        ("plain", None, None),
        ("plain", "gold", DENIED),
        ("plain", "unheard-of", DENIED),
        ("gateway-token", None, None),
        ("gateway-token", "gold", None),
        ("gateway-token", "unheard-of", None),
        ("unknown", "gold", grpc.StatusCode.UNAUTHENTICATED),
    ],
)
@pytest.mark.parametrize("method", METHODS)
async def test_a_token_of_one_tenant_makes_no_call_for_another(
    serve: Serve, bound: Path, method: str, token: str, tenant: str | None, expected: grpc.StatusCode | None
) -> None:
    port = await serve(ServerSettings(auth_tokens_file=str(bound)))
    named = () if tenant is None else (("x-tenant-id", tenant),)
    assert await asyncio.to_thread(status, port, method, ("authorization", f"Bearer {token}"), *named) == expected


@pytest.mark.parametrize(
    ("token", "named", "tenant"),
    [("gold-token", "", "gold"), ("gold-token", "gold", "gold"), ("plain", "", ""), ("gateway-token", "any", "any")],
)
def test_the_tenant_of_a_call_is_that_of_its_token(bound: Path, token: str, named: str, tenant: str) -> None:
    callers = Callers(TokenFile(str(bound)))
    metadata = {"authorization": f"Bearer {token}"} | ({"x-tenant-id": named} if named else {})
    assert callers.tenant_of(metadata) == tenant


def test_in_a_file_that_names_no_tenant_every_token_speaks_for_any(tokens: Path) -> None:
    callers = Callers(TokenFile(str(tokens)))
    for named in ("", "gold", "unheard-of"):
        assert callers.tenant_of({"authorization": "Bearer alpha-token", "x-tenant-id": named}) == named


def test_without_tokens_a_call_is_whose_it_says() -> None:
    assert [Callers().tenant_of(said) for said in ({}, {"x-tenant-id": "gold"})] == ["", "gold"]


@pytest.mark.parametrize("key", ["authorization", "x-tenant-id"])
async def test_metadata_that_come_twice_are_checked_and_served_as_one_and_the_same(
    serve: Serve, bound: Path, key: str
) -> None:
    """Else a caller's own token would open the door for the other one's tenant."""
    port = await serve(ServerSettings(auth_tokens_file=str(bound)))
    pairs = {
        "authorization": ("Bearer unknown", "Bearer gold-token"),
        "x-tenant-id": ("batch", "gold"),
    }[key]
    alone = (("authorization", "Bearer gold-token"),) if key == "x-tenant-id" else ()
    metadata = (*alone, *((key, value) for value in pairs))
    refused = {"authorization": grpc.StatusCode.UNAUTHENTICATED, "x-tenant-id": DENIED}[key]
    assert await asyncio.to_thread(status, port, "/test.Echo/UnaryUnary", *metadata) == refused


async def test_a_refusal_says_its_reason_and_names_no_tenant(serve: Serve, bound: Path) -> None:
    port = await serve(ServerSettings(auth_tokens_file=str(bound)))
    said = []
    for named in ("batch", "unheard-of"):  # one that is there, and one that is not
        metadata = (("authorization", "Bearer gold-token"), ("x-tenant-id", named))
        with pytest.raises(grpc.RpcError) as caught:
            await asyncio.to_thread(call, port, "/test.Echo/UnaryUnary", metadata)
        trailers = dict(caught.value.trailing_metadata())
        trailers.pop("x-request-id")  # of the call itself
        said.append((caught.value.code(), caught.value.details(), trailers))
    assert said[0] == said[1]
    assert b"TENANT_REFUSED" in said[0][2]["grpc-status-details-bin"]
    assert said[0][2]["grpc-retry-pushback-ms"] == "-1"
    assert "gold" not in said[0][1]


def test_a_token_may_be_moved_to_another_tenant_without_a_restart(tokens: Path) -> None:
    tokens.write_text("tenant=gold alpha-token\n")
    file = TokenFile(str(tokens))
    replace(tokens, b"tenant=batch alpha-token\n")
    assert Callers(file).tenant_of({"authorization": "Bearer alpha-token"}) == "batch"


def test_a_tenant_that_comes_while_the_server_runs_is_told_and_one_that_is_known_is_not(
    tokens: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens.chmod(0o600)
    tokens.write_text("tenant=gold alpha-token\n")
    file = TokenFile(str(tokens), tenants={"gold": None})
    assert levels(caplog) == []
    tokens.write_text("tenant=gold alpha-token\ntenant=late beta-token\n")
    assert file.grant("beta-token") is not None
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "auth-tokens-file: tenant late is new: until the server is started anew, it shares the place of default"
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tenant=gold\n", "line 1 must be tenant=NAME TOKEN"),
        ("a\ntenant=gold s3cret\ntenant=batch s3cret\n", "line 3: the token is there before, for another tenant"),
        ("s3cret\ntenant=batch s3cret\n", "line 2: the token is there before"),
        (f"tenant={'t' * 129} s3cret\n", "line 1: a tenant's name is 1 to 128 printable ASCII characters"),
        ("tenant=gül s3cret\n", "line 1: a tenant's name is"),
    ],
)
def test_a_wrong_line_stops_the_start_and_its_token_is_not_shown(tokens: Path, text: str, said: str) -> None:
    tokens.write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        TokenFile(str(tokens))
    assert "s3cret" not in str(caught.value)


def test_a_tenants_name_of_128_characters_is_one(tokens: Path) -> None:
    tokens.write_text(f"tenant={'t' * 128} s3cret\ntenant={'t' * 128} s3cret\n")
    assert Callers(TokenFile(str(tokens))).tenant_of({"authorization": "Bearer s3cret"}) == "t" * 128


def test_each_tenant_of_the_token_file_has_a_place_of_its_own(bound: Path) -> None:
    engine = EngineSettings(tenants={"gold": TenantSettings(weight=3)})
    settings = with_tenants_of_tokens(Settings(engine=engine, server=ServerSettings(auth_tokens_file=str(bound))))
    assert settings.engine.tenants == {"gold": TenantSettings(weight=3), "batch": TenantSettings()}
    assert with_tenants_of_tokens(Settings()) == Settings()
