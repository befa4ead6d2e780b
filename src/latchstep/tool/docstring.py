"""What a docstring says of a function and of each parameter, in the three common styles.

Pure. Google (`Args:`), NumPy (`Parameters` underlined) and Sphinx (`:param name:`); whatever is not about
parameters stays in the description, since it is for the model too.
"""

from __future__ import annotations

import re
from inspect import cleandoc

_GOOGLE = re.compile(r"(?:Args|Arguments|Parameters|Params)\s*:\s*")
_GOOGLE_ITEM = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY_ITEM = re.compile(r"\*{0,2}(\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?")
_SPHINX = re.compile(r":(?:param|parameter|arg|argument|type)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)")


def parse(docstring: str | None) -> tuple[str, dict[str, str]]:
    """The description, and what is said of each parameter."""
    lines = cleandoc(docstring or "").split("\n")
    kept: list[str] = []
    parameters: dict[str, str] = {}
    index = 0
    while index < len(lines):
        line = lines[index]
        if _GOOGLE.fullmatch(line):
            end = _block(lines, index + 1)
            _google(lines[index + 1 : end], parameters)
        elif line.strip() == "Parameters" and index + 1 < len(lines) and re.fullmatch(r"\s*-{3,}\s*", lines[index + 1]):
            end = _numpy_end(lines, index + 2)
            _numpy(lines[index + 2 : end], parameters)
        elif match := _SPHINX.fullmatch(line):
            end = _block(lines, index + 1, blank=False)
            if not line.startswith(":type"):
                parameters[match[1]] = _joined([match[2], *lines[index + 1 : end]])
        else:
            kept.append(line)
            end = index + 1
        index = end
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip(), parameters


def _block(lines: list[str], start: int, blank: bool = True) -> int:
    """Where the indented block that begins at `start` ends. `blank`: empty lines may lie within."""
    end = start
    for index in range(start, len(lines)):
        if lines[index].strip():
            if not lines[index][0].isspace():
                break
            end = index + 1
        elif not blank:
            break
    return end


def _google(lines: list[str], parameters: dict[str, str]) -> None:
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    name = ""
    for line in lines:
        text = line[indent:]
        match = _GOOGLE_ITEM.fullmatch(text)
        if match and not text[0].isspace():
            name = match[1]
            parameters[name] = match[2].strip()
        elif name:
            parameters[name] = _joined([parameters[name], text])


def _numpy_end(lines: list[str], start: int) -> int:
    """A NumPy section ends where the next underlined title begins, or prose that names no parameter."""
    for index in range(start, len(lines)):
        line = lines[index]
        if line.strip() and not line[0].isspace() and not _NUMPY_ITEM.fullmatch(line.strip()):
            return index
        if index + 1 < len(lines) and re.fullmatch(r"-{3,}\s*", lines[index + 1]):
            return index
    return len(lines)


def _numpy(lines: list[str], parameters: dict[str, str]) -> None:
    names: list[str] = []
    for line in lines:
        if line.strip() and not line[0].isspace():
            match = _NUMPY_ITEM.fullmatch(line.strip())
            names = [name.strip(" *") for name in match[1].split(",")] if match else []
            parameters.update(dict.fromkeys(names, ""))
        else:
            for name in names:
                parameters[name] = _joined([parameters[name], line])


def _joined(lines: list[str]) -> str:
    return " ".join(line.strip() for line in lines if line.strip())
