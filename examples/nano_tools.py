"""The five tools of the nano agent. Three declare that they write: these have a preview, and a gate can ask."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import latchstep as ls
from latchstep.tool.text import shown

SECONDS = 120  # a command may take


def preview(arguments: dict[str, Any], context: ls.Context) -> str:
    """Everything that would be done, line by line, with nothing that could hide in a terminal."""
    text = "\n".join(f"{name}: {value}" for name, value in arguments.items())
    return "\n".join(map(shown, text.split("\n")))


def tools(folder: Path) -> list[ls.Tool]:
    """The tools over a folder. Paths are relative to it and stay in it."""
    root = folder.resolve()

    def within(path: str) -> Path:
        full = (root / path).resolve()
        if not full.is_relative_to(root):
            raise ls.ToolError(f"{path} lies outside the folder")
        return full

    @ls.tool(effect="read")
    def read_file(path: str) -> str:
        """Read a text file."""
        return within(path).read_text()

    @ls.tool(effect="read")
    def list_files(path: str = ".") -> str:
        """List a folder; names of folders end in a slash."""
        entries = sorted(within(path).iterdir())
        return "\n".join(shown(entry.name) + "/" * entry.is_dir() for entry in entries)

    @ls.tool(prepare=preview)
    def write_file(path: str, content: str) -> str:
        """Write a text file, with the folders above it."""
        (full := within(path)).parent.mkdir(parents=True, exist_ok=True)
        full.write_text(content)
        return f"wrote {len(content)} characters to {path}"

    @ls.tool(prepare=preview)
    def edit_file(path: str, old: str, new: str) -> str:
        """Replace a text that occurs exactly once in a file."""
        text = (full := within(path)).read_text()
        if (times := text.count(old) if old else 0) != 1:
            raise ls.ToolError(f"the old text occurs {times} times in {path}; it must occur once")
        full.write_text(text.replace(old, new))
        return f"edited {path}"

    @ls.tool(prepare=preview)
    def bash(command: str) -> str:
        """Run a command in the folder; its output and exit status come back."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            check=False,
        )
        return f"{done.stdout.decode(errors='replace')}[exit status {done.returncode}]"

    return [read_file, list_files, write_file, edit_file, bash]
