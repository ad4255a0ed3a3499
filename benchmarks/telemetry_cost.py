"""What telemetry costs: one workload, again and again, against servers that differ in telemetry only.

    python -m benchmarks.telemetry_cost --rounds 5

All servers run at once and are idle but for one; a round visits each in turn, so that drift of the machine meets all
alike, and every figure is a ratio to "off" of the same round. "control" is off as well: its ratios are the noise of the
machine. "live" exports every step to a collector in a process of its own, "dead" to a port where nobody listens;
"scraped" has no traces and its metrics are read each 50 ms. CPU time is that of the process that accepts requests and
exports, over a run: less noisy than a rate, and on a machine whose cores are all busy the same thing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from weir.bench.over_grpc import run_over_grpc
from weir.bench.report import Report
from weir.bench.workload import read_workload
from weir.telemetry.top import parse_samples
from weir_kernels.cpu.threads import compute_threads

from benchmarks.markdown import table

VARIANTS = ("off", "control", "live", "dead", "scraped")
SCRAPE_S = 0.05


@dataclass(frozen=True)
class Server:
    """A running `weir serve`."""

    target: str
    metrics_url: str
    pid: int

    def cpu_s(self) -> float:
        """CPU time so far of the process that accepts requests, without its engine's."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def metric(self, name: str) -> int:
        """The sum over all series of a counter."""
        with urllib.request.urlopen(self.metrics_url) as answer:
            samples = parse_samples(answer.read().decode())
        return int(sum(value for key, value in samples.items() if key[0] == name))


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass(frozen=True)
class Run:
    """One run of the workload."""

    report: Report
    cpu_s: float


@contextlib.contextmanager
def serving(model: Path, variant: str, collector: int) -> Iterator[Server]:
    """A server of the variant; without prefix cache, so that every round computes the same."""
    port, metrics_port = free_port(), free_port()
    command = [sys.executable, "-m", "weir.cli", "serve", "--model", str(model), "--no-prefix-cache"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--admin-address", f"127.0.0.1:{free_port()}"]
    command += ["--metrics-host", "127.0.0.1", "--metrics-port", str(metrics_port), "--log-level", "warning"]
    command += ["--kv-memory", "600MiB"]
    if variant in ("live", "dead"):
        command += ["--trace-endpoint", f"http://127.0.0.1:{collector if variant == 'live' else free_port()}"]
    process = subprocess.Popen(command)
    try:
        yield Server(f"127.0.0.1:{port}", f"http://127.0.0.1:{metrics_port}/metrics", process.pid)
    finally:
        process.terminate()
        process.wait()


class _Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def Export(  # noqa: N802
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        return trace_service_pb2.ExportTraceServiceResponse()


def collect() -> None:
    """Take spans and forget them, until killed; prints the port."""
    server = grpc.server(ThreadPoolExecutor(1))
    add: Callable[[object, grpc.Server], None] = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add(_Collector(), server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


@contextlib.contextmanager
def collector() -> Iterator[int]:
    """A collector process; its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.telemetry_cost", "--collect"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()


@contextlib.asynccontextmanager
async def scraped(server: Server, wanted: bool) -> AsyncIterator[None]:
    """Read the metrics each 50 ms over one connection, as an endpoint picker does."""

    async def scrape() -> None:
        host, port = server.metrics_url.removeprefix("http://").removesuffix("/metrics").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        while True:
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            await reader.readexactly(int(head.split("Content-Length: ")[1].split("\r\n")[0]))
            await asyncio.sleep(SCRAPE_S)

    task = asyncio.create_task(scrape()) if wanted else None
    yield
    if task is not None:
        task.cancel()


async def measure(servers: dict[str, Server], workload: Path, rounds: int) -> dict[str, list[Run]]:
    """`rounds` runs of each variant, after one that is thrown away. Each round begins with another variant."""
    work = read_workload(workload)
    runs: dict[str, list[Run]] = {variant: [] for variant in servers}
    names = list(servers)
    for number in range(rounds + 1):
        first = number % len(names)
        for variant in names[first:] + names[:first]:
            server = servers[variant]
            before_s = server.cpu_s()
            async with scraped(server, variant == "scraped"):
                report = await run_over_grpc(server.target, work)
            run = Run(report, server.cpu_s() - before_s)
            if number:
                runs[variant].append(run)
                rate = report.output_tokens_per_s
                print(f"{number} {variant:<8} {rate:7.0f} tokens/s {run.cpu_s:6.2f} s of CPU", flush=True)
    return runs


def summarise(runs: dict[str, list[Run]]) -> str:
    """Each variant against "off" of the same round: median and extremes."""

    def change(variant: str, figure: Callable[[Run], float]) -> str:
        pairs = zip(runs[variant], runs["off"], strict=True)
        ratios = sorted(100 * (figure(one) / figure(off) - 1) for one, off in pairs)
        return f"{statistics.median(ratios):+.2f} % ({ratios[0]:+.2f} to {ratios[-1]:+.2f})"

    def cpu(variant: str) -> str:
        """Of all the cores' time in a run."""
        pairs = zip(runs[variant], runs["off"], strict=True)
        more = sorted(100 * (one.cpu_s - off.cpu_s) / (off.report.wall_s * compute_threads()) for one, off in pairs)
        return f"{statistics.median(more):+.2f} % ({more[0]:+.2f} to {more[-1]:+.2f})"

    rows = [
        [
            variant,
            change(variant, lambda run: run.report.output_tokens_per_s),
            change(variant, lambda run: run.report.itl_s.p99),
            cpu(variant),
        ]
        for variant in runs
        if variant != "off"
    ]
    return table(["", "throughput", "p99 inter-token latency", "CPU time, of all cores' time"], rows)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("models/smollm2-135m-instruct"))
    parser.add_argument("--workload", type=Path, default=Path(__file__).with_name("mixed64.json"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--collect", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.collect:
        collect()
        return
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(collector())
        variants = ["off", *(variant for variant in args.variants if variant != "off")]
        servers = {variant: stack.enter_context(serving(args.model, variant, port)) for variant in variants}
        print(summarise(asyncio.run(measure(servers, args.workload, args.rounds))))
        time.sleep(1.0)
        for variant in {"live", "dead"} & set(servers):
            steps = servers[variant].metric("weir_step_duration_seconds_count")
            sent = servers[variant].metric("weir_trace_exported_spans_total")
            lost = servers[variant].metric("weir_trace_dropped_total")
            print(f"{variant}: {steps} steps; {sent} spans of steps and requests sent, {lost} lost")


if __name__ == "__main__":
    main()
