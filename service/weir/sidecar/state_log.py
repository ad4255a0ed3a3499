"""One log line for each change of a state, however often the state is looked at."""

from __future__ import annotations

import logging
import threading


class StateLog:
    """Remembers the last state of each topic. Safe to use from several threads."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._states: dict[str, str] = {}
        self._lock = threading.Lock()

    def set(self, topic: str, state: str, message: str, level: int = logging.WARNING) -> None:
        """Log `message` if the topic was in another state."""
        with self._lock:
            if self._states.get(topic) == state:
                return
            self._states[topic] = state
        self._logger.log(level, "%s: %s", topic, message)
