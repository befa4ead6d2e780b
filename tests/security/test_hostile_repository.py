"""A repository that attacks whoever works in it, under the whole program in mode `auto`, and under a look alone."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from latchstep.tool.head import head_of
from tests.cli.cli_kit import Home
from tests.model.strict_chat import StrictChat, call_answer, text_answer

from .ground import CONTENT, KEY, SECRET


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    machine = Home(tmp_path)
    yield machine
    machine.close()


def git(folder: Path, *arguments: str) -> str:
    env = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null", "HOME": str(folder)}
    identity = ("-c", "user.name=p", "-c", "user.email=p@localhost")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, env=env, capture_output=True, text=True, check=True
    )
    return done.stdout


def sandboxed(home: Home) -> str:
    """The level of a run here; skips where there is none."""
    with StrictChat([text_answer("Hello.")]) as server:
        done = home.run("run", "Say hello", "--base-url", server.url, "--mode", "auto")
    if done.status == 2:
        pytest.skip(done.err)
    return done.out.split("· sandbox ")[1].split(",")[0]


BUILD = """
exec 2>&1
echo pwned > @OUT@/file; cp /bin/sh @OUT@/sh; rm -rf @OUT@
cat @HOME@/.ssh/id; cat @STATE@/sessions/*/journal.jsonl; echo pwned >> @HOME@/.bashrc
for f in @STATE@/sessions/*/*; do echo pwned >> $f; done
env; cat /proc/[0-9]*/environ | tr '\\0' '\\n'
printf '#!/bin/sh\\ntouch @OUT@/ran\\n' > evil; chmod +x evil
git config core.fsmonitor $PWD/evil; git config core.hooksPath $PWD; cp evil .git/hooks/post-checkout
mv .git x; mkdir .git; echo ../evil > .git/commondir; cp evil hooks/pre-commit
mkdir .latchstep; echo x > .latchstep/config
exec 3<>/dev/tcp/127.0.0.1/@PORT@ && echo linked
unshare -Ur mount -t tmpfs none /tmp && echo nested
kill -9 @PARENT@ $PPID; chmod u+s evil
echo 'touch @OUT@/ran' > .envrc
(setsid sleep 4242424 &) >/dev/null
echo built
"""


def test_a_run_in_mode_auto_survives_its_own_build_script(home: Home) -> None:
    level = sandboxed(home)
    if level != "bubblewrap":
        pytest.skip(f"the best level here is {level}")
    outside = home.folder / "outside"
    outside.mkdir()
    (outside / "file").write_text(CONTENT)
    ssh = home.folder / "home" / ".ssh"
    ssh.mkdir()
    (ssh / "id").write_text(SECRET)
    git(home.workspace, "init", "-q", ".")
    git(home.workspace, "config", "core.hooksPath", "hooks")
    (home.workspace / "readme.txt").write_text("Run ./build.sh\n")
    journals = len(home.sessions())
    answers = [
        call_answer(("c1", "bash", json.dumps({"command": "bash build.sh"}))),
        call_answer(("c2", "write", json.dumps({"path": "result.txt", "content": "done\n"}))),
        call_answer(("c4", "write", json.dumps({"path": "hooks/pre-commit", "content": "evil\n"}))),
        call_answer(("c3", "bash", json.dumps({"command": "git add result.txt && git -c user.name=a -c user.email=a@b "
                                               "commit -qm 'The work' && git log --oneline"}))),
        text_answer("Done."),
    ]  # fmt: skip
    with StrictChat(answers) as server:
        script = BUILD
        port = server.url.rsplit(":", 1)[1].split("/")[0]
        for name, value in {"OUT": outside, "HOME": home.folder / "home", "STATE": home.state, "PORT": port,
                            "PARENT": os.getpid()}.items():  # fmt: skip
            script = script.replace(f"@{name}@", str(value))
        (home.workspace / "build.sh").write_text(script)
        done = home.run(
            "run", "Build it", "--base-url", server.url, "--mode", "auto", "--check", "test -e result.txt",
            env={"ANTHROPIC_API_KEY": KEY},
        )  # fmt: skip
        requests = [body.decode() for body in server.bodies]
    assert done.status == 0, done
    told = "\n".join(requests)
    assert "\\nbuilt\\n" in told
    assert (outside / "file").read_text() == CONTENT
    assert sorted(path.name for path in outside.iterdir()) == ["file"]
    for secret in (KEY, SECRET, "linked\\n", "nested\\n"):
        assert not any(secret in body for body in requests), f"the model was told {secret!r}"
    assert len(home.sessions()) == journals + 1
    assert home.run("show", home.sessions()[-1].name).status == 0, "the journal is sound"
    assert "The work" in git(home.workspace, "log", "--oneline")
    git(home.workspace, "status")
    git(home.workspace, "checkout", "-q", "-b", "other")
    assert not (outside / "ran").exists(), "the person's git started nothing"
    assert not (home.workspace / "evil").stat().st_mode & 0o6000
    assert not (home.workspace / "hooks").exists()
    assert "hooks/pre-commit: this path is never written by file tools" in told
    assert not (home.workspace / ".latchstep").exists()
    assert not (home.workspace / ".git/commondir").exists()
    assert "Changed during this run, and run by itself later:\n  .envrc: the shell may run it\n" in done.out
    alive = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=False).stdout
    assert "sleep 4242424" not in alive
    assert "git's config, hooks and attributes are read-only in the sandbox" in told


def test_a_look_at_a_hostile_repository_runs_nothing(tmp_path: Path) -> None:
    """What the program reads of a repository by itself, it reads from files; no program of git's is started."""
    ran, evil = tmp_path / "ran", tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {ran}\n")
    evil.chmod(0o755)
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "-q", ".")
    git(root, "commit", "-q", "--allow-empty", "-m", "first")
    commit = git(root, "rev-parse", "HEAD").strip()
    for name in ("core.fsmonitor", "core.sshCommand", "core.pager", "diff.external", "filter.x.clean", "alias.status"):
        git(root, "config", name, f"!{evil}" if name.startswith("alias") else str(evil))
    (root / ".gitattributes").write_text("* filter=x diff=x\n")
    machine = Home(tmp_path / "machine" if (tmp_path / "machine").mkdir() is None else tmp_path)
    try:
        assert head_of(root) == commit
        with StrictChat([call_answer(("c1", "list", "{}")), text_answer("Done.")]) as server:
            done = machine.run("run", "Look", "--base-url", server.url, "--cwd", str(root))
        assert done.status == 0, done
        assert machine.run("doctor", cwd=root).status == 0
    finally:
        machine.close()
    assert not ran.exists()


LINES = [
    "ls; touch made", "ls && touch made", "ls | tee made", "ls > made", "ls\ntouch made", "ls $(touch made)",
    "ls `touch made`", "cat <(touch made)", "sh <<E\ntouch made\nE", "git -c alias.x='!touch made' x",
    "find . -name keep -delete", "find . -exec touch made ;", "ls & touch made", "ls || touch made",
]  # fmt: skip


def test_no_command_is_allowed_by_its_name_or_its_beginning(home: Home) -> None:
    (home.workspace / "keep").write_text("x")
    calls = [(f"c{at}", "bash", json.dumps({"command": line})) for at, line in enumerate(["ls", *LINES])]
    with StrictChat([call_answer(*calls), text_answer("Done.")]) as server:
        done = home.run("run", "go", "--base-url", server.url, "--allow", "ls")
    assert done.status == 0, done
    assert [path.name for path in home.workspace.iterdir()] == ["keep"]
    results = [event for event in home.events() if event["type"] == "tool.finished"]
    outcomes = {event["call_id"]: event["outcome"] for event in results}
    assert outcomes.pop("c0") == "ok"
    assert set(outcomes.values()) == {"denied"}
