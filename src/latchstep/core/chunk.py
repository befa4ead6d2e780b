"""What a model yields while it answers: deltas for watchers, then exactly one `Completed`.

A stream that ends without `Completed` and without a `ModelError` is itself a protocol error.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .message import Block, StopReason, Usage

DeltaKind = Literal["text", "thinking", "tool_call"]


class Delta(msgspec.Struct, frozen=True):
    """A piece of the answer, shown as it comes and never stored. For calls, `piece` is argument text."""

    kind: DeltaKind
    piece: str
    call_id: str = ""
    name: str = ""


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt failed and is discarded; a wrapper asks again in `retry_in` seconds."""

    kind: str
    message: str
    retry_in: float
    usage: Usage = Usage()
    cost: float | None = None


class Switched(msgspec.Struct, frozen=True, kw_only=True):
    """From here on another model answers this request: names (`provider:model`), and why in words."""

    old: str
    new: str
    why: str = ""


class Completed(msgspec.Struct, frozen=True, kw_only=True):
    """The provider's terminal event: the whole answer. Only now may its calls run.

    `cost` is in US dollars, None when unknown; `response_id` is the provider's, "" when it gave none.
    `origin` is the name of the model that answered, "" where that is the one that was asked. `window` is how many
    tokens it takes, 0 where that is unknown.
    """

    blocks: tuple[Block, ...]
    stop_reason: StopReason
    raw_stop_reason: str = ""
    usage: Usage = Usage()
    cost: float | None = None
    response_id: str = ""
    model: str = ""
    origin: str = ""
    window: int = 0


Chunk = Delta | Failed | Switched | Completed
