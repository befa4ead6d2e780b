"""Loopback servers that answer with a function of the neutral request, one for each wire.

Each reads its wire's body back into a `Request`, refuses what the real API would refuse, and streams the reply in its
wire's own events, as a reasoning model would: with thoughts that must go back, ids of its own, and text in pieces.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

import latchstep as ls
from latchstep.core.message import Block, Outcome, tool_message, user
from latchstep.model.base import Request, ToolSpec
from tests.model import strict_anthropic as claude
from tests.model import strict_chat as chat
from tests.model import strict_gemini as gemini
from tests.model import strict_responses as responses

Script = list[Any]


class Spoken(msgspec.Struct):
    """A server, the requests it read, and why it refused any."""

    url: str
    requests: list[Request]
    refused: list[str]
    paths: list[str]


@contextmanager
def speaking(wire: str, reply: Callable[[Request], ls.Reply]) -> Iterator[Spoken]:
    """A server of this wire (a name of `WIRES`). What it refuses, or cannot read, is a 400 that says why."""
    refusal, read, write = WIRES[wire]
    requests: list[Request] = []
    issued: dict[str, Any] = {}

    def check(body: bytes) -> str | None:
        why = responses.refusal(body, issued) if wire == "openai" else refusal(body)
        if why is not None:
            return str(why)
        try:
            requests.append(read(json.loads(body)))
            answer = reply(requests[-1])
            script = [counted(event, answer.usage.input) for event in write(answer, len(requests))]
        except Exception as error:
            return f"the script failed: {error!r}"
        if wire == "openai":
            turn = script[-1]["response"]["output"]
            issued.update({item["id"]: turn for item in turn})
        server.scripts.append(script)
        return None

    with chat.StrictChat(check=check) as server:
        yield Spoken(server.url, requests, server.refused, server.paths)


def counted(event: Any, tokens: int) -> Any:
    """The event with the reply's own count of the request's tokens, where it has one."""
    if not tokens:
        return event
    if isinstance(event, str):
        return event.replace('"input_tokens": 3,', f'"input_tokens": {tokens},')
    if isinstance(event, list):
        return [counted(item, tokens) for item in event]
    if isinstance(event, dict):
        named = ("prompt_tokens", "input_tokens", "promptTokenCount")
        return {key: tokens if key in named else counted(value, tokens) for key, value in event.items()}
    return event


def result(call_id: str, name: str, text: str, failed: bool = False) -> ls.Message:
    """A result as a model understands it: the wires carry its words, and some of them whether it is an error."""
    outcome: Outcome = "error" if failed or "Nothing was changed." in text else "ok"
    if text.startswith("Interrupted:"):
        outcome = "interrupted"
    return tool_message(ls.ToolResult(call_id, name, text, outcome, outcome != "ok"))


def tool_call(id: str, name: str, arguments: Any) -> ls.ToolCall:
    return ls.ToolCall(id, name, json.loads(arguments) if isinstance(arguments, str) else arguments)


def said(*blocks: Block) -> ls.Message:
    return ls.Message("assistant", blocks)


def asked(messages: list[ls.Message], system: str, tools: list[tuple[str, str, Any]]) -> Request:
    return Request(request_id="", messages=messages, system=system, tools=tuple(ToolSpec(*tool) for tool in tools))


def pieces(text: str, size: int = 7) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def texts(reply: ls.Reply) -> list[str]:
    return [delta.piece for delta in reply.deltas if delta.kind == "text"]


def calls(reply: ls.Reply) -> list[ls.ToolCall]:
    return [block for block in reply.blocks if isinstance(block, ls.ToolCall)]


def arguments(call: ls.ToolCall) -> str:
    return json.dumps(call.arguments)


# -- Chat Completions ---------------------------------------------------------------------------------------


def read_chat(body: Any) -> Request:
    messages: list[ls.Message] = []
    names: dict[str, str] = {}
    system = ""
    for item in body["messages"]:
        match item["role"]:
            case "system":
                system = item["content"]
            case "user":
                messages.append(user(item["content"]))
            case "tool":
                id = item["tool_call_id"]
                messages.append(result(id, names[id], item["content"]))
            case "assistant":
                made = [
                    tool_call(call["id"], call["function"]["name"], call["function"]["arguments"])
                    for call in item.get("tool_calls", ())
                ]
                names |= {call.id: call.name for call in made}
                messages.append(said(*([ls.Text(item["content"])] if item["content"] else []), *made))
    functions = [tool["function"] for tool in body.get("tools", ())]
    return asked(messages, system, [(made["name"], made["description"], made["parameters"]) for made in functions])


def write_chat(reply: ls.Reply, turn: int) -> Script:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, {"reasoning_content": "hm"}]
    deltas += [{"content": piece} for piece in texts(reply)]
    for at, call in enumerate(calls(reply)):
        begun = {"index": at, "id": f"call_{turn}_{at}", "type": "function"}
        deltas.append({"tool_calls": [{**begun, "function": {"name": call.name, "arguments": ""}}]})
        deltas += [
            {"tool_calls": [{"index": at, "function": {"arguments": piece}}]} for piece in pieces(arguments(call))
        ]
    events: Script = [{"id": f"r{turn}", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls(reply) else "stop"}]})
    return [*events, {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}, "[DONE]"]


# -- Responses ----------------------------------------------------------------------------------------------


def read_responses(body: Any) -> Request:
    messages: list[ls.Message] = []
    names: dict[str, str] = {}
    turn: list[Block] = []  # the items of one answer come one by one
    for item in body["input"]:
        if item["type"] == "reasoning":
            continue
        if item["type"] == "function_call":
            turn.append(tool_call(item["call_id"], item["name"], item["arguments"]))
            names[item["call_id"]] = item["name"]
            continue
        if item.get("role") == "assistant":
            turn.append(ls.Text("".join(part["text"] for part in item["content"])))
            continue
        messages += [said(*turn)] if turn else []
        turn = []
        if item["type"] == "function_call_output":
            messages.append(result(item["call_id"], names[item["call_id"]], item["output"]))
        else:
            messages.append(user(item["content"]))
    tools = [(tool["name"], tool["description"], tool["parameters"]) for tool in body.get("tools", ())]
    return asked([*messages, *([said(*turn)] if turn else [])], body["instructions"], tools)


def write_responses(reply: ls.Reply, turn: int) -> Script:
    items = [responses.reasoning(f"rs_{turn}"), responses.text("".join(texts(reply)), f"msg_{turn}")]
    items += [responses.call(f"call_{turn}_{at}", call.name, arguments(call)) for at, call in enumerate(calls(reply))]
    events: Script = []
    for event in responses.answer(*items, id=f"resp_{turn}"):
        cut = pieces(event["delta"]) if "delta" in event else [None]
        events += [event if piece is None else {**event, "delta": piece} for piece in cut]
    return events


# -- Messages -----------------------------------------------------------------------------------------------


def read_messages(body: Any) -> Request:
    messages: list[ls.Message] = []
    names: dict[str, str] = {}
    for item in body["messages"]:
        blocks: list[Block] = []
        for part in item["content"]:
            match part["type"]:
                case "tool_result":
                    id = part["tool_use_id"]
                    messages.append(result(id, names[id], part["content"], part.get("is_error", False)))
                case "text":
                    blocks.append(ls.Text(part["text"]))
                case "tool_use":
                    names[part["id"]] = part["name"]
                    blocks.append(tool_call(part["id"], part["name"], part["input"]))
        messages += [ls.Message(item["role"], tuple(blocks))] if blocks else []
    tools = [(tool["name"], tool["description"], tool["input_schema"]) for tool in body.get("tools", ())]
    return asked(messages, body["system"][0]["text"], tools)


def write_messages(reply: ls.Reply, turn: int) -> Script:
    made = [
        {"type": "tool_use", "id": f"toolu_{turn}_{at}", "name": call.name, "input": call.arguments}
        for at, call in enumerate(calls(reply))
    ]
    thought = {"type": "thinking", "thinking": f"hm {turn}", "signature": claude.sign(f"hm {turn}")}
    blocks = [thought, {"type": "text", "text": "".join(texts(reply))}, *made]
    script = claude._named(claude.streamed(*blocks, stop="tool_use" if made else "end_turn"))
    return [*script]


# -- generateContent ----------------------------------------------------------------------------------------


def read_contents(body: Any) -> Request:
    """Responses come in the order of the calls, without ids."""
    messages: list[ls.Message] = []
    for content in body["contents"]:
        blocks: list[Block] = []
        waiting = iter(messages[-1].calls if messages else ())
        for part in content["parts"]:
            if "functionCall" in part:
                made, id = part["functionCall"], f"{len(messages)}_{len(blocks)}"
                blocks.append(tool_call(id, made["name"], made["args"]))
            elif "functionResponse" in part:
                given = part["functionResponse"]["response"]
                call = next(waiting)
                messages.append(result(call.id, call.name, *given.values(), failed="error" in given))
            elif part.get("text") and not part.get("thought"):
                blocks.append(ls.Text(part["text"]))
        role: Any = "assistant" if content["role"] == "model" else "user"
        messages += [ls.Message(role, tuple(blocks))] if blocks else []
    tools = [
        (made["name"], made["description"], made["parametersJsonSchema"])
        for made in body.get("tools", [{"functionDeclarations": []}])[0]["functionDeclarations"]
    ]
    return asked(messages, body["systemInstruction"]["parts"][0]["text"], tools)


def write_contents(reply: ls.Reply, turn: int) -> Script:
    made = [
        gemini.call(call.name, call.arguments, signature="" if at else gemini.SIGNATURE)
        for at, call in enumerate(calls(reply))
    ]
    chunks = [gemini.chunk({"text": "hm", "thought": True}), *(gemini.chunk({"text": piece}) for piece in texts(reply))]
    usage = {"promptTokenCount": 3, "candidatesTokenCount": 2, "totalTokenCount": 5}
    return [*chunks, gemini.chunk(*(made or [{"text": ""}]), finish="STOP", usageMetadata=usage)]


WIRES: dict[str, tuple[Callable[[bytes], str | None], Callable[[Any], Request], Callable[[ls.Reply, int], Script]]] = {
    "openai-chat": (chat.refusal, read_chat, write_chat),
    "openai": (responses.refusal, read_responses, write_responses),
    "anthropic": (claude.refusal, read_messages, write_messages),
    "gemini": (gemini.refusal, read_contents, write_contents),
}
"""By the name of a service: why a body is refused, the request in it, and the events of a reply."""
