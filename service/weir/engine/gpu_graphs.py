"""Decode steps recorded once and replayed: a replay is one call for the host, whatever the model's depth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

Compute = Callable[[int], torch.Tensor]


class Graphs(Protocol):
    """Recorded steps by number of rows."""

    def record(self, sizes: Sequence[int], compute: Compute) -> None:
        """Record compute(size) for each size. It must read and write the same addresses every time."""
        ...

    def fitting(self, rows: int) -> int | None:
        """The smallest recorded size of at least `rows`; None if there is none."""
        ...

    def replay(self, size: int) -> torch.Tensor:
        """Run the step of a recorded size; the result is overwritten by the next replay."""
        ...


class CudaGraphs:
    """Graphs on a GPU. The largest is recorded first, and all share its memory."""

    def __init__(self) -> None:
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}

    def record(self, sizes: Sequence[int], compute: Compute) -> None:
        """See Graphs. Each size runs once before it is recorded, so that nothing is compiled during a capture."""
        pool = torch.cuda.graph_pool_handle()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        for size in sorted(sizes, reverse=True):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                compute(size)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                result = compute(size)
            self._graphs[size] = (graph, result)

    def fitting(self, rows: int) -> int | None:
        """See Graphs."""
        return min((size for size in self._graphs if size >= rows), default=None)

    def replay(self, size: int) -> torch.Tensor:
        """See Graphs."""
        graph, result = self._graphs[size]
        graph.replay()
        return result


class EagerGraphs:
    """The same without recording: each replay computes. For devices without graphs, and to rule graphs out."""

    def __init__(self) -> None:
        self._sizes: tuple[int, ...] = ()
        self._compute: Compute | None = None

    def record(self, sizes: Sequence[int], compute: Compute) -> None:
        """See Graphs."""
        self._sizes, self._compute = tuple(sizes), compute

    def fitting(self, rows: int) -> int | None:
        """See Graphs."""
        return min((size for size in self._sizes if size >= rows), default=None)

    def replay(self, size: int) -> torch.Tensor:
        """See Graphs."""
        assert self._compute is not None
        return self._compute(size)


def graph_sizes(max_rows: int) -> tuple[int, ...]:
    """1, 2, 4, 8, then every 8 up to 64, then every 16: few graphs, and few padded rows in any of them."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, max_rows + 16, 16)]
    return tuple(sorted({min(size, max_rows) for size in sizes}))
