"""The pages that are generated are current."""

from __future__ import annotations

import runpy
from pathlib import Path

from latchstep.core.codec import KNOWN

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_the_page_of_events_is_current() -> None:
    """If this fails: `python docs/generate.py`."""
    page = (DOCS / "events.md").read_text(encoding="utf-8")
    assert page == runpy.run_path(str(DOCS / "generate.py"))["page"]()
    assert {tag for tag in KNOWN if f"| `{tag}`" in page} == KNOWN
