"""What the server and the engine process say to each other."""

from __future__ import annotations

from dataclasses import dataclass

from weir.engine.records import BudgetSnapshot, EngineInfo, LoadStage, QueueOutlook, StepRecord
from weir.engine.request import Event, GenerateRequest
from weir.engine.validation import RequestLimits


@dataclass(frozen=True, slots=True)
class Submit:
    """To the engine: queue this request."""

    request: GenerateRequest


@dataclass(frozen=True, slots=True)
class Cancel:
    """To the engine: end this request."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Flush:
    """To the engine: forget cached prefixes; answered with Flushed."""


@dataclass(frozen=True, slots=True)
class Stop:
    """To the engine: end."""


@dataclass(frozen=True, slots=True)
class Loading:
    """From the engine, before Ready: how far it is."""

    stage: LoadStage


@dataclass(frozen=True, slots=True)
class Ready:
    """From the engine: the model is loaded."""

    info: EngineInfo
    limits: RequestLimits
    budget: BudgetSnapshot


@dataclass(frozen=True, slots=True)
class Output:
    """From the engine: a step, or what happened between steps (record is None). outlook: None while it is the last."""

    record: StepRecord | None
    budget: BudgetSnapshot
    events: list[Event]
    outlook: QueueOutlook | None = None


@dataclass(frozen=True, slots=True)
class Flushed:
    """From the engine: blocks that became free."""

    blocks: int


@dataclass(frozen=True, slots=True)
class Fatal:
    """From the engine: why it is about to exit. wrong_settings: trying again will not help."""

    detail: str
    wrong_settings: bool = False


ToEngine = Submit | Cancel | Flush | Stop
FromEngine = Loading | Ready | Output | Flushed | Fatal
