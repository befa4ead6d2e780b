"""A page as text: what a person would read of some HTML, with its links. Pure, linear, and bounded by its input."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_SKIPPED = frozenset({"script", "style", "noscript", "template", "svg", "head", "iframe", "object", "select"})
_BLOCKS = re.compile(
    "address|article|aside|blockquote|br|d[dlt]|div|fieldset|figcaption|figure|footer|form|h[1-6]|header|hr|li|main|nav|ol"
    "|p|pre|section|table|tbody|t[dhr]|thead|ul"
)
_VOID = frozenset(
    {"br", "hr", "img", "input", "meta", "link", "area", "base", "col", "embed", "source", "track", "wbr"}
)


def page_text(html: str) -> str:
    """The text of a page: blocks on lines of their own, headings marked with `#`, list items with `-`, links as
    `text (address)`, `pre` as it stands. The title comes first."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    lines = [line.rstrip() for line in "".join(reader.pieces).split("\n")]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")
    title = " ".join("".join(reader.title).split())
    return f"{title}\n\n{text}" if title else text


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self.title: list[str] = []
        self._skipping: list[str] = []
        self._pre = 0
        self._in_title = False
        self._links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "title":
            self._in_title = True
        if tag in _SKIPPED:
            self._skipping.append(tag)
        if self._skipping or tag == "title":
            return
        self._pre += tag == "pre"
        if _BLOCKS.fullmatch(tag):
            self._break()
        if tag == "li":
            self.pieces.append("- ")
        elif len(tag) == 2 and tag[0] == "h" and tag[1].isdigit():
            self.pieces.append("#" * int(tag[1]) + " ")
        elif tag == "a":
            self._links.append(dict(attrs).get("href") or "")
        elif tag == "img" and (alt := dict(attrs).get("alt")):
            self.pieces.append(f"[{alt}]")

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        if tag in self._skipping:
            while self._skipping and self._skipping.pop() != tag:
                pass
            return
        if self._skipping or tag in _VOID:
            return
        self._pre = max(0, self._pre - (tag == "pre"))
        if tag == "a" and self._links:
            target = self._links.pop()
            if target and not target.startswith(("#", "javascript:", "data:")):
                self.pieces.append(f" ({target})")
        if _BLOCKS.fullmatch(tag):
            self._break()

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)
        if self._skipping or self._in_title:
            return
        if self._pre:
            self.pieces.append(data)
            return
        text = re.sub(r"\s+", " ", data)
        if text.startswith(" ") and (not self.pieces or self.pieces[-1].endswith(("\n", " "))):
            text = text[1:]
        if text:
            self.pieces.append(text)

    def _break(self) -> None:
        if self.pieces and not self.pieces[-1].endswith("\n"):
            self.pieces.append("\n")
