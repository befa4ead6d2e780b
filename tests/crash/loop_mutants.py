"""Deliberate faults in the loop, as `mutants.py` plants them: name → (file, what stands there, the fault, the test)."""

from __future__ import annotations

LOOP: dict[str, tuple[str, str, str, str]] = {
    "intent not synced": (
        "session/tools.py",
        '    if any(event.effect == "write" for event in started):\n        await session.sync()\n',
        "",
        "session/test_barrier.py::test_the_order_of_a_run_with_effects",
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
        "crash/test_loop_power.py::test_no_crash_loses_a_promise_or_repeats_an_effect[kill]",
    ),
    "unknown outcome run again": (
        "core/calls.py",
        '    if entry.replay == "safe" and traits.replay == "safe":\n',
        "    if True:\n",
        "crash/test_loop_power.py::test_no_crash_loses_a_promise_or_repeats_an_effect[kill]",
    ),
    "safe to repeat by what is declared now": (
        "core/calls.py",
        '    if entry.replay == "safe" and traits.replay == "safe":\n',
        '    if traits.replay == "safe":\n',
        "core/test_decide.py::test_a_tool_that_became_safe_since_is_in_doubt_all_the_same",
    ),
    "safe to repeat by what was declared then": (
        "core/calls.py",
        '    if entry.replay == "safe" and traits.replay == "safe":\n',
        '    if entry.replay == "safe":\n',
        "core/test_decide.py::test_a_tool_that_is_no_longer_declared_safe_is_in_doubt",
    ),
    "a lost call is not started": (
        "core/calls.py",
        '            return Note((result(entry, "interrupted", wording.lost(tried), True),))\n',
        '            return Note((result(entry, "not_started", wording.lost(tried), True),))\n',
        "crash/test_loop_power.py::test_no_crash_loses_a_promise_or_repeats_an_effect[kill]",
    ),
    "a lost call is ok": (
        "core/calls.py",
        '            return Note((result(entry, "interrupted", wording.lost(tried), True),))\n',
        '            return Note((result(entry, "ok", wording.lost(tried), False),))\n',
        "crash/test_loop_power.py::test_no_crash_loses_a_promise_or_repeats_an_effect[kill]",
    ),
    "doubt falls through to a run": (
        "core/calls.py",
        '            return Note((result(entry, "interrupted", wording.lost(tried), True),))\n',
        "            return RunTools((entry.call.id,))\n",
        "crash/test_loop_power.py::test_no_crash_loses_a_promise_or_repeats_an_effect[kill]",
    ),
    "the model is asked while calls are open": (
        "core/decide.py",
        "    if state.pending:\n",
        "    if False:\n",
        "crash/test_loop_power.py::test_no_crash_loses_a_promise_or_repeats_an_effect[kill]",
    ),
    "what was in flight is not lost": (
        "core/parts.py",
        '        if self.status == "started":\n            self.status = "lost"\n        elif',
        "        if",
        "crash/test_loop_power.py::test_no_crash_loses_a_promise_or_repeats_an_effect[kill]",
    ),
    "what was in flight is new": (
        "core/parts.py",
        '            self.status = "lost"\n        elif',
        '            self.status = "new"\n        elif',
        "crash/test_loop_power.py::test_no_crash_loses_a_promise_or_repeats_an_effect[kill]",
    ),
    "a grant is used silently after reopening": (
        "core/parts.py",
        'elif self.status == "asked" or (self.status == "allowed" and self.about != "answer"):',
        'elif self.status == "asked":',
        "crash/test_loop_power.py::test_no_crash_loses_a_promise_or_repeats_an_effect[kill]",
    ),
    "a question is not asked again": (
        "core/parts.py",
        'elif self.status == "asked" or (self.status == "allowed" and self.about != "answer"):',
        'elif self.status == "allowed" and self.about != "answer":',
        "core/test_state.py::test_an_opening_marks_what_was_in_flight",
    ),
    "a write does not arm the checks": (
        "core/state.py",
        "self.run.wrote = self.armed = True",
        "self.run.wrote = True",
        "crash/test_loop_power.py::test_no_crash_loses_a_promise_or_repeats_an_effect[kill]",
    ),
    "a check that ran is not run again": (
        "core/state.py",
        "        self.epoch = event.epoch\n        self.checks = []\n",
        "        self.epoch = event.epoch\n",
        "crash/test_loop_power.py::test_no_crash_loses_a_promise_or_repeats_an_effect[kill]",
    ),
    "two results for one call": (
        "core/state.py",
        '            raise ValueError(f"call {event.call_id} has a result already")\n',
        "            return\n",
        "core/test_state.py::test_results_join_in_call_order_whatever_order_they_come_in",
    ),
    "a lost request has a new id": (
        "core/decide.py",
        "        return CallModel(request.request_id, request.attempt + 1, again, carries)\n",
        '        return CallModel(f"request-{state.requests + 1:03d}", 1, again, carries)\n',
        "session/test_resume.py::test_a_request_lost_with_its_process_is_asked_again",
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
        "crash/test_real_kills.py::test_the_finished_half_of_a_parallel_batch_is_kept",
    ),
    "intents of the whole batch": (
        "session/tools.py",
        "    started = [_intent(session, entry, contexts[entry.call.id]) for entry in entries]\n",
        "    later = [e for e in session.state.turn if e.status == 'new' and e.call.id not in contexts]\n"
        "    started = [_intent(session, entry, contexts[entry.call.id]) for entry in entries]\n"
        "    started += [_intent(session, e, call_context(session, e)) for e in later if e.call.name in "
        "session.kit.tools]\n",
        "session/test_barrier.py::test_a_group_of_reads_before_a_write_is_covered_by_its_one_barrier",
    ),
    "the ending is shown before it is on disk": (
        "session/session.py",
        "        self._write((ending,))\n        self._ending = ending\n",
        "        self.record(ending)\n",
        "session/test_barrier.py::test_the_ending_is_on_disk_before_anyone_sees_it",
    ),
    "the ending is not synced": (
        "session/session.py",
        "        self._ending = ending\n        await self.sync()\n        self._synced(None)\n",
        "        self.hub.publish(ending)\n",
        "session/test_barrier.py::test_the_ending_is_on_disk_before_anyone_sees_it",
    ),
    "an ending that is not on disk can be read": (
        "session/session.py",
        "            if self._ending is not None and event.seq >= self._ending.seq:\n                return\n",
        "",
        "session/test_barrier.py::test_an_iterator_begun_while_the_ending_is_written_sees_it_once",
    ),
    "a steer is acknowledged before it is on disk": (
        "session/said.py",
        "    await session.sync()\n\n\nasync def reply",
        "\n\nasync def reply",
        "session/test_barrier.py::test_a_message_is_on_disk_before_it_is_acknowledged",
    ),
    "an answer is acknowledged before it is on disk": (
        "session/said.py",
        "note=note))\n    await session.sync()\n",
        "note=note))\n",
        "session/test_barrier.py::test_an_answer_is_on_disk_before_it_is_acknowledged",
    ),
    "a prompt is not synced": (
        "session/session.py",
        "            self._run.begun.set()\n        await self.sync()\n",
        "            self._run.begun.set()\n",
        "session/test_barrier.py::test_nothing_is_done_for_a_prompt_that_is_not_on_disk",
    ),
    "applied before it is on record": (
        "session/session.py",
        "        try:\n            self._known = self.journal.append(events)\n",
        "        for event in events:\n            self.state.apply(event)\n"
        "        try:\n            self._known = self.journal.append(events)\n",
        "session/test_journal_fails.py::test_an_append_that_fails_ends_the_run",
    ),
    "shown before it is on record": (
        "session/session.py",
        "        self._write(events)\n        if self.hub.busy:\n            for event in events:\n"
        "                self.hub.publish(event)\n",
        "        for event in events:\n            self.hub.publish(event)\n        self._write(events)\n",
        "session/test_journal_fails.py::test_an_append_that_fails_ends_the_run",
    ),
    "written while a barrier is under way": (
        "session/session.py",
        "        if self.barrier.under_way is not None:\n            await self.barrier.quiet()\n"
        "        self.record(*events)\n",
        "        self.record(*events)\n",
        "session/test_barrier.py::test_a_tool_that_ends_during_a_sync_is_recorded_after_it",
    ),
    "cancelled in a barrier, run all the same": (
        "session/tools.py",
        "    if session.interrupted:\n        await session.note_interrupt()\n",
        "    if False:\n        await session.note_interrupt()\n",
        "session/test_barrier.py::test_cancelling_during_a_sync_runs_nothing",
    ),
    "a failing journal leaves tools running": (
        "session/session.py",
        "        self._poison = error\n        self._interrupt()\n",
        "        self._poison = error\n",
        "session/test_journal_fails.py::test_a_failing_steer_is_not_acknowledged_and_ends_a_run_that_waits",
    ),
    "a barrier may take for ever": (
        "journal/file.py",
        "await self._barrier.wait(SYNC_WAIT)",
        "await self._barrier.wait(1e6)",
        "crash/test_stuck_disk.py::test_a_barrier_that_does_not_end_poisons_the_journal",
    ),
    "a second run on the same journal": (
        "session/run.py",
        "            claim(self.session.journal, self)\n",
        "",
        "session/test_claim.py::test_an_agent_with_a_journal_runs_once_at_a_time",
    ),
    "a session that does not know the whole record": (
        "session/claim.py",
        "    if journal.head > known:\n",
        "    if False:\n",
        "session/test_claim.py::test_a_run_made_before_is_refused_when_it_begins",
    ),
    "settled by guessing": (
        "session/perform.py",
        '    if ended.value == "done":\n',
        '    if ended.value != "not_done":\n',
        "session/test_resume.py::test_where_it_cannot_be_told_the_policy_for_doubt_says",
    ),
    "settled the wrong way round": (
        "session/perform.py",
        '    if ended.value == "done":\n',
        '    if ended.value == "not_done":\n',
        "session/test_resume.py::test_an_effect_that_can_be_looked_up",
    ),
}
