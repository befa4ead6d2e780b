"""`latchstep run` over pipes: what it shows, how it ends, what its exit status says."""

from __future__ import annotations

import json
import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from latchstep.journal.store import Store
from tests.cli.cli_kit import Home, bash, edit, ended, refused
from tests.model.strict_chat import StrictChat, call_answer, text_answer

READ = call_answer(("call-1", "read", '{"path": "notes.txt"}'))
EMPTY: list[Any] = [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, "[DONE]"]


def test_a_run_streams_shows_its_tools_and_closes_with_figures(home: Home) -> None:
    (home.workspace / "notes.txt").write_text("The answer is 42.\n")
    with StrictChat([READ, text_answer("It is 42 – überall.")]) as server:
        done = home.run("run", "Read notes.txt", "--base-url", server.url)
    assert done.status == 0, done
    assert done.raw_err == b""
    shown = done.out
    for part in ("› Read notes.txt", "▸ read notes.txt", "  ✓ The answer is 42.", "It is 42 – überall.\n"):
        assert part in shown
    last = shown.splitlines()[-2:]
    assert last[0].startswith("completed · 2 steps · 3 + 2 tokens · ")
    assert last[1] == f"session {home.session().name} · {home.session()}"
    assert Store(home.state).verify(home.session().name).sound
    assert "\x1b" not in shown


def test_json_is_one_event_a_line_and_nothing_else(home: Home) -> None:
    (home.workspace / "notes.txt").write_text("x\n")
    with StrictChat([READ, text_answer("über")]) as server:
        done = home.run("run", "Read notes.txt", "--base-url", server.url, "--json", env={"LC_ALL": "C"})
        again = home.run("resume", "And now?", "--json")
    assert done.status == 0
    assert done.raw_err == b""
    events = [json.loads(line) for line in done.raw.splitlines()]
    assert [event["type"] for event in events][:4] == [
        "session.created", "session.opened", "message.accepted", "run.started",
    ]  # fmt: skip
    assert events[-1]["type"] == "run.finished"
    stored = [event for event in events if "part" not in event]
    assert [event.get("seq", 0) for event in stored] == list(range(len(stored)))
    assert any(event["type"] == "model.delta" for event in events)
    second = [json.loads(line) for line in again.raw.splitlines()]
    assert again.status == 1  # the server has no answer left
    assert second[0]["type"] == "session.opened"
    assert second[0]["seq"] == len(stored)
    assert second[-1]["error"]["kind"] == "MODEL_NOT_FOUND"


ENDINGS: dict[str, tuple[list[Any], tuple[str, ...], int]] = {
    "TRUNCATED": ([text_answer("half of", "length")], (), 1),
    "EMPTY_RESPONSE": ([EMPTY, EMPTY], (), 1),
    "FILTERED": ([text_answer("no", "content_filter")], (), 1),
    "max_steps": ([READ, READ], ("--max-steps", "2"), 3),
    "stalled": ([READ] * 9, (), 3),
    "unverified": ([edit("a", "1"), *[text_answer("Done.")] * 5], ("--mode", "edits", "--check", "false"), 4),
    "completed": ([edit("a", "1"), text_answer("Done.")], ("--mode", "edits", "--check", "test -e a"), 0),
    "MODEL_AUTH": ([["#STATUS 401", {"error": {"message": "bad key"}}]], (), 1),
}


def test_the_exit_status_says_how_it_ended(tmp_path: Path) -> None:
    """All at once."""
    with ExitStack() as stack:
        started = []
        for says, (scripts, options, status) in ENDINGS.items():
            (tmp_path / says).mkdir()
            home = Home(tmp_path / says)
            named = [
                json.loads(json.dumps(script).replace("call-1", f"call-{at}")) for at, script in enumerate(scripts)
            ]
            server = stack.enter_context(StrictChat(named))
            started.append((says, status, server, home.start("run", "go", "--base-url", server.url, *options)))
            stack.callback(home.close)
        for says, status, server, process in started:
            done = ended(process)
            assert done.status == status, done
            assert says in done.out, done
            assert ("To go on: latchstep resume --session" in done.out) is (status != 0)
            assert not server.refused


def test_a_failing_check_goes_back_to_the_model_and_nobody_is_asked_about_it(home: Home) -> None:
    check = "grep -q right a || { echo it is not right; exit 3; }"
    scripts = [edit("a", "wrong"), text_answer("Done."), edit("a", "right", "call-2"), text_answer("Now it is.")]
    with StrictChat(scripts) as server:
        done = home.run("run", "go", "--base-url", server.url, "--mode", "edits", "--check", check)
        told = server.requests[2]["messages"][-1]["content"]
    assert done.status == 0, done
    assert "it is not right" in told
    assert "exit status 3" in told
    assert [event["passed"] for event in home.events() if event["type"] == "check.finished"] == [False, True]
    assert "failed (exit status 3)" in done.out
    assert "approval" not in str(home.events())


def test_where_nobody_can_be_asked_a_question_is_a_denial_that_says_what_would_have_allowed_it(home: Home) -> None:
    command = "touch 'made by it'"
    with StrictChat([bash(command), edit("b", "x", "call-2"), text_answer("I may not.")]) as server:
        done = home.run("run", "go", "--base-url", server.url)
        results = [m["content"] for m in server.requests[2]["messages"] if m["role"] == "tool"]
    assert done.status == 0
    assert f"--allow {shlex.quote(command)} would have allowed it" in results[0]
    assert "--mode edits would have allowed it" in results[1]
    assert list(home.workspace.iterdir()) == []
    assert f"--allow {shlex.quote(command)}" in done.out
    with StrictChat([bash(command), bash(command + " ", "call-2"), text_answer("Done.")]) as server:
        done = home.run("run", "go", "--base-url", server.url, "--allow", command)
    assert [path.name for path in home.workspace.iterdir()] == ["made by it"]
    assert done.out.count("would have allowed it") == 1


def test_plan_mode_changes_nothing_and_unconfined_says_what_it_is(home: Home) -> None:
    calls = [edit("a", "x"), bash("touch b", "call-2"), bash("ls -a | wc -l && cat < said", "call-3")]
    (home.workspace / "said").write_text("what it says\n")
    with StrictChat([*calls, text_answer("No.")]) as server:
        done = home.run(
            "run", "go", "--base-url", server.url, "--mode", "plan", "--allow", "touch b", "--check", "touch c"
        )
        assert done.status == 0, "nothing was changed, and there is nothing to check"
        result = server.requests[3]["messages"][-1]["content"]
    assert done.out.count("mode 'plan' only reads") == 2
    assert "no check runs" in done.out
    assert result.startswith("3\nwhat it says\n")
    assert [path.name for path in home.workspace.iterdir()] == ["said"]
    (home.workspace / "said").unlink()
    with StrictChat([bash("echo ran > a"), text_answer("Yes.")]) as server:
        done = home.run("run", "go", "--base-url", server.url, "--mode", "unconfined")
    assert "no sandbox" in done.out
    assert (home.workspace / "a").read_text() == "ran\n"


def test_the_task_may_come_from_standard_input(home: Home) -> None:
    task = "Zeile eins\n\tüber 128 KiB\n" + "x" * 200_000
    with StrictChat([text_answer("Read.")]) as server:
        done = home.run("run", "-", "--base-url", server.url, stdin=task.encode())
        assert server.requests[0]["messages"][-1] == {"role": "user", "content": task}
    assert done.status == 0
    assert len(done.raw) < 5000  # what was said is not said again in full


def test_a_command_gets_no_key_and_the_session_store_is_not_the_models_to_write(home: Home) -> None:
    state = home.workspace / "state"
    target = {"path": "state/sessions/x", "content": "forged"}
    scripts = [bash("env"), call_answer(("call-2", "write", json.dumps(target))), text_answer("Done.")]
    with StrictChat(scripts) as server:
        done = home.run(
            "run", "go", "--base-url", server.url, "--mode", "unconfined",
            env={"OPENAI_API_KEY": "sk-secret", "LATCHSTEP_HOME": "state"},
        )  # fmt: skip
        assert server.headers[0]["authorization"] == "Bearer sk-secret"
        results = [m["content"] for m in server.requests[2]["messages"] if m["role"] == "tool"]
    assert done.status == 0
    assert "sk-secret" not in results[0]
    assert not (state / "sessions" / "x").exists()
    assert "never written by file tools" in results[1]
    for path in state.rglob("*"):
        assert not path.is_file() or b"sk-secret" not in path.read_bytes()


def test_a_password_in_the_url_is_not_recorded_and_is_asked_for_again(home: Home) -> None:
    with StrictChat([text_answer("Hi."), text_answer("Again.")]) as server:
        url = server.url.replace("http://", "http://me:hush@") + "?key=hush2"
        assert home.run("run", "hi", "--base-url", url).status == 0
        refused(home.run("resume", "more"), 2, "--base-url", "not kept")
        assert home.run("resume", "more", "--base-url", url).status == 0
    for path in home.state.rglob("*"):
        assert not path.is_file() or b"hush" not in path.read_bytes()


def test_what_a_run_is_made_of_is_on_record_and_a_resume_has_it_again(home: Home) -> None:
    scripts = [
        text_answer("Hi."),
        bash("echo a > made"),
        text_answer("Done."),
        bash("false", "call-2"),
        text_answer("x"),
    ]
    with StrictChat(scripts) as server:
        first = home.run(
            "run", "hi", "--base-url", server.url, "--model", "qwen:7b", "--allow", "echo a > made", "--check", "true",
            "--max-steps", "7", "--mode", "edits",
        )  # fmt: skip
        assert first.status == 0
        assert home.run("resume", "make it").status == 0
        assert home.run("resume", "now false", "--allow", "false").status == 0
        assert {request["model"] for request in server.requests} == {"qwen:7b"}
    assert (home.workspace / "made").exists()
    started = [event for event in home.events() if event["type"] == "run.started"]
    assert [event["setup"]["allow"] for event in started] == [["echo a > made"]] * 2 + [["echo a > made", "false"]]
    assert {event["limits"]["max_steps"] for event in started} == {7}
    assert {event["setup"]["mode"] for event in started} == {"edits"}
    assert [event["passed"] for event in home.events() if event["type"] == "check.finished"]


def test_two_runs_in_one_workspace_have_sessions_of_their_own(home: Home) -> None:
    with StrictChat([text_answer("One."), text_answer("Two.")]) as server:
        both = [home.start("run", "hi", "--base-url", server.url) for _ in range(2)]
        ends = [process.communicate(timeout=30) for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    assert len(home.sessions()) == 2
    for session in home.sessions():
        assert Store(home.state).verify(session.name).sound
        assert home.ending(session)["status"] == "completed"


def test_cwd_names_the_workspace_and_a_mistake_about_it_leaves_no_session(home: Home, tmp_path: Path) -> None:
    other = tmp_path / "anderswo – ü"
    other.mkdir()
    with StrictChat([edit("a", "x"), text_answer("Done.")]) as server:
        url = ("--base-url", server.url)
        (tmp_path / "file").write_text("")
        refused(home.run("run", "go", *url, "--cwd", str(tmp_path / "file")), 2, "not a folder")
        refused(home.run("run", "go", *url, "--cwd", str(tmp_path / "none")), 2, "does not exist")
        refused(home.run("run", "go", *url, "--mode", "auto", "--sandbox", "none"), 2, "sandbox")
        refused(home.run("run", "go", *url, "--mode", "unconfined", "--sandbox", "landlock"), 2, "--mode auto")
        refused(home.run("run", "go", *url, "--net", "some"), 2, "none, host or allow")
        refused(home.run("run", "go", *url, "--net", "allow:a/b"), 2, "HOST:PORT")
        refused(home.run("run", "go", *url, "--cache", str(tmp_path / "none")), 2, "cache", "does not exist")
        refused(home.run("run", "go", *url, "--cache", str(home.workspace), "--sandbox", "bubblewrap"), 2, "cache")
        refused(home.run("run", "go", *url, "--check", " "), 2, "check")
        assert home.sessions() == []
        assert home.run("run", "go", *url, "--cwd", str(other), "--mode", "edits").status == 0
    assert (other / "a").read_text() == "x"
    assert home.events()[0]["workspace"] == str(other)
