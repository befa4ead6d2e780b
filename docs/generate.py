"""Writes `events.md` from `core/event.py`, and `tools/` from the tools: `python docs/generate.py`, after a change."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import get_args

import msgspec

from latchstep.core import event, message

PAGE = Path(__file__).with_name("events.md")

HEAD = """\
# Events

Generated from `src/latchstep/core/event.py` by `python docs/generate.py`; do not edit.

What happened, in the past tense. On disk each is one JSON object on one line; `type` says which, and fields that have
their default are left out. A reader drops fields it does not know and keeps events it does not know.
"""

WORDS = {
    "Role": message.Role,
    "Source": event.Source,
    "Because": event.Because,
    "CompactBecause": event.CompactBecause,
    "Status": event.Status,
    "Effect": event.Effect,
    "Replay": event.Replay,
    "Decision": event.Decision,
    "Outcome": message.Outcome,
    "StopReason": message.StopReason,
}
PARTS = (event.ErrorInfo, event.Question, message.Usage, message.Message)
BLOCKS: tuple[type[msgspec.Struct], ...] = get_args(message.Block)


def page() -> str:
    """The whole page."""
    kinds: tuple[type[msgspec.Struct], ...] = get_args(event.AnyEvent)
    return "\n".join(
        [
            HEAD,
            _table("event", {_tag(kind): kind for kind in kinds}),
            "· transient: shown to watchers and never stored.\n",
            "## Every event\n",
            f"{_said(event.Event)}\n",
            f"{_fields(event.Event)}\n",
            "## Words\n",
            "| type | one of |\n| --- | --- |",
            *(f"| `{name}` | {', '.join(f'`{word}`' for word in get_args(words))} |" for name, words in WORDS.items()),
            "\n## What they are made of\n",
            _table("type", {f"`{kind.__name__}`": kind for kind in PARTS}),
            "A `Block` is one of these, told apart by `type`; `Opaque` is `dict[str, Any] | None`.\n",
            _table("block", {_tag(kind): kind for kind in BLOCKS}),
        ]
    )


def _table(what: str, kinds: dict[str, type[msgspec.Struct]]) -> str:
    rows = [f"| {name} | {_fields(kind)} | {_said(kind)} |" for name, kind in kinds.items()]
    return "\n".join([f"| {what} | fields | |\n| --- | --- | --- |", *rows, ""])


def _tag(kind: type[msgspec.Struct]) -> str:
    return f"`{kind.__struct_config__.tag}`{' ·' if kind in event.TRANSIENT else ''}"


def _said(kind: type[msgspec.Struct]) -> str:
    """Its own docstring, in one line."""
    return _cell(" ".join(inspect.cleandoc(kind.__doc__ or "").split()))


def _fields(kind: type[msgspec.Struct]) -> str:
    """The fields that are its own, in their order, each with its type and default."""
    known = {field.name: field for field in msgspec.structs.fields(kind)}
    own = inspect.get_annotations(kind)
    return " ".join(f"`{name}: {_cell(given)}{_default(known[name])}`" for name, given in own.items())


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return ""
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return f" = {type(value).__name__}()" if isinstance(value, msgspec.Struct) else f" = {value!r}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    from toolpages import pages

    PAGE.write_text(page(), encoding="utf-8")
    for name, text in pages().items():
        PAGE.with_name("tools").joinpath(f"{name}.md").write_text(text, encoding="utf-8")
