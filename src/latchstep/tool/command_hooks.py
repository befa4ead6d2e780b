"""Hooks that are commands of the person's own, run around calls with the person's rights: no sandbox holds them.

Rule: one that does anything but what is agreed lets its call not run, or withholds its result. Nothing fails open.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from latchstep.core.message import Image
from latchstep.core.rules import Verdict
from latchstep.core.secrets import Masker
from latchstep.errors import ToolError

from .base import Context, Output, Tool
from .bash import status_of
from .hooks import after_tool, before_tool
from .spawner import Spawner
from .text import clean_output

DEFAULT_TIMEOUT = 10.0
MAX_TIMEOUT = 60.0
"""Seconds that a hook may take."""
MAX_ASKED, MAX_SAID = 16 * 2**20, 4 * 2**20
"""Bytes that a hook is given of a call, and that are read of what it says."""
REFUSED = 2
"""Exit status of a hook that declines a call."""

T = TypeVar("T")


class CommandHook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program and its arguments, run before or after each call of a tool (`*`: of any). timeout: seconds."""

    when: Literal["before", "after"]
    tool: Annotated[str, Meta(min_length=1)]
    command: Annotated[tuple[str, ...], Meta(min_length=1, max_length=100)]
    timeout: Annotated[float, Meta(gt=0, le=MAX_TIMEOUT)] = DEFAULT_TIMEOUT

    def __post_init__(self) -> None:
        if not os.path.isabs(self.command[0]) or "\0" in "".join(self.command):
            raise ValueError(f"a hook's command begins with the absolute path of a program, not {self.command[0]!r}")


@dataclass(frozen=True, slots=True)
class Place:
    """Where hooks run. spawner: one without a sandbox, which the caller closes. refuse_gone: see `bash_tool`. masker:
    takes secrets out of the results that hooks are given."""

    spawner: Spawner
    root: Path
    session: str
    refuse_gone: Callable[[], None]
    masker: Masker


class _Changed(msgspec.Struct, forbid_unknown_fields=True):
    arguments: dict[str, Any]


class _Replaced(msgspec.Struct, forbid_unknown_fields=True):
    content: str


class _Said(NamedTuple):
    """How a hook ended, in a number and in words, and what it wrote to either stream."""

    status: int | None
    ending: str
    out: bytes
    why: str


def hooked(given: Tool, hooks: Sequence[CommandHook], place: Place) -> Tool:
    """The tool with those of the hooks that are for it, which run in their order. Its deadline is longer by theirs."""
    own = [hook for hook in hooks if hook.tool in (given.name, "*")]
    made = given
    for hook in reversed(own):
        if hook.when == "before":
            made = before_tool(made, _before(hook, given.name, place))
    for hook in own:
        if hook.when == "after":
            made = after_tool(made, _after(hook, given.name, place))
    more = sum(hook.timeout for hook in own)
    return replace(made, timeout=made.timeout + more) if own and made.timeout is not None else made


def _before(hook: CommandHook, name: str, place: Place) -> Callable[..., Any]:
    async def before(arguments: dict[str, Any], context: Context) -> dict[str, Any] | Verdict | None:
        said = await _said(hook, place, context, {"tool": name, "arguments": arguments})
        if said.status == REFUSED:
            return Verdict("refuse", said.why or "it gave no reason")
        answer = _answer(hook, said, _Changed)
        return answer.arguments if answer is not None else None

    return before


def _after(hook: CommandHook, name: str, place: Place) -> Callable[..., Any]:
    async def after(arguments: dict[str, Any], output: Output, context: Context) -> Output | None:
        about = {
            "tool": name,
            "arguments": arguments,
            "content": place.masker.mask(_text(output)),
            "outcome": output.outcome,
        }
        answer = _answer(hook, await _said(hook, place, context, about), _Replaced)
        # the file with the whole of the result would hold what the hook took out
        return replace(output, content=answer.content, output="") if answer is not None else None

    return after


def _text(output: Output) -> str:
    if isinstance(output.content, str):
        return output.content
    return "\n".join(f"[{it.media_type}]" if isinstance(it, Image) else it.text for it in output.content)


def _answer(hook: CommandHook, said: _Said, kind: type[T]) -> T | None:
    """What a hook that ended well wants. Raises ToolError for any other ending, and for an answer that is none."""
    if said.status != 0:
        raise ToolError(f"{hook.command[0]}: {said.ending}{f': {said.why}' if said.why else ''}")
    if not said.out.strip():
        return None
    try:
        return msgspec.json.decode(said.out, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ToolError(f"{hook.command[0]}: what it wrote is no answer: {error}") from None


async def _said(hook: CommandHook, place: Place, context: Context, about: dict[str, Any]) -> _Said:
    """Run it once. Raises ToolError where it cannot be run, or says too much."""
    place.refuse_gone()
    asked, out, mark = msgspec.json.encode(about), bytearray(), os.urandom(12).hex()
    if len(asked) > MAX_ASKED:
        raise ToolError(f"{hook.command[0]}: the call has {len(asked):,} bytes; a hook is given {MAX_ASKED:,} at most")

    def came(data: bytes) -> None:
        if len(out) <= MAX_SAID:
            out.extend(data)

    command = (
        f"exec 3>&1; why=$({shlex.join(hook.command)} 2>&1 >&3 3>&-); status=$?; "
        f"printf '\\n%s\\n%.2000s' {mark} \"$why\"; exit $status"
    )
    named = {"LATCHSTEP_TOOL": about["tool"], "LATCHSTEP_CALL_ID": context.call_id, "LATCHSTEP_SESSION": place.session}
    ended = await place.spawner.run(
        command, cwd=place.root, env=named, timeout=hook.timeout, stdin=asked, on_output=came
    )
    if len(out) > MAX_SAID:
        raise ToolError(f"{hook.command[0]}: it wrote more than {MAX_SAID:,} bytes")
    said, _, why = bytes(out).rpartition(f"\n{mark}\n".encode())
    return _Said(ended.exit_status, status_of(ended, hook.timeout), said, clean_output(why).strip())
