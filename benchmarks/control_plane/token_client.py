"""Clients of `token_cost` and `several_routers`: many streams in one process, read and counted.

    python -m benchmarks.control_plane.token_client    its config is one line of JSON on its input

It prints `running` when every stream has a token, then answers each line that it reads: `count`
with the tokens that have come so far, `events` with the events that brought them, `ask` with the
milliseconds to the first token of one more answer. It ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import repeat
from typing import Any

import grpc

from twolane.aclient import AsyncClient
from twolane.rpc.channel_options import CHANNEL_OPTIONS
from twolane.v1 import inference_pb2, inference_pb2_grpc, sampling_pb2

GENERATE = "/twolane.v1.InferenceService/Generate"
PROMPT = [20 + nth % 200 for nth in range(64)]
STARTS_A_SECOND = 250
GRANT_TOKENS = 256
START_S, ANSWER_S = 60.0, 10.0  # then the run is void
WAYS = ("http", "grpc", "multiplexed")
FLAVOURS = ("plain", "logprobs", "usage")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """`way` is one of `WAYS`, or `sdk`; `flavour` what each event brings: see `token_cost`."""

    way: str
    endpoint: str
    streams: int
    flavour: str
    max_tokens: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Streams:
    """What all ways have in common. `n_tokens` and `n_events` are of all streams so far; of events
    of HTTP each counts as one token, as nothing is parsed."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.n_tokens = self.n_events = 0

    async def open(self) -> None:
        """Once, before the first stream."""

    async def read(self, n_tokens: int, first: asyncio.Event) -> None:
        """One answer, counted; `first` is set with its first token."""
        raise NotImplementedError


class HttpStreams(Streams):
    """One connection each, without a library: this process must not be what is measured."""

    async def read(self, n_tokens: int, first: asyncio.Event) -> None:
        host, _, port = self.config.endpoint.rpartition(":")
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        reader = _EventReader(self, self._request(n_tokens), first, done)
        transport, _ = await loop.create_connection(lambda: reader, host, int(port))
        await done
        transport.close()

    def _request(self, n_tokens: int) -> bytes:
        asked: dict[str, Any] = {
            "prompt": PROMPT,
            "max_tokens": n_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        if self.config.flavour == "logprobs":
            asked["logprobs"] = 1
        if self.config.flavour == "usage":
            asked["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        body = json.dumps(asked).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body


class _EventReader(asyncio.Protocol):
    """Counts events; one that says `"text":""` or is the last is no token, nor are the counts."""

    def __init__(
        self, streams: Streams, request: bytes, first: asyncio.Event, done: asyncio.Future[None]
    ) -> None:
        self._streams = streams
        self._request = request
        self._first = first
        self._done = done
        self._tail = b""

    def connection_made(self, transport: Any) -> None:
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        data = self._tail + data
        at = data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0
        self._tail = data[at:]
        events = data[:at]
        n_events = events.count(b'"finish_reason":null')
        self._streams.n_tokens += n_events
        self._streams.n_events += n_events
        if not self._first.is_set() and b"data: " in events:
            self._first.set()
        if b"data: [DONE]" in events and not self._done.done():
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(exc or ConnectionResetError(self._tail[:200]))


class GrpcStreams(Streams):
    """One call each, on one connection."""

    async def open(self) -> None:
        self._channel = grpc.aio.insecure_channel(self.config.endpoint, options=CHANNEL_OPTIONS)
        await self._channel.channel_ready()
        self._generate = self._channel.unary_stream(
            GENERATE,
            request_serializer=inference_pb2.GenerateRequest.SerializeToString,
            response_deserializer=inference_pb2.GenerateResponse.FromString,
        )

    async def read(self, n_tokens: int, first: asyncio.Event) -> None:
        async for response in self._generate(request(self.config, n_tokens)):
            if response.tokens:
                self.n_tokens += len(response.tokens)
                self.n_events += 1
                first.set()


class MultiplexedStreams(Streams):
    """All on one stream, read as it comes."""

    async def open(self) -> None:
        self._channel = grpc.aio.insecure_channel(self.config.endpoint, options=CHANNEL_OPTIONS)
        await self._channel.channel_ready()
        self._call = inference_pb2_grpc.InferenceServiceStub(self._channel).Multiplex()
        self._turn = asyncio.Lock()
        self._n_started = 0
        self._firsts: dict[int, asyncio.Event] = {}
        self._ends: dict[int, asyncio.Event] = {}
        self._n_read: Counter[int] = Counter()
        self._reading = asyncio.create_task(self._read_all())

    async def read(self, n_tokens: int, first: asyncio.Event) -> None:
        self._n_started += 1
        number = self._n_started
        self._firsts[number], self._ends[number] = first, asyncio.Event()
        start = inference_pb2.AnswerStart(answer=number, generate=request(self.config, n_tokens))
        await self._say(inference_pb2.MultiplexRequest(starts=[start]))
        await self._ends[number].wait()

    async def _read_all(self) -> None:
        while (message := await self._call.read()) is not grpc.aio.EOF:
            for part in message.parts:
                assert not part.status, part.status
                self._note(part.answer, len(part.response.tokens))
                if part.response.finish_reason:
                    self._ends[part.answer].set()
            for number, count in zip(message.answers, message.counts or repeat(1), strict=False):
                self._note(number, count)
            said = inference_pb2.MultiplexRequest()
            for number in {*message.answers, *(part.answer for part in message.parts)}:
                if self._n_read[number] % GRANT_TOKENS == 0:
                    said.reads.add(answer=number, n_tokens=self._n_read[number])
            if said.reads:
                await self._say(said)

    async def _say(self, said: inference_pb2.MultiplexRequest) -> None:
        async with self._turn:
            await self._call.write(said)

    def _note(self, number: int, n_tokens: int) -> None:
        if n_tokens:
            self._firsts[number].set()
            self._n_read[number] += n_tokens
            self.n_tokens += n_tokens
            self.n_events += 1


class SdkStreams(Streams):
    """All of one client of the SDK."""

    async def open(self) -> None:
        self._client = await AsyncClient(self.config.endpoint).connect()

    async def read(self, n_tokens: int, first: asyncio.Event) -> None:
        async for chunk in self._client.stream(
            token_ids=PROMPT, max_tokens=n_tokens, temperature=0, ignore_eos=True
        ):
            if chunk.tokens:
                self.n_tokens += len(chunk.tokens)
                self.n_events += 1
                first.set()


def request(config: ClientConfig, n_tokens: int) -> inference_pb2.GenerateRequest:
    sampling = sampling_pb2.SamplingParams(max_tokens=n_tokens, temperature=0, ignore_eos=True)
    if config.flavour == "logprobs":
        sampling.top_logprobs = 1
    return inference_pb2.GenerateRequest(
        token_ids=inference_pb2.TokenIds(ids=PROMPT), sampling=sampling
    )


async def run(config: ClientConfig) -> None:
    kinds = {
        "http": HttpStreams,
        "grpc": GrpcStreams,
        "multiplexed": MultiplexedStreams,
        "sdk": SdkStreams,
    }
    streams = kinds[config.way](config)
    await streams.open()
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as tasks:
        reading, firsts = [], []
        for _ in range(config.streams):
            firsts.append(asyncio.Event())
            reading.append(tasks.create_task(streams.read(config.max_tokens, firsts[-1])))
            await asyncio.sleep(1 / STARTS_A_SECOND)
        async with asyncio.timeout(START_S):
            for first in firsts:
                await first.wait()
        print("running", flush=True)
        while command := await asyncio.to_thread(sys.stdin.readline):
            if command.strip() == "ask":
                began, first = loop.time(), asyncio.Event()
                one_more = tasks.create_task(streams.read(2, first))
                async with asyncio.timeout(ANSWER_S):
                    await first.wait()
                    print((loop.time() - began) * 1e3, flush=True)
                    await one_more
            else:
                is_events = command.strip() == "events"
                print(streams.n_events if is_events else streams.n_tokens, flush=True)
        for task in reading:
            task.cancel()


if __name__ == "__main__":
    asyncio.run(run(ClientConfig(**json.loads(sys.stdin.readline()))))
