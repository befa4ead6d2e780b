"""The shared vectors, where the folder `shared` lies beside the repository; tests skip, saying so, where not."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(__file__).resolve().parents[2].parent / "shared"


def vector(id: str, kind: str = "sse-chat", number: int = 0) -> Any:
    """The events (or the value) of one block of a vector."""
    path = SHARED / "vectors" / "vectors.json"
    if not path.exists():
        pytest.skip(f"{path} is missing")
    blocks = [block for block in json.loads(path.read_text("utf-8"))[id]["blocks"] if block["kind"] == kind]
    block = blocks[number]
    return block["events"] if "events" in block else block["value"]


def recorded(wire: str) -> list[dict[str, Any]]:
    """The recorded exchanges of one wire."""
    path = SHARED / "recorded" / f"{wire}.jsonl.xz"
    if not path.exists():
        pytest.skip(f"{path} is missing")
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
