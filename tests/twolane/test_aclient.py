from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator

import grpc
import pytest

from tests.twolane.conftest import Door
from tests.twolane.scripted import ERRORS, ScriptedDoor
from twolane import (
    AsyncClient,
    AsyncStream,
    CancelledError,
    DeadlineError,
    FinishReason,
    InternalError,
    InvalidParameterError,
    InvalidRequestError,
    OverloadedError,
    RequestOptions,
    SamplingParams,
    TopLogprob,
    UnavailableError,
    WorkerCount,
)
from twolane.calls import resuming
from twolane.config import ClientConfig


@pytest.fixture
async def client(door: Door) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(door.endpoint) as client:
        yield client


async def left(door: Door, request_id: str, within_s: float = 60.0) -> str:
    async with asyncio.timeout(within_s):
        while request_id not in door.script.ended:
            await asyncio.sleep(0.01)
    return door.script.ended[request_id]


async def test_generate_gives_the_whole_answer(client: AsyncClient) -> None:
    completion = await client.generate("once upon a time", request_id="whole")
    assert completion.text == "once upon a time "
    assert completion.token_ids == (100, 101, 102, 103)
    assert completion.finish_reason is FinishReason.LENGTH
    assert (completion.request_id, completion.seed) == ("whole", 42)
    assert (completion.ledger.ttft_s, completion.ledger.output_tokens) == (0.25, 4)


async def test_stream_gives_chunks_and_the_last_one_alone_has_the_ledger(
    client: AsyncClient,
) -> None:
    chunks = [chunk async for chunk in client.stream("a b c")]
    assert [chunk.text for chunk in chunks] == ["a ", "b ", "c ", ""]
    assert all(chunk.ledger is None and chunk.finish_reason is None for chunk in chunks[:-1])
    assert chunks[-1].finish_reason == "length"
    assert chunks[-1].ledger is not None


async def test_every_chunk_and_the_whole_answer_name_the_request_and_its_seed(
    client: AsyncClient,
) -> None:
    stream = client.stream("a b", request_id="named")
    first = await anext(stream)
    assert (first.request_id, first.seed) == (stream.request_id, stream.seed) == ("named", 42)
    whole = await stream.completion()
    assert (whole.request_id, whole.seed) == ("named", 42)


async def test_a_stream_read_to_its_end_is_not_cancelled(client: AsyncClient, door: Door) -> None:
    async with client.stream("a b") as stream:
        assert len([chunk async for chunk in stream]) == 3
    assert await left(door, stream.request_id) == "finished"


async def test_completion_after_some_chunks_has_them_all(client: AsyncClient) -> None:
    stream = client.stream("a b c")
    await anext(stream)
    await anext(stream)
    assert (await stream.completion()).text == "a b c "


async def test_every_form_of_prompt_and_every_option_arrives(
    client: AsyncClient, door: Door
) -> None:
    params = SamplingParams(max_tokens=9, top_k=5)
    await client.generate(
        token_ids=[5, 6], params=params, top_k=6, stop="\n", priority=3, model="m", request_id="f1"
    )
    await client.generate(messages=[{"role": "user", "content": "hey"}], request_id="f2")
    await client.generate("", request_id="f3")
    ids, chat, empty = (door.script.requests[f"f{i}"] for i in (1, 2, 3))
    assert list(ids.token_ids.ids) == [5, 6]
    assert (ids.sampling.max_tokens, ids.sampling.top_k) == (9, 6)
    assert list(ids.sampling.stop) == ["\n"]
    assert (ids.priority, ids.model) == (3, "m")
    assert [(m.role, m.content) for m in chat.chat.messages] == [("user", "hey")]
    assert empty.WhichOneof("prompt") == "text"


async def test_logprobs_come_where_asked_for(client: AsyncClient) -> None:
    plain = await client.generate("a")
    rich = await client.generate("a", top_logprobs=1)
    assert plain.tokens[0].logprob is None
    assert rich.tokens[0].logprob == -0.5
    assert rich.tokens[0].top_logprobs == (TopLogprob(7, -1.5),)


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        (None, {}),
        ("a", {"token_ids": [1]}),
        (None, {"token_ids": [2**40]}),
        (None, {"messages": [{"role": "user"}]}),
        ("\ud800", {}),
        ("a", {"priority": 2**40}),
    ],
)
async def test_a_request_that_cannot_be_sent_is_refused_here(
    client: AsyncClient, prompt: str | None, options: RequestOptions
) -> None:
    with pytest.raises(InvalidRequestError):
        await client.generate(prompt, **options)


async def test_an_absurd_parameter_is_named(client: AsyncClient) -> None:
    with pytest.raises(InvalidParameterError, match="temperature is -1"):
        client.stream("a", temperature=-1)


async def test_an_unknown_option_is_named_with_the_nearest(client: AsyncClient) -> None:
    with pytest.raises(InvalidRequestError, match="temprature; did you mean temperature"):
        client.stream("a", temprature=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("key", ERRORS)
async def test_every_error_arrives_as_its_own_class(
    client: AsyncClient, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming, "FRESH_S", 0.2)  # so long it looks for another router
    sent = ERRORS[key]
    with pytest.raises(type(sent), match=sent.message) as caught:
        await client.generate(key)
    if isinstance(sent, OverloadedError):
        assert isinstance(caught.value, OverloadedError)
        assert caught.value.retry_after_s == sent.retry_after_s
    if isinstance(sent, InvalidRequestError):
        assert isinstance(caught.value, InvalidRequestError)
        assert caught.value.field == sent.field
    assert sent.metadata.items() <= caught.value.metadata.items()


async def test_what_came_before_a_late_error_is_not_lost(client: AsyncClient) -> None:
    stream = client.stream("fails late")
    assert [(await anext(stream)).text for _ in range(2)] == ["one ", "two "]
    with pytest.raises(UnavailableError, match="out of attempts"):
        await anext(stream)


async def test_an_answer_without_an_end_is_an_error(client: AsyncClient) -> None:
    with pytest.raises(InternalError, match="without a finish reason"):
        await client.generate("no end")


async def test_the_deadline_cancels_and_says_so(client: AsyncClient, door: Door) -> None:
    for timeout_s in (0.2, 2.0, 20.0):  # on a busy machine it may end before the door is asked
        with pytest.raises(DeadlineError, match=rf"within {timeout_s:g} s"):
            await client.generate("silent", timeout_s=timeout_s, request_id=f"late-{timeout_s}")
        if f"late-{timeout_s}" in door.script.requests:
            break
    assert await left(door, f"late-{timeout_s}") == "left"


async def test_the_default_deadline_is_the_configs(door: Door) -> None:
    async with AsyncClient(door.endpoint, config=ClientConfig(timeout_s=0.2)) as client:
        with pytest.raises(DeadlineError):
            await client.generate("forever")


async def test_leaving_the_context_cancels(client: AsyncClient, door: Door) -> None:
    async with client.stream("forever") as stream:
        await anext(stream)
    assert await left(door, stream.request_id) == "left"
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_an_abandoned_stream_cancels(client: AsyncClient, door: Door) -> None:
    async for chunk in client.stream("forever"):
        if chunk.tokens:
            break
    gc.collect()
    assert await left(door, chunk.request_id) == "left"


async def test_cancelling_the_reading_task_cancels_the_request(
    client: AsyncClient, door: Door
) -> None:
    task = asyncio.create_task(client.generate("forever", request_id="task"))
    while "task" not in door.script.requests:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await left(door, "task") == "left"


async def test_closing_a_stream_ends_the_loop_that_reads_it(client: AsyncClient) -> None:
    stream = client.stream("silent")
    reader = asyncio.create_task(stream.completion())
    await asyncio.sleep(0.05)
    await stream.aclose()
    with pytest.raises(CancelledError, match="closed before its end"):
        await reader


async def test_cancel_by_id_ends_the_stream_with_cancelled(client: AsyncClient) -> None:
    async with client.stream("forever") as stream:
        await anext(stream)
        assert await client.cancel(stream.request_id)
        with pytest.raises(CancelledError, match="cancelled by id"):
            await stream.completion()


async def test_cancel_of_an_unknown_id_finds_nothing(client: AsyncClient) -> None:
    assert not await client.cancel("nobody")
    with pytest.raises(InvalidRequestError):
        await client.cancel("")


async def test_closing_the_client_ends_its_streams(door: Door) -> None:
    client = AsyncClient(door.endpoint)
    stream = client.stream("forever")
    await anext(stream)
    reader = asyncio.create_task(stream.completion())
    await asyncio.sleep(0.05)
    await client.close()
    await client.close()
    with pytest.raises(CancelledError):
        await reader
    with pytest.raises(InvalidRequestError, match="closed"):
        await client.models()


async def test_closing_the_client_ends_its_short_calls_with_an_error_and_cancels_no_task() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = AsyncClient(f"127.0.0.1:{silent.getsockname()[1]}")
        calls = (client.models(), client.status(), client.cancel("r"), client.connect())
        tasks = [asyncio.create_task(call) for call in calls]
        await asyncio.sleep(0.1)
        await client.close()
        for task in tasks:
            with pytest.raises(CancelledError, match="the client was closed"):
                await task


async def test_a_cancelled_task_ends_as_such_in_a_short_call() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with AsyncClient(f"127.0.0.1:{silent.getsockname()[1]}") as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await client.models()


async def test_closing_the_client_ends_a_search_for_a_router() -> None:
    unused = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = [each.getsockname()[1] for each in unused]
    for each in unused:
        each.close()  # from now on nobody answers there
    client = AsyncClient(",".join(f"127.0.0.1:{port}" for port in ports))
    searching = asyncio.create_task(client.generate("once", timeout_s=60.0))
    await asyncio.sleep(0.3)
    await client.close()
    async with asyncio.timeout(20):
        with pytest.raises(CancelledError, match="the client was closed"):
            await searching


async def test_models_and_status(client: AsyncClient) -> None:
    assert [(m.name, m.max_context_tokens) for m in await client.models()] == [("tiny", 2048)]
    status = await client.status(["s1"])
    assert (status.serving, [model.name for model in status.models]) == (True, ["tiny"])
    assert status.workers == (WorkerCount(state="alive", role="decode", workers=1),)
    (mine,) = status.submissions
    assert (mine.submission_id, mine.state, mine.output_tokens) == ("s1", "running", 7)
    assert (await client.status()).submissions == ()


async def test_nobody_there_says_how_to_start_a_cluster() -> None:
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1 .*twolane up"):
            await client.generate("a")
        with pytest.raises(UnavailableError, match="twolane up"):
            await client.status()
        with pytest.raises(UnavailableError, match=r"within 0\.2 s"):
            await client.connect(timeout_s=0.2)


async def test_connect_waits_for_a_cluster_that_is_late() -> None:
    reserved = socket.socket()  # nobody else gets the port, and nobody is heard there
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(("127.0.0.1", 0))
    port = reserved.getsockname()[1]
    async with AsyncClient(f"127.0.0.1:{port}") as client:
        connecting = asyncio.create_task(client.connect(timeout_s=60))
        await asyncio.sleep(0.2)
        assert not connecting.done()
        server = grpc.aio.server()
        ScriptedDoor().register(server)
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        assert await connecting is client
        assert (await client.generate("a")).text == "a "
    await server.stop(0)
    reserved.close()


async def test_the_endpoint_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOLANE_ENDPOINT", "example:1")
    assert AsyncClient().endpoint == "example:1"
    monkeypatch.delenv("TWOLANE_ENDPOINT")
    assert AsyncClient().endpoint == "localhost:7200"
    assert AsyncClient("other:2").endpoint == "other:2"


def test_a_client_of_another_event_loop_says_so(door: Door) -> None:
    client = AsyncClient(door.endpoint)
    with asyncio.Runner() as first, asyncio.Runner() as second:
        stream = first.run(started(client))
        for work in (client.models, client.connect, client.close, stream.completion):
            with pytest.raises(InvalidRequestError, match="another event loop"):
                second.run(work())
        with pytest.raises(InvalidRequestError, match="another event loop"):
            second.run(client.generate("a"))
        stream.cancel()
    gc.collect()  # a coroutine that nobody awaited would warn, and a warning fails the test
    with pytest.raises(InvalidRequestError, match=r"twolane\.Client does not"):
        AsyncClient(door.endpoint).stream("a")


async def started(client: AsyncClient) -> AsyncStream:
    return client.stream("forever")


async def test_a_router_lost_in_the_middle_of_an_answer_says_how_far_it_came() -> None:
    server = grpc.aio.server()
    ScriptedDoor().register(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with AsyncClient(f"127.0.0.1:{port}") as client:
        stream = client.stream("forever")
        await anext(stream)
        stopping = asyncio.create_task(server.stop(0))
        with pytest.raises(UnavailableError, match=r"lost after \d+ tokens?; send the request"):
            await stream.completion()
        await stopping


async def test_a_server_of_another_kind_is_not_a_cluster() -> None:
    async def not_found(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    other = grpc.aio.server()
    port = other.add_insecure_port("127.0.0.1:0")
    await other.start()
    web = await asyncio.start_server(not_found, "127.0.0.1", 0)
    for peer in (port, web.sockets[0].getsockname()[1]):
        async with AsyncClient(f"127.0.0.1:{peer}") as client:
            with pytest.raises(UnavailableError, match="is not a twolane cluster"):
                await client.models()
    web.close()
    await other.stop(0)


async def test_an_endpoint_that_is_no_name_is_told_without_stray_brackets() -> None:
    async with AsyncClient("no such name:1") as client:
        with pytest.raises(UnavailableError, match=r"\([^\]]*name[^\]]*\)"):
            await client.models()


async def test_a_message_too_large_for_the_server_is_no_overload() -> None:
    small = grpc.aio.server(options=[("grpc.max_receive_message_length", 100)])
    ScriptedDoor().register(small)
    port = small.add_insecure_port("127.0.0.1:0")
    await small.start()
    async with AsyncClient(f"127.0.0.1:{port}") as client:
        with pytest.raises(InvalidRequestError, match="a message may have at most 100"):
            await client.generate("word " * 100)
    await small.stop(0)
