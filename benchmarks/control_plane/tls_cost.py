"""What TLS costs a streamed token, in CPU of the server: gRPC and HTTP, plain and TLS in turn.

    python -m benchmarks.control_plane.tls_cost

A process of its own sends made-up tokens, one message each, on many streams at once; its CPU time
is read from the system. Plain and TLS runs alternate, and each pair gives a difference.
"""

from __future__ import annotations

import asyncio
import ssl
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import grpc
import psutil

from benchmarks.control_plane.bare_door import BareDoor
from benchmarks.results import save
from twolane.security.certs import init, issue
from twolane.security.identity import Role
from twolane.security.tls import (
    TlsFiles,
    channel_credentials,
    client_context,
    server_context,
    server_credentials,
    server_name,
)
from twolane.v1 import inference_pb2, inference_pb2_grpc, sampling_pb2

STEP_S = 0.005
STREAMS, TOKENS, PAIRS = 32, 200, 7
EVENT = b'data: {"id":"cmpl-1","choices":[{"index":0,"text":"token"}]}\n\n'
CHUNK = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)


async def serve(files: TlsFiles) -> None:
    """Print four ports, and serve until standard input closes."""
    server = grpc.aio.server()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(BareDoor(STEP_S), server)
    credentials = server_credentials(files, certificate=ssl.CERT_NONE)
    ports = [server.add_insecure_port("127.0.0.1:0")]
    ports.append(server.add_secure_port("127.0.0.1:0", credentials))
    await server.start()
    for context in (None, server_context(files, certificate=ssl.CERT_NONE)):
        http = await asyncio.start_server(_answer, "127.0.0.1", 0, ssl=context)
        ports.append(http.sockets[0].getsockname()[1])
    print(*ports, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(grace=None)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(TOKENS):
        await asyncio.sleep(STEP_S)
        writer.write(CHUNK)
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    writer.close()


async def over_grpc(port: int, files: TlsFiles | None) -> None:
    """All streams, on one connection."""
    endpoint = f"127.0.0.1:{port}"
    request = inference_pb2.GenerateRequest(sampling=sampling_pb2.SamplingParams(max_tokens=TOKENS))
    name = ("grpc.ssl_target_name_override", server_name(Role.ROUTER))
    channel = (
        grpc.aio.insecure_channel(endpoint)
        if files is None
        else grpc.aio.secure_channel(endpoint, channel_credentials(files), options=[name])
    )

    async def read(stub: Any) -> None:
        async for _ in stub.Generate(request):
            pass

    async with channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        await asyncio.gather(*(read(stub) for _ in range(STREAMS)))


async def over_http(port: int, files: TlsFiles | None) -> None:
    """All streams, on a connection each."""
    context = None if files is None else client_context(files)
    name = None if files is None else server_name(Role.ROUTER)

    async def read() -> None:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname=name
        )
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await reader.read()
        writer.transport.abort()

    await asyncio.gather(*(read() for _ in range(STREAMS)))


async def measure(files: TlsFiles) -> dict[str, Any]:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.control_plane.tls_cost"),
        *map(str, (files.ca, files.cert, files.key)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    ports = [int(port) for port in (await child.stdout.readline()).split()]
    process = psutil.Process(child.pid)

    async def cpu_us(run: Any, port: int, use: TlsFiles | None) -> float:
        before = process.cpu_times()
        await run(port, use)
        after = process.cpu_times()
        used_s = after.user + after.system - before.user - before.system
        return used_s / (STREAMS * TOKENS) * 1e6

    figures: dict[str, Any] = {"streams": STREAMS, "tokens_a_stream": TOKENS, "step_s": STEP_S}
    for name, run, at in (("grpc", over_grpc, 0), ("http", over_http, 2)):
        plain, tls = [], []
        await run(ports[at], None)  # the first is warmer than no run
        for _ in range(PAIRS):
            plain.append(await cpu_us(run, ports[at], None))
            tls.append(await cpu_us(run, ports[at + 1], files))
        more = [t - p for p, t in zip(plain, tls, strict=True)]
        figures[name] = {
            "plain_cpu_us_a_token": [round(each, 1) for each in plain],
            "tls_cpu_us_a_token": [round(each, 1) for each in tls],
            "median_difference_us": round(statistics.median(more), 1),
        }
    child.terminate()
    await child.wait()
    return figures


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        init(directory)
        (made,) = issue(directory, ["router/router-0"], hosts=["127.0.0.1"])
        figures = asyncio.run(measure(TlsFiles(directory / "ca.crt", made.cert, made.key)))
    for name in ("grpc", "http"):
        print(name, figures[name])
    print(save("tls_cost", figures))


if __name__ == "__main__":
    if sys.argv[1:]:
        asyncio.run(serve(TlsFiles(*map(Path, sys.argv[1:]))))
    else:
        main()
