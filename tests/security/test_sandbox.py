"""The sandbox over time and over strange repositories, and everyday work inside it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from latchstep.tool import sandbox
from latchstep.tool.gitguard import MAX_DIRECTORIES, guards_of
from latchstep.tool.probe import trial
from latchstep.tool.sandbox import Sandbox
from latchstep.tool.startfiles import changed_start_files

from .conftest import Grounds, make
from .ground import IDENTITIES, Ground

CONFINING = ("bubblewrap", "landlock")
both = pytest.mark.parametrize("level", CONFINING)
anybody = pytest.mark.parametrize("identity", IDENTITIES)


@contextmanager
def fresh(identity: str, level: str = "bubblewrap") -> Iterator[Ground]:
    """A ground of its own, for what changes more than can be put back."""
    ground = make(identity, level)
    if isinstance(ground, str):
        pytest.skip(f"level {level} as {identity}: {ground}")
    try:
        yield ground
    finally:
        ground.close()


# -- over time ----------------------------------------------------------------------------------------------


@both
@anybody
def test_a_daemon_ends_with_the_sandbox(identity: str, level: str) -> None:
    with fresh(identity, level) as ground:
        number = str(80_000_000 + os.getpid())
        ended = ground.run(f"(setsid nohup sleep {number} >/dev/null 2>&1 &); env -i setsid -f sleep {number}; echo on")
        assert ended.out == "on\n"
        assert living(number)
        ground.end_sandbox()
        assert not living(number)


@both
def test_everything_ends_with_the_owner(level: str) -> None:
    with fresh(IDENTITIES[0], level) as ground:
        number = str(81_000_000 + os.getpid())
        ground.run(f"env -i setsid -f sleep {number}")
        assert living(number)
        assert ground.process is not None
        ground.process.kill()
        for _ in range(1000):
            if not living(number) and not (ground.root / ".latchstep").exists():
                break
            subprocess.run(["sleep", "0.01"], check=True)
        assert not living(number)
        assert not (ground.root / ".latchstep").exists(), "what was put there is removed, though the owner is dead"
        assert sorted(path.name for path in (ground.root / ".git").iterdir() if "common" in path.name) == []


def living(number: str) -> list[str]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                arguments = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            found += [name] if number.encode() in arguments else []
    return found


@anybody
def test_a_guard_that_the_host_detached_is_set_up_again_before_the_next_command(identity: str) -> None:
    with fresh(identity) as ground:
        assert ground.run("echo begun > /tmp/mine; true").status == 0
        ground.git("config", "some.name", "value")  # replaces the file, which takes the mount away
        ended = ground.run("git config core.fsmonitor /evil; cat /tmp/mine")
        assert ".git/config was replaced from outside" in ended.restarted
        assert "evil" not in ground.git("config", "--list")
        assert "No such file" in ended.out, "it is another sandbox"
        ground.run_outside("rm -r .git/hooks && mkdir .git/hooks")
        ended = ground.run("echo x > .git/hooks/pre-commit")
        assert ended.restarted
        assert not (ground.root / ".git/hooks/pre-commit").exists()
        ground.run_outside("mv .git .old && cp -r .old .git")
        ended = ground.run("git config core.fsmonitor /evil")
        assert ended.restarted
        assert "evil" not in ground.git("config", "--list")
        assert ground.run("true").restarted == ""


@anybody
def test_output_that_a_command_forges_or_truncates_stays_on_record(identity: str, tmp_path: Path) -> None:
    with fresh(identity) as ground:
        kept = ground.store / "output.txt"
        script = "head -c 300000 /dev/zero | tr '\\0' a; : > /proc/self/fd/1; truncate -s 0 /proc/self/fd/1; echo end"
        ground.run(script, keep=kept)
        data = kept.read_bytes()
        assert data.startswith(b"a" * 300_000)
        assert data.endswith(b"end\n")


@anybody
def test_what_was_put_there_is_gone_afterwards(identity: str) -> None:
    with fresh(identity) as ground:
        before = sorted(str(path) for path in ground.root.rglob("*"))
        assert ground.run("test -d .latchstep && cat .git/commondir").out == ".\n"
        ground.end_sandbox()
        assert sorted(str(path) for path in ground.root.rglob("*")) == before


@anybody
def test_two_sandboxes_in_one_workspace_guard_it_as_long_as_either_lives(identity: str) -> None:
    with fresh(identity) as one:
        two = Ground(identity, "bubblewrap", repository=False)
        first, two.root = two.root, one.root
        try:
            assert one.run("true").status == two.run("true").status == 0
            one.end_sandbox()
            assert (one.root / ".git/commondir").read_text() == ".\n"
            ended = two.run("printf '../evil' > .git/commondir")
            assert ended.restarted == ""
            assert (one.root / ".git/commondir").read_text() == ".\n"
            two.end_sandbox()
            assert not (one.root / ".git/commondir").exists()
        finally:
            two.root = first
            two.close()


@both
def test_a_command_cannot_end_or_stop_its_spawner(level: str, ground_of: Grounds) -> None:
    for identity in IDENTITIES:
        ground = ground_of(identity, level)
        if level == "bubblewrap":
            ground.run("kill -STOP 1; kill -9 1; kill -9 -1")
            ended = ground.run("echo still here")
            assert (ended.out, ended.restarted) == ("still here\n", "")
        else:
            ground.run("kill -9 $PPID")  # which ends everything, itself included, and the next starts anew
            assert ground.run("echo still here").out == "still here\n"


@anybody
def test_processes_files_and_dumps_are_bounded(identity: str, ground_of: Grounds) -> None:
    ground = ground_of(identity, "bubblewrap")
    ended = ground.run("ulimit -c; ulimit -n; ulimit -f; ulimit -u")
    core, files, size, processes = ended.out.split()
    assert core == "0"
    assert int(files) <= 65_536
    assert int(size) * 1024 <= 16 << 30
    assert int(processes) <= 4_096
    for folder in ("/tmp", "@HOME_@"):
        assert int(ground.run(f"df -k --output=size {folder} | tail -1").out) <= 4 << 20, f"{folder} is bounded"
    assert ground.run("cat /proc/self/oom_score_adj").out == "800\n", "commands go first when memory runs out"


BOMB = """python3 -c '
import os, time
for count in range(5000):
    try:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
    except BlockingIOError:
        os.write(1, b"held")
        os.killpg(0, 9)
'"""


@pytest.mark.parametrize(("identity", "level"), [(one, it) for one in IDENTITIES for it in CONFINING])
def test_a_fork_bomb_is_held(identity: str, level: str) -> None:
    namespaces_bound = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= sandbox.PER_NAMESPACE
    if identity == "root" and (level == "landlock" or not namespaces_bound):
        pytest.skip("of root the kernel counts nothing here, as is said")
    outside = Path(sandbox.PID_MAX).read_text()
    with fresh(identity, level) as ground:
        ground.stop()
        ground.limits = {"NPROC": 400}
        assert ground.run(BOMB, timeout=120).out == "held"
        assert ground.run("echo still here").out == "still here\n"
    assert Path(sandbox.PID_MAX).read_text() == outside


@anybody
def test_nothing_of_a_private_folder_is_left_whatever_its_rights(identity: str) -> None:
    """As Go's cache of modules is read-only, and a folder may be of no rights at all."""
    with fresh(identity, "landlock") as ground:
        ended = ground.run(
            "cd $TMPDIR && mkdir -p a/b c && touch a/b/file && ln -s @OUT@ c/link && chmod 500 a/b && chmod 0 a && pwd"
        )
        folder = Path(ended.out.strip())
        assert folder.is_dir()
        mode = ground.out.stat().st_mode
        ground.end_sandbox()
        assert not folder.exists()
        assert ground.out.stat().st_mode == mode, "no link is followed for it"


# -- who the person is to git -------------------------------------------------------------------------------


@both
@anybody
def test_a_commit_is_the_persons_and_nothing_else_of_their_settings_is_shown(identity: str, level: str) -> None:
    with fresh(identity, level) as ground:
        (ground.home / ".gitconfig").write_text(
            '[credential]\n\thelper = "!evil"\n[User]\n\tname = "A Person; of # note"\n\temail = a@b.example ; mine\n'
            "\tsigningkey = SECRETKEY\n[github]\n\tname = x\n\ttoken = TOKEN\n"
        )
        ground.own()
        ended = ground.run("git commit -q --allow-empty -m inside && git log -1 --format='%an <%ae>|%cn <%ce>'")
        assert ended.out == "A Person; of # note <a@b.example>|A Person; of # note <a@b.example>\n", ended
        ended = ground.run("cat ~/.gitconfig; git config --list --show-origin")
        assert "evil" not in ended.out
        assert "SECRETKEY" not in ended.out
        assert "TOKEN" not in ended.out
        ended = ground.run("git config --global user.name other && git config user.name")
        assert ended.out == "other\n"
        assert "A Person" in (ground.home / ".gitconfig").read_text()


# -- repositories -------------------------------------------------------------------------------------------


@both
@anybody
def test_new_repositories_hooks_and_settings_are_listed_at_the_end(identity: str, level: str) -> None:
    with fresh(identity, level) as ground:
        since = max(path.lstat().st_ctime for path in (ground.root / ".git").rglob("*")) + 1e-6
        ground.run(
            "git init -q sub; git -C sub config core.fsmonitor /evil; echo x > sub/.git/hooks/post-checkout; "
            "echo evil > .envrc; mkdir -p deep/.vscode; echo evil > deep/.vscode/tasks.json; "
            "mkdir -p bare/objects bare/refs; echo x > bare/HEAD; echo x > bare/config; echo y > plain.txt; "
            "mkdir -p .git/rebase-merge; echo 'exec evil' > .git/rebase-merge/git-rebase-todo"
        )
        listed = [it.path for it in changed_start_files(ground.root, since)[0]]
        assert [path for path in listed if not path.startswith("sub/.git/info")] == [
            ".envrc", ".git/rebase-merge/git-rebase-todo", "bare/config", "deep/.vscode/tasks.json", "sub/.git",
            "sub/.git/config", "sub/.git/hooks/post-checkout",
        ], "and nothing of what the sandbox put there"  # fmt: skip


@anybody
def test_a_worktree_commits_and_neither_its_hooks_nor_those_of_the_others_change(identity: str) -> None:
    with fresh(identity) as ground:
        tree = ground.base / "tree"
        ground.git("worktree", "add", "-q", str(tree))
        main = ground.root
        ground.move(tree)
        ended = ground.run(
            "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m inside && git log --oneline"
        )
        assert (ended.status, ended.out.count("\n")) == (0, 2), ended
        admin = main / ".git/worktrees/tree"
        for name in ("hooks/pre-commit", "config", "commondir", "worktrees/tree/commondir", "worktrees/tree/gitdir"):
            ground.run(f"echo evil > {main}/.git/{name}; echo evil > .git; rm -f .git; mv {admin} {admin}2")
            path = main / ".git" / name
            assert not path.exists() or "evil" not in path.read_text(), name
        assert (tree / ".git").read_text().startswith("gitdir: ")
        assert not (main / "new").exists()
        ground.run(f"echo evil > {main}/new")
        assert not (main / "new").exists(), "of the other worktree only its git folder is there"
        assert "inside" in ground.git("log", "--oneline", cwd=tree)
        ground.root = main


@anybody
def test_a_git_file_that_names_somebody_elses_repository_gets_nothing(identity: str) -> None:
    with fresh(identity) as ground:
        other = ground.base / "private"
        ground.git("init", "-q", str(other))
        shutil.rmtree(ground.root / ".git")
        ground.run_outside(f"echo 'gitdir: {other}/.git' > .git")
        ended = ground.run(f"ls {other}/.git; git status; echo x > {other}/.git/refs/evil")
        assert "HEAD" not in ended.out
        assert not (other / ".git/refs/evil").exists()


@anybody
def test_a_submodule_and_a_repository_in_another_folder_of_the_workspace_are_guarded(identity: str) -> None:
    with fresh(identity) as ground:
        library = ground.base / "library"
        ground.git("init", "-q", str(library))
        ground.git("commit", "-q", "--allow-empty", "-m", "first", cwd=library)
        ground.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), "nested/library")
        ground.git("commit", "-q", "-m", "with a module")
        module = ground.root / ".git/modules/nested/library"
        assert module.is_dir()
        ground.run(
            f"echo evil > {module}/config; echo evil > {module}/hooks/pre-commit; echo evil > {module}/commondir; "
            f"mv {module} {module}2; mv .git/modules/nested .git/modules/n2; mv .git/modules .git/m2"
        )
        assert "evil" not in (module / "config").read_text()
        assert not (module / "hooks/pre-commit").exists()
        commit = "git -c user.name=a -c user.email=a@b -C nested/library commit -q --allow-empty -m inside && echo done"
        assert ground.run(commit).out == "done\n"
        ground.end_sandbox()
        ground.run_outside("rm -rf .git nested .gitmodules && mkdir deep && git init -q --separate-git-dir=deep/real .")
        ground.run(
            "mv deep/real deep/r2; mv deep d2; echo evil >> deep/real/config; echo x > deep/real/hooks/pre-commit"
        )
        assert "evil" not in (ground.root / "deep/real/config").read_text()
        assert not (ground.root / "deep/real/hooks/pre-commit").exists()


@anybody
def test_what_another_version_control_runs_is_guarded(identity: str) -> None:
    with fresh(identity) as ground:
        ground.stop()
        ground.run_outside("mkdir -p .hg .jj/repo; echo '[ui]' > .hg/hgrc; echo data > .hg/dirstate")
        ended = ground.run(
            "for f in .hg/hgrc .hg/sharedpath .jj/repo/config.toml; do echo evil > $f; done; mv .hg h; mv .jj j; "
            "rm -f .hg/hgrc; echo other > .hg/dirstate && echo fine"
        )
        assert ended.out.endswith("fine\n"), "and what a commit changes can be changed"
        ground.end_sandbox()
        assert (ground.root / ".hg/hgrc").read_text() == "[ui]\n"
        assert sorted(path.name for path in ground.root.glob(".hg/*")) == ["dirstate", "hgrc"]
        assert list(ground.root.glob(".jj/repo/*")) == []


@pytest.mark.parametrize(
    "script",
    [
        "rm -rf .git; mkfifo .git",
        "rm .git/config; mkfifo .git/config",
        "rm -rf .git/info; mkfifo .git/info",
        "rm -rf .git/info; echo x > .git/info",
        "mkfifo .git/commondir; touch -d @1 .git/commondir",
        "mkfifo .git/modules",
        "rm -rf .git; mkfifo g; echo 'gitdir: g' > .git",
        "rm -rf .git; mkdir g; mkfifo g/HEAD g/config g/commondir g/gitdir; echo 'gitdir: g' > .git",
        "rm -rf .git; echo 'gitdir: /proc/self/fd' > .git",
        "mkfifo .latchstep",
    ],
)
@both
def test_what_is_no_file_where_git_has_one_holds_nothing_up(level: str, script: str) -> None:
    with fresh(IDENTITIES[0], level) as ground:
        ground.stop()
        ground.run_outside(script)
        look = "import sys; from latchstep.tool.gitguard import guards_of; guards_of(sys.argv[1])"
        subprocess.run([sys.executable, "-c", look, ground.root], env=ground.env, timeout=30, check=True)
        ended = ground.run("echo evil > .git/new; echo fine")
        assert (ended.status, ended.out.splitlines()[-1]) == (0, "fine"), ended


@anybody
def test_a_repository_whose_guarded_parts_are_links_is_read_only(identity: str) -> None:
    with fresh(identity) as ground:
        ground.run_outside("rm -rf .git/hooks && mkdir hooks && ln -s ../hooks .git/hooks")
        ground.run("rm .git/hooks; mkdir .git/hooks; echo x > .git/new; git status --short")
        assert not (ground.root / ".git/new").exists()
        assert (ground.root / ".git/hooks").is_symlink()
        ground.end_sandbox()
        ground.run_outside(f"rm .git/hooks; mkdir .git/hooks; rm -rf .git/info; ln -s {ground.out} .git/info")
        ground.run("true")
        assert not (ground.out / "attributes").exists(), "nothing is made through a link"


def test_a_repository_of_too_many_parts_is_read_only(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    assert guards_of(str(tmp_path)).note == ""
    for number in range(MAX_DIRECTORIES + 2):
        (tmp_path / f".git/modules/m{number}").mkdir(parents=True)
        (tmp_path / f".git/modules/m{number}/HEAD").touch()
    found = guards_of(str(tmp_path))
    assert "MAX_DIRECTORIES" in found.note
    assert found.readonly[-1] == f"{tmp_path}/.git"
    shutil.rmtree(tmp_path / ".git/modules")
    for number in range(10 * MAX_DIRECTORIES + 1):
        (tmp_path / f".git/modules/m{number}").mkdir(parents=True)
    assert "too many folders" in guards_of(str(tmp_path)).note


@anybody
def test_hooks_and_settings_that_git_takes_from_the_workspace_are_guarded(identity: str) -> None:
    with fresh(identity) as ground:
        ground.run_outside("mkdir -p tools/hooks && touch shared.gitconfig")
        ground.git("config", "core.hooksPath", "tools/hooks")
        ground.git("config", "include.path", "../shared.gitconfig")
        ground.git("config", "--add", "include.path", "../conf/absent")
        ground.run(
            "echo evil > tools/hooks/pre-commit; echo evil > shared.gitconfig; mv tools t2; rm shared.gitconfig; "
            "mkdir -p conf; echo evil > conf/absent; mv conf c2; echo fine > tools/other"
        )
        assert (ground.root / "tools/other").exists()
        assert not (ground.root / "tools/hooks/pre-commit").exists()
        for name in ("shared.gitconfig", "conf/absent"):
            assert (ground.root / name).read_text() == "", name
        ground.end_sandbox()
        assert not (ground.root / "conf/absent").exists()
        assert (ground.root / "shared.gitconfig").exists()


def test_a_link_that_is_put_there_while_the_sandbox_is_set_up_is_not_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another session in the same workspace could do it: after the look, before the mount."""
    program = next((path for path in sandbox.BUBBLEWRAP if os.path.exists(path)), None)
    root, target = tmp_path / "ws", tmp_path / "target"
    for folder in (root, target):
        folder.mkdir()
    subprocess.run(["git", "init", "-q", root], check=True)
    if program is None or (problem := asyncio.run(trial(Sandbox("bubblewrap", str(root))))):
        pytest.skip(problem if program else "there is no bubblewrap")
    between = tmp_path / "bwrap"
    between.write_text(
        f'#!/bin/sh\nmv {root}/.git/info {root}/i2; ln -s {target} {root}/.git/info\nexec {program} "$@"\n'
    )
    between.chmod(0o755)
    monkeypatch.setattr(sandbox, "BUBBLEWRAP", (str(between),))
    problem = asyncio.run(trial(Sandbox("bubblewrap", str(root))))
    assert ".git/info" in problem
    assert "replaced while the sandbox was set up" in problem or "Can't" in problem
    assert list(target.iterdir()) == []


# -- everyday work ------------------------------------------------------------------------------------------


COMMIT = "git -c user.name=a -c user.email=a@b commit -q"
PYTHON = "python3 -c '{}'"


@both
@anybody
@pytest.mark.parametrize(
    ("needs", "script", "said"),
    [
        ("git", f"git init -q new && cd new && echo x > f && git add f && {COMMIT} -m m && git checkout -q -b other && "
         "git log --oneline | wc -l", "1"),
        ("git", f"echo x > f && git add f && {COMMIT} -m m && git checkout -q -b other && git stash list && "
         "git gc -q && git show --stat --oneline | grep -c changed", "1"),
        ("gcc", "printf 'int main(){return 42;}' > a.c && gcc a.c -o a && ./a; echo $?", "42"),
        ("node", "node -e 'console.log([1,2].map(x => x*21)[1])'", "42"),
        ("node", "node -e 'new (require(\"worker_threads\").Worker)(\"console.log(42)\", {eval: true})'", "42"),
        ("make", "printf 'all:\\n\\t@echo 42\\n' > Makefile && make -s", "42"),
        ("cargo", "cargo --version >/dev/null && echo 42", "42"),
        ("python3", PYTHON.format("import threading as t; t.Thread(target=print, args=(42,)).start()"), "42"),
        ("python3", PYTHON.format('import subprocess as s; s.run(["echo", "42"])'), "42"),
        ("python3", PYTHON.format('import tempfile; tempfile.NamedTemporaryFile().write(b"x"); print(42)'), "42"),
        ("python3", PYTHON.format('import socket; a, b = socket.socketpair(); a.send(b"x"); print(42)'),
         "42"),
        ("python3", PYTHON.format("import asyncio; print(asyncio.run(asyncio.sleep(0, 42)))"), "42"),
        ("sort", "seq 1 42 | sort -n | tail -1 > out.txt && cat out.txt && cat <(echo x) | wc -c >/dev/null", "42"),
    ],
)  # fmt: skip
def test_everyday_work(  # noqa: PLR0917
    needs: str, script: str, said: str, identity: str, level: str, ground_of: Grounds
) -> None:
    ground = ground_of(identity, level)
    if ground.run(f"command -v {needs} && {needs} --version").status != 0:
        pytest.skip(f"there is no {needs} that a {identity} could run")
    ended = ground.run(script)
    assert ended.out.strip() == said, ended
    ground.clean()


@anybody
def test_servers_on_the_loopback_of_the_sandbox_work(identity: str, ground_of: Grounds) -> None:
    script = """python3 -c '
import http.server, threading, urllib.request
s = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=s.serve_forever, daemon=True).start()
print(urllib.request.urlopen(f"http://127.0.0.1:{s.server_port}/").status)' 2>/dev/null"""
    assert ground_of(identity, "bubblewrap").run(script).out == "200\n"


@both
@anybody
def test_a_virtual_environment_in_the_workspace_is_made_filled_from_a_wheelhouse_and_used(
    identity: str, level: str, tmp_path: Path
) -> None:
    with fresh(identity, level) as ground:
        wheel = ground.root / "wheels" / "tiny-1.0-py3-none-any.whl"
        wheel.parent.mkdir()
        tiny_wheel(wheel)
        ground.own()
        python = "python3" if ground.run("python3 -m venv --help >/dev/null").status == 0 else ""
        if not python:
            pytest.skip("there is no venv module")
        ended = ground.run(
            "python3 -m venv env && env/bin/python -m pip install -q --no-index --find-links wheels tiny && "
            "env/bin/python -c 'import tiny, sys; print(tiny.answer, sys.prefix)'",
            timeout=120,
        )
        if "ensurepip is not" in ended.out:
            pytest.skip("this Python makes no virtual environments")
        assert ended.out.splitlines()[-1] == f"42 {ground.root}/env", ended
        ended = ground.run("env/bin/python -m pip install --disable-pip-version-check nothing-of-this-name", timeout=60)
        assert ended.status == 1
        assert "Retry" not in ended.out, "it does not try again where there is no network"


def tiny_wheel(path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(path, "w") as file:
        file.writestr("tiny.py", "answer = 42\n")
        file.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        file.writestr(
            "tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        record = "tiny.py,,\ntiny-1.0.dist-info/METADATA,,\ntiny-1.0.dist-info/WHEEL,,\ntiny-1.0.dist-info/RECORD,,\n"
        file.writestr("tiny-1.0.dist-info/RECORD", record)


@pytest.mark.parametrize("level", CONFINING)
def test_the_python_that_runs_us_runs_inside_with_its_libraries(level: str) -> None:
    with fresh(IDENTITIES[0], level) as ground:
        program = ground.root / "check.py"
        program.write_text("import msgspec, sys; print(sys.prefix)")
        ended = ground.run(f"{sys.executable} check.py && {sys.executable} -m pytest --version")
        assert ended.out.splitlines()[0] == sys.prefix, ended
        assert ended.status == 0


@pytest.mark.parametrize("level", CONFINING)
def test_the_network_of_the_host_is_there_when_asked_for(level: str) -> None:
    ground = Ground(IDENTITIES[0], level, net="host")
    try:
        if problem := ground.ask(do="trial")["problem"]:
            pytest.skip(problem)
        assert ground.run("exec 3<>/dev/tcp/127.0.0.1/@PORT@ && echo linked").out == "linked\n"
        ended = ground.run(
            'python3 -c \'import socket; socket.socket(socket.AF_UNIX).connect("\\0@ABSTRACT@"); print("linked")\''
        )
        assert "linked" not in ended.out, "but not its abstract sockets"
        ended = ground.run("python3 -c 'import socket; socket.socket(40)' && echo made")
        assert "made" not in ended.out
    finally:
        ground.close()
