"""A loopback Chat Completions server that is as strict as the real ones, for tests.

It answers from a script and refuses, with a 400, what a real API would refuse. Usable by any test:

    with StrictChat([events, "#STATUS 429 retry-after=2", raw_text]) as server:
        ... server.url ... server.requests ...
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
ROLES = {"system", "developer", "user", "assistant", "tool"}

Script = str | bytes | Sequence[Any]


def split(events: Iterable[Any]) -> list[list[Any]]:
    """One list of events with `#---` between responses, as separate responses."""
    responses: list[list[Any]] = [[]]
    for event in events:
        if event == "#---":
            responses.append([])
        else:
            responses[-1].append(event)
    return responses


def text_answer(text: str, finish: str = "stop") -> list[Any]:
    """The events of a plain answer."""
    return [
        {"id": "r1", "model": "m", "choices": [{"index": 0, "delta": {"role": "assistant", "content": text}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}},
        "[DONE]",
    ]


def call_answer(*calls: tuple[str, str, str]) -> list[Any]:
    """The events of an answer that makes calls: (id, name, arguments)."""
    listed = [
        {"index": at, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for at, (id, name, arguments) in enumerate(calls)
    ]
    return [
        {"id": "r1", "choices": [{"index": 0, "delta": {"tool_calls": listed}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        "[DONE]",
    ]


def refusal(body: bytes) -> str | None:
    """Why a strict API refuses this request body, None where it accepts it."""
    try:
        text = body.decode("utf-8")
        request = json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        return f"the body is not strict JSON: {error}"
    try:
        _strict_strings(request)
        if not isinstance(request.get("model"), str) or not request["model"]:
            return "you must provide a model parameter"
        for tool in request.get("tools", []):
            _tool(tool)
        if "tools" in request and not request["tools"]:
            return "[] is too short - 'tools'"
        if "response_format" in request:
            form = request["response_format"]
            _refuse_if(set(form) != {"type", "json_schema"} or form["type"] != "json_schema", "response_format: type")
            held_schema(form["json_schema"])
        messages = request.get("messages")
        if not isinstance(messages, list) or not messages:
            return "[] is too short - 'messages'"
        _messages(messages)
    except Refused as why:
        return str(why)
    return None


def held_schema(held: dict[str, Any]) -> None:
    """OpenAI's rules for a schema that answers are held to."""
    _refuse_if(set(held) != {"name", "schema", "strict"}, f"json_schema fields {sorted(held)}")
    _refuse_if(not NAME.fullmatch(held["name"]), f"illegal schema name {held['name']!r}")
    _refuse_if(held["schema"].get("type") != "object", "schema must be a JSON Schema of 'type: \"object\"'")
    parts = [held["schema"]] if held["strict"] else []
    while parts:
        part = parts.pop()
        for word in ("default", "oneOf", "allOf", "prefixItems", "uniqueItems", "minLength", "discriminator"):
            _refuse_if(word in part, f"Invalid schema: {word!r} is not permitted")
        _refuse_if(not {"type", "anyOf", "$ref"} & set(part), "Invalid schema: schema must have a 'type' key")
        if part.get("type") == "object":
            _refuse_if(part.get("additionalProperties") is not False, "'additionalProperties' must be false")
            _refuse_if(sorted(part["required"]) != sorted(part["properties"]), "'required' must include every key")
        for key in ("properties", "$defs"):
            parts += part.get(key, {}).values()
        parts += part.get("anyOf", [])
        parts += [part["items"]] if "items" in part else []


class Refused(Exception):
    pass


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _refuse_if(condition: bool, why: str) -> None:
    if condition:
        raise Refused(why)


def _strict_strings(value: Any) -> None:
    if isinstance(value, str):
        _refuse_if("\0" in value, "a NUL character")
        _refuse_if(any("\ud800" <= char <= "\udfff" for char in value), "a lone surrogate")
    elif isinstance(value, dict):
        for key, item in value.items():
            _strict_strings(key)
            _strict_strings(item)
    elif isinstance(value, list):
        for item in value:
            _strict_strings(item)


def _tool(tool: Any) -> None:
    _refuse_if(tool.get("type") != "function", "unknown tool type")
    function = tool["function"]
    _refuse_if(not NAME.fullmatch(function.get("name", "")), f"illegal tool name {function.get('name')!r}")
    _refuse_if(not isinstance(function.get("parameters"), dict), "parameters must be an object")
    _refuse_if(function["parameters"].get("type") != "object", "parameters must be of type object")


def _messages(messages: list[Any]) -> None:
    waiting: list[str] = []
    seen: set[str] = set()
    for at, message in enumerate(messages):
        _refuse_if(not isinstance(message, dict), f"messages[{at}] is not an object")
        role = message.get("role")
        _refuse_if(role not in ROLES, f"messages[{at}]: unknown role {role!r}")
        if role == "tool":
            id = message.get("tool_call_id")
            _refuse_if(not waiting, f"messages[{at}]: role 'tool' must follow a message with 'tool_calls'")
            _refuse_if(id != waiting[0], f"messages[{at}]: result of {id!r} where {waiting[0]!r} was expected")
            waiting.pop(0)
            _refuse_if(not isinstance(message.get("content"), str), "a tool message needs text content")
            _refuse_if(not message["content"].strip(), f"messages[{at}]: blank content")
            continue
        _refuse_if(bool(waiting), f"messages[{at}]: no result for the tool_call_ids {waiting}")
        calls = message.get("tool_calls")
        _content(at, message.get("content"), optional=bool(calls))
        if calls is not None:
            _refuse_if(role != "assistant" or not calls, f"messages[{at}]: misplaced or empty tool_calls")
            waiting = [_call(call, seen) for call in calls]
    _refuse_if(bool(waiting), f"no result for the tool_call_ids {waiting}")


def _content(at: int, content: Any, *, optional: bool) -> None:
    if content is None:
        _refuse_if(not optional, f"messages[{at}]: content is missing")
        return
    if isinstance(content, str):
        _refuse_if(not content.strip(), f"messages[{at}]: blank content")
        return
    _refuse_if(not isinstance(content, list) or not content, f"messages[{at}]: empty content")
    for part in content:
        kind = part.get("type")
        _refuse_if(kind not in ("text", "image_url"), f"messages[{at}]: content part {kind!r}")
        if kind == "text":
            _refuse_if(not part.get("text", "").strip(), f"messages[{at}]: blank text part")
        else:
            _refuse_if(not part["image_url"]["url"].startswith("data:image/"), "not an image")


def _call(call: Any, seen: set[str]) -> str:
    id = call.get("id")
    _refuse_if(not isinstance(id, str) or not ID.fullmatch(id), f"illegal call id {id!r}")
    _refuse_if(id in seen, f"duplicate call id {id!r}")
    seen.add(id)
    _refuse_if(call.get("type") != "function", "call without type")
    function = call["function"]
    _refuse_if(not NAME.fullmatch(function.get("name") or ""), f"illegal function name {function.get('name')!r}")
    arguments = function.get("arguments")
    _refuse_if(not isinstance(arguments, str), "arguments must be a string")
    try:
        parsed = json.loads(arguments, parse_constant=_no_constant)
    except ValueError as error:
        raise Refused(f"arguments are not JSON: {error}") from None
    _refuse_if(not isinstance(parsed, dict), "arguments are not an object")
    _strict_strings(parsed)
    return str(id)


class StrictChat:
    """Serves `scripts` one a request, on a thread with its own event loop.

    A script is raw text of a body (a string that begins with `#STATUS` or `#STALL` is an instruction), or a list
    of events: objects and `[DONE]` become `data:` lines; `#EOF` closes, `#RST` resets, `#STALL` holds open and is
    silent, `#PING` sends a ping event, `#PINGS n` one every n seconds for ever, `#STATUS n header=value` answers
    with that status and the rest as its body, `#NOHEAD` sends nothing at all and holds, `#DROP` hangs up unanswered.
    `strict=False` accepts every body; else `check` says why one is refused. Past the end of the scripts it is 404.
    """

    def __init__(
        self,
        scripts: Sequence[Script] = (),
        *,
        strict: bool = True,
        tls: ssl.SSLContext | None = None,
        check: Callable[[bytes], str | None] = refusal,
    ) -> None:
        self.scripts: list[Script] = list(scripts)
        self.strict, self.check = strict, check
        self._tls = tls
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.refused: list[str] = []
        self.connections = 0
        self.open = 0
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def requests(self) -> list[Any]:
        return [json.loads(body) for body in self.bodies]

    def __enter__(self) -> StrictChat:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    def wait(self, condition: Callable[[], bool], seconds: float = 5.0) -> None:
        """Poll until `condition()` holds; fails after `seconds`."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "the server did not get there in time"
            time.sleep(0.005)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        port = server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{port}/v1"
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open += 1
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            self._tasks.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; False ends the connection."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.paths.append(first.split(" ")[1])
        self.headers.append(headers)
        why = self.check(body) if self.strict else None
        self.bodies.append(body)
        if why is not None:
            self.refused.append(why)
            error = {"error": {"message": why, "type": "invalid_request_error", "param": None, "code": None}}
            return await _respond(writer, 400, {"content-type": "application/json"}, json.dumps(error).encode())
        if not self.scripts:
            error = {"error": {"message": "no script left", "type": "not_found_error"}}
            return await _respond(writer, 404, {"content-type": "application/json"}, json.dumps(error).encode())
        script = self.scripts.pop(0)
        if isinstance(script, bytes) or (isinstance(script, str) and not script.startswith("#")):
            raw = script.encode() if isinstance(script, str) else script
            return await _respond(writer, 200, {"content-type": "text/event-stream"}, raw)
        return await self._play([script] if isinstance(script, str) else list(script), reader, writer)

    async def _play(self, events: list[Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if events and isinstance(events[0], str) and events[0].startswith("#STATUS"):
            _, status, *pairs = events[0].split(" ", 2)
            headers = _header_pairs(pairs[0]) if pairs else {}
            rest = "".join(event if isinstance(event, str) else json.dumps(event) for event in events[1:])
            headers.setdefault("content-type", "application/json")
            return await _respond(writer, int(status), headers, rest.encode())
        if events and events[0] == "#DROP":
            return False
        if events and events[0] == "#NOHEAD":
            await reader.read()
            return False
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for event in events:
            if event == "#EOF":
                break
            if event == "#RST":
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.transport.abort()
                return False
            if event == "#STALL":
                await writer.drain()
                await reader.read()  # until the client hangs up
                return False
            if isinstance(event, str) and event.startswith("#PINGS "):
                while True:
                    _send(writer, b'event: ping\ndata: {"type":"ping"}\n\n: ping\n\n')
                    await writer.drain()
                    await asyncio.sleep(float(event.split(" ")[1]))
            if event == "#PING":
                _send(writer, b'event: ping\ndata: {"type":"ping"}\n\n')
                continue
            data = event if isinstance(event, str) else json.dumps(event)
            _send(writer, f"data: {data}\n\n".encode("utf-8", "surrogatepass"))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


def _header_pairs(text: str) -> dict[str, str]:
    """`a=b c=d`; a value may hold blanks, as dates do."""
    found = re.findall(r"([A-Za-z-]+)=(.*?)(?=\s[A-Za-z-]+=|$)", text)
    return {name.lower(): value for name, value in found}


def _send(writer: asyncio.StreamWriter, piece: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))


async def _respond(writer: asyncio.StreamWriter, status: int, headers: dict[str, str], body: bytes) -> bool:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status} Answer\r\n{lines}content-length: {len(body)}\r\n\r\n"
    writer.write(head.encode("utf-8") + body)
    await writer.drain()
    return True
