"""The friendly front: declares what a run may use, and builds sessions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from latchstep.core.event import FORMAT, SessionCreated
from latchstep.core.message import Message
from latchstep.core.rules import Limits, OnDoubt, Questions
from latchstep.errors import DefinitionError
from latchstep.journal.base import Journal, MemoryJournal, new_session_id

from .blocking import run_blocking
from .build import Policy, build_kit, build_rules, own_secrets
from .check import checker
from .run import Run, RunResult
from .session import Session


class Agent:
    """A model, its tools and the rules it works under. Immutable; many runs may share it at once.

    model: a name (`provider:model`) or a `Model`. tools: functions or `Tool`s. system: the system prompt.
    output: the type of `RunResult.output`: a msgspec.Struct, dataclass, TypedDict, pydantic model or any other type a
    tool's parameter may have. The model's answer is validated strictly and sent back up to `max_corrections` times.
    limits: see `Limits`. policy(call, traits) -> Verdict: by default every declared tool may run.
    summarizer: the model that sums up what does not fit into the context any more; by default the same.
    approve(question): asked where the policy says `ask`; True, "allow" or a Verdict `run` lets it run. Where
    `question.about` is `answer` the call is a question to a person, and a text answers it. May be async.
    checks: commands that must pass before a run with changes is `completed`; they run in `workspace`.
    journal: where runs are recorded instead of memory. on_doubt: what becomes of a call in flight at a crash
    (`report`, `ask`, `fail`). deps: handed to tools as `Context.deps`.
    """

    def __init__(
        self,
        model: Any,
        tools: Iterable[Any] = (),
        system: str | None = None,
        *,
        output: Any = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
        approve: Callable[..., Any] | None = None,
        summarizer: Any = None,
        checks: Sequence[str] = (),
        workspace: str | Path | None = None,
        journal: Journal | None = None,
        on_doubt: OnDoubt = "report",
        deps: Any = None,
    ) -> None:
        if checks and workspace is None:
            raise DefinitionError("checks run in the workspace: give Agent(workspace=...) too")
        masker = own_secrets()
        check = checker(Path(workspace), masker=masker) if workspace is not None else None
        self._kit = build_kit(
            model,
            tools,
            system,
            output=output,
            workspace=workspace,
            check=check,
            approve=approve,
            summarizer=summarizer,
            deps=deps,
            masker=masker,
        )
        self._rules = build_rules(self._kit, limits=limits, policy=policy, checks=checks, on_doubt=on_doubt)
        self._journal = journal

    def session(self, session_id: str | None = None) -> Session:
        """A session on disk, new or (by id, or a unique prefix) reopened. Close it when done.

        Raises SessionError, JournalLocked (named holder), JournalDamaged.
        """
        if self._journal is not None:
            return Session(self._journal, self._kit, self._rules)
        from latchstep.journal.store import Store, default_root

        store = Store(default_root())
        if session_id is not None:
            return Session(store.open(store.find(session_id)), self._kit, self._rules)
        now = time.time()
        journal = store.create(new_session_id(now), time=now, workspace=str(self._kit.workspace or ""))
        return Session(journal, self._kit, self._rules)

    def stream(self, prompt: str) -> Run:
        """A run to iterate, steer, answer and cancel: `async with agent.stream(...) as run`."""
        return self._fleeting().stream(prompt)

    async def run(self, prompt: str) -> RunResult:
        """Run to the end. Cancelling the caller cancels the run."""
        return await self._fleeting().run(prompt)

    def run_sync(self, prompt: str) -> RunResult:
        """`run` for synchronous code. Raises LatchstepError where an event loop is already running."""
        return run_blocking(self.run(prompt))

    def _fleeting(self) -> Session:
        """A session for one run: in memory, or on the journal the agent was given."""
        return Session(self._journal or memory_journal(str(self._kit.workspace or "")), self._kit, self._rules)


def memory_journal(workspace: str = "") -> MemoryJournal:
    """A journal in memory, with its header."""
    journal = MemoryJournal()
    now = time.time()
    journal.append([SessionCreated(session_id=new_session_id(now), format=FORMAT, workspace=workspace, time=now)])
    return journal


def run_loop(
    *,
    messages: Sequence[Message],
    model: Any,
    tools: Iterable[Any] = (),
    system: str | None = None,
    limits: Limits | None = None,
    journal: Journal | None = None,
    policy: Policy | None = None,
    approve: Callable[..., Any] | None = None,
    questions: Questions = "together",
    strict_protocol: bool = False,
    first_request: int = 1,
) -> Run:
    """The loop itself, for those who bring everything: a run over these messages.

    Await it for its result, or iterate it for its events. The messages are recorded as they are and
    repaired only on their way to the model. approve: see `Agent`; questions: see `Rules`.
    """
    kit = build_kit(model, tools, system, approve=approve)
    rules = build_rules(kit, limits=limits, policy=policy, questions=questions, strict_protocol=strict_protocol)
    session = Session(journal or memory_journal(), kit, rules)
    return session.stream(start=tuple(messages), first_request=first_request)
