"""A piece of ground to attack: a home with keys, a file outside, a store, a repository, and servers that listen.

One ground per identity and level, with one living harness; what an attack may have changed is put back before the
next one.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEY = "sk-the-key-of-the-person"
SECRET = "the private part of a key pair"
CONTENT = "as it was"
STRANGER = 54_321
"""A user of no account, as whom everything is tried besides root."""

SOURCE = Path(__file__).resolve().parents[2] / "src"
LIBRARIES = [str(SOURCE), str(SOURCE.parent), *(path for path in sys.path if "site-packages" in path)]
LEVELS = ("bubblewrap", "landlock", "none")
IDENTITIES = ("root", "user") if os.geteuid() == 0 else ("user",)


def python_for(identity: str) -> list[str] | None:
    """A Python with our libraries that this identity can run; None where there is none."""
    if identity == "root" or os.geteuid() != 0:
        return [sys.executable]
    libraries = os.pathsep.join(LIBRARIES)
    check = f"import sys, msgspec; assert sys.version_info[:2] == {sys.version_info[:2]}"
    for program in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            subprocess.run(
                [program, "-c", check], user=STRANGER, group=STRANGER, extra_groups=[], capture_output=True, check=True,
                env={"PYTHONPATH": libraries}, cwd="/",
            )  # fmt: skip
        except (OSError, subprocess.CalledProcessError):
            continue
        return [program]
    return None


@dataclass
class Ended:
    status: int | None
    out: str
    restarted: str
    error: str
    signals: int


class Listener:
    """A socket that counts who came."""

    def __init__(self, kind: str, where: Any = None) -> None:
        family = socket.AF_INET if kind in ("tcp", "udp") else socket.AF_UNIX
        self.socket = socket.socket(family, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
        self.socket.bind(where or ("127.0.0.1", 0))
        self.kind, self.came = kind, threading.Event()
        if kind != "udp":
            self.socket.listen()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        try:
            while True:
                if self.kind == "udp":
                    self.socket.recv(100)
                else:
                    self.socket.accept()[0].close()
                self.came.set()
        except OSError:
            return

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR) if self.kind != "udp" else None
        self.socket.close()


class Ground:
    """Everything that is to be kept, and the harness that must keep it."""

    def __init__(self, identity: str, level: str, net: str = "none", *, repository: bool = True) -> None:
        self.identity, self.level, self.net = identity, level, net
        self.base = Path(os.path.realpath(tempfile.mkdtemp(prefix="ground-", dir="/var/tmp")))
        self.root, self.home, self.out = self.base / "ws", self.base / "home", self.base / "outside"
        self.store = self.base / "store" / "session"
        self.shared = Path(f"/tmp/latchstep-shared-{os.urandom(4).hex()}")
        for folder in (self.root, self.home / ".ssh", self.out, self.store):
            folder.mkdir(parents=True)
        self.restore()
        self.own()
        self.tcp, self.udp = Listener("tcp"), Listener("udp")
        self.file_socket = Listener("file", str(self.out / "agent.sock"))
        self.abstract = f"latchstep-{os.urandom(4).hex()}"
        self.abstract_socket = Listener("abstract", "\0" + self.abstract)
        os.chmod(self.out / "agent.sock", 0o777)
        if repository:
            self.git("init", "-q", ".")
            self.git("commit", "-q", "--allow-empty", "-m", "first")
        self.process: subprocess.Popen[str] | None = None
        self.limits: dict[str, int] = {}
        """Other bounds of processes than the usual ones, for a harness that is not started yet."""

    # -- whose it is

    @property
    def ids(self) -> dict[str, Any]:
        if self.identity == "root" or os.geteuid() != 0:
            return {}
        return {"user": STRANGER, "group": STRANGER, "extra_groups": []}

    def own(self) -> None:
        if self.ids:
            for folder, folders, files in os.walk(self.base):
                for path in (folder, *(os.path.join(folder, name) for name in (*folders, *files))):
                    os.lchown(path, STRANGER, STRANGER)

    @property
    def env(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "PYTHONPATH": os.pathsep.join(LIBRARIES),
            "ANTHROPIC_API_KEY": KEY,
            "LD_PRELOAD_TRIAL": "x",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_SYSTEM": "/dev/null",
        }

    # -- the person's own doing, outside

    def git(self, *arguments: str, cwd: Path | None = None) -> str:
        """The person's git, outside of any sandbox."""
        identity = ("-c", "user.name=person", "-c", "user.email=person@localhost")
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=cwd or self.root, env=self.env, capture_output=True, text=True,
            check=False, **self.ids,
        )  # fmt: skip
        return done.stdout + done.stderr

    def run_outside(self, script: str) -> None:
        """A script of the person's, without a sandbox."""
        subprocess.run(["/bin/sh", "-c", script], cwd=self.root, env=self.env, check=True, **self.ids)

    def restore(self) -> None:
        """What an attack may have changed is as it was."""
        for path, text in (
            (self.out / "file", CONTENT),
            (self.home / ".ssh" / "id", SECRET),
            (self.home / ".bashrc", CONTENT),
            (self.store / "journal.jsonl", CONTENT),
        ):
            if not path.exists() or path.read_text() != text:
                path.unlink(missing_ok=True)
                path.write_text(text)
                if self.ids:
                    os.chown(path, STRANGER, STRANGER)
        os.utime(self.home / ".bashrc")
        self.home.joinpath(".ssh").chmod(0o700)
        (self.store / "tools.lock").touch()
        if self.ids:
            os.chown(self.store / "tools.lock", STRANGER, STRANGER)

    def clean(self) -> None:
        """An empty workspace but for its repository."""
        for path in self.root.iterdir():
            if path.name not in (".git", ".latchstep"):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    # -- the harness

    def start(self) -> None:
        program = python_for(self.identity)
        assert program is not None
        told: dict[str, Any] = {"level": self.level, "root": str(self.root), "net": self.net, "store": str(self.store)}
        told["limits"] = self.limits
        self.process = subprocess.Popen(
            [*program, str(Path(__file__).with_name("harness.py")), json.dumps(told)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=self.base, env=self.env, **self.ids,
        )  # fmt: skip

    def ask(self, **request: Any) -> dict[str, Any]:
        if self.process is None:
            self.start()
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the harness died"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def run(self, command: str, timeout: float = 20.0, keep: Path | None = None) -> Ended:
        """A command of the agent, in the sandbox."""
        if self.process is None:
            self.start()
        assert self.process is not None
        for name, value in {
            "OUT": self.out, "HOME_": self.home, "STORE": self.store, "PARENT": self.process.pid,
            "PORT": self.tcp.socket.getsockname()[1], "UDP": self.udp.socket.getsockname()[1],
            "ABSTRACT": self.abstract, "SHARED": self.shared, "ROOT": self.root, "BASE": self.base,
        }.items():  # fmt: skip
            command = command.replace(f"@{name}@", str(value))
        answer = self.ask(do="run", command=command, timeout=timeout, keep=str(keep) if keep else "")
        return Ended(answer["status"], answer["out"], answer["restarted"], answer.get("error", ""), answer["signals"])

    def move(self, root: Path) -> None:
        """Work in another folder, by another harness."""
        self.stop()
        self.root = root

    def end_sandbox(self) -> None:
        self.ask(do="close")

    def stop(self) -> None:
        if self.process is not None:
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            self.process.stdin.close()
            self.process.wait(20)
            self.process.stdout.close()
            self.process = None

    def close(self) -> None:
        self.stop()
        for listener in (self.tcp, self.udp, self.file_socket, self.abstract_socket):
            listener.close()
        self.shared.unlink(missing_ok=True)
        shutil.rmtree(self.base, ignore_errors=True)


def whole(path: Path) -> str:
    return path.read_text() if path.exists() else ""
