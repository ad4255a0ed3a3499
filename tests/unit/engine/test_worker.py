"""The loop of the engine process over an engine that runs a step ahead."""

from __future__ import annotations

import queue
import threading
from typing import Any

from weir.engine import worker
from weir.engine.messages import Cancel, Flush, Flushed, FromEngine, Output, Stop, Submit, ToEngine
from weir.engine.request import Delta, Done, Failed, GenerateRequest, SamplingParams

from tests.cases.engines import ExactModel, make_core, some_tokens

from .queued_runner import QueuedRunner

GREEDY = SamplingParams(max_tokens=6, temperature=0.0)


class Outbox(queue.SimpleQueue[FromEngine]):
    """The engine's end of the pipe."""

    def send(self, message: FromEngine) -> None:
        self.put(message)


class Heartbeat:
    """Whether the engine said last that it works."""

    working = False

    def beat(self) -> None:
        self.working = True

    def rest(self) -> None:
        self.working = False


class Served:
    """A worker in a thread, which `stop` ends."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[ToEngine] = queue.SimpleQueue()
        self.outbox, self.heartbeat = Outbox(), Heartbeat()
        self.core = make_core(run_by=QueuedRunner)
        arguments: tuple[Any, ...] = (self.core, self.inbox, self.outbox, self.heartbeat)
        self.thread = threading.Thread(target=worker._serve, args=arguments)
        self.thread.start()

    def until_ended(self, *request_ids: str) -> list[Output]:
        """Everything the worker says until these requests have ended."""
        outputs, left = [], set(request_ids)
        while left:
            message = self.outbox.get(timeout=30)
            assert isinstance(message, Output)
            outputs.append(message)
            left -= {event.request_id for event in message.events if isinstance(event, Done | Failed)}
        return outputs

    def stop(self) -> list[FromEngine]:
        """What it still said."""
        self.inbox.put(Stop())
        self.thread.join(30)
        assert not self.thread.is_alive()
        rest = []
        while not self.outbox.empty():
            rest.append(self.outbox.get())
        return rest


def test_every_step_is_reported_once_and_the_loop_comes_to_rest() -> None:
    served = Served()
    for name in ("a", "b"):
        served.inbox.put(Submit(GenerateRequest(name, some_tokens(7, seed=ord(name)), GREEDY)))
    outputs = served.until_ended("a", "b")
    served.inbox.put(Flush())
    last = served.stop()
    records = [m.record for m in [*outputs, *last] if isinstance(m, Output) and m.record is not None]
    assert [record.step for record in records] == list(range(1, len(records) + 1))
    assert sum(r.decode_tokens for r in records) == 2 * 5
    for name in ("a", "b"):
        made = [
            t for o in outputs for e in o.events if isinstance(e, Delta) and e.request_id == name for t in e.token_ids
        ]
        assert made == ExactModel().continuation(some_tokens(7, seed=ord(name)), 6, GREEDY)
    assert [m for m in last if isinstance(m, Flushed)] != []
    assert not served.core.has_work
    assert not served.heartbeat.working


def test_a_cancel_ends_the_request_and_the_step_on_its_way_is_still_reported() -> None:
    served = Served()
    served.inbox.put(Submit(GenerateRequest("a", some_tokens(7), SamplingParams(max_tokens=100, temperature=0.0))))
    first = served.outbox.get(timeout=30)
    assert isinstance(first, Output)
    served.inbox.put(Cancel("a"))
    outputs = [first, *served.until_ended("a")]
    served.inbox.put(Submit(GenerateRequest("b", some_tokens(5), GREEDY)))
    outputs += served.until_ended("b")
    outputs += [message for message in served.stop() if isinstance(message, Output)]
    records = [output.record for output in outputs if output.record is not None]
    assert [record.step for record in records] == list(range(1, len(records) + 1))
    assert served.core.snapshot().step == len(records)
    assert served.core.snapshot().kv_used_tokens == 0
