"""Typed output: validated strictly, corrected within a bound, and there only where the run is completed."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

import msgspec
import pytest

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.action import CallModel, Note
from latchstep.core.chunk import Completed
from latchstep.core.codec import decode_event, encode_event
from latchstep.core.decide import decide
from latchstep.core.message import Text, ToolCall
from latchstep.core.rules import FINAL, Answer
from latchstep.core.state import fold
from latchstep.model.base import Request
from latchstep.session.build import build_kit, build_rules
from latchstep.session.output import MAX_SCHEMA_SHOWN, output_type
from latchstep.session.session import Session

from .fakes import Chunks, FakeJournal, call, calling, check_requests, cut, done, go, results


class City(msgspec.Struct):
    """A city."""

    name: str
    population: int
    tags: list[str] = []


@dataclasses.dataclass
class Trip:
    stops: list[City]


class Options(typing.TypedDict, total=False):
    verbose: bool


class Node(msgspec.Struct):
    value: int
    next: Node | None = None


PARIS = '{"name":"Paris","population":2}'
CITY = City("Paris", 2)


def final(**arguments: Any) -> ToolCall:
    return ToolCall(name=FINAL, arguments=arguments)


GOOD, BAD = final(name="Paris", population=2), final(name="Paris", population="2")


@ls.tool(effect="read")
async def look(n: int = 0) -> str:
    """Look."""
    return f"saw {n}"


@ls.tool
async def touch() -> str:
    """Touch."""
    return "touched"


def session_for(output: Any, model: Any, *, journal: Any = None, check: Any = None, **rules: Any) -> Session:
    kit = build_kit(ls.ScriptedModel(model) if isinstance(model, list) else model, [look, touch], output=output)
    if check is not None:
        kit.check = check
    return Session(journal if journal is not None else FakeJournal(), kit, build_rules(kit, **rules))


def run(*replies: Any, output: Any = City, **more: Any) -> tuple[ls.RunResult, FakeJournal]:
    async def main() -> tuple[ls.RunResult, FakeJournal]:
        journal = FakeJournal()
        return await session_for(output, list(replies), journal=journal, **more).run("go"), journal

    return go(main())


def corrections(journal: FakeJournal) -> list[str]:
    return [event.message.text for event in journal.of(ev.MessageAccepted) if event.source == "correction"]


# -- what is an output ------------------------------------------------------------------------------------


@pytest.mark.parametrize("reply", [GOOD, PARIS, f" \n{PARIS}\n", f"```json\n{PARIS}\n```", f"```\n{PARIS}\n```\n"])
def test_a_call_and_a_text_give_the_same(reply: Any) -> None:
    result, journal = run(call("look"), reply)
    assert result.status == "completed"
    assert (result.output, result.final_text) == (CITY, PARIS)
    (ended,) = journal.of(ev.RunFinished)
    assert ended.output == {"name": "Paris", "population": 2}
    assert ended.final_text == PARIS
    assert decode_event(encode_event(ended)) == ended
    assert not corrections(journal)


@pytest.mark.parametrize(
    ("kind", "said", "typed", "text"),
    [
        (Trip, '{"stops":[{"name":"Paris","population":2}]}', Trip([CITY]), f'{{"stops":[{PARIS}]}}'),
        (Options, "{}", {}, "{}"),
        (Node, '{"value":1,"next":{"value":2}}', Node(1, Node(2)), '{"value":1,"next":{"value":2}}'),
        (int, '{"value":5}', 5, "5"),
        (int, '{"value":0}', 0, "0"),
        (list[City], f'{{"value":[{PARIS}]}}', [CITY], f"[{PARIS}]"),
        (dict[str, int], '{"value":{"a":1}}', {"a": 1}, '{"a":1}'),
        (City | None, '{"value":null}', None, "null"),
        (typing.Literal["yes", "no"], '{"value":"no"}', "no", '"no"'),
    ],
)
def test_every_type_a_parameter_may_have(kind: Any, said: str, typed: Any, text: str) -> None:
    """What is no object with named fields travels as the field `value` of one."""
    for reply in (said, final(**msgspec.json.decode(said))):
        result, journal = run(reply, output=kind)
        assert result.status == "completed"
        assert (result.output, result.final_text) == (typed, text)
        assert journal.of(ev.RunFinished)[0].output == msgspec.to_builtins(msgspec.json.decode(text))


REFUSED = [
    (City, "Paris has two million.", "not one JSON object and nothing else"),
    (City, f"{PARIS} I hope this helps.", "not one JSON object and nothing else"),
    (City, f"Here it is: {PARIS}", "not one JSON object and nothing else"),
    (City, f"[{PARIS}]", "not one JSON object"),
    (City, "null", "not one JSON object"),
    (Options, '""', "not one JSON object"),
    (City, "[" * 5000, "RecursionError"),
    (City, '{"name":"a","name":"b","population":1}', "a key occurs twice"),
    (City, '{"name":"a","population":123456789012345678901234567890}', "30 digits"),
    (
        City,
        '{"name":"Paris"}',
        "asked for: object missing required field `population` (fields: name (string, required)",
    ),
    (City, '{"name":"Paris","population":2,"x":1}', "unknown field `x`"),
    (City, '{"name":"Paris","population":"2"}', '`population`: expected integer, got string "2"'),
    (City, '{"name":"Paris","population":2.5}', "`population`: expected integer"),
    (Trip, '{"stops":[{"name":1,"population":1}]}', "`stops[0].name`: expected string"),
    (Node, '{"value":"x"}', '`value`: expected integer, got string "x"'),
    (int, "5", "not one JSON object"),
    (int, '{"value":"5"}', '`value`: expected integer, got string "5"'),
    (int, '{"value":5,"x":1}', "unknown field `x`"),
    (int, "{}", "missing required field `value`"),
]


@pytest.mark.parametrize(("kind", "said", "words"), REFUSED)
def test_what_is_none_goes_back_in_words_with_the_schema(kind: Any, said: str, words: str) -> None:
    good = {City: PARIS, Trip: '{"stops":[]}', Options: "{}", Node: '{"value":1}', int: '{"value":5}'}[kind]
    result, journal = run(said, good, output=kind)
    assert result.status == "completed"
    (text,) = corrections(journal)
    assert text.startswith("Notice from the harness: your answer is not the output that was asked for: ")
    assert words in text
    assert text.endswith(msgspec.json.encode(output_type(kind).spec.schema).decode())
    assert journal.of(ev.ModelRequested)[1].because == "correction"


def test_a_long_schema_is_cut_in_a_correction() -> None:
    many = msgspec.defstruct("Many", [(f"a_rather_long_name_{n}", int) for n in range(300)])
    _, journal = run("?", "?", "?", output=many)
    text = corrections(journal)[0]
    assert "characters)" in text[-40:]
    assert len(text) < MAX_SCHEMA_SHOWN + 500


def test_schemas() -> None:
    spec = output_type(City).spec
    assert spec.name == FINAL
    assert spec.schema == {
        "type": "object",
        "description": "A city.",
        "properties": {
            "name": {"type": "string"},
            "population": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string"}, "default": []},
        },
        "required": ["name", "population"],
        "additionalProperties": False,
    }
    recursive = output_type(Node).spec.schema
    assert (recursive["type"], list(recursive["$defs"])) == ("object", ["Node"])
    assert output_type(int).spec.schema == {
        "type": "object",
        "properties": {"value": {"type": "integer"}},
        "required": ["value"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize("kind", ["City", 5, object, complex, typing.TypeVar("T"), ls.Agent])
def test_what_cannot_be_asked_for(kind: Any) -> None:
    with pytest.raises(ls.DefinitionError, match=r"output is .*Supported: .*pydantic model"):
        ls.Agent(ls.ScriptedModel([]), output=kind)


def test_the_name_of_the_final_tool_is_taken_only_where_output_is_asked_for() -> None:
    @ls.tool(name=FINAL, effect="read")
    def mine(x: int) -> str:
        """Mine."""
        return f"got {x}"

    with pytest.raises(ls.DefinitionError, match=FINAL):
        ls.Agent(ls.ScriptedModel([]), [mine], output=City)
    result = ls.Agent(ls.ScriptedModel([final(x=1), "done"]), [mine]).run_sync("go")
    assert (result.final_text, result.output, results(result)[0].text) == ("done", None, "got 1")


def test_without_output_nothing_is_known_of_it() -> None:
    async def main() -> None:
        model = Chunks([calling(GOOD)], [done(PARIS)])
        result = await session_for(None, model).run("go")
        assert (result.output, result.final_text) == (None, PARIS)
        assert "there is no tool named 'final_answer'" in results(result)[0].text
        assert [tool.name for tool in model.requests[0].tools] == ["look", "touch"]
        assert model.requests[0].output is None

    go(main())


# -- pydantic, by its methods ---------------------------------------------------------------------------


class Quack:
    """What a pydantic model is to us: two class methods."""

    seen: typing.ClassVar[list[bytes]] = []

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return {"type": "object", "title": "Quack", "properties": {"n": {"type": "integer"}}}

    @classmethod
    def model_validate_json(cls, data: bytes, *, strict: bool) -> str:
        assert strict
        cls.seen.append(data)
        if b"boom" in data:
            raise ZeroDivisionError("boom")
        if b"odd" in data:
            raise ValueError("odd \ud800")
        return f"quack {data.decode()}"


def test_a_duck_is_enough_and_may_raise_anything() -> None:
    result, journal = run('{"n":"boom"}', '{"n":"odd"}', '{"n":1}', output=Quack)
    assert (result.status, result.output) == ("completed", 'quack {"n":1}')
    assert "ZeroDivisionError: boom" in corrections(journal)[0]
    assert "odd \ufffd" in corrections(journal)[1]
    assert output_type(Quack).spec.schema["additionalProperties"] is False


def test_a_validator_that_changes_its_mind_leaves_the_json_form() -> None:
    asked: list[int] = []

    class Fickle(Quack):
        @classmethod
        def model_validate_json(cls, data: bytes, *, strict: bool) -> str:
            asked.append(1)
            if len(asked) > 1:
                raise ValueError("not any more")
            return "once"

    result, _ = run('{"n":1}', output=Fickle)
    assert (result.status, result.output) == ("completed", {"n": 1})


def test_a_real_pydantic_model() -> None:
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed (pip install pydantic)")
    place = pydantic.create_model("Place", name=(str, ...), population=(int, 3))
    trip = pydantic.create_model("Trip", stops=(list[place], ...))
    schema = output_type(trip).spec.schema
    assert (schema["additionalProperties"], schema["$defs"]["Place"]["additionalProperties"]) == (False, False)
    result, journal = run('{"stops":[{"name":1,"population":"x"}]}', '{"stops":[{"name":"Rome"}]}', output=trip)
    assert result.output == trip(stops=[place(name="Rome")])
    text = corrections(journal)[0]
    assert (
        "`stops.0.name`: Input should be a valid string; `stops.0.population`: Input should be a valid integer" in text
    )
    assert "https://errors.pydantic" not in text
    wrapped, _ = run('{"value":[1]}', output=pydantic.RootModel[list[int]])
    assert wrapped.output.root == [1]


# -- corrections and endings ----------------------------------------------------------------------------


@pytest.mark.parametrize("most", [0, 1, 2])
@pytest.mark.parametrize("bad", ["nope", BAD])
def test_corrections_are_bounded(most: int, bad: Any) -> None:
    result, journal = run(*[bad] * 4, limits=ls.Limits(max_corrections=most))
    assert result.status == "failed"
    assert result.error is not None
    assert result.error.kind == "OUTPUT_INVALID"
    assert "not one JSON object" in result.error.message or "`population`: expected integer" in result.error.message
    assert result.output is None
    assert result.final_text == ("nope" if bad == "nope" else '{"name":"Paris","population":"2"}')
    assert (result.steps, len(corrections(journal))) == (most + 1, most)


def test_a_rejected_call_is_answered_and_then_corrected() -> None:
    result, journal = run(BAD, GOOD)
    assert result.output == CITY
    assert [(r.name, r.outcome, r.is_error) for r in results(result)] == [
        (FINAL, "rejected", True),
        (FINAL, "ok", False),
    ]
    assert len(corrections(journal)) == 1
    assert not journal.of(ev.ToolStarted)  # it is never run


def test_arguments_that_are_no_object_are_corrected_too() -> None:
    result, journal = run(ToolCall("a", FINAL, {}, flaw="the arguments are a number, not a JSON object"), GOOD)
    assert result.output == CITY
    assert "the arguments are a number" in corrections(journal)[0]


def test_a_final_call_beside_others_is_rejected_and_the_others_run() -> None:
    """It was made before their results were known. That is no correction: the steps bound it."""
    one, two = final(name="Paris", population=1), final(name="Paris", population=2)
    result, journal = run([one, call("look"), call("touch")], [one, two], GOOD, limits=ls.Limits(max_corrections=0))
    assert (result.status, result.output) == ("completed", CITY)
    assert [(r.name, r.outcome) for r in results(result)] == [
        (FINAL, "rejected"),
        ("look", "ok"),
        ("touch", "ok"),
        (FINAL, "rejected"),
        (FINAL, "rejected"),
        (FINAL, "ok"),
    ]
    assert "by itself" in results(result)[0].text
    assert not corrections(journal)


def test_text_beside_a_final_call_does_not_matter() -> None:
    assert run(["Here you are.", GOOD])[0].output == CITY


def test_a_text_beside_calls_is_no_answer() -> None:
    result, _ = run([PARIS, call("look")], '{"name":"Rome","population":3}')
    assert result.output == City("Rome", 3)


def test_a_policy_is_not_asked_about_the_final_call() -> None:
    result, _ = run(GOOD, policy=lambda call, traits: ls.Verdict("refuse", "no"))
    assert result.output == CITY


def test_the_last_step_may_give_the_output_and_cannot_be_corrected() -> None:
    for good in (PARIS, GOOD):
        assert run(call("look"), good, limits=ls.Limits(max_steps=2))[0].output == CITY
    for bad in ("nope", BAD):
        result, journal = run(call("look"), bad, limits=ls.Limits(max_steps=2))
        assert (result.status, result.output) == ("max_steps", None)
        assert not corrections(journal)


@pytest.mark.parametrize(
    ("blocks", "stop", "kind"), [((Text(PARIS),), "length", "TRUNCATED"), ((GOOD,), "filtered", "FILTERED")]
)
def test_an_answer_that_was_cut_or_filtered_is_no_output(blocks: Any, stop: Any, kind: str) -> None:
    result, _ = run(ls.Reply(list(blocks), stop_reason=stop))
    assert result.error is not None
    assert (result.status, result.error.kind, result.output) == ("failed", kind, None)


def test_a_cut_call_is_made_again() -> None:
    result, _ = run(ls.Reply([GOOD], stop_reason="length"), GOOD)
    assert [r.outcome for r in results(result)] == ["truncated", "ok"]
    assert result.output == CITY


def test_strict_protocol() -> None:
    assert run(GOOD, strict_protocol=True)[0].output == CITY
    result, _ = run(ls.Reply([GOOD], stop_reason="stop"), strict_protocol=True)
    assert result.error is not None
    assert result.error.kind == "MODEL_PROTOCOL_ERROR"


def test_a_final_call_in_text_is_pointed_out_once() -> None:
    leaked = f'<tool_call>{{"name":"{FINAL}","arguments":{PARIS}}}</tool_call>'
    result, journal = run(leaked, GOOD)
    assert result.output == CITY
    assert any("looks like a call of final_answer" in e.message.text for e in journal.of(ev.MessageAccepted))
    assert not corrections(journal)


# -- checks and steering ----------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [PARIS, GOOD])
def test_checks_run_before_the_output_is_accepted(answer: Any) -> None:
    exits = [1, 0]

    async def check(command: str) -> tuple[int | None, str]:
        return exits.pop(0), "it said"

    result, journal = run(call("touch"), "nope", answer, answer, checks=["make"], check=check)
    assert (result.status, result.output) == ("completed", CITY)
    kinds = [
        event.source if isinstance(event, ev.MessageAccepted) else event.type
        for event in journal.events
        if isinstance(event, ev.MessageAccepted | ev.CheckFinished | ev.RunFinished)
    ]
    assert kinds == ["prompt", "correction", "check.finished", "check", "check.finished", "run.finished"]


def test_output_of_work_that_fails_its_checks_is_none() -> None:
    async def check(command: str) -> tuple[int | None, str]:
        return 1, ""

    result, _ = run(call("touch"), GOOD, checks=["make"], check=check, limits=ls.Limits(max_check_rounds=0))
    assert (result.status, result.output, result.final_text) == ("unverified", None, PARIS)


@pytest.mark.parametrize("first", [PARIS, GOOD, "nope", BAD])
def test_steering_comes_after_the_answer_and_another_one_is_given(first: Any) -> None:
    """What was steered in is delivered without a correction, and the answer to it is the output."""

    async def main() -> None:
        journal = FakeJournal()
        sessions: list[Session] = []

        async def reply(request: Request) -> Any:
            if request.place == 0:
                await sessions[0].send("Rome, please")
                return first
            assert request.messages[-1].text == "Rome, please"
            return '{"name":"Rome","population":3}'

        sessions.append(session_for(City, [reply, reply], journal=journal))
        result = await sessions[0].run("go")
        assert result.output == City("Rome", 3)
        assert not corrections(journal)

    go(main())


# -- how it is asked for ------------------------------------------------------------------------------------


class Native(Chunks):
    native_output = True


def test_a_model_gets_the_schema_or_the_tool_and_the_record_is_the_same() -> None:
    async def main(model: Chunks) -> tuple[list[Request], FakeJournal]:
        journal = FakeJournal()
        result = await session_for(City, model, journal=journal).run("go")
        assert result.output == CITY
        check_requests(model.requests)
        return model.requests, journal

    answers = [[calling(call("look"))], [done("nope")], [done(PARIS)]]
    plain, one = go(main(Chunks(*answers)))
    native, other = go(main(Native(*answers)))
    spec = output_type(City).spec
    for request in plain:
        assert [tool.name for tool in request.tools] == ["look", "touch", FINAL]
        assert (request.tools[-1].schema, request.output) == (spec.schema, None)
    for request in native:
        assert [tool.name for tool in request.tools] == ["look", "touch"]
        assert request.output == spec
    assert one.blobs == other.blobs
    assert [r.sha256 for r in one.of(ev.ModelRequested)] == [r.sha256 for r in other.of(ev.ModelRequested)]


@pytest.mark.parametrize("model", [Chunks, Native])
def test_a_recording_plays_back_whoever_made_it(model: Any) -> None:
    async def main() -> None:
        recorded, replayed = FakeJournal(), FakeJournal()
        answers = [[calling(BAD)], [done("nope")], [calling(call("look"), GOOD)], [calling(GOOD)]]
        first = await session_for(City, model(*answers), journal=recorded).run("go")
        again = await session_for(City, ls.Cassette(recorded.events), journal=replayed).run("go")
        assert first.output == again.output == CITY
        assert recorded.types() == replayed.types()
        other = await session_for(Trip, ls.Cassette(recorded.events)).run("go")
        assert other.error is not None
        assert "tools differ" in other.error.message

    go(main())


def test_retries_hand_the_ability_on() -> None:
    from latchstep.model.retry import retrying

    assert getattr(retrying(Native([done()])), "native_output", False)
    assert not getattr(retrying(Chunks([done()])), "native_output", False)


# -- resumes --------------------------------------------------------------------------------------------------


def test_resumed_anywhere_it_ends_the_same() -> None:
    """Whatever was recorded when the process died, the resumed run has the same output and as many corrections."""

    async def main() -> None:
        journal = FakeJournal()
        script = [call("touch"), "nope", [GOOD, call("look")], BAD, GOOD]
        whole = await session_for(City, script, journal=journal).run("go")
        assert whole.output == CITY
        started = journal.types().index("run.started")
        assert len(journal.events) - started > 15
        for length in range(started + 1, len(journal.events)):
            left = cut(journal, length)
            result = await session_for(City, script, journal=left).resume()
            assert (result.status, result.output) == ("completed", CITY), length
            assert len(corrections(left)) == 2, length
            assert len(left.of(ev.RunFinished)) == 1

    go(main())


def test_a_question_about_a_tool_of_that_name_does_not_outlive_it() -> None:
    """A session whose own tool `final_answer` was lost in flight goes on under an agent that asks for output."""

    async def main() -> None:
        journal = FakeJournal()
        session_for(City, [GOOD], journal=journal)
        completed = Completed(blocks=(call(FINAL, "c1", x=1),), stop_reason="tool_calls")
        journal.append(
            [
                ev.MessageAccepted(message_id="m", source="prompt", message=ls.Message("user", (Text("go"),))),
                ev.RunStarted(run_id="r", model="m"),
                ev.ModelRequested(request_id="request-001", carries=("m",)),
                ev.MessageCompleted(
                    request_id="request-001",
                    message=ls.Message("assistant", completed.blocks),
                    stop_reason="tool_calls",
                ),
                ev.ToolStarted(call_id="c1", name=FINAL, sha256="x"),
            ]
        )
        result = await session_for(City, ["unused", GOOD], journal=journal).resume()
        assert [r.outcome for r in results(result)] == ["interrupted", "ok"]
        assert result.output == CITY

    go(main())


def test_the_rule_decides_and_nothing_else() -> None:
    """`decide` asks the injected rule; with another rule the same state ends otherwise."""
    from tests.core.test_decide import after, rules

    state = after(FINAL)
    accepts = rules(output=lambda said: Answer("{}", {}))
    action = decide(state, accepts)
    assert isinstance(action, Note)
    for event in action.events:
        state.apply(event)
    assert isinstance(decide(state, rules()), CallModel)  # no output asked for: an ordinary result
    ending = decide(state, accepts)
    assert isinstance(ending, Note)
    assert isinstance(ending.events[0], ev.RunFinished)
    assert ending.events[0].status == "completed"
    assert fold([]).run is None
