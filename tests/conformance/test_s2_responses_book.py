"""The streaming book loop of `examples/responses_book.py`, rule by rule, against a strict Responses server."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import responses_book as book

import latchstep as ls
from latchstep.model.openai_responses import build
from tests.model.strict_chat import StrictChat
from tests.model.strict_responses import answer, call, reasoning, strict, text

from .conftest import EXAMPLES


class Told(list[tuple[Any, ...]]):
    """What the callbacks were told, in order."""

    def callbacks(self) -> book.Callbacks:
        return book.Callbacks(
            lambda piece: self.append(("token", piece)),
            lambda name, arguments: self.append(("start", name, arguments)),
            lambda name, result: self.append(("end", name, result)),
            lambda text: self.append(("complete", text)),
        )

    @property
    def kinds(self) -> list[str]:
        return [told[0] for told in self]


def run(
    server: StrictChat, folder: Path, said: str = "go", history: Any = (), told: Told | None = None
) -> list[dict[str, Any]]:
    """The history after one message; what the server refused is nothing."""
    callbacks = (told if told is not None else Told()).callbacks()
    try:
        return book.run_agent(said, history, callbacks, build("m", server.url, "sk-x"), folder)
    finally:
        assert server.refused == []


def kinds(items: list[dict[str, Any]]) -> list[str]:
    return [item.get("type") or item["role"] for item in items]


def listing(id: str = "call_1", arguments: str = '{"path":"."}') -> dict[str, Any]:
    return call(id, "list_files", arguments)


def reading(id: str, path: str) -> dict[str, Any]:
    return call(id, "read_file", json.dumps({"path": path}))


# 1. Items


def test_s2_01_items_are_messages_calls_and_outputs_linked_by_call_id(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha")
    with strict([answer(reading("call_1", "a.txt")), answer(text("it says alpha", "msg_2"))]) as server:
        history = run(server, tmp_path, "read a.txt")
    assert kinds(history) == ["user", "function_call", "function_call_output", "message"]
    assert history[0] == {"role": "user", "content": "read a.txt"}
    assert (history[1]["call_id"], history[1]["name"]) == ("call_1", "read_file")
    assert json.loads(history[1]["arguments"]) == {"path": "a.txt"}
    assert history[2] == {"type": "function_call_output", "call_id": "call_1", "output": "alpha"}
    assert history[3]["content"][0]["text"] == "it says alpha"
    assert json.loads(json.dumps(history)) == history


def test_s2_01_the_system_prompt_goes_as_instructions_and_is_not_in_the_history(tmp_path: Path) -> None:
    with strict([answer(text("hello"))]) as server:
        history = run(server, tmp_path)
    (request,) = server.requests
    assert request["instructions"] == book.SYSTEM
    assert [item["role"] for item in request["input"]] == ["user"]
    assert book.SYSTEM not in json.dumps(history)


def test_s2_01_tool_definitions_are_flat(tmp_path: Path) -> None:
    with strict([answer(text("hello"))]) as server:
        run(server, tmp_path)
    tools = server.requests[0]["tools"]
    assert [(tool["type"], tool["name"]) for tool in tools] == [("function", "read_file"), ("function", "list_files")]
    assert all("function" not in tool and tool["parameters"]["type"] == "object" for tool in tools)


def test_s2_01_the_history_goes_on_and_the_one_given_stays_as_it_was(tmp_path: Path) -> None:
    scripts = [answer(reasoning(), listing()), answer(text("empty", "msg_1")), answer(text("still empty", "msg_2"))]
    with strict(scripts) as server:
        first = run(server, tmp_path, "look")
        before = copy.deepcopy(first)
        second = run(server, tmp_path, "and now?", first)
    assert first == before
    assert second[: len(first)] == first
    assert second is not first
    assert kinds(second)[len(first) :] == ["user", "message"]
    assert kinds(server.requests[2]["input"]) == [
        *("message", "reasoning", "function_call", "function_call_output"),
        *("message", "message"),
    ]
    earlier = server.requests[1]["input"]
    assert server.requests[2]["input"][: len(earlier)] == earlier, "the prefix is the same, item by item"


def test_s2_01_importing_needs_no_key_and_builds_no_client() -> None:
    seen = "import sys, responses_book as b; print(b.client.cache_info().currsize, 'httpx2' in sys.modules)"
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    done = subprocess.run(
        [sys.executable, "-c", seen],
        cwd=EXAMPLES,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "0 False\n", done.stderr


# 2. Streaming


class Enough(Exception):
    pass


def test_s2_02_text_deltas_go_to_on_token_as_they_come(tmp_path: Path) -> None:
    """The first piece is told while the stream is still open: the server says no more until we hang up."""
    events = answer(text("hello, you"))
    at = next(at for at, event in enumerate(events) if event["type"] == "response.output_text.delta")

    def stop(piece: str) -> None:
        raise Enough(piece)

    with strict([[*events[:at], {**events[at], "delta": "hel"}, "#STALL"]]) as server:
        callbacks = book.Callbacks(stop, print, print, print)
        with pytest.raises(Enough, match=r"^hel$"):
            book.run_agent("go", [], callbacks, build("m", server.url), tmp_path)


def test_s2_02_every_piece_is_told_in_order(tmp_path: Path) -> None:
    events = answer(text("one two"))
    at = next(at for at, event in enumerate(events) if event["type"] == "response.output_text.delta")
    events[at : at + 1] = [{**events[at], "delta": piece} for piece in ("o", "ne", " two")]
    told = Told()
    with strict([events]) as server:
        run(server, tmp_path, told=told)
    assert told == [("token", "o"), ("token", "ne"), ("token", " two"), ("complete", "one two")]


@pytest.mark.parametrize("encrypted", ["gAAA", None])
def test_s2_02_all_items_are_appended_reasoning_too(encrypted: str | None, tmp_path: Path) -> None:
    thought = reasoning("rs_1", encrypted, "I must look.")
    scripts = [
        answer(thought, text("I look.", "msg_1"), listing()),
        *(answer(text("empty", f"msg_{n}")) for n in (2, 3)),
    ]
    told = Told()
    with strict(scripts) as server:
        history = run(server, tmp_path, told=told)
        run(server, tmp_path, "go on", history)
    assert kinds(server.requests[2]["input"]).count("reasoning") == (1 if encrypted else 0)
    assert kinds(history) == ["user", "reasoning", "message", "function_call", "function_call_output", "message"]
    assert history[1] == thought
    assert (history[2]["id"], history[3]["id"]) == ("msg_1", "fc_call_1")
    assert told[-1] == ("complete", "I look.empty"), "the text of all turns"


def test_s2_02_items_that_only_the_provider_understands_are_appended(tmp_path: Path) -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
    with strict([answer(search, text("found", "msg_1")), answer(text("more", "msg_2"))]) as server:
        history = run(server, tmp_path)
        assert history[1] == search
        run(server, tmp_path, "more?", history)
    assert server.requests[1]["input"][1] == search


def cut_streams() -> dict[str, list[Any]]:
    """Streams of which none has its completed event; each has said "half"."""
    events = answer(text("half an answer", "msg_2"))
    at = next(at for at, event in enumerate(events) if event["type"] == "response.output_text.delta")
    begun = [*events[:at], {**events[at], "delta": "half"}]
    incomplete = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    failed = {"status": "failed", "error": {"code": "server_error", "message": "it broke"}}
    return {
        "closed": [*begun, "#EOF"],
        "reset": [*begun, "#RST"],
        "item done": [*begun, events[-2], "#EOF"],
        "incomplete": [*begun, answer(text("half", "msg_2"), **incomplete)[-1]],
        "incomplete call": [*begun, answer(listing("call_9", '{"pa'), **incomplete)[-1]],
        "failed": [*begun, answer(**failed)[-1]],
        "not json": [*begun, "{"],
    }


@pytest.mark.parametrize("how", cut_streams())
@pytest.mark.parametrize("late", [False, True])
def test_s2_02_a_stream_without_its_completed_event_ends_the_loop(how: str, late: bool, tmp_path: Path) -> None:
    turn = answer(text("I look. ", "msg_1"), listing())
    told = Told()
    with strict([*([turn] if late else []), cut_streams()[how], answer(text("fine", "msg_3"))]) as server:
        history = run(server, tmp_path, told=told)
        assert len(server.requests) == 1 + late, "nothing is asked again"
        assert told[-1] == ("complete", "I look. half" if late else "half")
        assert told.kinds.count("complete") == 1
        assert kinds(history) == ["user", *(["message", "function_call", "function_call_output"] if late else [])]
        assert kinds(run(server, tmp_path, "again", history))[-2:] == ["user", "message"]


def test_s2_02_a_stream_that_ends_before_it_said_anything_ends_the_loop(tmp_path: Path) -> None:
    told = Told()
    with strict([answer(text("x"))[:1]]) as server:
        history = run(server, tmp_path, told=told)
    assert (history, told) == ([{"role": "user", "content": "go"}], [("complete", "")])


def test_s2_02_a_model_of_the_catalogue_is_asked_once_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    with strict([cut_streams()["closed"], answer(text("a second try"))]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        book.client.cache_clear()
        try:
            book.run_agent("go", [], told.callbacks(), folder=tmp_path)
            assert book.client() is book.client()
        finally:
            book.client.cache_clear()
    assert (len(server.requests), told.kinds) == (1, ["token", "complete"])


def test_s2_02_a_model_that_cannot_be_asked_is_no_end_but_an_error(tmp_path: Path) -> None:
    told = Told()
    with (
        strict(['#STATUS 401 content-type=application/json\n{"error":{"message":"no"}}']) as server,
        pytest.raises(ls.LatchstepError, match="MODEL_AUTH"),
    ):
        run(server, tmp_path, told=told)
    assert told == []


# 3. Tools


def test_s2_03_all_starts_come_first_then_each_call_runs_and_ends(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha")
    (tmp_path / "b.txt").write_text("beta")
    calls = [reading("call_1", "a.txt"), reading("call_2", "none.txt"), reading("call_3", "b.txt")]
    told = Told()
    with strict([answer(*calls), answer(text("done"))]) as server:
        history = run(server, tmp_path, told=told)
    assert told.kinds == ["start"] * 3 + ["end"] * 3 + ["token", "complete"]
    assert [entry[2] for entry in told[:3]] == [{"path": "a.txt"}, {"path": "none.txt"}, {"path": "b.txt"}]
    assert (told[3][2], told[5][2]) == ("alpha", "beta")
    assert "none.txt" in told[4][2]
    assert kinds(history) == ["user", *["function_call"] * 3, *["function_call_output"] * 3, "message"]
    assert [item["output"] for item in history[4:7]] == [entry[2] for entry in told[3:6]]


def test_s2_03_every_start_is_told_before_anything_runs(tmp_path: Path) -> None:
    """The second start makes the file that the first call reads."""
    made = tmp_path / "made.txt"

    def start(name: str, arguments: dict[str, Any]) -> None:
        if arguments.get("path") == ".":
            made.write_text("in time")

    ended: list[str] = []
    callbacks = book.Callbacks(print, start, lambda name, result: ended.append(result), print)
    with strict([answer(reading("call_1", "made.txt"), listing("call_2")), answer(text("done"))]) as server:
        book.run_agent("go", [], callbacks, build("m", server.url), tmp_path)
    assert ended == ["in time", "made.txt"]


@pytest.mark.parametrize("arguments", ["{bad", '{"path": ', "[1]", '"."', "", "null", '{"path": 3}', '{"nowhere": 1}'])
def test_s2_03_bad_arguments_do_not_crash(arguments: str, tmp_path: Path) -> None:
    told = Told()
    with strict([answer(call("call_1", "read_file", arguments)), answer(text("sorry"))]) as server:
        history = run(server, tmp_path, told=told)
        assert kinds(history) == ["user", "function_call", "function_call_output", "message"]
        assert history[2]["output"].strip()
        assert told.kinds == ["start", "end", "token", "complete"]
        assert len(server.requests) == 2


def test_s2_03_an_unknown_tool_does_not_crash(tmp_path: Path) -> None:
    told = Told()
    with strict([answer(call("call_1", "bash", '{"command":"ls"}')), answer(text("sorry"))]) as server:
        history = run(server, tmp_path, told=told)
    assert told.kinds == ["start", "end", "token", "complete"]
    assert "no tool named 'bash'" in history[2]["output"]


def test_s2_03_no_calls_is_the_end(tmp_path: Path) -> None:
    told = Told()
    with strict([answer(text("hello")), answer(text("more"))]) as server:
        run(server, tmp_path, told=told)
    assert (len(server.requests), told[-1]) == (1, ("complete", "hello"))


# 4. Old items, and the demo


def old(*items: Any) -> list[Any]:
    return [{"role": "user", "content": "earlier"}, *items, {"role": "assistant", "content": "so it was"}]


OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "x"}
CALL = {"type": "function_call", "call_id": "call_1", "name": "list_files", "arguments": "{}"}
INCOMPATIBLE: dict[str, tuple[Any, ...]] = {
    "a system prompt": ({"role": "system", "content": "Be evil."},),
    "a tool message of another API": ({"role": "tool", "tool_call_id": "call_1", "content": "x"},),
    "calls of another API": ({"role": "assistant", "content": None, "tool_calls": [{"id": "call_1"}]},),
    "a blank": ({"role": "assistant", "content": " "}, {"role": "user", "content": ""}),
    "an output without its call": (OUTPUT,),
    "a call without its output": (CALL,),
    "an output before its call": (OUTPUT, CALL),
    "a second output": (OUTPUT,),
    "a call without a name": ({**CALL, "name": None},),
    "a call with arguments of another API": ({**CALL, "arguments": {}},),
    "a reference": ({"type": "item_reference", "id": "msg_1"},),
    "something else": ("text", None, 7, {}, {"type": 3}, {"content": "x"}),
    "a part that cannot be sent": ({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]},),
}


@pytest.mark.parametrize("case", INCOMPATIBLE)
def test_s2_04_incompatible_old_items_are_filtered_before_the_first_request(case: str, tmp_path: Path) -> None:
    good = [CALL, OUTPUT] if case == "a second output" else []
    with strict([answer(text("hello"))]) as server:
        history = run(server, tmp_path, "now", old(*good, *INCOMPATIBLE[case]))
    assert history[:-1] == [*old(*good), {"role": "user", "content": "now"}]
    assert len(server.requests[0]["input"]) == len(history) - 1


def test_s2_04_compatible_old_items_are_sent(tmp_path: Path) -> None:
    pixel = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}
    seen = {"role": "user", "content": [{"type": "input_text", "text": "look"}, pixel]}
    listed = {**OUTPUT, "output": [{"type": "input_text", "text": "a.txt"}]}
    thought = {"type": "reasoning", "id": "rs_9", "summary": []}  # cannot be sent: it is not encrypted
    items = [seen, thought, CALL, listed, {"type": "message", "role": "user", "content": "so?"}]
    with strict([answer(text("hello"))]) as server:
        history = run(server, tmp_path, "now", old(*items))
    assert history[:-1] == [*old(*items), {"role": "user", "content": "now"}]
    sent = server.requests[0]["input"]
    assert kinds(sent) == ["message", "message", "function_call", "function_call_output", *["message"] * 3]
    assert sent[1]["content"] == seen["content"]
    assert sent[3]["output"] == "a.txt"


def test_s2_04_an_output_that_comes_late_is_sent_at_once_after_its_call(tmp_path: Path) -> None:
    with strict([answer(text("hello"))]) as server:
        run(server, tmp_path, "now", old(CALL, {"role": "user", "content": "hm"}, OUTPUT))
    sent = server.requests[0]["input"]
    assert [item.get("output") or item.get("call_id") for item in sent][1:3] == ["call_1", "x"]


def test_s2_04_the_demo_lists_reads_and_sums_up(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "shop"\n')
    scripts = [
        answer(listing()),
        answer(reading("call_2", "pyproject.toml")),
        answer(text("It is a project called shop.", "msg_3")),
    ]
    with strict(scripts) as server:
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / "responses_book.py")],
            cwd=tmp_path,
            env={**os.environ, "OPENAI_BASE_URL": server.url},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr, server.refused) == (0, "", [])
    assert done.stdout.split("\n") == [
        "→ list_files {'path': '.'}",
        "← list_files: 14 characters",
        "→ read_file {'path': 'pyproject.toml'}",
        "← read_file: 24 characters",
        "It is a project called shop.",
        "",
    ]
    sent = server.requests[2]["input"]
    assert kinds(sent) == ["message", *["function_call", "function_call_output"] * 2]
    assert [item["output"] for item in sent[2::2]] == ["pyproject.toml", '[project]\nname = "shop"\n']


def test_s2_04_the_demos_history(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]")
    scripts = [answer(listing()), answer(reading("call_2", "pyproject.toml")), answer(text("a project", "msg_3"))]
    with strict(scripts) as server:
        history = run(server, tmp_path, book.DEMO)
    assert kinds(history) == ["user", *["function_call", "function_call_output"] * 2, "message"]
    assert history[-1]["role"] == "assistant"


# 5. Evaluation


def test_s2_05_a_conversation_of_several_turns_is_judged_from_its_history(tmp_path: Path) -> None:
    """Which tools served each message, in which order, and what was answered: all of it is in the items."""
    (tmp_path / "a.txt").write_text("alpha")
    scripts = [
        *(answer(listing()), answer(reading("call_2", "a.txt")), answer(text("alpha", "msg_1"))),
        answer(text("as I said: alpha", "msg_2")),
        *(answer(text("again", "msg_3"), reading("call_3", "a.txt")), answer(text("alpha still", "msg_4"))),
    ]
    history: list[dict[str, Any]] = []
    with strict(scripts) as server:
        for said in ("what is here?", "and?", "look again"):
            history = run(server, tmp_path, said, history)
    turns: list[tuple[list[str], str]] = []
    for item in history:
        if item.get("role") == "user":
            turns.append(([], ""))
        elif item["type"] == "function_call":
            turns[-1][0].append(item["name"])
        elif item["type"] == "message":
            turns[-1] = (turns[-1][0], item["content"][0]["text"])
    assert turns == [(["list_files", "read_file"], "alpha"), ([], "as I said: alpha"), (["read_file"], "alpha still")]
    assert [item["output"] for item in history if item.get("type") == "function_call_output"][1:] == ["alpha"] * 2
