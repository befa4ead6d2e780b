"""What the model knows of each file: the hash of the bytes it was last shown or wrote.

Pure memory, rebuilt after a resume from the `details` of recorded results: a tool that reads or writes a
file puts `{"path": …, "sha256": …}` there, a writing one also `"replaced"`, the hash before (null: no file), one that
shows a part of it `"from"`, `"to"` and `"lines"`.
"""

from __future__ import annotations

from typing import Any

from latchstep.core.parts import files_in, learn, remember

MAX_KNOWN = 10_000
"""Files, and writes of our own, that are remembered; the oldest are forgotten first."""


class Seen:
    """Real path in the workspace -> SHA-256 (hex) of the bytes the model knows. Owned by who builds the tools."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._partly: dict[str, int] = {}
        self._replaced: dict[tuple[str, str], str | None] = {}

    def know(self, files: dict[str, str], partly: dict[str, int]) -> None:
        """Take over what an earlier process knew (see `learn`)."""
        self._known.update(files)
        self._partly.update(partly)

    def moved(self, path: str, new: str) -> None:
        """What is known of a file goes with it."""
        if (sha256 := self._known.pop(path, None)) is not None:
            self._known[new] = sha256
        if (lines := self._partly.pop(path, None)) is not None:
            self._partly[new] = lines

    def wrote(self, path: str, replaced: str | None, sha256: str) -> None:
        """One of our own writes took the file from one hash (None: it was missing) to another.

        The model knows the new bytes only if it knew the old ones: an edit of a part shows nothing of the rest.
        """
        learn(self._known, self._partly, {"path": path, "replaced": replaced, "sha256": sha256}, MAX_KNOWN)
        if replaced != sha256:
            remember(self._replaced, (path, sha256), replaced, MAX_KNOWN)

    def get(self, path: str) -> str | None:
        return self._known.get(path)

    def partly(self, path: str) -> int | None:
        """How many lines of a file, from the first on, the model was shown; None where it was shown all."""
        return self._partly.get(path)

    def is_own(self, path: str, current: str | None, base: str | None) -> bool:
        """True where only writes of our own lead from the bytes `base` to the bytes `current`."""
        passed = set()
        while current is not None and current != base and (path, current) in self._replaced:
            if current in passed:
                return False
            passed.add(current)
            current = self._replaced[path, current]
        return current == base

    def restore(self, details: Any) -> None:
        """Take back what one recorded result said; anything that is not such details is passed over."""
        for file in files_in(details):
            path, sha256 = file.get("path"), file.get("sha256")
            if "replaced" not in file:
                learn(self._known, self._partly, file, MAX_KNOWN)
            elif isinstance(path, str) and isinstance(sha256, str):
                self.wrote(path, file["replaced"], sha256)
