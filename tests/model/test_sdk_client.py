"""Clients of the official SDKs as the transport: their raw events, their errors, and what is left behind."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import traceback
from contextlib import aclosing
from typing import Any

import httpx2
import pytest

from latchstep.core.chunk import Chunk, Completed, Delta
from latchstep.core.message import Message, Text, ToolCall, ToolResult, user
from latchstep.errors import DefinitionError, ModelError
from latchstep.http import Deadlines
from latchstep.model.base import Model, Request
from latchstep.model.catalog import model
from tests.model import strict_anthropic, strict_chat, strict_responses
from tests.model.strict_chat import StrictChat
from tests.model.test_openai_chat import HELLO, KEY, QUICK, TOOLS, run
from tests.model.vectors import vector

anthropic = pytest.importorskip("anthropic", reason="the official SDK as a client: pip install anthropic")
openai = pytest.importorskip("openai", reason="the official SDK as a client: pip install openai")

NO_CONNECTION_IS_KEPT = httpx2.Limits(max_keepalive_connections=0)
CHAT, RESPONSES, ANTHROPIC = "openai-chat:m", "openai:m", "anthropic:m"
NAMES = [CHAT, RESPONSES, ANTHROPIC]
CALL = {
    CHAT: strict_chat.call_answer(("c1", "echo", '{"text": "é"}'), ("c2", "read", "{}")),
    RESPONSES: strict_responses.answer(strict_responses.call("c1", "echo", '{"text": "é"}')),
    ANTHROPIC: strict_anthropic.streamed(
        {"type": "tool_use", "id": "c1", "name": "echo", "input": {"text": "é"}}, stop="tool_use"
    ),
}
CALLED = {
    CHAT: [("c1", "echo", {"text": "é"}), ("c2", "read", {})],
    RESPONSES: [("c1", "echo", {"text": "é"})],
    ANTHROPIC: [("c1", "echo", {"text": "é"})],
}
TEXT = {
    CHAT: strict_chat.text_answer("hello"),
    RESPONSES: strict_responses.answer(strict_responses.text("hello")),
    ANTHROPIC: strict_anthropic.streamed({"type": "text", "text": "hello"}),
}
HALF = {CHAT: TEXT[CHAT][:1], RESPONSES: TEXT[RESPONSES][:3], ANTHROPIC: TEXT[ANTHROPIC][:3]}


def serve(name: str, *scripts: Any) -> StrictChat:
    if name == ANTHROPIC:
        return strict_anthropic.strict_anthropic(scripts)
    return strict_responses.strict(scripts) if name == RESPONSES else StrictChat(scripts)


def client_of(name: str, url: str, **options: Any) -> Any:
    if name == ANTHROPIC:
        return anthropic.AsyncAnthropic(api_key=KEY, base_url=url.removesuffix("/v1"), **options)
    return openai.AsyncOpenAI(api_key=KEY, base_url=url, **options)


def said_in(chunk: Any) -> str:
    return "".join(block.text for block in chunk.blocks if isinstance(block, Text))


def once(built: Any) -> Any:
    """The wire itself, without retries and prices."""
    while hasattr(built, "inner"):
        built = built.inner
    return built


def ask(*messages: Message) -> Request:
    return Request(request_id="r", messages=messages or (user("hi"),), tools=TOOLS, system="Be brief.")


async def collect(built: Model, *messages: Message) -> list[Chunk]:
    return [chunk async for chunk in built.stream(ask(*messages))]


def outcomes(name: str, *scripts: Any, client: dict[str, Any] | None = None, **options: Any) -> list[Any]:
    """The `Completed` of each script, or the ModelError it raised. Connections must be closed, or given back."""
    with serve(name, *scripts) as server:

        async def asked() -> list[Any]:
            found: list[Any] = []
            async with client_of(name, server.url, **(client or {})) as carrier:
                built = once(model(name, client=carrier, **options))
                for _ in scripts:
                    try:
                        found.append((await collect(built))[-1])
                    except ModelError as error:
                        found.append(error)
                    assert asyncio.all_tasks() == {asyncio.current_task()}
            return found

        found: list[Any] = run(asked())
        server.wait(lambda: server.open == 0)
        assert len(server.bodies) == len(scripts)
        for error in found:
            if isinstance(error, ModelError):
                assert KEY not in "".join(traceback.format_exception(error)) + repr(error.args)
                assert "\n" not in str(error)
        return found


def kinds(found: list[Any]) -> list[str]:
    return [getattr(each, "kind", "") or said_in(each) for each in found]


@pytest.mark.parametrize("name", NAMES)
def test_text_and_a_tool_loop(name: str) -> None:
    with serve(name, TEXT[name], CALL[name], TEXT[name]) as server:

        async def three() -> None:
            async with client_of(name, server.url) as carrier:
                built = model(name, client=carrier)
                assert KEY not in repr(built)
                assert built.name == name
                first = await collect(built)
                assert any(isinstance(chunk, Delta) and chunk.piece for chunk in first)
                assert isinstance(first[-1], Completed)
                assert said_in(first[-1]) == "hello"
                called = (await collect(built))[-1]
                assert isinstance(called, Completed)
                calls = [block for block in called.blocks if isinstance(block, ToolCall)]
                assert [(call.id, call.name, call.arguments) for call in calls] == CALLED[name]
                results = [Message("tool", (ToolResult(call.id, call.name, "ok"),)) for call in calls]
                said = Message("assistant", called.blocks, origin=name)
                last = (await collect(built, user("hi"), said, *results))[-1]
                assert said_in(last) == "hello"

        run(three())
        assert (server.refused, server.connections) == ([], 1)
        server.wait(lambda: server.open == 0)


@pytest.mark.parametrize("name", NAMES)
def test_the_bytes_are_those_that_our_own_transport_sends(name: str) -> None:
    with serve(name, TEXT[name], TEXT[name]) as server:

        async def both() -> None:
            async with client_of(name, server.url) as carrier:
                await collect(model(name, client=carrier))
            await collect(model(name, base_url=server.url, api_key=KEY))

        run(both())
        assert server.requests[0] == server.requests[1]
        assert server.paths[0] == server.paths[1]
        for sent in server.headers:
            assert KEY in sent.get("authorization", "") + sent.get("x-api-key", "")


STATUSES = {
    302: "bad_request", 400: "bad_request", 401: "auth", 403: "permission", 404: "not_found", 413: "context_overflow",
    429: "rate_limited", 500: "server", 529: "overloaded",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_status_and_its_body(name: str) -> None:
    body = {"error": {"message": f"words about {KEY}"}}
    asked = "retry-after=3 location=https://elsewhere/x"
    moved, *found = outcomes(name, *([f"#STATUS {status} {asked}", body] for status in STATUSES))
    assert kinds([moved, *found]) == list(STATUSES.values())
    assert [error.status for error in (moved, *found)] == list(STATUSES)
    assert "redirects to https://elsewhere/x" in moved.message
    for error in found:
        assert error.message.startswith("words about ***")
        assert error.retry_after == 3


@pytest.mark.parametrize("name", NAMES)
def test_web_pages_and_junk(name: str) -> None:
    page = "<!DOCTYPE html><html>Sign in</html>"
    pages = [[f"#STATUS {status} content-type=text/html", page] for status in (200, 404, 502)]
    found = outcomes(name, *pages)
    assert kinds(found) == ["bad_request", "bad_request", "server"]
    assert all("web page" in error.message and "/v1/" in error.message for error in found)
    half, rest = HALF[name], TEXT[name][len(HALF[name]) :]
    found = outcomes(
        name,
        b"",
        [*half, "{not json\nevent: x"],
        [*half, "[" * 100_000 + "]" * 100_000 + "\nevent: x"],
        ["#STATUS 200 content-encoding=gzip content-type=text/event-stream", page],
        [*half, '{"type":"of.tomorrow"}\nevent: of.tomorrow', *rest],
    )
    assert kinds(found) == ["protocol", "protocol", "protocol", "network", "hello"]


@pytest.mark.parametrize(("name", "kind"), [(CHAT, "chat"), (RESPONSES, "responses"), (ANTHROPIC, "anthropic")])
def test_b33_an_error_after_200(name: str, kind: str) -> None:
    script = [event for event in strict_chat.split(vector("B33", f"sse-{kind}"))[0] if event]
    error = {"type": "error", "error": {"type": "rate_limit_error", "code": "rate_limit_exceeded", "message": KEY}}
    found = outcomes(name, script, [*HALF[name], error, "#STALL"])
    assert kinds(found) == ["server" if name == CHAT else "overloaded", "rate_limited"]
    assert (found[1].message, found[1].status) == ("***", None)


@pytest.mark.parametrize("name", NAMES)
def test_b31_the_end_of_the_stream(name: str) -> None:
    half, whole = HALF[name], TEXT[name]
    found = outcomes(name, [*half, "#EOF"], [*half, "#RST"], ["#DROP"], [*whole, "#RST"], [*whole, "#STALL"])
    assert kinds(found) == ["protocol", "network", "network", "hello", "hello"]


@pytest.mark.parametrize("name", NAMES)
def test_b35_the_deadlines_are_ours_and_the_clients_own_count_too(name: str) -> None:
    half = HALF[name]
    scripts = [["#NOHEAD"], ["#PINGS 0.02"], [*half, "#STALL"], [*half, "#PINGS 0.02"]]
    found = outcomes(name, *scripts, deadlines=QUICK)
    assert kinds(found) == ["timeout"] * 4
    assert [error.message.split("`")[1] for error in found] == ["first", "first", "between", "between"]
    found = outcomes(
        name, ["#NOHEAD"], [*half, "#STALL"], client={"timeout": 0.2}, deadlines=Deadlines(first=60, between=60)
    )
    assert kinds(found) == ["timeout"] * 2
    assert all("the client's own timeout" in error.message for error in found)


@pytest.mark.parametrize("name", NAMES)
def test_no_connection(name: str) -> None:
    async def asked() -> None:
        async with client_of(name, "http://127.0.0.1:1/v1") as carrier:
            await collect(once(model(name, client=carrier)))

    with pytest.raises(ModelError, match=r"cannot connect to 127\.0\.0\.1:1 ") as caught:
        run(asked())
    assert caught.value.kind == "network"


@pytest.mark.parametrize("name", NAMES)
def test_cancelling_and_leaving_close_the_connection(name: str) -> None:
    for script in (["#NOHEAD"], [*HALF[name], "#STALL"], [*HALF[name], "#PINGS 0.02"]):
        with serve(name, script, [*HALF[name], "#STALL"]) as server:

            async def cancelled(server: StrictChat = server) -> None:
                async with client_of(name, server.url) as carrier:
                    built = once(model(name, client=carrier))
                    task = asyncio.create_task(collect(built))
                    await asyncio.to_thread(server.wait, lambda: bool(server.bodies))
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                    await asyncio.to_thread(server.wait, lambda: server.open == 0)
                    async with aclosing(built.stream(ask())) as chunks:
                        assert isinstance(await anext(chunks), Delta)
                    gc.collect()
                    assert asyncio.all_tasks() == {asyncio.current_task()}
                    await asyncio.to_thread(server.wait, lambda: server.open == 0)

            run(cancelled())


def test_betas_go_into_the_header_and_the_caller_keeps_the_client() -> None:
    with serve(ANTHROPIC, TEXT[ANTHROPIC]) as server:

        async def asked() -> None:
            async with client_of(ANTHROPIC, server.url) as carrier:
                await collect(model(ANTHROPIC, client=carrier, betas=["a-1", "b-2"]))
                assert not carrier.is_closed()

        run(asked())
        assert server.headers[0]["anthropic-beta"] == "a-1,b-2"


def test_platform_clients_send_where_their_platform_wants_it() -> None:
    """Azure puts the deployment into the path, Vertex and Bedrock the model."""
    with serve(CHAT, TEXT[CHAT], TEXT[CHAT]) as server:
        base = server.url.removesuffix("/v1")
        azure = {"api_key": KEY, "api_version": "2026-01-01"}

        async def asked() -> None:
            async with openai.AsyncAzureOpenAI(azure_endpoint=base, **azure) as carrier:
                assert (await collect(model("openai-chat:my-gpt", client=carrier)))[-1].blocks == HELLO  # type: ignore[union-attr]

        run(asked())
        assert server.paths == ["/openai/deployments/my-gpt/chat/completions?api-version=2026-01-01"]
        assert server.headers[0]["api-key"] == KEY
    vertex = {"region": "us-east5", "project_id": "p", "access_token": KEY}
    with StrictChat([strict_anthropic._named(TEXT[ANTHROPIC])], strict=False) as server:

        async def asked_vertex() -> None:
            async with anthropic.AsyncAnthropicVertex(base_url=server.url, **vertex) as carrier:
                assert (await collect(model("anthropic:claude@1", client=carrier)))[-1].blocks == HELLO  # type: ignore[union-attr]

        run(asked_vertex())
        path = "/v1/projects/p/locations/us-east5/publishers/anthropic/models/claude@1:streamRawPredict"
        assert server.paths == [path]
        assert (server.requests[0]["stream"], "model" in server.requests[0]) == (True, False)


def test_bedrock() -> None:
    """Its own signature and its own framing: what the SDK reads, our decoder gets."""
    pytest.importorskip("boto3", reason="Bedrock's signature and framing: pip install 'anthropic[bedrock]'")
    keys = {"aws_region": "us-east-1", "aws_access_key": "AKID", "aws_secret_key": KEY}
    body = b"".join(_frame(json.dumps(event).encode()) for event in TEXT[ANTHROPIC])
    throttled = _frame(b'{"message":"slow down"}', kind="throttlingException")
    for script, expected in ((body, "hello"), (throttled, "rate_limited")):
        with StrictChat([script], strict=False) as server:

            async def asked(server: StrictChat = server) -> Any:
                async with anthropic.AsyncAnthropicBedrock(base_url=server.url.removesuffix("/v1"), **keys) as carrier:
                    try:
                        return (await collect(once(model("anthropic:us.claude-v1:0", client=carrier, betas=["x"]))))[-1]
                    except ModelError as error:
                        return error

            found = run(asked())
            assert kinds([found]) == [expected]
            assert server.paths == ["/model/us.claude-v1:0/invoke-with-response-stream"]
            assert server.headers[0]["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKID/")
            assert server.requests[0]["anthropic_beta"] == ["x"]


def _frame(payload: bytes, kind: str = "") -> bytes:
    """One frame of AWS's event stream."""
    import base64
    import struct
    from binascii import crc32

    if not kind:
        payload = json.dumps({"bytes": base64.b64encode(payload).decode()}).encode()
    names = {":message-type": "exception" if kind else "event", ":content-type": "application/json"}
    names[":exception-type" if kind else ":event-type"] = kind or "chunk"
    head = b"".join(
        struct.pack("B", len(name)) + name.encode() + struct.pack(">BH", 7, len(value)) + value.encode()
        for name, value in names.items()
    )
    prelude = struct.pack(">II", 16 + len(head) + len(payload), len(head))
    prelude += struct.pack(">I", crc32(prelude))
    return prelude + head + payload + struct.pack(">I", crc32(prelude + head + payload))


def test_what_cannot_be_sent_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    for client, name, kind, said in [
        (openai.AsyncOpenAI(api_key=f"x\ny{KEY}", base_url="URL"), CHAT, "bad_request", "could not be formed"),
        (anthropic.AsyncAnthropic(base_url="URL"), ANTHROPIC, "auth", "could not sign or send"),
    ]:
        with serve(name) as server:
            client.base_url = server.url

            async def asked(client: Any = client, name: str = name) -> None:
                async with client:
                    await collect(once(model(name, client=client)))

            with pytest.raises(ModelError, match=said) as caught:
                run(asked())
            assert caught.value.kind == kind
            assert KEY not in "".join(traceback.format_exception(caught.value))
            assert server.bodies == []


def test_clients_that_cannot_carry_it_are_refused_at_once() -> None:
    good = openai.AsyncOpenAI(api_key=KEY)
    for name, client, said in [
        (CHAT, openai.OpenAI(api_key=KEY), "give the async one"),
        (ANTHROPIC, anthropic.Anthropic(api_key=KEY), "AsyncAnthropic"),
        (ANTHROPIC, good, "an async client of the anthropic SDK"),
        (CHAT, anthropic.AsyncAnthropic(api_key=KEY), "an async client of the openai SDK"),
        (CHAT, good.chat.completions, "not openai"),
        (CHAT, object(), "not builtins.object"),
        (CHAT, KEY, "not builtins.str"),
        ("gemini:m", good, "gemini"),
    ]:
        with pytest.raises(DefinitionError, match=said) as caught:
            model(name, client=client)
        assert KEY not in str(caught.value)
    for extra in ({"api_key": "k"}, {"base_url": "http://h"}):
        with pytest.raises(DefinitionError, match="leave base_url= and api_key= out"):
            model(CHAT, client=good, **extra)
    with pytest.raises(DefinitionError, match="stream"):
        model(CHAT, client=good, stream=False)


def test_a_client_stays_in_its_event_loop() -> None:
    """Over a kept connection of a loop that ended the request would go out, and its answer nowhere."""
    with serve(CHAT, TEXT[CHAT]) as server:
        carrier = client_of(CHAT, server.url, http_client=openai.DefaultAsyncHttpxClient(limits=NO_CONNECTION_IS_KEPT))
        run(collect(model(CHAT, client=carrier)))
        for built in (model(CHAT, client=carrier), once(model(CHAT, client=carrier))):
            with pytest.raises(ModelError, match="make a new client and model for each") as caught:
                run(collect(built))
            assert caught.value.kind == "bad_request"
        assert len(server.bodies) == 1
        run(carrier.close())


def test_a_subclass_is_a_client_too() -> None:
    class Mine(openai.AsyncOpenAI):  # type: ignore[misc,name-defined]
        pass

    assert model(CHAT, client=Mine(api_key=KEY)).name == CHAT


def test_the_sdks_are_never_imported_by_us() -> None:
    code = (
        "import sys, latchstep.model.sdk_client, latchstep.model.catalog as c; c.model('ollama:m'); print(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "'latchstep.model.sdk_client'" in done.stdout
    assert "'openai'" not in done.stdout
    assert "'anthropic'" not in done.stdout


def test_text_is_text() -> None:
    (found,) = outcomes(CHAT, strict_chat.text_answer("\u2028 \ud83d\ude00"))
    assert said_in(found) == "\u2028 😀"
