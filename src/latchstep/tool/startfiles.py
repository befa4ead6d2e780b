"""Files that run by themselves later: hooks, editor tasks, CI, start-up files, programs on a search path.

A tool may write them inside the workspace; the person is told which changed since a time. Names and times are
looked at, nothing is opened but folders, and no link is followed.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import msgspec

from .guard import OURS

MAX_FOLDERS = 20_000
"""Folders that are looked at; where there are more, the findings say so."""

# What makes a file matter, and its names: in any folder, or in the workspace's own where they begin with `/`. A name
# that ends with `/` stands for everything beneath it.
_KINDS: dict[str, str] = {
    "git runs it": ".git/hooks/ .git/config .git/config.worktree .git/commondir .git/info/attributes "
    ".git/modules/ .git/worktrees/ .git/rebase-merge/git-rebase-todo .githooks/",
    "git reads it": ".git .gitattributes .gitmodules .gitconfig",
    "a hook manager runs it": ".husky/ .pre-commit-config.yaml lefthook.yml .lefthook.yml",
    "the shell may run it": ".envrc .direnv/ mise.toml .mise.toml .tool-versions .bashrc .zshrc .zshenv .profile",
    "an editor may run it": ".vscode/ .idea/ .zed/ .devcontainer/ *.code-workspace .dir-locals.el .exrc .vimrc "
    ".nvimrc .nvim.lua .lvimrc",
    "CI runs it": "/.github/workflows/ /.github/actions/ /.gitlab-ci.yml /.circleci/ /.buildkite/ /.woodpecker/ "
    "/.woodpecker.yml /.drone.yml /.travis.yml /Jenkinsfile /azure-pipelines.yml /bitbucket-pipelines.yml",
    "Python runs it at its start": "sitecustomize.py usercustomize.py *.pth",
    "a package manager reads it": ".npmrc .yarnrc .yarnrc.yml .pnpmfile.cjs pip.conf .pypirc .cargo/config "
    ".cargo/config.toml .mvn/ gradle-wrapper.properties .bazelrc",
    "an agent reads it": "AGENTS.md CLAUDE.md .mcp.json .latchstep/ .claude/ .cursor/ .codex/ .gemini/",
}


def _form(name: str) -> str:
    place = "" if name.startswith("/") else "(?:.*/)?"
    end = ".+" if name.endswith("/") else ""
    return place + re.escape(name.removeprefix("/")).replace(r"\*", "[^/]+") + end


_FORMS = tuple((why, re.compile("|".join(map(_form, names.split())))) for why, names in _KINDS.items())
_BIN = re.compile(r"(?:.*/)?(?:bin|sbin|\.bin|Scripts)/[^/]+")


class StartFile(msgspec.Struct, frozen=True, order=True):
    """A path relative to the workspace, and what makes it matter."""

    path: str
    why: str


def changed_start_files(root: Path, since: float) -> tuple[list[StartFile], bool]:
    """Those made or changed (by their inode's change time) at or after `since`, Unix seconds; and whether the whole
    tree was looked at."""
    found: list[StartFile] = []
    for count, (folder, folders, files, fd) in enumerate(os.fwalk(root, follow_symlinks=False)):
        if count >= MAX_FOLDERS:
            return sorted(found), False
        base = os.path.relpath(folder, root)
        prefix = "" if base == "." else base.replace(os.sep, "/") + "/"
        if prefix.endswith(".git/") or "/.git/objects/" in f"/{prefix}":
            folders[:] = [name for name in folders if name != "objects"]
        if {"HEAD", "config"} <= set(files) and {"objects", "refs"} <= set(folders) and not prefix.endswith(".git/"):
            found += [StartFile(prefix + "config", "git takes its folder for a repository")] * _new("config", fd, since)
        for name in (*files, *(folder for folder in folders if folder == ".git")):
            if (why := _why(prefix + name, name, fd, since)) is not None:
                found.append(StartFile(prefix + name, why))
    return sorted(found), True


def _new(name: str, folder: int, since: float) -> bool:
    return os.stat(name, dir_fd=folder, follow_symlinks=False).st_ctime >= since


def _why(path: str, name: str, folder: int, since: float) -> str | None:
    kind = next((why for why, form in _FORMS if form.fullmatch(path)), None)
    program = kind is None and _BIN.fullmatch(path) is not None
    if (kind is None and not program) or path == ".git":
        return None
    try:
        about = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    if about.st_ctime < since or int(about.st_mtime) == OURS or (path.endswith(".sample") and "/hooks/" in path):
        return None
    if stat.S_ISDIR(about.st_mode):
        return "a repository within" if name == ".git" else None
    if program:
        return "a program on a search path" if about.st_mode & 0o111 else None
    return kind
