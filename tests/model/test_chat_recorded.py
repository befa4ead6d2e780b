"""Recorded Chat answers beside what the official SDK makes of them: the same message, stop reason and usage.

The SDK is strict about its own types and refuses other servers' fields (a service tier, a list as content); those
rows have no second opinion and are only counted.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from latchstep.core.message import Text, ToolCall

from .test_chat_answer import completed, recorded_events
from .vectors import recorded


def of_the_sdk(row: dict[str, Any], events: list[str]) -> Any:
    """The SDK's final completion. Raises what the SDK raises."""
    from openai.lib.streaming.chat import ChatCompletionStreamState
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

    values = [json.loads(text) for text in events if text.strip() and text.strip() != "[DONE]"]
    if not row["stream"]:
        return ChatCompletion.model_validate(values[0])
    state = ChatCompletionStreamState()
    for value in values:
        if value.get("choices") is not None:
            state.handle_chunk(ChatCompletionChunk.model_validate(value))
    return state.get_final_completion()


def test_answers_are_the_same_as_the_sdks_where_it_has_one() -> None:
    pytest.importorskip("openai", reason="the official SDK to compare with: pip install openai")
    import pydantic

    equal = refused = unseen = 0
    for row in recorded("openai_chat"):
        events = recorded_events(row)
        if row["status"] != 200 or not any('"choices"' in text for text in events):
            continue
        if any("tool_use_failed" in text for text in events):
            continue
        tools = [tool.get("function", {}).get("name", "") for tool in (row["request"] or {}).get("tools") or []]
        ours = completed(events, tools)
        try:
            theirs = of_the_sdk(row, events)
        except (pydantic.ValidationError, RuntimeError):
            refused += 1
            continue
        choice = theirs.choices[0]
        assert "".join(block.text for block in ours.blocks if isinstance(block, Text)) == (choice.message.content or "")
        calls = [(block.id, block.name, block.arguments) for block in ours.blocks if isinstance(block, ToolCall)]
        assert calls == [
            (call.id, call.function.name, json.loads(call.function.arguments or "{}"))
            for call in choice.message.tool_calls or []
        ]
        assert (ours.raw_stop_reason or ours.stop_reason) == choice.finish_reason, row["source"]
        if theirs.usage is None and ours.usage.total:  # it stands where the SDK's helper does not look (`x_groq`, …)
            unseen += 1
            continue
        if theirs.usage is None:  # nowhere at all
            equal += 1
            continue
        assert (ours.usage.input, ours.usage.output) == (theirs.usage.prompt_tokens, theirs.usage.completion_tokens)
        equal += 1
    assert equal >= 390
    assert unseen <= 4
    assert refused <= 97
