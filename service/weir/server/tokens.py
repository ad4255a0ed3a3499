"""Bearer tokens that may be changed while the server runs, and whose calls they are good for.

A token may be for one tenant: then the server knows whose a call is, and need not believe what it says.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import stat
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path

import grpc

from weir.config import ConfigError, ServerSettings
from weir.server.errors import ErrorStatus, StatusError, status_of
from weir.server.file_stamp import stamp_of
from weir.server.grants import Grant, read_grants
from weir.server.metadata import AUTHORIZATION_KEY, REQUEST_ID_KEY, TENANT_KEY, given_id, text_of

# Probes carry no credentials, and their answer tells nothing.
OPEN_SERVICES = ("/grpc.health.v1.Health/",)
# A group that may read is what volumes with fsGroup have.
_TOO_OPEN = stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP

_log = logging.getLogger(__name__)


def token_file(settings: ServerSettings, tenants: Collection[str] = ()) -> TokenFile | None:
    """The settings' token file, if there is one; `tenants` are the configured ones. Raises ConfigError."""
    if settings.auth_tokens_file is None:
        return None
    return TokenFile(settings.auth_tokens_file, settings.auth_tokens_grace_s, tenants=tenants)


def tenants_of_tokens(settings: ServerSettings) -> frozenset[str]:
    """The tenants that the settings' token file names now. Raises ConfigError."""
    if settings.auth_tokens_file is None:
        return frozenset()
    return _tenants_of(grant for _, grant in read_tokens(settings.auth_tokens_file))


class TokenFile:
    """Tokens, one a line (see `weir.token_lines`). tenants: the configured ones.

    A file that is emptied, removed or made unreadable may be on its way to its next content, so the tokens stay good
    for `grace_s`. After that none is: whoever took them away meant it.
    """

    def __init__(
        self,
        path: str,
        grace_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        tenants: Collection[str] = (),
    ) -> None:
        self._path = Path(path)
        self._grace_s = grace_s
        self._clock = clock
        self._tenants = tenants
        self._unusable_since: float | None = None
        self._seen = stamp_of(self._path)
        self._grants = read_tokens(path)
        self._tell_risks()

    def is_unusable(self) -> bool:
        """Whether the file holds no token, holds a wrong line, or cannot be read."""
        self._refresh()
        return self._unusable_since is not None

    def grant(self, token: str) -> Grant | None:
        """What `token` is good for; None: it is unknown. Takes as long for a wrong token as for a right one."""
        self._refresh()
        digest = _digest(token)
        # All are compared, whichever matches: the time must not tell which one it was.
        found = [grant for known, grant in self._grants if hmac.compare_digest(digest, known)]
        return found[0] if found else None

    def _refresh(self) -> None:
        stamp = stamp_of(self._path)
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._grants = read_tokens(str(self._path))
            except ConfigError as error:
                if self._unusable_since is None:
                    self._unusable_since = self._clock()
                    _log.error("%s: the tokens in use stay good for %.0f s", error, self._grace_s)
            else:
                self._unusable_since = None
                _log.info("%d tokens read from %s", len(self._grants), self._path)
                self._tell_risks()
        if self._grants and self._unusable_since is not None and self._clock() - self._unusable_since >= self._grace_s:
            self._grants = []
            _log.error("auth-tokens-file: %s was of no use for %.0f s: no token is good", self._path, self._grace_s)

    def _tell_risks(self) -> None:
        with contextlib.suppress(OSError):
            mode = self._path.stat().st_mode
            if mode & _TOO_OPEN:
                _log.warning("%s is open to others (mode %04o): they can read or add tokens", self._path, mode & 0o7777)
        for tenant in sorted(_tenants_of(grant for _, grant in self._grants) - set(self._tenants)):
            _log.warning(
                "auth-tokens-file: tenant %s is new: until the server is started anew, it shares the place of default",
                tenant,
            )


def read_tokens(path: str) -> list[tuple[bytes, Grant]]:
    """The tokens of a file, hashed, and what each is good for.

    Raises ConfigError when there is none, when a line is wrong, or when it cannot be read.
    """
    try:
        grants = read_grants(Path(path).read_text())
    except OSError as error:
        raise ConfigError(f"auth-tokens-file: {error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"auth-tokens-file: {path} is not text") from None
    except ValueError as error:
        raise ConfigError(f"auth-tokens-file: {path}, {error}") from None
    if not grants:
        raise ConfigError(f"auth-tokens-file: {path} holds no token")
    return [(_digest(token), grant) for token, grant in grants.items()]


class Callers:
    """Whose call one is: its token's tenant where there are tokens, otherwise the one it names."""

    def __init__(self, tokens: TokenFile | None = None) -> None:
        self._tokens = tokens

    def tenant_of(self, metadata: Mapping[str, str]) -> str:
        """The tenant, empty for none. Raises StatusError without a known token, and for another tenant than its own."""
        named = metadata.get(TENANT_KEY, "")
        if self._tokens is None:
            return named
        scheme, _, token = metadata.get(AUTHORIZATION_KEY, "").partition(" ")
        grant = self._tokens.grant(token.strip()) if scheme.lower() == "bearer" else None
        if grant is None:
            message = "send a known token as metadata: authorization: Bearer TOKEN"
            raise StatusError(grpc.StatusCode.UNAUTHENTICATED, message)
        return grant.tenant_of(named)

    def interceptors(self) -> list[grpc.aio.ServerInterceptor]:
        """What lets in only those who may call; nothing where no token is asked for."""
        return [] if self._tokens is None else [TokenInterceptor(self)]


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses every RPC, but for health, without a known `authorization: Bearer TOKEN` or for another tenant."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """Let the call through, or hand back a handler that refuses it."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(OPEN_SERVICES):
            return handler
        try:
            self._callers.tenant_of(text_of(handler_call_details.invocation_metadata))
        except StatusError as error:
            return _refusal_like(handler, status_of(error))
        return handler


def _refusal_like(handler: grpc.RpcMethodHandler, status: ErrorStatus) -> grpc.RpcMethodHandler:
    async def refuse(request: object, context: grpc.aio.ServicerContext) -> None:
        request_id = given_id(context) or uuid.uuid4().hex
        await context.abort(status.code, status.message, (*status.trailers, (REQUEST_ID_KEY, request_id)))

    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    return make(refuse, handler.request_deserializer, handler.response_serializer)


def _tenants_of(grants: Iterable[Grant]) -> frozenset[str]:
    return frozenset(grant.tenant for grant in grants if grant.tenant)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
