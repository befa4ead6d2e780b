"""A recorded session runs again and is the same; whatever was changed in it is found where it shows first."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import latchstep as ls
from latchstep.core import event as ev
from latchstep.core.chunk import Failed, Switched
from latchstep.core.message import Text, Usage
from latchstep.errors import FatalToolError, ModelError
from latchstep.session.replay import Difference, Replayed, replay
from latchstep.session.session import Session

from .fakes import Chunks, FakeJournal, call, calling, cut, done, forever, go, session_of, text, until


class Kept(FakeJournal):
    """A journal that keeps blobs by their real names."""

    def put_blob(self, data: bytes) -> str:
        from hashlib import sha256

        self.blobs[digest := sha256(data).hexdigest()] = data
        return digest


def again(journal: FakeJournal, **more: Any) -> Replayed:
    events = [ev.decode_event(ev.encode_event(event)) for event in journal.events]
    return go(replay(events, blob=journal.blobs.get, **more))


def same(journal: FakeJournal, **more: Any) -> Replayed:
    found = again(journal, **more)
    assert found.difference is None, shown(found.difference)
    if not more.get("run"):
        assert sum(found.kinds.values()) == len(journal.events) - 1, "not everything was replayed"
    return found


def shown(difference: Difference) -> str:
    both = [ev.encode_event(e).decode() if e is not None else "nothing" for e in (difference.recorded, difference.replayed)]
    return f"{difference.seq}\n- " + "\n+ ".join(both)
