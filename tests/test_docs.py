"""The pages that are generated are current."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from latchstep.cli.configured import TOOLS
from latchstep.core.codec import KNOWN

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_the_page_of_events_is_current() -> None:
    """If this fails: `python docs/generate.py`."""
    page = (DOCS / "events.md").read_text(encoding="utf-8")
    assert page == runpy.run_path(str(DOCS / "generate.py"))["page"]()
    assert {tag for tag in KNOWN if f"| `{tag}`" in page} == KNOWN


def test_the_pages_of_the_tools_are_current_and_their_examples_run() -> None:
    """If this fails: `python docs/generate.py`."""
    made = runpy.run_path(str(DOCS / "toolpages.py"))["pages"]()
    kept = {path.stem: path.read_text(encoding="utf-8") for path in (DOCS / "tools").iterdir()}
    assert sorted(kept) == sorted(TOOLS)
    for name, text in made.items():
        assert kept[name] == text
    assert sorted(made) == sorted(kept)


def test_what_the_pages_of_the_tools_link_to_is_there() -> None:
    index = (DOCS / "tools.md").read_text(encoding="utf-8")
    for path in (DOCS / "tools").iterdir():
        links = re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8"))
        assert len(links) >= 2
        assert all((path.parent / link).is_file() for link in links), path
        assert f"(tools/{path.name})" in index
