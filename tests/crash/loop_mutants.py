"""Deliberate faults in the loop, as `mutants.py` plants them: name → (file, what stands there, the fault)."""

from __future__ import annotations

LOOP: dict[str, tuple[str, str, str]] = {
    "intent not synced": (
        "session/tools.py",
        '    if any(event.effect == "write" for event in started):\n        await session.sync()\n',
        "",
    ),
    "effect before intent": (
        "session/tools.py",
        '    await session.emit(*started)\n    if any(event.effect == "write" for event in started):\n'
        "        await session.sync()\n",
        "    for entry in entries:\n"
        "        tool = session.kit.tools[entry.call.name]\n"
        "        if tool.effect == 'write' and not tool.context:\n"
        "            tool.function(**session.kit.validated(entry.call))\n"
        "    await session.emit(*started)\n    await session.sync()\n",
    ),
    "unknown outcome run again": (
        "core/calls.py",
        '    if entry.replay == "safe" and traits.replay == "safe":\n',
        "    if True:\n",
    ),
    "safe to repeat by what is declared now": (
        "core/calls.py",
        '    if entry.replay == "safe" and traits.replay == "safe":\n',
        '    if traits.replay == "safe":\n',
    ),
    "safe to repeat by what was declared then": (
        "core/calls.py",
        '    if entry.replay == "safe" and traits.replay == "safe":\n',
        '    if entry.replay == "safe":\n',
    ),
    "a lost call is not started": (
        "core/calls.py",
        '            return Note((result(entry, "interrupted", wording.lost(tried), True),))\n',
        '            return Note((result(entry, "not_started", wording.lost(tried), True),))\n',
    ),
    "a lost call is ok": (
        "core/calls.py",
        '            return Note((result(entry, "interrupted", wording.lost(tried), True),))\n',
        '            return Note((result(entry, "ok", wording.lost(tried), False),))\n',
    ),
    "doubt falls through to a run": (
        "core/calls.py",
        '            return Note((result(entry, "interrupted", wording.lost(tried), True),))\n',
        "            return RunTools((entry.call.id,))\n",
    ),
    "the model is asked while calls are open": ("core/decide.py", "    if state.pending:\n", "    if False:\n"),
    "what was in flight is not lost": (
        "core/parts.py",
        '        if self.status == "started":\n            self.status = "lost"\n        elif',
        "        if",
    ),
    "what was in flight is new": (
        "core/parts.py",
        '            self.status = "lost"\n        elif',
        '            self.status = "new"\n        elif',
    ),
    "a grant is used silently after reopening": (
        "core/parts.py",
        'elif self.status == "asked" or (self.status == "allowed" and self.about != "answer"):',
        'elif self.status == "asked":',
    ),
    "a question is not asked again": (
        "core/parts.py",
        'elif self.status == "asked" or (self.status == "allowed" and self.about != "answer"):',
        'elif self.status == "allowed" and self.about != "answer":',
    ),
    "a write does not arm the checks": (
        "core/state.py",
        "self.run.wrote = self.armed = True",
        "self.run.wrote = True",
    ),
    "a check that ran is not run again": (
        "core/state.py",
        "        self.epoch = event.epoch\n        self.checks = []\n",
        "        self.epoch = event.epoch\n",
    ),
    "two results for one call": (
        "core/state.py",
        '            raise ValueError(f"call {event.call_id} has a result already")\n',
        "            return\n",
    ),
    "a lost request has a new id": (
        "core/decide.py",
        "        return CallModel(request.request_id, request.attempt + 1, again, carries)\n",
        '        return CallModel(f"request-{state.requests + 1:03d}", 1, again, carries)\n',
    ),
    "results of a parallel batch are recorded when all are there": (
        "session/tools.py",
        "    while (ended := await crew.next()) is not None:\n"
        "        await session.emit(_finished(session, by_id[ended.key], contexts[ended.key], ended, "
        "perf_counter() - began))\n",
        "    all_of_them = []\n"
        "    while (ended := await crew.next()) is not None:\n"
        "        all_of_them.append(_finished(session, by_id[ended.key], contexts[ended.key], ended, "
        "perf_counter() - began))\n"
        "    await session.emit(*all_of_them)\n",
    ),
    "intents of the whole batch": (
        "session/tools.py",
        "    started = [_intent(session, entry, contexts[entry.call.id]) for entry in entries]\n",
        "    later = [e for e in session.state.turn if e.status == 'new' and e.call.id not in contexts]\n"
        "    started = [_intent(session, entry, contexts[entry.call.id]) for entry in entries]\n"
        "    started += [_intent(session, e, call_context(session, e)) for e in later if e.call.name in "
        "session.kit.tools]\n",
    ),
    "the ending is shown before it is on disk": (
        "session/session.py",
        "        self._write((ending,))\n        self._ending = ending\n",
        "        self.record(ending)\n",
    ),
    "the ending is not synced": (
        "session/session.py",
        "        self._ending = ending\n        await self.sync()\n        self._synced(None)\n",
        "        self.hub.publish(ending)\n",
    ),
    "an ending that is not on disk can be read": (
        "session/session.py",
        "            if self._ending is not None and event.seq >= self._ending.seq:\n                return\n",
        "",
    ),
    "a steer is acknowledged before it is on disk": (
        "session/said.py",
        "    await session.sync()\n\n\nasync def reply",
        "\n\nasync def reply",
    ),
    "an answer is acknowledged before it is on disk": (
        "session/said.py",
        "note=note))\n    await session.sync()\n",
        "note=note))\n",
    ),
    "a prompt is not synced": (
        "session/session.py",
        "            self._run.begun.set()\n        await self.sync()\n",
        "            self._run.begun.set()\n",
    ),
    "applied before it is on record": (
        "session/session.py",
        "        try:\n            self._known = self.journal.append(events)\n",
        "        for event in events:\n            self.state.apply(event)\n"
        "        try:\n            self._known = self.journal.append(events)\n",
    ),
    "shown before it is on record": (
        "session/session.py",
        "        self._write(events)\n        if self.hub.busy:\n            for event in events:\n"
        "                self.hub.publish(event)\n",
        "        for event in events:\n            self.hub.publish(event)\n        self._write(events)\n",
    ),
    "written while a barrier is under way": (
        "session/session.py",
        "        if self.barrier.under_way is not None:\n            await self.barrier.quiet()\n"
        "        self.record(*events)\n",
        "        self.record(*events)\n",
    ),
    "cancelled in a barrier, run all the same": (
        "session/tools.py",
        "    if session.interrupted:\n        await session.note_interrupt()\n",
        "    if False:\n        await session.note_interrupt()\n",
    ),
    "a failing journal leaves tools running": (
        "session/session.py",
        "        self._poison = error\n        self._interrupt()\n",
        "        self._poison = error\n",
    ),
    "a barrier may take for ever": (
        "journal/file.py",
        "await self._barrier.wait(SYNC_WAIT)",
        "await self._barrier.wait(1e6)",
    ),
    "a second run on the same journal": ("session/run.py", "            claim(self.session.journal, self)\n", ""),
    "a session that does not know the whole record": (
        "session/claim.py",
        "    if journal.head > known:\n",
        "    if False:\n",
    ),
    "settled by guessing": (
        "session/perform.py",
        '    if ended.value == "done":\n',
        '    if ended.value != "not_done":\n',
    ),
    "settled the wrong way round": (
        "session/perform.py",
        '    if ended.value == "done":\n',
        '    if ended.value == "not_done":\n',
    ),
}
