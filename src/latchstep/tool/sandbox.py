"""The sandbox that holds commands: what it shows them, as data, and how bubblewrap and Landlock are told.

Three levels, each a fallback for the one before; which of them works is found by running it (see `confine`).
"""

from __future__ import annotations

import os
import platform
import pwd
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from latchstep.errors import DefinitionError

from . import guard, landlock, proxy, seccomp
from .gitguard import Guards, guards_of, identity, merged
from .roots import Extra, refuse_unfit, within

Level = Literal["bubblewrap", "landlock", "none"]

SYSTEM = ("/usr", "/opt", "/nix/store", "/gnu/store")
MERGED = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Links into /usr, or folders of their own on older systems."""
BUBBLEWRAP = ("/usr/bin/bwrap", "/bin/bwrap", "/usr/local/bin/bwrap", "/run/current-system/sw/bin/bwrap")
"""Never looked for in PATH, which may lead into the workspace."""
NEWER = "--disable-userns"
"""Came with version 0.8. Without it the filter of system calls alone refuses user namespaces."""
PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")
"""What the spawner runs by where a user cannot reach our own."""

ETC = (
    "alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version",
    "fonts", "gai.conf", "gitconfig", "group", "host.conf", "hosts", "inputrc", "ld.so.cache", "ld.so.conf",
    "ld.so.conf.d", "locale.alias", "locale.conf", "localtime", "login.defs", "lsb-release", "magic", "mime.types",
    "nsswitch.conf", "os-release", "passwd", "pki/ca-trust/extracted", "pki/tls/certs", "profile", "protocols",
    "resolv.conf", "services", "shells", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone", "xdg",
)  # fmt: skip
"""All that root sees of /etc, where root could read every secret."""

TOOLCHAINS: dict[str, tuple[str, ...]] = {
    ".cargo/bin": (".cargo/registry", ".rustup"),
    ".local/bin": (".local/share/uv", ".local/share/pipx", ".local/pipx"),
    ".pyenv": (".pyenv",),
    ".nvm": (".nvm",),
    ".fnm": (".fnm",),
    ".local/share/fnm": (".local/share/fnm",),
    ".volta": (".volta",),
    ".bun/bin": (".bun/install",),
    ".deno/bin": (),
    ".rbenv": (".rbenv",),
    ".asdf": (".asdf",),
    ".local/share/mise": (".local/share/mise",),
    ".sdkman": (".sdkman/candidates",),
    "go/bin": ("go/pkg",),
    ".ghcup/bin": (".ghcup/ghc",),
}
"""Folders of a home that programs in a PATH folder of this beginning need. Credentials lie in none of them."""

TOOL_HOMES = {"RUSTUP_HOME": ".rustup", "PYENV_ROOT": ".pyenv", "NVM_DIR": ".nvm", "VOLTA_HOME": ".volta"}
"""How these are told where they lie, where the home is another one."""

TMP_BYTES, HOME_BYTES = 4 << 30, 1 << 30
"""Most that /tmp and the home may hold; both are memory."""

RLIMITS: dict[str, int] = {"CORE": 1, "FSIZE": 16 << 30, "NOFILE": 65_536, "NPROC": 4_096}
"""Of each process: bytes of a core dump (1: none is written, and no handler of the machine's started, as 0 lets it be)
and of a file, open files; and processes: those of a user namespace, elsewhere more than there are when it starts."""
PID_MAX, PER_NAMESPACE = "/proc/sys/kernel/pid_max", (6, 14)
"""The kernel counts no processes of root, but since this version it bounds those of each process namespace."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

NOT_COVERED: dict[Level, str] = {
    "bubblewrap": "what you start in the workspace yourself; holes in the kernel; as root before Linux 6.14 fork bombs",
    "landlock": (
        "git's hooks and config, which commands can change (a run says so at its end); mode and times of files outside "
        "whose path is known; names, arguments and priorities of other processes; before Linux 6.12 signals to yours; "
        "as root fork bombs; /tmp is refused, $TMPDIR takes its place; what you start in the workspace yourself; holes "
        "in the kernel"
    ),
}
"""What each level does not keep from happening, in words for a person."""

OFFLINE = {"PIP_RETRIES": "0", "npm_config_fetch_retries": "0", "UV_HTTP_RETRIES": "0", "CARGO_NET_RETRY": "0"}
"""So that what cannot succeed fails at once."""
PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
CACHES = {
    "XDG_CACHE_HOME": "", "PIP_CACHE_DIR": "pip", "UV_CACHE_DIR": "uv", "npm_config_cache": "npm",
    "YARN_CACHE_FOLDER": "yarn", "GOCACHE": "go-build", "GOMODCACHE": "go-mod",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sandbox:
    """How commands are confined. Each start of the spawner looks at the folders anew.

    root: the real path of the workspace. net: `none`, `host`, or `allow:HOST,…` (see `proxy.parse_hosts`). cache: a
    folder for package managers. hidden: folders that are never shown, even inside the workspace. older: bubblewrap
    lacks `NEWER`. also: folders beside the workspace. looks: nothing is written, not in the workspace either.
    """

    level: Level
    root: str
    net: str = "none"
    cache: str = ""
    hidden: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    older: bool = False
    also: tuple[Extra, ...] = ()
    looks: bool = False

    def __post_init__(self) -> None:
        home, cache = self.home, self.cache
        self.hosts()
        if cache and (within(cache, self.root) or within(self.root, cache) or within(home, cache)):
            raise DefinitionError(f"the cache {cache} must be a folder apart from the workspace and the home")
        if self.level != "none" and within(home, self.root):
            raise DefinitionError(
                f"the workspace {self.root} is your home folder or above it: keys and start files would lie open; "
                "work in a folder of its own"
            )
        apart = [(path, "the store of sessions") for path in self.hidden] + ([(cache, "the cache")] if cache else [])
        refuse_unfit(self.also, self.root, home=home, apart=apart)

    @property
    def written(self) -> tuple[str, ...]:
        """The folders that commands change."""
        return () if self.looks else (self.root, *(extra.path for extra in self.also if extra.writable))

    def hosts(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The hosts that may be reached. Raises DefinitionError for a network that there is not."""
        kind, _, named = self.net.partition(":")
        try:
            if kind == "allow":
                return proxy.parse_hosts(named)
            if self.net in ("none", "host"):
                return ()
            raise ValueError(f"{self.net!r} is not none, host or allow:HOST,…")
        except ValueError as error:
            raise DefinitionError(f"--net: {error}") from None

    @property
    def home(self) -> str:
        return os.path.realpath(self.environ.get("HOME") or "/nonexistent")

    @property
    def user(self) -> tuple[int, int] | None:
        """Who commands run as (user, group), where root works in somebody else's folder."""
        if self.level == "none" or os.geteuid() != 0 or (owner := os.stat(self.root).st_uid) == 0:
            return None
        try:
            return owner, pwd.getpwuid(owner).pw_gid
        except KeyError:
            return owner, os.stat(self.root).st_gid

    def variables(self) -> dict[str, str]:
        """What commands find in their environment because of it."""
        if self.level == "none":
            return {}
        found = {"TMPDIR": "/tmp", "HOME": self.home}  # at level landlock the guard puts a folder of its own there
        if self.level == "landlock":
            homes = {name: f"{self.home}/{folder}" for name, folder in TOOL_HOMES.items()}
            found |= {name: path for name, path in homes.items() if os.path.isdir(path)}
        if self.net == "none":
            found |= OFFLINE
        elif self.net != "host":
            found |= dict.fromkeys(PROXIES, f"http://127.0.0.1:{proxy.PORT}")
            found |= dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1")
        if self.cache:
            found |= {name: os.path.join(self.cache, folder).rstrip("/") for name, folder in CACHES.items()}
        if (user := self.user) is not None:
            name = _name(user[0])
            found |= {"USER": name, "LOGNAME": name}
        return found


@dataclass(frozen=True, slots=True)
class Profile:
    """What one sandbox shows, all of it as real paths."""

    readable: tuple[str, ...]
    writable: tuple[str, ...]
    home: str
    guards: Guards
    hidden: tuple[str, ...]
    package: str
    python: str
    resolver: str = ""


def profile(sandbox: Sandbox) -> Profile:
    """Look at the machine. Raises DefinitionError where no Python is to be had for the user it runs as."""
    user, home = sandbox.user, sandbox.home
    package = os.path.realpath(Path(__file__).parents[1])
    base = getattr(sys, "_base_executable", "") or sys.executable
    python = next((path for path in (base, *PYTHONS) if _reaches(path, user)), "")
    if not python:
        raise DefinitionError(f"the owner of {sandbox.root} reaches no Python to run the spawner by")
    path = sandbox.environ.get("PATH", "").split(os.pathsep)
    wanted = [*path, sys.prefix, sys.base_prefix, sandbox.environ.get("VIRTUAL_ENV", "")]
    inside = [
        folder
        for folder in (sys.prefix, package)
        if any(within(os.path.realpath(folder), root) for root in sandbox.written)
    ]
    readable = _shown([*wanted, *_toolchains(path), package], sandbox)
    guards = merged(*map(guards_of, sandbox.written))
    only_read = [extra.path for extra in sandbox.also if sandbox.looks or not extra.writable]
    if sandbox.looks:
        only_read += [sandbox.root, *([sandbox.cache] if sandbox.cache else [])]
    return Profile(
        readable=tuple(folder for folder in (*readable, *only_read, *inside) if _reaches(folder, user)),
        writable=(*sandbox.written, *guards.beside, *((sandbox.cache,) if sandbox.cache and not sandbox.looks else ())),
        home=home,
        guards=guards,
        hidden=tuple(path for path in map(os.path.realpath, sandbox.hidden) if os.path.isdir(path)),
        package=package,
        python=python,
        resolver=os.path.realpath("/etc/resolv.conf") if sandbox.net == "host" else "",
    )


def _shown(wanted: Iterable[str], sandbox: Sandbox) -> list[str]:
    """Of these folders the ones to show: not in the system's, not where commands work, and none that holds more than
    programs: the home, what lies above it, a store of sessions."""
    private = [
        sandbox.home,
        os.path.realpath(os.path.expanduser(f"~{_name(os.geteuid())}")),
        *map(os.path.realpath, sandbox.hidden),
    ]
    found: dict[str, None] = {}
    for folder in wanted:
        real = os.path.realpath(folder)
        if not folder.startswith("/") or not os.path.isdir(real) or any(within(it, real) for it in private):
            continue
        if any(within(real, above) for above in (*SYSTEM, *MERGED, "/proc", "/sys", "/dev", *sandbox.written)):
            continue
        found |= dict.fromkeys((real, os.path.normpath(folder)))
    return sorted(found)


def _toolchains(path: list[str]) -> list[str]:
    """The folders that programs in these PATH folders need, each under the home that the PATH folder itself names."""
    found = []
    for entry in path:
        for beginning, folders in TOOLCHAINS.items():
            home, there, _ = f"{entry}/".partition(f"/{beginning}/")
            if there and home:
                found += [f"{home}/{folder}" for folder in folders]
    return found


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _reaches(path: str, user: tuple[int, int] | None) -> bool:
    """Whether this user can get at it: asked only where it is another than ours."""
    if user is None:
        return os.path.exists(path)
    try:
        for part in (Path(real := os.path.realpath(path)), *Path(real).parents):
            status = os.stat(part)
            bit = 0o100 if status.st_uid == user[0] else 0o010 if status.st_gid == user[1] else 0o001
            if not status.st_mode & bit:
                return False
    except OSError:
        return False
    return True


# -- told to bubblewrap -------------------------------------------------------------------------------------


def bubblewrap(sandbox: Sandbox, shown: Profile, files: Iterable[str] = (), *, as_root: bool) -> list[str]:
    """The arguments of bubblewrap, in the order in which it mounts: each line may cover a part of those before. files:
    those that it writes there, each from a descriptor that it is given."""
    arguments = ["--unshare-all", "--unshare-user", "--cap-drop", "ALL", "--die-with-parent", "--new-session"]
    arguments += [*([] if sandbox.older else [NEWER]), "--clearenv", "--as-pid-1", "--hostname", "sandbox"]
    if sandbox.net == "host":
        arguments.append("--share-net")
    for path in SYSTEM:
        arguments += ["--ro-bind-try", path, path]
    for path in MERGED:
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        else:
            arguments += ["--ro-bind-try", path, path]
    for path in (f"/etc/{name}" for name in ETC) if as_root else ("/etc",):
        arguments += ["--ro-bind-try", path, path]
    arguments += ["--proc", "/proc", "--dev", "/dev", "--dir", "/run", "--dir", "/var"]
    for path in ("/tmp", "/var/tmp", "/dev/shm"):
        arguments += ["--size", str(TMP_BYTES), "--tmpfs", path]
    if len(Path(shown.home).parts) > 1:
        arguments += ["--size", str(HOME_BYTES), "--tmpfs", shown.home]
    if shown.resolver.startswith("/run/"):
        arguments += ["--ro-bind-try", shown.resolver, shown.resolver]
    inside = [path for path in shown.readable if any(within(path, root) for root in sandbox.written)]
    for path in shown.readable:
        if path not in inside:
            arguments += ["--ro-bind", path, path]
    for path in shown.writable:
        arguments += ["--bind", path, path]
    guards = [(path, "--bind") for path in shown.guards.pins] + [(path, "--ro-bind") for path in shown.guards.readonly]
    guards += [(path, "--ro-bind") for path in inside]
    for path in (*inside, *shown.hidden):
        guards += [(above, "--bind") for root in sandbox.written for above in _above(path, root)]
    for path, how in sorted(dict(guards).items(), key=lambda item: item[0].count("/")):
        arguments += [how, path, path]
    for path in shown.hidden:
        if any(within(path, folder) for folder in (*shown.writable, *shown.readable, *SYSTEM)):
            arguments += ["--perms", "0555", "--tmpfs", path]
    for number, path in enumerate(files, guard.FILES):
        arguments += ["--perms", "0644", "--file", str(number), path]
    return [*arguments, "--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]


def _above(path: str, root: str) -> list[str]:
    """The folders between the workspace and a path in it: a mount does not hold the names above it."""
    if not within(path, root):
        return []
    return [str(folder) for folder in Path(path).parents if within(str(folder), root) and str(folder) != root]


# -- told to Landlock ---------------------------------------------------------------------------------------


def rules(sandbox: Sandbox, shown: Profile, *, as_root: bool) -> list[tuple[str, int]]:
    """What Landlock lets commands do, by path. The private folder for /tmp and the home is added by who makes it."""
    for path in (*shown.hidden, shown.home):
        if above := [folder for folder in (*shown.writable, *shown.readable, *SYSTEM) if within(path, folder)]:
            raise DefinitionError(f"Landlock cannot hide {path}, which lies in {above[0]}")
    etc = [f"/etc/{name}" for name in ETC] if as_root else ["/etc"]
    read = [*SYSTEM, *MERGED, *etc, *shown.readable, "/proc"] + ([shown.resolver] if shown.resolver else [])
    found = [(path, landlock.READ) for path in read if os.path.exists(path)]
    found += [(path, landlock.WRITE) for path in shown.writable]
    return found + [(path, landlock.DEVICE) for path in DEVICES]


def families(level: Level, net: str) -> frozenset[int]:
    """Kinds of sockets. Where no namespace holds them, none: with a path, AF_UNIX reaches every server of the host."""
    if level == "bubblewrap":
        return frozenset({seccomp.AF_UNIX, seccomp.AF_INET, seccomp.AF_INET6, seccomp.AF_NETLINK})
    return frozenset({seccomp.AF_INET, seccomp.AF_INET6, seccomp.AF_NETLINK} if net == "host" else ())


def plan(sandbox: Sandbox) -> dict[str, Any]:
    """What the spawner's program is told (see `guard`).

    Raises DefinitionError, in words, where this level cannot be had here.
    """
    if sandbox.level == "none":
        return {"level": "none"}
    shown = profile(sandbox)
    user = sandbox.user
    as_root = os.geteuid() == 0 and user is None
    try:
        calls = seccomp.program(platform.machine(), families(sandbox.level, sandbox.net))
    except ValueError as error:
        raise DefinitionError(str(error)) from error
    told: dict[str, Any] = {
        "level": sandbox.level,
        "user": user,
        "calls": calls,
        "limits": RLIMITS,
        "root": sandbox.root,
        "source": os.path.dirname(shown.package),
        "python": shown.python,
        "net": sandbox.net == "host",
        "hosts": sandbox.hosts(),
        "identity": identity(sandbox.home),
    }
    if sandbox.level == "landlock":
        if told["hosts"]:
            raise DefinitionError("a network of some hosts needs bubblewrap")
        return {**told, "rules": rules(sandbox, shown, as_root=as_root)}
    program = next((path for path in BUBBLEWRAP if os.access(path, os.X_OK)), "")
    if not program:
        raise DefinitionError("bwrap is not installed (package bubblewrap)")
    files = {f"{shown.home}/.gitconfig": told["identity"]} if len(Path(shown.home).parts) > 1 else {}
    kernel = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
    if as_root and kernel >= PER_NAMESPACE:  # before that, it would be the whole machine's
        files[PID_MAX] = b"%d" % RLIMITS["NPROC"]
    return {
        **told,
        "program": program,
        "files": list(files.values()),
        "arguments": bubblewrap(sandbox, shown, files, as_root=as_root),
        "pins": list(shown.guards.pins),
        "readonly": list(shown.guards.readonly),
        "made": list(shown.guards.made),
    }
