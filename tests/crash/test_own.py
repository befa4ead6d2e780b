"""The example of the crash-safety page runs, and would notice what the page says it notices."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "crash-safety.md"


def example() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return code


def test_the_example_of_the_page_runs() -> None:
    exec(compile(example(), "example", "exec"), {})


def test_the_example_notices_a_bill_that_is_paid_twice() -> None:
    careless = example().replace("@ls.tool(thread=False)", '@ls.tool(thread=False, replay="safe")')
    assert careless != example()
    with pytest.raises(AssertionError, match="had its effect 2 times"):
        exec(compile(careless, "example", "exec"), {})
