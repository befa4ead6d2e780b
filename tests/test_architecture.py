"""The structure, asserted: arrows, sizes, who may touch what, and the names that are promised."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import latchstep

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src" / "latchstep"
FILES = sorted(path for path in SRC.rglob("*.py") if "demo_project" not in path.parts)

MAX_FILE, MAX_FUNCTION, MAX_DECIDE, MAX_TOTAL = 400, 60, 220, 32_800

LAYERS = {
    "errors": 0,
    "http": 0,
    "core": 0,
    "model": 1,
    "tool": 1,
    "policy": 1,
    "journal": 1,
    "session": 2,
    "cli": 3,
    "testing": 4,
}

PUBLIC = {
    "Agent", "Cassette", "Context", "DefinitionError", "FatalToolError", "Image", "JournalError", "LatchstepError",
    "Limits", "MemoryJournal", "Message", "ModelError", "Output", "Reply", "Run", "RunResult", "ScriptedModel",
    "Session", "SessionError", "Text", "Tool", "ToolCall", "ToolError", "ToolResult", "Usage", "Verdict", "fallback",
    "model", "run_loop", "tool",
}  # fmt: skip


def part_of(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Absolute names of every module a file imports, wherever the import stands."""
    package = ("latchstep", *path.relative_to(SRC).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def ours(names: Iterator[str]) -> set[str]:
    return {name.split(".")[1] for name in names if name.startswith("latchstep.")} & set(LAYERS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_arrows_point_one_way(path: Path) -> None:
    part = part_of(path)
    if part not in LAYERS:  # the package's front door and `python -m`
        return
    for other in ours(imports(path)) - {part}:
        assert LAYERS[other] < LAYERS[part] or (other == "errors" and LAYERS[part] == 0), f"{part} imports {other}"
        assert other != "testing"
    if part == "core":
        outside = ours(imports(path)) - {"core", "errors"}
        assert not outside, f"core imports {outside}"


def test_the_core_reaches_no_clock_file_socket_task_or_chance() -> None:
    forbidden = {
        "asyncio",
        "os",
        "time",
        "random",
        "secrets",
        "socket",
        "threading",
        "pathlib",
        "subprocess",
        "io",
        "uuid",
    }
    for path in (SRC / "core").glob("*.py"):
        found = {name.split(".")[0] for name in imports(path)} & forbidden
        assert not found, f"{path.name} imports {found}"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("open", "input", "print", "exec", "eval"), f"{path.name}: {node.func.id}"


def importers(*modules: str) -> set[str]:
    return {
        str(path.relative_to(SRC)) for path in FILES if {name.split(".")[0] for name in imports(path)} & set(modules)
    }


def test_one_file_speaks_http() -> None:
    assert importers("httpx2", "httpx", "requests", "urllib3", "aiohttp") == {"http.py"}


def test_only_the_terminal_imports_terminal_libraries() -> None:
    assert all(name.startswith("cli/") for name in importers("click", "rich", "prompt_toolkit", "curses", "readline"))


SPAWNING = {
    "subprocess", "Popen", "posix_spawn", "posix_spawnp", "fork", "forkpty", "system", "popen", "execv", "execve",
    "execvp", "execvpe", "create_subprocess_exec", "create_subprocess_shell", "multiprocessing", "spawnv",
}  # fmt: skip


def test_one_place_spawns_processes() -> None:
    """The spawner and its program (`guard`, `spawnd`, `proctable`). The demo forks once, before anything else runs: a
    process must die for it. A keyring's command runs before anything else, at the person's own terminal."""
    found = set()
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("os", "asyncio", "pty", "posix")
        }
        names |= {name.rsplit(".", 1)[-1] for name in imports(path)}
        if names & SPAWNING:
            found.add(str(path.relative_to(SRC)))
    assert found == {
        "tool/spawner.py", "tool/guard.py", "tool/spawnd.py", "tool/proctable.py", "cli/demo.py", "cli/keys.py",
    }  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    most = MAX_DECIDE if path.name == "decide.py" else MAX_FILE
    assert text.count("\n") <= most, f"{path.name} has {text.count(chr(10))} lines of {most}"
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            lines = node.end_lineno - node.lineno + 1
            assert lines <= MAX_FUNCTION, f"{path.name}:{node.lineno} {node.name} has {lines} lines of {MAX_FUNCTION}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_each_module_says_its_job(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), f"{path} has no module docstring"


def test_the_whole_stays_readable() -> None:
    assert sum(path.read_text(encoding="utf-8").count("\n") for path in FILES) <= MAX_TOTAL


def test_the_public_names_are_pinned_and_resolve() -> None:
    assert set(latchstep.__all__) == PUBLIC
    assert len(PUBLIC) <= 30
    for name in PUBLIC:
        assert getattr(latchstep, name) is not None


CLEAN_IMPORT = """
import os, sys, threading
before = (set(os.listdir()), dict(os.environ), threading.active_count())
import latchstep
early = {"asyncio", "msgspec", "httpx2", "click", "subprocess"} & set(sys.modules)
assert not early, early
latchstep.Agent, latchstep.tool, latchstep.Agent
late = {"httpx2", "click", "sqlite3", "tempfile"} & set(sys.modules)
assert not late, late
assert before == (set(os.listdir()), dict(os.environ), threading.active_count())
"""


def test_importing_has_no_side_effects_and_loads_little(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLEAN_IMPORT], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("first", ["Agent", "tool", "model", "Cassette"])
def test_tool_and_model_are_functions_whatever_was_imported_first(first: str) -> None:
    code = f"import latchstep as ls; ls.{first}; import latchstep.tool.base as b; assert b.Tool\n" + (
        "@ls.tool(effect='read')\ndef f(x: int) -> int:\n    'd'\n    return x\nassert isinstance(f, ls.Tool)\n"
        "from latchstep import tool, model\nassert callable(tool) and callable(model)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_no_folder_of_a_machine_is_named_in_the_project() -> None:
    """Absolute paths of whoever works on it: the folder of the checkout, and the home folder."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    own = re.compile(rf"(?<![\w./-])(?:{re.escape(str(ROOT.parent))}|{re.escape(str(Path.home()))})/\w")
    for name in listed.stdout.split():
        if (ROOT / name).is_file():
            text = (ROOT / name).read_text(encoding="utf-8", errors="replace")
            found = own.search(text)
            assert found is None, f"{name} names {found[0]}"
