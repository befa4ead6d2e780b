"""Files that run by themselves later: hooks, editor tasks, CI, start-up files, programs on a search path.

A tool may write them inside the workspace; the person is told which changed since a time. Names and times are
looked at, nothing is opened but folders and what a sandbox seems to have put there, and no link is followed.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path, PurePosixPath

import msgspec

from .gitguard import GUARDED
from .guard import OURS

MAX_FOLDERS = 20_000
"""Folders that are looked at; where there are more, the findings say so."""

# What makes a file matter, and its names: in any folder, or in the workspace's own where they begin with `/`. A name
# that ends with `/` stands for everything beneath it.
_KINDS: dict[str, str] = {
    "git runs it": ".git/hooks/ .git/config .git/config.worktree .git/commondir .git/info/attributes "
    ".git/modules/ .git/worktrees/ .git/rebase-merge/git-rebase-todo .githooks/",
    "git reads it": ".git .git/remotes/ .git/branches/ .gitattributes .gitmodules .gitconfig .lfsconfig",
    "another version control runs it": ".hg/hgrc .hg/hgrc-not-shared .hg/sharedpath .hgrc .jj/repo/config.toml "
    ".jj/config.toml .sl/config .repo/",
    "a hook manager runs it": ".husky/ .huskyrc .pre-commit-config.yaml lefthook.yml .lefthook.yml lefthook.toml "
    ".lefthook.toml lefthook-local.yml .lintstagedrc .lintstagedrc.json .overcommit.yml .simple-git-hooks.json",
    "the shell may run it": ".envrc .direnv/ mise.toml .mise.toml .tool-versions .bashrc .bash_profile .bash_login "
    ".bash_logout .zshrc .zshenv .zprofile .zlogin .zlogout .kshrc .profile .inputrc",
    "an editor may run it": ".vscode/ .idea/ .zed/ .helix/ .fleet/ .vim/ .nvim/ .devcontainer/ .devcontainer.json "
    "*.code-workspace *.sublime-project .dir-locals.el .exrc .vimrc .nvimrc .nvim.lua .lvimrc",
    "CI runs it": "/.github/workflows/ /.github/actions/ /.gitlab-ci.yml /.circleci/ /.buildkite/ /.woodpecker/ "
    "/.woodpecker.yml /.drone.yml /.travis.yml /Jenkinsfile /azure-pipelines.yml /bitbucket-pipelines.yml "
    "/.cirrus.yml /appveyor.yml /.appveyor.yml /.semaphore/ /.teamcity/ /.forgejo/ /.gitea/",
    "Python runs it at its start": "sitecustomize.py usercustomize.py *.pth",
    "an interpreter or a debugger runs it at its start": ".gdbinit .lldbinit .pdbrc .perldb .Rprofile .Renviron .irbrc "
    ".pryrc .ghci .iex.exs .ocamlinit .rspec bunfig.toml",
    "a toolchain or package manager reads it": ".npmrc .yarnrc .yarnrc.yml .yarn/releases/ .yarn/plugins/ .pnp.cjs "
    ".pnp.loader.mjs .pnpmfile.cjs pip.conf .pypirc .bundle/config .cargo/config .cargo/config.toml rust-toolchain "
    "rust-toolchain.toml .mvn/ gradle-wrapper.properties gradle-wrapper.jar .bazelrc",
    "an agent reads it": "AGENTS.md AGENTS.override.md CLAUDE.md CLAUDE.local.md GEMINI.md .mcp.json .latchstep/ "
    ".claude/ .cursor/ .cursorrules .codex/ .gemini/ .agents/ .opencode/ opencode.json opencode.jsonc .windsurf/ "
    ".windsurfrules .clinerules .clinerules/ .roo/ .kiro/ .continue/ .aider.conf.yml "
    ".github/copilot-instructions.md",
}


def _compiled(names: list[str]) -> re.Pattern[str]:
    rooted: list[str] = []
    anywhere: list[str] = []
    for name in names:
        form = re.escape(name.removeprefix("/")).replace(r"\*", "[^/]+") + (".+" if name.endswith("/") else "")
        (rooted if name.startswith("/") else anywhere).append(form)
    return re.compile("|".join([*rooted, f"(?:.*/)?(?:{'|'.join(anywhere)})"]))


_NAMES = {why: names.split() for why, names in _KINDS.items()}
_FORMS = tuple((why, _compiled(names)) for why, names in _NAMES.items())
_ANY = _compiled([name for names in _NAMES.values() for name in names])
_FOLDERS = _compiled([name[:-1] for names in _NAMES.values() for name in names if name.endswith("/")])
"""Folders of which everything matters: one that was moved there holds old files, and one may be a link."""
_WITHIN = "a repository within"
_BIN = re.compile(r"(?:.*/)?(?:bin|sbin|\.bin|Scripts)/[^/]+")


class StartFile(msgspec.Struct, frozen=True, order=True):
    """A path relative to the workspace, and what makes it matter."""

    path: str
    why: str


def changed_start_files(root: Path, since: float) -> tuple[list[StartFile], bool]:
    """Those made or changed (by their inode's change time) at or after `since`, Unix seconds; and whether the whole
    tree was looked at. A folder stands for itself where nothing in it changed."""
    found: dict[str, str] = {}
    whole = True
    for count, (folder, folders, files, fd) in enumerate(os.fwalk(root, follow_symlinks=False)):
        if count >= MAX_FOLDERS:
            whole = False
            break
        base = os.path.relpath(folder, root)
        prefix = "" if base == "." else base.replace(os.sep, "/") + "/"
        if prefix.endswith(".git/") or "/.git/objects/" in f"/{prefix}":
            folders[:] = [name for name in folders if name != "objects"]
        elif {"config", "objects", "refs"} <= {*files, *folders} and _new("config", fd, since):
            found[prefix + "config"] = "git takes its folder for a repository"
        held = {name: f"{prefix}{name}/x" for name in folders if _FOLDERS.fullmatch(prefix + name)}
        for name in (*files, *(it for it in folders if it == ".git"), *held):
            if (why := _why(prefix + name, held.get(name, prefix + name), fd, since)) is not None:
                found.setdefault(prefix + name, why)
    above = {str(folder) for path in found for folder in PurePosixPath(path).parents}
    return sorted(StartFile(*it) for it in found.items() if it[0] not in above or it[1] == _WITHIN), whole


def _new(name: str, folder: int, since: float) -> bool:
    """What is gone by the time that it is looked at was changed just now."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_ctime >= since
    except OSError:
        return True


def _why(path: str, form_of: str, folder: int, since: float) -> str | None:
    name = path.rpartition("/")[2]
    kind = next((why for why, form in _FORMS if form.fullmatch(form_of)), None) if _ANY.fullmatch(form_of) else None
    program = kind is None and _BIN.fullmatch(path) is not None
    if kind is None and not program:
        return None
    try:
        about = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if about.st_ctime < since or (stat.S_ISREG(about.st_mode) and _placed(name, about, folder)):
            return None
        if stat.S_ISDIR(about.st_mode) and name != ".git" and not _holds(name, folder):
            return None
    except OSError:
        return None
    if path.endswith(".sample") and "/hooks/" in path:
        return None
    if stat.S_ISDIR(about.st_mode) and name == ".git":
        return _WITHIN if path != name else None
    if program:
        return "a program on a search path" if about.st_mode & 0o111 else None
    return kind


def _placed(name: str, about: os.stat_result, folder: int) -> bool:
    """Whether a sandbox put this file there (see `guard.place`): by its time, which anybody can set, and content."""
    if int(about.st_mtime) != OURS or (about.st_size and name != "commondir"):
        return False
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    with os.fdopen(fd, "rb") as file:
        return file.read(3) in (b"", GUARDED["commondir"])


def _holds(name: str, folder: int) -> bool:
    """Whether anything is in this folder but git's samples."""
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY, dir_fd=folder)
    try:
        return any(not name.endswith(".sample") for name in os.listdir(fd))
    finally:
        os.close(fd)
