"""The client's side of test_image.sh: ready, a completion, and a stream that survives SIGTERM. Exit status 0 or 1."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from weir.client import Client, UnavailableError

READY_LIMIT_S = 180.0
STREAM_TOKENS = 64


def wait_ready(target: str) -> None:
    """Ask as a kubelet does. Raises TimeoutError."""
    ends_at = time.monotonic() + READY_LIMIT_S
    with grpc.insecure_channel(target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while time.monotonic() < ends_at:
            try:
                reply = stub.Check(health_pb2.HealthCheckRequest(service="readiness"), timeout=5)
            except grpc.RpcError:
                reply = None
            if reply is not None and reply.status == health_pb2.HealthCheckResponse.SERVING:
                return
            time.sleep(0.5)
    raise TimeoutError(f"not ready after {READY_LIMIT_S:.0f} s")


def stream_through_the_end(client: Client, target: str, pid: int) -> int:
    """Start a stream, send SIGTERM after its first token, and count its tokens to the end."""
    tokens = 0
    signalled = False
    with client.generate("Rivers and weirs:", max_tokens=STREAM_TOKENS, ignore_eos=True) as stream:
        for delta in stream:
            tokens += len(delta.token_ids)
            if not signalled:
                os.kill(pid, signal.SIGTERM)
                signalled = True
                refuses_new_work(target)
    return tokens


def refuses_new_work(target: str) -> None:
    """A draining server must refuse at once. Raises AssertionError."""
    ends_at = time.monotonic() + 5
    while time.monotonic() < ends_at:
        try:
            with Client(target, max_attempts=1) as late:
                late.complete("too late", max_tokens=1, timeout_s=2)
        except UnavailableError:
            return
    raise AssertionError("new work was taken after SIGTERM")


def main() -> int:
    """Run all steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--server-pid", type=int, required=True)
    args = parser.parse_args()
    wait_ready(args.target)
    sys.stdout.write("ready\n")
    with Client(args.target) as client:
        kernels = client.model().kernels
        sys.stdout.write(f"kernels: {kernels}\n")
        completion = client.complete("The capital of France is", max_tokens=8)
        sys.stdout.write(f"completion: {completion.text!r}\n")
        tokens = stream_through_the_end(client, args.target, args.server_pid)
    sys.stdout.write(f"stream: {tokens} of {STREAM_TOKENS} tokens, SIGTERM after the first\n")
    # Other kernels than the compiled ones would work too, only slowly.
    return 0 if kernels.startswith("cpu") and completion.text.strip() and tokens == STREAM_TOKENS else 1


if __name__ == "__main__":
    sys.exit(main())
