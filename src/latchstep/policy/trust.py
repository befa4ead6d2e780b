"""Is a folder vouched for, and what may its own settings do? Pure.

A folder is untrusted until a person says otherwise, and again when what it configures has changed. Untrusted, its
settings may only narrow, and nothing of it starts.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Literal

import msgspec

from latchstep.errors import DefinitionError

SETTINGS = ".latchstep/settings.toml"
INSTRUCTIONS = "AGENTS.md"
"""What a folder configures: the two files that its digest covers."""

MODES = ("plan", "ask", "edits", "auto", "unconfined")
"""From the narrowest to the widest. No settings may name the last: it is given by a flag alone."""

Standing = Literal["untrusted", "changed", "trusted"]


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """That a person vouched for a folder: its real path, which folder that was, the digest of what it configured
    then, who said so, and when (Unix seconds)."""

    path: str
    identity: str
    digest: str
    by: str
    at: float


def standing(known: Iterable[Trust], path: str, identity: str, digest: str) -> Standing:
    """`changed`: it was vouched for, and is another folder or configures other things by now."""
    latest = max((trust for trust in known if trust.path == path), key=lambda trust: trust.at, default=None)
    if latest is None:
        return "untrusted"
    return "trusted" if (latest.identity, latest.digest) == (identity, digest) else "changed"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A folder's `.latchstep/settings.toml`. Rules are written as for `--allow`, `--ask` and `--deny`."""

    mode: Literal["plan", "ask", "edits", "auto"] | None = None
    max_steps: int | None = None
    checks: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_steps is not None and self.max_steps < 1:
            raise ValueError("max_steps must be at least 1")


def settings_from(text: str) -> Settings:
    """The settings in a TOML text. Raises DefinitionError that says what is wrong with it."""
    try:
        return msgspec.convert(tomllib.loads(text), Settings)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, RecursionError) as error:
        said = str(error).replace("Invalid enum value", "mode is plan, ask, edits or auto, not")
        raise DefinitionError(f"{SETTINGS}: {said}") from None


def understood(text: str) -> Settings:
    """Of settings with a mistake in them, each part by itself that can be read and only narrows."""
    try:
        said = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return Settings()
    kept = Settings()
    for name in ("mode", "max_steps", "ask", "deny"):
        try:
            part = msgspec.convert({name: said[name]}, Settings)
        except (KeyError, msgspec.ValidationError):
            continue
        if part.mode in (None, "plan", "ask"):
            kept = msgspec.structs.replace(kept, **{name: getattr(part, name)})
    return kept


def narrowed(settings: Settings) -> Settings:
    """What holds of the settings of a folder that nobody vouched for."""
    return msgspec.structs.replace(settings, checks=(), allow=())


def mode_under(settings: Settings, typed: str | None, standing: Standing) -> str:
    """The mode of a run. What was typed may be narrowed by an untrusted folder; a trusted one sets the default."""
    if settings.mode is None:
        return typed or "ask"
    if standing == "trusted":
        return typed or settings.mode
    return min(typed or "ask", settings.mode, key=MODES.index)
