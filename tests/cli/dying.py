"""`latchstep`, killed by SIGKILL at one point of its record: `before:TYPE:N` or `after:TYPE:N` of the N-th such event.

Usage: dying.py POINT ARGUMENT…
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence

from latchstep.cli.main import main
from latchstep.core.event import Event
from latchstep.journal.file import FileJournal

point = sys.argv.pop(1)
seen: Counter[str] = Counter()
append = FileJournal.append


def dying(self: FileJournal, events: Sequence[Event]) -> int:
    seen.update(event.type for event in events)
    reached = {f"{event.type}:{seen[event.type]}" for event in events}
    if point.removeprefix("before:") in reached:
        os.kill(os.getpid(), signal.SIGKILL)
    head = append(self, events)
    if point.removeprefix("after:") in reached:
        os.kill(os.getpid(), signal.SIGKILL)
    return head


FileJournal.append = dying  # type: ignore[method-assign]
main()
