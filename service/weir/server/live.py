"""The requests in flight: counted for draining, unique by tenant and id, and interruptible from another call."""

from __future__ import annotations

import asyncio
import uuid
from types import TracebackType
from typing import Self

from weir.engine.errors import CancelledError, InvalidRequestError, RequestError, Violation
from weir.server.metadata import MAX_ID_CHARS, is_valid_id


class LiveRequest:
    """A context manager around one request, in the task that serves it.

    `interrupt(error)` from outside makes the body end at its next await, and the `with` block raise `error`.
    """

    def __init__(self, owner: LiveRequests, request_id: str, tenant: str) -> None:
        self.request_id = request_id
        self.tenant = tenant
        self._owner = owner
        self._task: asyncio.Task[object] | None = None
        self._error: RequestError | None = None

    def interrupt(self, error: RequestError) -> None:
        """End the request with `error`. Only the first call counts."""
        if self._error is None and self._task is not None:
            self._error = error
            self._task.cancel()

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        self._owner._add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._owner._remove(self)
        if self._error is None or self._task is None:
            return
        # As in asyncio.timeout: if the task was also cancelled by its owner, that cancellation wins.
        if self._task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise self._error from None


class LiveRequests:
    """All live requests of this server. Each tenant has ids of its own, and learns nothing of another's."""

    def __init__(self) -> None:
        self._by_id: dict[tuple[str, str], LiveRequest] = {}  # by tenant and id
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._by_id)

    def open(self, request_id: str, header_id: str, tenant: str) -> LiveRequest:
        """A live request under the id it asked for.

        An id in the request is the caller's key: a second live one is refused. `x-request-id` only correlates, and a
        gateway repeats it when it retries, so a second live one gets a suffix. Raises InvalidRequestError.
        """
        if request_id:
            if not is_valid_id(request_id):
                raise _violation(f"must be 1 to {MAX_ID_CHARS} printable ASCII characters")
            if (tenant, request_id) in self._by_id:
                raise _violation("a live request already has this id")
            return LiveRequest(self, request_id, tenant)
        unique = uuid.uuid4().hex
        if not header_id or not is_valid_id(header_id):
            return LiveRequest(self, unique, tenant)
        is_taken = (tenant, header_id) in self._by_id
        return LiveRequest(self, f"{header_id}-{unique[:8]}" if is_taken else header_id, tenant)

    def cancel(self, request_id: str, tenant: str) -> bool:
        """Interrupt a live request of this tenant; whether there was one."""
        request = self._by_id.get((tenant, request_id))
        if request is None:
            return False
        request.interrupt(CancelledError("cancelled by a Cancel call"))
        return True

    def interrupt_all(self, error: RequestError) -> None:
        """Interrupt every live request."""
        for request in list(self._by_id.values()):
            request.interrupt(error)

    async def wait_empty(self, timeout_s: float) -> bool:
        """Wait until nothing is live, at most `timeout_s`; whether that came true."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def _add(self, request: LiveRequest) -> None:
        self._by_id[request.tenant, request.request_id] = request
        self._empty.clear()

    def _remove(self, request: LiveRequest) -> None:
        del self._by_id[request.tenant, request.request_id]
        if not self._by_id:
            self._empty.set()


def _violation(description: str) -> InvalidRequestError:
    return InvalidRequestError((Violation("request_id", description),))
