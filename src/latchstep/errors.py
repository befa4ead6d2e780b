"""Every exception this package raises, in one tree.

    LatchstepError
    ├── DefinitionError       a tool, agent or option is declared wrongly; raised where it is declared
    ├── ModelError            the model gave no usable answer; `kind` says why
    ├── ToolError             raised inside a tool: the text becomes the result, outcome `error`
    │   └── FatalToolError    the tool layer's own promise is broken: the run ends `failed(TOOL)`
    ├── SessionError          no such session, or it is in a state that forbids what was asked
    └── JournalError          the record cannot be read or written
        ├── JournalDamaged    acknowledged data does not verify
        ├── JournalLocked     another process writes this session
        ├── JournalTooNew     written by a newer major format
        └── JournalPoisoned   a write failed; nothing more is written in this opening

Outcomes are values; these are for broken promises and for what only the caller can mend.
"""

from __future__ import annotations

from typing import Any, Literal

ModelErrorKind = Literal[
    "auth",
    "permission",
    "not_found",
    "bad_request",
    "rate_limited",
    "overloaded",
    "server",
    "network",
    "timeout",
    "protocol",
    "context_overflow",
    "filtered",
    "quota",
]

RETRYABLE: frozenset[str] = frozenset({"rate_limited", "overloaded", "server", "network", "timeout", "protocol"})
"""Kinds that may pass by themselves. `protocol` counts: a stream that ended early executed nothing."""


class LatchstepError(Exception):
    """Root of the tree: `except ls.LatchstepError` catches everything raised on purpose."""


class DefinitionError(LatchstepError, TypeError):
    """A tool, agent or option is declared wrongly. The text names it and says what would be right."""


class ModelError(LatchstepError):
    """The model gave no usable answer.

    kind: one of `ModelErrorKind`. status: the HTTP status, or None.
    retry_after: seconds the server asked us to wait, or None. usage: a `Usage`, where the attempt is known to have
    been counted all the same, and its cost in US dollars, where that is known too.
    """

    def __init__(
        self,
        kind: ModelErrorKind,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        usage: Any = None,
        cost: float | None = None,
    ) -> None:
        super().__init__(message)
        self.kind: ModelErrorKind = kind
        self.message = message
        self.status = status
        self.retry_after = retry_after
        self.usage, self.cost = usage, cost

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"

    @property
    def retryable(self) -> bool:
        return self.kind in RETRYABLE


class ToolError(LatchstepError):
    """Raise inside a tool to tell the model, in words, what went wrong. The run goes on."""


class FatalToolError(ToolError):
    """Raise inside a tool when going on would be wrong: the run ends `failed(TOOL)`."""


class SessionError(LatchstepError):
    """No such session, an ambiguous prefix, or a session whose state forbids what was asked."""


class JournalError(LatchstepError):
    """The record of a session cannot be read or written."""


class JournalDamaged(JournalError):
    """Acknowledged data does not verify. `line` counts from 0, `offset` is in bytes."""

    def __init__(self, path: str, line: int, offset: int, why: str) -> None:
        super().__init__(f"{path}: damaged at line {line} (byte {offset}): {why}")
        self.path, self.line, self.offset, self.why = path, line, offset, why


class JournalLocked(JournalError):
    """Another process writes this session; `holder` names it (pid and command)."""

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(f"{path} is being written by {holder}; wait for it, stop it, or fork the session")
        self.path, self.holder = path, holder


class JournalTooNew(JournalError):
    """Written by a newer major format than this program reads."""


class JournalPoisoned(JournalError):
    """A write or sync failed and was rolled back; `withdrawn` names the events that are not on disk."""

    def __init__(self, message: str, withdrawn: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.withdrawn = withdrawn
