"""A history made over one wire goes on over each other (B44), through servers as strict as the real ones."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.codec import encode_event
from latchstep.core.message import Image, Message, Provider, Text, Thinking
from latchstep.model import anthropic, gemini, openai_chat, openai_responses
from tests.model import strict_anthropic as an
from tests.model import strict_chat as ch
from tests.model import strict_gemini as ge
from tests.model import strict_responses as re

from .fakes import FakeJournal, go, session_of

PICTURE = base64.b64encode(b"\x89PNG picture").decode()
LONG_ID = "call_abc|fc_0123456789012345678901234567890123456789012345678901234567"
SIGNED = [base64.b64encode(f"signed {n}".encode()).decode() for n in range(4)]


@ls.tool(effect="read")
async def look(n: int = 0) -> ls.Output:
    return ls.Output(content=(Text(f"saw {n}"), Image("image/png", PICTURE)))


@ls.tool
async def fail() -> str:
    raise RuntimeError("as always")


class Case(NamedTuple):
    """A wire: its server and model; what its first run says (a call, then an answer), and a later one's.

    own: what may go to the model that said it and to no other. kin: to any model of its provider.
    """

    serve: Callable[..., ch.StrictChat]
    build: Callable[..., Any]
    first: list[Any]
    more: list[Any]
    own: tuple[str, ...]
    kin: tuple[str, ...] = ()
    messages: str = "messages"


def anthropic_case() -> Case:
    def thought(words: str) -> dict[str, Any]:
        return {"type": "thinking", "thinking": words, "signature": an.sign(words)}

    search = [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": [{"type": "web_search_result", "url": "http://x", "title": "X", "encrypted_content": "Eanth"}],
        },
    ]
    calls = [
        {"type": "tool_use", "id": id, "name": name, "input": given}
        for id, name, given in (("same", "look", {}), (LONG_ID, "look", {"n": 1}), ("functions.read:0", "fail", {}))
    ]
    redacted = {"type": "redacted_thinking", "data": "EmwKanth"}
    return Case(
        an.strict_anthropic,
        anthropic.build,
        [
            an.streamed(thought("hm"), redacted, *search, {"type": "text", "text": "I look."}, *calls, stop="tool_use"),
            an.streamed(thought("so"), {"type": "text", "text": "I saw."}),
        ],
        [an.streamed(calls[0], stop="tool_use"), an.streamed({"type": "text", "text": "Well."})],
        (an.sign("hm"), an.sign("so"), "EmwKanth"),
        ("srvtoolu_1", "Eanth"),
    )


def chat_case() -> Case:
    def thought(data: str) -> dict[str, Any]:
        details = [{"type": "reasoning.encrypted", "data": data, "id": "rd_1", "format": "x", "index": 0}]
        return {"choices": [{"index": 0, "delta": {"role": "assistant", "reasoning_details": details}}]}

    calls = (("same", "look", "{}"), (LONG_ID, "look", '{"n": 1}'), ("functions.read:0", "fail", ""))
    return Case(
        ch.StrictChat,
        openai_chat.build,
        [
            [thought("Echat1"), *ch.text_answer("I look.")[:1], *ch.call_answer(*calls)],
            [thought("Echat2"), *ch.text_answer("I saw.")],
        ],
        [ch.call_answer(("same", "look", "{}")), ch.text_answer("Well.")],
        ("Echat1", "Echat2"),
    )


def responses_case() -> Case:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
    calls = [re.call("same", "look"), re.call("call_2", "look", '{"n": 1}'), re.call("call_3", "fail")]
    later = {**re.call("same", "look"), "id": "fc_later"}
    return Case(
        re.strict,
        openai_responses.build,
        [
            re.answer(re.reasoning("rs_1", "Eresp1"), search, re.text("I look.", "msg_a"), *calls),
            re.answer(re.reasoning("rs_2", "Eresp2", "so"), re.text("I saw.", "msg_b")),
        ],
        [re.answer(later), re.answer(re.text("Well.", "msg_c"))],
        ("Eresp1", "Eresp2", "rs_1", "rs_2", "ws_1", "msg_a", "msg_b", "fc_same"),
        messages="input",
    )


def gemini_case() -> Case:
    code = {"executableCode": {"language": "PYTHON", "code": "print(1)"}, "thoughtSignature": SIGNED[2]}
    parts = [
        {"text": "hm", "thought": True},
        code,
        {"text": "I look."},
        ge.call("look", {}, id="gem-1", signature=SIGNED[0]),
        ge.call("look", {"n": 1}),
        ge.call("fail", {}, id="écho"),
    ]
    return Case(
        ge.strict_gemini,
        gemini.build,
        [
            ge.call_answer(*parts),
            [ge.chunk({"text": "I saw."}), ge.chunk({"text": "", "thoughtSignature": SIGNED[1]}, finish="STOP")],
        ],
        [ge.call_answer(ge.call("look", {}, id="same", signature=SIGNED[3])), ge.text_answer("Well.")],
        (SIGNED[0], SIGNED[1], SIGNED[2], "print(1)", '"hm"'),
        messages="contents",
    )


CASES = {"anthropic": anthropic_case, "chat": chat_case, "responses": responses_case, "gemini": gemini_case}


def sent(server: ch.StrictChat, case: Case) -> list[list[Any]]:
    """The messages of each request, without the marks of the prompt cache, which move."""

    def unmarked(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: unmarked(item) for key, item in value.items() if key != "cache_control"}
        return [unmarked(item) for item in value] if isinstance(value, list) else value

    return [unmarked(request[case.messages]) for request in server.requests]


@pytest.mark.parametrize("to", CASES)
@pytest.mark.parametrize("made_by", CASES)
def test_b44_a_history_goes_on_over_another_wire_and_back(made_by: str, to: str) -> None:
    old, new = CASES[made_by](), CASES[to]()
    last = {"anthropic": an.streamed({"type": "text", "text": "Bye."}), "gemini": ge.text_answer("Bye.")}
    last |= {"chat": ch.text_answer("Bye."), "responses": re.answer(re.text("Bye.", "msg_z"))}
    journal = FakeJournal()
    with ExitStack() as stack:
        first = stack.enter_context(old.serve([*old.first, last[made_by]]))
        second = stack.enter_context(new.serve(new.more))

        async def main() -> None:
            session = session_of(old.build("m-old", first.url), [look, fail], journal=journal, system="Be brief.")
            picture = Message("user", (Text("Look at this."), Image("image/png", PICTURE)))
            assert (await session.stream("look", start=[picture])).status == "completed"
            made = [encode_event(event) for event in journal.events]
            session.switch(new.build("m-new", second.url))
            assert (await session.run("and now?")).status == "completed"
            session.switch(old.build("m-old", first.url))
            assert (await session.run("back?")).status == "completed"
            assert [encode_event(event) for event in journal.events[: len(made)]] == made

        go(main())
        assert (first.refused, second.refused) == ([], [])
        assert (len(first.bodies), len(second.bodies)) == (3, 2)
        for server, case in ((first, old), (second, new)):
            for earlier, later in pairwise(sent(server, case)):
                assert later[: len(earlier)] == earlier
        foreign = [json.dumps(request, ensure_ascii=False) for request in second.requests]
        back = json.dumps(first.requests[2], ensure_ascii=False)
    for secret in old.own:
        assert secret in back
        assert not any(secret in body for body in foreign), secret
    for secret in old.kin:
        assert secret in back
        assert all((secret in body) == (made_by == to) for body in foreign), secret
    for words in ("I look.", "I saw.", "saw 0", "saw 1", "RuntimeError", PICTURE):
        assert all(words in body for body in foreign), words
    said = [event.message for event in journal.of(ev.MessageCompleted)]
    names = [f"{name}:m-old" for name in ("anthropic", "openai-chat", "openai", "gemini")]
    assert said[0].origin in names
    assert [message.origin for message in said] == [said[0].origin] * 2 + [said[2].origin] * 2 + [said[0].origin]
    kinds = {type(block) for message in said[:2] for block in message.blocks}
    assert Thinking in kinds
    assert Provider in kinds or made_by == "chat"
    ids = [call.id for message in said for call in message.calls]
    assert len(set(ids)) == len(ids) == 4
