"""A config.json's values by type and range: what a stranger wrote is checked where it is read, and named when wrong."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Any

from weir.models.errors import ModelFolderError


class ConfigValues:
    """Typed access to a JSON object. `null` counts as absent. Each method raises ModelFolderError naming the key."""

    def __init__(self, values: Mapping[str, Any], name: str = "config.json") -> None:
        """name: what errors call the object."""
        self._values = values
        self._name = name

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def raw(self, key: str) -> object:
        """The value as it is."""
        return self._values.get(key)

    def integer(self, key: str, default: int | None = None, *, least: int = 1, most: int) -> int:
        """An integer from `least` to `most`, both included."""
        value = self._present(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self._wrong(key, f"an integer from {least} to {most}", value)
        return value

    def number(self, key: str, default: float | None = None, *, above: float = 0.0, most: float = 1e18) -> float:
        """A finite number above `above`, at most `most`."""
        value = self._present(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not above < value <= most:
            raise self._wrong(key, f"a number above {above:g}, at most {most:g}", value)
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false."""
        value = self._present(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def text(self, key: str, default: str) -> str:
        """A string."""
        value = self._present(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a text", value)
        return value

    def texts(self, key: str) -> list[str]:
        """A list of strings; empty when absent."""
        value = self._present(key, [])
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise self._wrong(key, "a list of texts", value)
        return value

    def section(self, key: str) -> ConfigValues | None:
        """A JSON object within; None when absent or empty."""
        value = self._present(key, {})
        if not isinstance(value, Mapping):
            raise self._wrong(key, "an object", value)
        return ConfigValues(value, f"{self._name}: {key}") if value else None

    def has_sections(self) -> bool:
        """Whether any value is a JSON object itself."""
        return any(isinstance(value, Mapping) for value in self._values.values())

    def _present(self, key: str, default: object) -> object:
        value = self._values.get(key)
        if value is None:
            value = default
        if value is None:
            raise ModelFolderError(f"{self._name} has no {key}")
        return value

    def _wrong(self, key: str, wanted: str, value: object) -> ModelFolderError:
        shown = value if isinstance(value, float) and not math.isfinite(value) else reprlib.repr(value)
        return ModelFolderError(f"{self._name}: {key} must be {wanted}, not {shown}")
