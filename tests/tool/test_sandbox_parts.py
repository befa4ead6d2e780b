"""The parts of the sandbox by themselves: the filter as bytes, what is shown and said, and the choice of a level."""

from __future__ import annotations

import asyncio
import os
import struct
from pathlib import Path

import pytest

from latchstep.errors import DefinitionError
from latchstep.tool import guard, probe, sandbox, seccomp
from latchstep.tool.explain import explain
from latchstep.tool.gitguard import Guards, guards_of
from latchstep.tool.guard import OURS
from latchstep.tool.probe import best, trial
from latchstep.tool.sandbox import CACHES, OFFLINE, Sandbox, bubblewrap, families, plan, profile
from latchstep.tool.spawner import Spawner

ALLOW, EPERM, EAFNOSUPPORT, ENOSYS = 0x7FFF0000, 0x50001, 0x50061, 0x50026
X86, ARM = 0xC000003E, 0xC00000B7


def verdict(program: bytes, arch: int, number: int, *arguments: int) -> int:
    """What the kernel would answer: an interpreter of the few instructions that are used."""
    data = struct.pack("=IIQ", number, arch, 0) + struct.pack("=6Q", *(*arguments, *[0] * (6 - len(arguments))))
    lines = list(struct.iter_unpack("=HBBI", program))
    at, loaded = 0, 0
    while True:
        code, then, otherwise, value = lines[at]
        at += 1
        match code:
            case seccomp.LOAD:
                loaded = int.from_bytes(data[value : value + 4], "little")
            case seccomp.EQUAL:
                at += then if loaded == value else otherwise
            case seccomp.AT_LEAST:
                at += then if loaded >= value else otherwise
            case seccomp.ANY_BIT:
                at += then if loaded & value else otherwise
            case seccomp.RETURN:
                return int(value)
            case _:
                raise AssertionError(f"instruction {code:#x} is not known")


@pytest.mark.parametrize(
    ("machine", "arch", "column"), [("x86_64", X86, 0), ("aarch64", ARM, 1)], ids=["x86_64", "aarch64"]
)
def test_the_filter_refuses_what_it_says_and_nothing_else(machine: str, arch: int, column: int) -> None:
    kinds = families("bubblewrap", "none")
    program = seccomp.program(machine, kinds)
    assert len(program) // 8 < 4096, "the kernel takes no more"
    refused = {numbers[column] for numbers in seccomp.REFUSED.values()} - {None}
    absent = {numbers[column] for numbers in seccomp.ABSENT.values()}
    looked_at = {entry[1 + column] for entry in (*seccomp.BITS, *seccomp.VALUES)} | {seccomp.SOCKET[column]}
    for number in range(600):
        expected = EPERM if number in refused else ENOSYS if number in absent else ALLOW
        if number not in looked_at:
            assert verdict(program, arch, number) == expected, number
    for _, intel, arm, place, mask in seccomp.BITS:
        if (number := (intel, arm)[column]) is not None:
            for bit in range(32):
                given = [0] * place + [1 << bit]
                assert verdict(program, arch, number, *given) == (EPERM if mask & 1 << bit else ALLOW), (number, bit)
                assert verdict(program, arch, number, *[0] * place, 0xFFFFFFFF << 32) == ALLOW, "the upper half is not"
    ioctl = (16, 29)[column]
    assert verdict(program, arch, ioctl, 0, 0x5412) == EPERM
    assert verdict(program, arch, ioctl, 0, 0xFFFFFFFF_00005412) == EPERM, "the kernel takes 32 bits of it"
    assert verdict(program, arch, ioctl, 0, 0x5413) == ALLOW
    for family in range(50):
        assert verdict(program, arch, seccomp.SOCKET[column], family) == (ALLOW if family in kinds else EAFNOSUPPORT)
    assert verdict(program, ARM if arch == X86 else X86, 1) == 0x80000000, "another table of calls ends the process"


def test_the_other_call_tables_of_a_processor_are_refused() -> None:
    program = seccomp.program("x86_64", ())
    assert verdict(program, X86, 0x40000000 + 1) == ENOSYS
    assert verdict(program, 0x40000003, 1) == 0x80000000
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.program("riscv64", ())


def test_landlock_leaves_no_socket_where_there_is_no_network() -> None:
    assert families("landlock", "none") == frozenset()
    assert seccomp.AF_UNIX not in families("landlock", "host")


def made(root: Path, home: Path, path: str = "/usr/bin", **more: object) -> Sandbox:
    return Sandbox("bubblewrap", str(root), environ={"HOME": str(home), "PATH": path}, **more)  # type: ignore[arg-type]


def test_only_folders_of_programs_are_shown(tmp_path: Path) -> None:
    root, home, store = tmp_path / "ws", tmp_path / "home", tmp_path / "store"
    for folder in (root / "bin", home / ".cargo/bin", home / ".rustup", home / ".cargo/registry", store, home / ".ssh",
                   tmp_path / "tools", home / ".pyenv/shims"):  # fmt: skip
        folder.mkdir(parents=True)
    path = f"{root}/bin:{home}:{home}/.cargo/bin:{tmp_path}:{store}:.:relative:{tmp_path}/tools:/:{home}/.pyenv/shims:"
    shown = profile(made(root, home, path, hidden=(str(store),)))
    ours = [it for it in shown.readable if it.startswith(str(tmp_path))]
    assert ours == [
        f"{home}/.cargo/bin", f"{home}/.cargo/registry", f"{home}/.pyenv", f"{home}/.pyenv/shims", f"{home}/.rustup",
        f"{tmp_path}/tools",
    ]  # fmt: skip
    arguments = bubblewrap(made(root, home), shown, as_root=True)
    assert arguments.index(str(root)) > arguments.index(f"{tmp_path}/tools")
    assert "/etc" not in arguments
    assert "/etc" in bubblewrap(made(root, home), shown, as_root=False)


def test_a_store_in_the_workspace_is_covered_and_its_folders_are_held(tmp_path: Path) -> None:
    root = tmp_path / "ws"
    (root / "a/b/store").mkdir(parents=True)
    home = tmp_path / "home"
    home.mkdir()
    confined = made(root, home, hidden=(f"{root}/a/b/store",))
    arguments = " ".join(bubblewrap(confined, profile(confined), as_root=False))
    assert arguments.index(f"--bind {root}/a {root}/a") < arguments.index(f"--bind {root}/a/b {root}/a/b")
    assert f"--perms 0555 --tmpfs {root}/a/b/store" in arguments
    with pytest.raises(DefinitionError, match="Landlock cannot hide"):
        plan(Sandbox("landlock", str(root), hidden=(f"{root}/a/b/store",), environ=confined.environ))


def test_a_workspace_that_holds_the_home_is_refused(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    for root in (tmp_path, tmp_path / "home", Path("/")):
        with pytest.raises(DefinitionError, match="home folder"):
            made(root, tmp_path / "home")
    assert Sandbox("none", "/", environ={"HOME": "/root"}).level == "none"


def test_the_environment_says_what_is_different(tmp_path: Path) -> None:
    home, cache = tmp_path / "home", tmp_path / "cache"
    root = tmp_path / "ws"
    for folder in (home, cache, root):
        folder.mkdir()
    offline = made(root, home).variables()
    assert OFFLINE.items() <= offline.items()
    assert offline["TMPDIR"] == "/tmp"
    online = made(root, home, net="host", cache=str(cache)).variables()
    assert not OFFLINE.keys() & online.keys()
    assert online["PIP_CACHE_DIR"] == f"{cache}/pip"
    assert CACHES.keys() <= online.keys()
    assert Sandbox("none", str(root)).variables() == {}
    (home / ".rustup").mkdir()
    moved = Sandbox("landlock", str(root), environ={"HOME": str(home)}).variables()
    assert moved["RUSTUP_HOME"] == f"{home}/.rustup"
    assert "NVM_DIR" not in moved
    for wrong in (root, root / "in", tmp_path):
        with pytest.raises(DefinitionError, match="apart from"):
            made(root, home, cache=str(wrong))


def test_a_level_that_fails_is_named_with_its_reason_and_the_next_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "BUBBLEWRAP", ("/nowhere/bwrap",))
    monkeypatch.setattr(seccomp, "ARCHITECTURES", {})
    found, problems = asyncio.run(best(lambda level: Sandbox(level, str(tmp_path))))
    assert found.level == "none"
    assert [problem.split(":")[0] for problem in problems] == ["bubblewrap", "landlock"]
    assert "system calls" in problems[1]
    with pytest.raises(DefinitionError, match="does not work here: landlock"):
        asyncio.run(best(lambda level: Sandbox(level, str(tmp_path)), "landlock"))
    monkeypatch.undo()
    monkeypatch.setattr(sandbox, "BUBBLEWRAP", ("/nowhere/bwrap",))
    found, problems = asyncio.run(best(lambda level: Sandbox(level, str(tmp_path))))
    assert problems[0] == "bubblewrap: bwrap is not installed (package bubblewrap)"
    assert found.level in ("landlock", "none")


@pytest.mark.parametrize("path", [".:/usr/bin:/bin", ""])
def test_a_trial_asks_no_program_of_the_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    for name in ("grep", "cat"):
        (tmp_path / name).write_text(f"#!/bin/sh\n: > {tmp_path}/ran\n")
        (tmp_path / name).chmod(0o755)
    before = {level: asyncio.run(trial(Sandbox(level, str(tmp_path)))) for level in ("bubblewrap", "landlock")}
    monkeypatch.setenv("PATH", path)
    for level, problem in before.items():
        assert asyncio.run(trial(Sandbox(level, str(tmp_path)))) == problem
    assert not (tmp_path / "ran").exists()


def test_a_trial_that_was_passed_is_not_repeated_until_something_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    async def trial(sandbox: Sandbox) -> str:
        tried.append((sandbox.level, sandbox.net))
        return "it does not" if sandbox.level == "bubblewrap" else ""

    monkeypatch.setattr(probe, "trial", trial)
    passed = tmp_path / "new" / "trials"
    for net in ("none", "none", "host"):
        found, _ = asyncio.run(best(lambda level: Sandbox(level, str(tmp_path), net), "auto", passed))  # noqa: B023
        assert found.level == "landlock"
    bad, good = ("bubblewrap", "none"), ("landlock", "none")
    assert tried == [bad, good, bad, ("bubblewrap", "host"), ("landlock", "host")], "what failed is tried again"
    passed.write_bytes(b"\xff")
    asyncio.run(best(lambda level: Sandbox(level, str(tmp_path)), "auto", passed))
    assert tried[-1] == good


def test_a_program_that_only_calls_itself_bubblewrap_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts the worker, and holds nothing: no level of its kind is claimed. One that fails is quoted."""
    fake = tmp_path / "bwrap"
    fake.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')
    fake.chmod(0o755)
    root = tmp_path / "ws"
    root.mkdir()
    monkeypatch.setattr(sandbox, "BUBBLEWRAP", (str(fake),))
    problem = asyncio.run(probe.trial(Sandbox("bubblewrap", str(root))))
    assert ".latchstep was replaced from outside" in problem, "it lies on no read-only mount"
    monkeypatch.setattr(sandbox, "guards_of", lambda root: Guards())
    assert asyncio.run(probe.trial(Sandbox("bubblewrap", str(root)))) == "a file outside could be written"
    fake.write_text("#!/bin/sh\necho setting up uid map: Permission denied >&2; exit 1\n")
    problem = asyncio.run(probe.trial(Sandbox("bubblewrap", str(root))))
    assert "setting up uid map: Permission denied" in problem


def test_an_older_bubblewrap_does_without_the_newer_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "ws"
    root.mkdir()
    program = next((path for path in sandbox.BUBBLEWRAP if os.path.exists(path)), "")
    if not program or asyncio.run(probe.trial(Sandbox("bubblewrap", str(root)))):
        pytest.skip("bubblewrap does not work here")
    older = tmp_path / "bwrap"
    older.write_text(
        "#!/bin/bash\n[ $1 = --args ] && grep -aqz -- --disable-userns /proc/self/fd/$2 && "
        f'{{ echo "bwrap: Unknown option --disable-userns" >&2; exit 1; }}\nexec {program} "$@"\n'
    )
    older.chmod(0o755)
    monkeypatch.setattr(sandbox, "BUBBLEWRAP", (str(older),))
    found, problems = asyncio.run(best(lambda level: Sandbox(level, str(root)), "bubblewrap"))
    assert (found.older, problems) == (True, [])

    async def nested() -> str:
        spawner = Spawner(sandbox=found)
        try:
            return (await spawner.run("unshare -Ur echo nested 2>&1", cwd=root)).head.decode()
        finally:
            await spawner.close()

    assert "Operation not permitted" in asyncio.run(nested())


def test_what_fails_by_design_is_explained_once(tmp_path: Path) -> None:
    said: set[str] = set()
    confined = Sandbox("bubblewrap", str(tmp_path))
    busy = b"error: could not write config file .git/config: Device or resource busy"
    assert "git -c" in explain(busy, confined, said)
    assert explain(busy, confined, said) == ""
    assert "no network" in explain(b"fatal: Could not resolve host: example.org", confined, said)
    assert "workspace and /tmp" in explain(b"touch: cannot touch 'x': Read-only file system", confined, said)
    assert explain(b"all is well", confined, said) == ""
    listed = b"./.git/hooks/pre-push.sample:3:#!/bin/sh\nsrc/hooks/use.ts\n.git/config"
    assert explain(listed, confined, set()) == "", "what only names them failed at nothing"
    for failed in (b"cp: cannot create regular file '.git/hooks/x': Read-only file system", b"EROFS: '/w/.git/config'"):
        assert "git -c" in explain(failed, confined, set())
    assert explain(failed, Sandbox("bubblewrap", str(tmp_path), looks=True), set()) == "", "nothing could be written"
    assert explain(busy, None, set()) == ""
    assert explain(busy, Sandbox("none", str(tmp_path)), set()) == ""
    hosted = Sandbox("bubblewrap", str(tmp_path), "host")
    assert explain(b"Could not resolve host", hosted, set()) == ""
    assert "$TMPDIR" in explain(b"mkdir: Permission denied", Sandbox("landlock", str(tmp_path)), set())


def test_what_lies_there_from_a_dead_sandbox_is_known_again(tmp_path: Path) -> None:
    left = tmp_path / ".latchstep"
    left.mkdir()
    assert guards_of(str(tmp_path)).made == ()
    os.utime(left, (OURS, OURS))
    assert guards_of(str(tmp_path)).made == ((str(left), None),)


def test_what_a_sandbox_puts_there_goes_through_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "info").symlink_to(outside)
    with pytest.raises(OSError, match=r"info|Not a directory"):
        guard.place({"level": "none", "user": None, "made": [(f"{tmp_path}/info/attributes", b"")]})
    with pytest.raises(SystemExit, match="replaced"):
        guard.place({"level": "none", "user": None, "made": [(f"{tmp_path}/info/below/attributes", b"")]})
    made = os.mkdir

    def swap(path: str, *mode: int, **at: int) -> None:
        """What somebody else in the workspace may do just then."""
        made(path, *mode, **at)
        os.rmdir(path, **at)
        os.symlink(outside, path, **at)

    monkeypatch.setattr(os, "mkdir", swap)
    with pytest.raises(OSError, match="symbolic links"):
        guard.place({"level": "none", "user": (os.getuid(), os.getgid()), "made": [(f"{tmp_path}/hooks", None)]})
    assert int(outside.stat().st_mtime) != OURS
    assert not list(outside.rglob("attributes"))
