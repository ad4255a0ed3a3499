"""How long a step takes, from what it computes: a linear model, fitted to every step that ran."""

from __future__ import annotations

import numpy as np

_KEPT_PER_STEP = 0.999
_SWEEPS = 40
# Before the first step is measured.
_GUESS_S = 0.02


class StepCost:
    """Seconds of a step = fixed + a · rows + b · context tokens + c · prefill tokens, no term below 0.

    Least squares of relative errors over past steps, which lose half their weight in about 700 steps. The terms are
    found by coordinate descent from their last values, so what the steps of late did not vary keeps its meaning.
    """

    def __init__(self) -> None:
        self._products = np.zeros((4, 4))
        self._targets = np.zeros(4)
        self._terms = [0.0] * 4
        self._is_fresh = False

    def observe(self, rows: int, context_tokens: int, prefill_tokens: int, seconds: float) -> None:
        """A step of `rows` decodes that attend to `context_tokens` in all, and `prefill_tokens`, took `seconds`."""
        x = np.array((1.0, rows, context_tokens, prefill_tokens)) / max(seconds, 1e-5)
        self._products = self._products * _KEPT_PER_STEP + np.outer(x, x)
        self._targets = self._targets * _KEPT_PER_STEP + x
        self._is_fresh = False

    def seconds(self, steps: float, rows: int, context_tokens: float, prefill_tokens: float) -> float:
        """Seconds of `steps` steps of `rows` decodes each; the context, each row's plus one a step, is of the first.

        prefill_tokens: in all steps together.
        """
        fixed, per_row, per_context, per_prefill = self._fit()
        context = steps * context_tokens + rows * steps * (steps - 1) / 2
        return steps * (fixed + per_row * rows) + per_context * context + per_prefill * prefill_tokens

    def _fit(self) -> list[float]:
        if self._products[0, 0] == 0.0:
            return [_GUESS_S, 0.0, 0.0, 0.0]
        if not self._is_fresh:
            products, targets = self._products.tolist(), self._targets.tolist()
            for _ in range(_SWEEPS):
                for i in range(4):
                    if products[i][i] > 0.0:
                        rest = sum(products[i][j] * self._terms[j] for j in range(4) if j != i)
                        self._terms[i] = max(0.0, (targets[i] - rest) / products[i][i])
            self._is_fresh = True
        return self._terms
