"""Horizontal bar charts as SVG text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _LABEL, _VALUE = 760, 250, 150
_BAR, _GAP, _HEAD, _TITLE = 20, 8, 30, 34
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1f2328}.title{font-weight:600;font-size:15px}"
    ".head{font-weight:600}.value{font-variant-numeric:tabular-nums}.lead{fill:#0969da}.other{fill:#8c959f}"
    ".spread{stroke:#1f2328;stroke-width:1.5}.paper{fill:#fff}"
)


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar, its range drawn as a line across its end; `lead` gives it the colour of attention."""

    label: str
    value: float
    text: str
    low: float | None = None
    high: float | None = None
    lead: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars on one scale, from 0."""

    head: str
    bars: Sequence[Bar]


def chart(title: str, panels: Sequence[Panel]) -> str:
    """The panels one below the other."""
    parts: list[str] = []
    y = _TITLE
    for panel in panels:
        parts.append(f'<text class="head" x="12" y="{y + 16}">{escape(panel.head)}</text>')
        y += _HEAD
        longest = max((max(bar.value, bar.high or 0.0) for bar in panel.bars), default=0.0) or 1.0
        for bar in panel.bars:
            parts += _bar(bar, y, (_WIDTH - _LABEL - _VALUE) / longest)
            y += _BAR + _GAP
        y += _GAP
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" height="{y}"'
            f' role="img" aria-label="{escape(title)}">',
            f'<style>{_STYLE}</style><rect class="paper" width="100%" height="100%"/>',
            f'<text class="title" x="12" y="22">{escape(title)}</text>',
            *parts,
            "</svg>\n",
        ]
    )


def _bar(bar: Bar, y: int, scale: float) -> list[str]:
    base, middle = y + _BAR - 5, y + _BAR / 2
    end = _LABEL + bar.value * scale
    parts = [
        f'<text x="{_LABEL - 10}" y="{base}" text-anchor="end">{escape(bar.label)}</text>',
        f'<rect class="{"lead" if bar.lead else "other"}" x="{_LABEL}" y="{y}" width="{bar.value * scale:.1f}"'
        f' height="{_BAR}" rx="2"/>',
    ]
    if bar.low is not None and bar.high is not None:
        low, end = _LABEL + bar.low * scale, max(end, _LABEL + bar.high * scale)
        parts.append(f'<path class="spread" d="M{low:.1f} {middle}H{_LABEL + bar.high * scale:.1f}"/>')
    parts.append(f'<text class="value" x="{end + 8:.1f}" y="{base}">{escape(bar.text)}</text>')
    return parts
