"""`latchstep demo`: offline, on a bare machine, also where that machine is broken in some way."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from latchstep.core import event as ev
from latchstep.journal.reader import read_journal
from latchstep.journal.store import Store
from tests.cli.cli_kit import NUMBER_ONLY, PATIENCE, Done, Home

ROOT = Path(__file__).resolve().parents[2]
MAIN = "from latchstep.cli.main import main; main()"
NO_NETWORK = "http://127.0.0.1:9"


@pytest.fixture
def bare(home: Home) -> Home:
    (home.folder / "tmp").mkdir()
    return home


def demo(home: Home, *args: str, **env: str | None) -> Done:
    """Run it with an empty HOME and a TMPDIR of its own."""
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), NO_NETWORK)
    return home.run("demo", *args, env={"TMPDIR": str(home.folder / "tmp"), **proxies, **env})


def project(home: Home) -> Path:
    """Where the demo left its project: the only thing in TMPDIR."""
    (only,) = (home.folder / "tmp").iterdir()
    return only / "shop"


def test_the_demo_repairs_the_project_and_shows_what_it_did(bare: Home) -> None:
    """With a state folder whose name has blanks."""
    bare.state = bare.folder / "my state – ü"
    done = demo(bare)
    assert done.status == 0, done
    assert done.raw_err == b""
    shown = done.out
    for part in (
        "list .", "grep shop", "read shop/money.py", "read shop/receipt.py", "error: old was not found",
        "FAILED (failures=1)", "✓ passed", "completed · 7 steps", "+    return round(", "What is on record",
        f"latchstep show {bare.session().name}",
    ):  # fmt: skip
        assert part in shown, part
    events = list(read_journal(bare.session()))
    answers = [event.message for event in events if isinstance(event, ev.MessageCompleted)]
    called = [call.name for answer in answers for call in answer.calls]
    assert called == ["list", "grep", "read", "read", "edit", "edit", "bash", "edit"]
    assert [event.passed for event in events if isinstance(event, ev.CheckFinished)] == [True]
    assert Store(bare.state).verify(bare.session().name).sound
    assert list(bare.workspace.iterdir()) == []
    assert list((bare.folder / "home").iterdir()) == []
    passed = subprocess.run(
        [sys.executable, "-m", "unittest", "-q"], cwd=project(bare), capture_output=True, check=False
    )
    assert passed.returncode == 0
    log = subprocess.run(["git", "log", "--oneline"], cwd=project(bare), capture_output=True, text=True, check=True)
    assert "A small shop" in log.stdout


def test_the_crash_demo_dies_resumes_and_leaves_nothing_running(bare: Home) -> None:
    """With a state folder that is given as a relative path."""
    bare.state = bare.workspace / "relative"
    done = demo(bare, "--crash", LATCHSTEP_HOME="relative")
    assert done.status == 0, done
    shown = done.out
    killed = re.search(r"Process (\d+) was killed by SIGKILL", shown)
    assert killed is not None, done
    assert "Nothing of it is left running" in shown
    assert "whether it took effect is unknown: it is not run again, and the model is told so" in shown
    assert "completed · 8 steps" in shown
    events = list(read_journal(bare.session()))
    opened = [event.pid for event in events if isinstance(event, ev.SessionOpened)]
    assert opened[0] == int(killed[1])
    assert len(set(opened)) == 2
    outcomes = [event.outcome for event in events if isinstance(event, ev.ToolFinished) and event.name == "bash"]
    assert outcomes == ["interrupted", "ok"]
    assert not [line for line in _processes() if str(bare.folder) in line]


def _processes() -> list[str]:
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            found.append(f"{pid} {Path(f'/proc/{pid}/cmdline').read_text()} {Path(f'/proc/{pid}/cwd').readlink()}")
        except OSError:
            pass
    return found


def test_a_bare_machine_without_git_python3_or_a_place_for_sessions(bare: Home) -> None:
    """PATH has a shell and little else, the interpreter goes by another name, HOME and the state cannot be written."""
    tools = bare.folder / "bin"
    tools.mkdir()
    for name in ("sh", "cat", "sleep", "grep", "kill"):
        (tools / name).symlink_to(shutil.which(name) or "/bin/sh")
    prefix = bare.folder / "py"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "snake").symlink_to(os.path.realpath(sys.executable))
    (bare.folder / "file").write_text("")
    path = [str(ROOT / "src"), *(entry for entry in sys.path if "site-packages" in entry)]
    env = bare.env(
        PATH=str(tools),
        HOME="/proc/nowhere",
        LATCHSTEP_HOME=str(bare.folder / "file" / "x"),
        TMPDIR=str(bare.folder / "tmp"),
    )
    ran = subprocess.run(
        [str(prefix / "bin" / "snake"), "-c", f"import sys; sys.path[:0] = {path}; {MAIN}", "demo", "--crash"],
        env=env,
        cwd=bare.workspace,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    done = Done(ran.returncode, ran.stdout, ran.stderr)
    assert done.status == 0, done
    assert "it is not made a git repository" in done.out
    assert "sessions cannot be kept where they should be: Not a directory" in done.out
    assert "snake -m unittest -q" in done.out
    assert "completed · " in done.out
    (state,) = (bare.folder / "tmp").glob("*/state/sessions/*")
    assert f"LATCHSTEP_HOME={state.parents[1]} latchstep show {state.name}" in done.out
    assert {path.name for path in bare.folder.iterdir()} == {"bin", "py", "file", "tmp", "home", "ws"}


def test_without_a_home_its_session_goes_beside_the_project(bare: Home) -> None:
    done = demo(bare, HOME=None, LATCHSTEP_HOME=None, PYTHONPATH=bare.customized(NUMBER_ONLY))
    assert done.status == 0, done
    assert "set LATCHSTEP_HOME to a folder for sessions; this one goes to" in done.out
    assert "completed · " in done.out
    assert len(list((bare.folder / "tmp").glob("*/state/sessions/*"))) == 1


def test_without_a_temporary_folder_it_is_one_line(bare: Home) -> None:
    (bare.folder / "file").write_text("")
    code = f"import tempfile; tempfile._candidate_tempdir_list = lambda: [{str(bare.folder / 'file')!r}]; {MAIN}"
    ran = subprocess.run([sys.executable, "-c", code, "demo"], env=bare.env(), capture_output=True, check=False)
    assert ran.returncode == 1
    assert len(ran.stderr.splitlines()) == 1
    assert b"temporary directory" in ran.stderr


def test_a_wheel_has_the_demo_in_it(tmp_path: Path) -> None:
    """Where the build backend is at hand; the files in question are checked in any case."""
    assert (ROOT / "src/latchstep/cli/demo_project/tests/test_receipt.py").is_file()
    try:
        import hatchling.build
    except ImportError:
        pytest.skip("needs the build backend: pip install hatchling")
    source = tmp_path / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".git", "__pycache__", ".*_cache", ".venv"))
    code = "import hatchling.build, sys; hatchling.build.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=source, check=True, capture_output=True)
    assert hatchling.build is not None
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "installed")
    home_folder = tmp_path / "machine"
    home_folder.mkdir()
    home = Home(home_folder)
    (home_folder / "tmp").mkdir()
    done = demo(home, PYTHONPATH=str(tmp_path / "installed"))
    assert done.status == 0, done
