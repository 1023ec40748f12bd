"""A flood of requests from a client in C (`h2load`, of nghttp2), which takes little CPU time from
the flooded server. The client only needs gRPC's unary framing."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from twolane.v1 import inference_pb2, sampling_pb2

OUTPUT_TOKENS = 48
PROMPT = (
    "Once upon a time, a fox lived in the forest with his friends and every day they went to the "
    "river. "
) * 2
_METHOD = "twolane.v1.InferenceService/Generate"


@dataclass(frozen=True, slots=True)
class Kind:
    """Requests of one priority and deadline."""

    priority: int = 0
    timeout_s: float | None = None


MIXED = [
    Kind(priority, timeout_s) for priority in (-10, 0, 10) for timeout_s in (None, 1.0, 3.0, 10.0)
]


def find_h2load() -> str | None:
    """None if it is not installed (Debian: nghttp2-client)."""
    return shutil.which("h2load")


def message(kind: Kind, n_tokens: int = OUTPUT_TOKENS) -> inference_pb2.GenerateRequest:
    sampling = sampling_pb2.SamplingParams(max_tokens=n_tokens, temperature=0.0, ignore_eos=True)
    return inference_pb2.GenerateRequest(text=PROMPT, priority=kind.priority, sampling=sampling)


@contextmanager
def flooded(
    endpoint: str, kinds: Sequence[Kind], rate_per_s: float, for_s: float
) -> Iterator[None]:
    """`rate_per_s` requests a second, shared among the kinds, whatever the answers."""
    per_s = rate_per_s / len(kinds)
    paced = ("-c", "1", "-m", "300", f"--rps={per_s:.2f}", "-D", str(int(for_s)))
    with _running(endpoint, kinds, paced):
        yield


@contextmanager
def saturated(endpoint: str, at_once: int, for_s: float) -> Iterator[None]:
    """`at_once` requests in flight at any moment; each is followed by the next."""
    closed = ("-c", "4", "-m", str(at_once // 4), "-D", str(int(for_s)))
    with _running(endpoint, [Kind()], closed):
        yield


@contextmanager
def _running(endpoint: str, kinds: Sequence[Kind], options: Sequence[str]) -> Iterator[None]:
    program = find_h2load()
    assert program is not None
    with tempfile.TemporaryDirectory() as folder:
        running = [
            subprocess.Popen(
                _command(program, endpoint, kind, options, Path(folder) / str(number)),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for number, kind in enumerate(kinds)
        ]
        try:
            yield
        finally:
            for process in running:
                process.kill()
            for process in running:
                process.wait()


def _command(
    program: str, endpoint: str, kind: Kind, options: Sequence[str], body: Path
) -> list[str]:
    raw = message(kind).SerializeToString()
    body.write_bytes(b"\0" + len(raw).to_bytes(4, "big") + raw)
    headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    if kind.timeout_s is not None:
        headers += ["-H", f"grpc-timeout: {int(kind.timeout_s * 1000)}m"]
    return [program, *options, "-d", str(body), *headers, f"http://{endpoint}/{_METHOD}"]
