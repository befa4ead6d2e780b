"""What a command finds in its environment: a short list from ours, what was configured, and answers to questions.

Keys are not on the list, so they are never inherited. The forced ones come last: nothing a command starts may
wait for a person in an editor, a pager or a prompt.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import cache

INHERITED = frozenset({"PATH", "HOME", "LANG", "TERM", "TMPDIR", "USER", "LOGNAME", "SHELL", "TZ", "VIRTUAL_ENV"})
INHERITED_PREFIX = "LC_"

FORCED: dict[str, str] = {
    "GIT_EDITOR": "true",
    "GIT_SEQUENCE_EDITOR": "true",
    "EDITOR": "true",
    "VISUAL": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "DEBIAN_FRONTEND": "noninteractive",
    "PIP_NO_INPUT": "1",
    "NO_COLOR": "1",  # colours are for eyes; they would be stripped anyway
    "PYTHONUNBUFFERED": "1",  # what a program wrote before it was killed has arrived, in order
}

UTF8 = "C.UTF-8"
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


def child_environment(
    source: Mapping[str, str], keep: Iterable[str] = (), extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables of a command. `keep` names more of `source` to inherit, `extra` sets values.

    Of PATH the absolute folders are left: any other would be one of the folder that a command runs in. A locale that
    is not installed is left out, since every shell and every perl would complain of it; one of another encoding than
    UTF-8 is not used: a shell would read other characters than were judged and shown.

    Raises ValueError for a name or value that no environment can hold.
    """
    names = INHERITED.union(keep)
    chosen = {name: value for name, value in source.items() if name in names or name.startswith(INHERITED_PREFIX)}
    for name in [name for name in chosen if name.startswith(("LC_", "LANG")) and not _is_known(chosen[name])]:
        del chosen[name]
    chosen["PATH"] = chosen.get("PATH") or DEFAULT_PATH
    for name, value in (extra or {}).items():
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(f"{name!r} cannot be set in an environment")
        chosen[name] = value
    folders = [folder for folder in chosen["PATH"].split(os.pathsep) if folder.startswith("/")]
    chosen["PATH"] = os.pathsep.join(folders) or DEFAULT_PATH
    locale = chosen.get("LC_ALL") or chosen.get("LC_CTYPE") or chosen.get("LANG") or "C"
    if locale not in ("C", "POSIX") and not re.search(r"utf-?8", locale, re.IGNORECASE):
        chosen["LC_ALL"] = UTF8
    return {**chosen, **FORCED}


@cache
def _is_known(locale: str) -> bool:
    """Whether the C library has this locale, as far as it can be asked."""
    import ctypes

    try:
        made = ctypes.CDLL(None).newlocale
        made.restype, made.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
        return made(1, os.fsencode(locale), None) is not None  # the mask of LC_CTYPE on Linux
    except (AttributeError, ValueError):
        return True
