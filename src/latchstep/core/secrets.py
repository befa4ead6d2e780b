"""Secrets → marks: values in use and strings of well-known shapes, before anything is recorded or shown.

A mark says what stood there. Everything scans in linear time and is skipped where no secret can begin.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

MARK = "[masked: "
"""How each mark begins. Writing tools refuse text that holds one: it would replace the secret in the file."""

LEAST = 8
"""Characters of the shortest value that is masked; a shorter one would hit innocent text."""
MAX_HELD = 8192
"""Bytes of an unfinished line that `Redactor` holds back."""
_OVERLAP = 1024
_END = re.compile(rb"-----END [A-Z ]{0,40}PRIVATE KEY-----")

# What it is, and its form. Each begins with plain characters, which makes looking for it cheap. Forms as the issuers
# document them; lengths are lower bounds.
_SHAPES: tuple[tuple[str, str, str], ...] = (
    ("Anthropic key", "sk-ant-", r"[A-Za-z0-9_-]{20,}"),
    ("API key", "sk-", r"(?=[A-Za-z_-]{0,64}[0-9])(?=[a-z0-9_-]{0,64}[A-Z])[A-Za-z0-9_-]{20,}"),
    *(("GitHub token", f"gh{kind}_", r"[A-Za-z0-9]{36,}") for kind in "pousr"),
    ("GitHub token", "github_pat_", r"[A-Za-z0-9_]{50,}"),
    *(("AWS key id", start, r"[A-Z0-9]{16}(?![A-Za-z0-9])") for start in ("AKIA", "ASIA")),
    ("AWS secret key", "aws_secret_access_key", r"[\"']?\s{0,4}[=:]\s{0,4}[\"']?[\w/+=]{40}"),
    ("Google key", "AIza", r"[A-Za-z0-9_-]{35}"),
    ("Slack token", "xox", r"[abeoprs]-[A-Za-z0-9-]{10,}"),
    *(("Stripe key", start, r"[A-Za-z0-9]{16,}") for start in ("sk_live_", "rk_live_")),
    ("GitLab token", "glpat-", r"[A-Za-z0-9_-]{20,}"),
    ("npm token", "npm_", r"[A-Za-z0-9]{36}"),
    ("PyPI token", "pypi-", r"[A-Za-z0-9_-]{80,}"),
    ("Hugging Face token", "hf_", r"[A-Za-z0-9]{30,}"),
    ("Groq key", "gsk_", r"[A-Za-z0-9]{40,}"),
    ("xAI key", "xai-", r"[A-Za-z0-9]{40,}"),
    ("JSON Web Token", "eyJ", r"[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}"),
    ("private key", "-----BEGIN ", r"[A-Z ]{0,40}PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"),
    ("password", "://", r"[^\s/:@\"']{1,100}:[^\s/@\"']{3,200}(?=@)"),
)
Form = tuple[str, bytes, re.Pattern[bytes]]
"""What it is, how it begins, all of it."""


@cache
def _forms() -> dict[bytes, list[Form]]:
    """By one character of their beginnings: where it is missing, which is cheap to see, none of them can be."""
    forms: dict[bytes, list[Form]] = {}
    for what, start, form in _SHAPES:
        need = next((char for char in "_-:A" if char in start), start).encode()
        forms.setdefault(need, []).append((what, start.encode(), re.compile((re.escape(start) + form).encode())))
    return forms


_SECRET_NAME = re.compile(r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASS|PAT|CREDENTIALS?)(?:_|$)", re.I)


_COMMON = re.compile(
    r"postgres(?:ql)?|passwords?|changeme|change[-_ ]me|development|production|localhost|username|required|disabled|"
    r"optional|undefined|(?:~|\.{1,2}|/(?:home|root|etc|usr|var|tmp|opt|run|mnt|srv|users|private))(?:/[\w.@-]+)+",
    re.IGNORECASE,
)
"""Values in use that say nothing, and stand in much other text: what examples put there, and paths."""


def secret_values(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables whose names say that they hold a secret, by name. A value of many lines counts line by line."""
    return {name: value for name, value in environment.items() if _SECRET_NAME.search(name)}


class Masker:
    """Replaces secrets. `values`: those in use, by what they are called; those that are too short or too common to be
    told from other text are left. shapes: also what has the form of a secret."""

    def __init__(self, values: Mapping[str, str] | None = None, *, shapes: bool = True) -> None:
        names: dict[bytes, str] = {}
        for name, value in (values or {}).items():
            for line in value.splitlines():
                line = line.strip()
                if len(line) >= LEAST and len(set(line)) > 3 and not _COMMON.fullmatch(line):
                    names.setdefault(line.encode("utf-8", "replace"), name)
        self._names, self._forms = names, _forms() if shapes else {}
        self._values = re.compile(b"|".join(map(re.escape, sorted(names, key=len, reverse=True)))) if names else None

    def mask(self, text: str) -> str:
        """The text, with each secret replaced by `[masked: WHAT]`."""
        data = text.encode("utf-8", "surrogatepass")
        masked = self.mask_bytes(data)
        return text if masked is data else masked.decode("utf-8", "replace")

    def mask_bytes(self, data: bytes) -> bytes:
        """The same object where nothing was found."""
        if self._values is not None and any(value in data for value in self._names):
            data = self._values.sub(lambda found: _mark(self._names[found[0]]), data)
        for need, forms in self._forms.items():
            for what, start, form in forms if need in data else ():
                if start in data:
                    data = form.sub(partial(_replaced, what), data)
        return data

    def mask_json(self, value: Any) -> Any:
        """The same value with every string in it masked, names too."""
        if isinstance(value, str):
            return self.mask(value)
        if isinstance(value, dict):
            return {self.mask(key): self.mask_json(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.mask_json(item) for item in value]
        return value


def _mark(what: str) -> bytes:
    return f"{MARK}{what}]".encode()


def _replaced(what: str, found: re.Match[bytes]) -> bytes:
    before = found.string[found.start() - 1 : found.start()]
    if what == "password":
        return b"://" + _mark("name and password in a URL")
    if before.isalnum():  # it begins in the middle of a word
        return found[0]
    return _mark(what)


class Redactor:
    """Masks a stream of bytes. What may be the beginning of a secret waits for the rest of its line."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._held = b""
        self._in_key = False

    @property
    def held(self) -> int:
        """Bytes that wait."""
        return len(self._held)

    def feed(self, data: bytes) -> bytes:
        """What can be handed on so far."""
        data = self._held + data
        end = data.rfind(b"\n") + 1
        if len(data) - end > MAX_HELD:
            last = len(data) - _OVERLAP
            blank = data.rfind(b" ", last - _OVERLAP, last)
            end = blank if blank > 0 else last
        self._held = data[end:]
        return self._masked(data[:end])

    def flush(self) -> bytes:
        """The rest."""
        data, self._held = self._held, b""
        return self._masked(data)

    def _masked(self, data: bytes) -> bytes:
        if self._in_key:
            found = _END.search(data)
            if found is None:
                return b""
            data, self._in_key = data[found.end() :], False
        begun = data.rfind(b"PRIVATE KEY-----")
        if begun >= 0 and data.rfind(b"-----BEGIN ", 0, begun) > data.rfind(b"-----END ", 0, begun):
            self._in_key = True
        return self._masker.mask_bytes(data)
