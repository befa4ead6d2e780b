"""The demo's scripted model: what to say next, decided from what it was sent.

It knows no path, id or timing in advance: every reply is a function of the results in the request, as a
real model's would be.
"""

from __future__ import annotations

import re
from typing import Any

from latchstep.core.message import ToolCall, ToolResult
from latchstep.model.base import Request
from latchstep.model.scripted import Reply, ScriptedModel

MONEY, RECEIPT = "shop/money.py", "shop/receipt.py"

GUESS = "return int(float(text) * 100)"
"""What the model believes to remember of the file; it is not what stands there."""


def demo_model(test: str) -> ScriptedModel:
    """The model. `test` is the command that runs the project's tests."""
    return ScriptedModel([lambda request: reply(request, test)] * 40, name="scripted:demo")


def reply(request: Request, test: str) -> Reply:
    """The next answer, by the furthest point that the results in the request show to be reached."""
    results = _results(request)
    if not results:
        return _say(
            "I will look around first, and search for where prices are computed.",
            ToolCall(name="list", arguments={"path": "."}),
            ToolCall(name="grep", arguments={"pattern": r"int\(", "path": "shop"}),
        )
    if not _with(results, "read"):
        return _say(
            "Two places turn a fraction into whole cents. I read both.",
            *(ToolCall(name="read", arguments={"path": path}) for path in (MONEY, RECEIPT)),
        )
    edits = _with(results, "edit")
    if not edits:
        return _say(
            "`int` cuts off instead of rounding: 19.99 * 100 is 1998.9999…",
            _edit(MONEY, GUESS, "return round(float(text) * 100)"),
        )
    if edits[-1].outcome != "ok":
        line = _nearest(edits[-1].text)
        return _say(
            "My memory of that line was wrong. The error shows what really stands there.", _rounded(MONEY, line)
        )
    return _after_the_first_edit(results, edits, test)


def _after_the_first_edit(results: list[ToolResult], edits: list[ToolResult], test: str) -> Reply:
    tests = _with(results, "bash")
    if not tests:
        return _say("Now the tests.", ToolCall(name="bash", arguments={"command": test}))
    if tests[-1].outcome == "interrupted":
        return _say(
            "The test run was interrupted, and I am told that its effects are unknown. Tests change nothing here, "
            "so I run them again.",
            ToolCall(name="bash", arguments={"command": test}),
        )
    if "test_a_discount" in tests[-1].text and not any(RECEIPT in edit.text for edit in edits):
        line = next(line.strip() for line in _read(results, RECEIPT).splitlines() if "int(" in line)
        return _say("Prices are right now, the discount is not: the same mistake once more.", _rounded(RECEIPT, line))
    return _say(
        "Both conversions to cents now round to the nearest cent instead of cutting off: `parse` in "
        f"`{MONEY}` and `discount` in `{RECEIPT}`."
    )


def _results(request: Request) -> list[ToolResult]:
    return [block for message in request.messages for block in message.blocks if isinstance(block, ToolResult)]


def _with(results: list[ToolResult], name: str) -> list[ToolResult]:
    return [result for result in results if result.name == name]


def _read(results: list[ToolResult], path: str) -> str:
    """What was read of a file: reads come back in the order they were asked for."""
    reads = _with(results, "read")
    return reads[(MONEY, RECEIPT).index(path)].text


def _nearest(error: str) -> str:
    """The line that the failed edit's error offers instead."""
    found = re.search(r"return int\(float\(text\.[^\n]*", error)
    return found[0].strip() if found else GUESS


def _rounded(path: str, line: str) -> ToolCall:
    return _edit(path, line, line.replace("int(", "round(", 1))


def _edit(path: str, old: str, new: str) -> ToolCall:
    return ToolCall(name="edit", arguments={"path": path, "old": old, "new": new})


def _say(text: str, *calls: ToolCall) -> Reply:
    """Text in a few pieces, as a stream would bring it, then the calls."""
    words = re.findall(r"\S+\s*", text)
    pieces: list[Any] = ["".join(words[i : i + 4]) for i in range(0, len(words), 4)]
    return Reply([text, *calls], deltas=pieces)
