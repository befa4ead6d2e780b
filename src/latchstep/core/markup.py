"""A call written as text: the template markup of some models, leaked into their answer.

Pure. Nothing is ever executed from text; this only tells the leak from an answer that explains the markup:
the whole trimmed text must be one such block, and name a tool there is.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .message import Message, Text, Thinking

LONGEST = 20_000
"""Characters beyond which a text is an answer, whatever it looks like."""

_BLOCKS = (
    ("<tool_call>", "</tool_call>"),
    ("<|tool_call|>", "<|/tool_call|>"),
    ("<function_calls>", "</function_calls>"),
    ("<invoke ", "</invoke>"),
    ("<function=", "</function>"),
    ("[TOOL_CALLS]", ""),
)
_NAMES = re.compile(r"""(?:"name"\s*:\s*"|<invoke\s+name="|<function=)([A-Za-z0-9_-]{1,64})[">]""")


def call_in_text(message: Message, known: Callable[[str], bool]) -> str:
    """The name of the tool that the message calls in text; "" if it is an ordinary answer."""
    if not all(isinstance(block, Text | Thinking) for block in message.blocks):
        return ""
    text = message.text.strip()
    if len(text) > LONGEST:
        return ""
    for opening, closing in _BLOCKS:
        if text.startswith(opening) and text.endswith(closing) and text.count(opening) == 1:
            named = _NAMES.search(text)
            return named[1] if named is not None and known(named[1]) else ""
    return ""
