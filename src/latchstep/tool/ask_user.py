"""`ask_user`: a question of the model to the person, answered as a permission is: by whoever can, whenever they do.

The answer is on record before the call runs, and the call only hands it on. So it survives a crash, and a later
process may be the one that answers.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .base import Context, Output, Tool
from .define import tool

MAX_QUESTION = 4_000
"""Characters of a question."""
MAX_CHOICES = 10
"""Choices of one question."""
MAX_CHOICE = 200
"""Characters of one choice."""

DESCRIPTION = """\
Ask the person a question and wait for the answer. Ask only what you cannot find out yourself and must not guess: a \
choice between ways that matter to them, a fact only they know. Put all there is to know into the question: they may \
see nothing else. Choices are suggestions: they may answer in their own words, or decline. Where nobody can be asked \
you are told so: then decide yourself, and say what you assumed."""

Choice = Annotated[str, Meta(min_length=1, max_length=MAX_CHOICE)]


def ask_user_tool() -> Tool:
    """The tool. It needs nothing but somebody who answers (see `Tool.asks`)."""

    @tool(effect="read", asks=True, thread=False, description=DESCRIPTION)
    def ask_user(
        question: Annotated[str, Meta(min_length=1, max_length=MAX_QUESTION, description="What you want to know.")],
        choices: Annotated[list[Choice], Meta(max_length=MAX_CHOICES, description="Answers to choose from.")] = [],  # noqa: B006
        *,
        context: Context,
    ) -> Output:
        if not context.answer.strip():
            return Output("The person agreed, without words.")
        return Output(f"The person answered: {context.answer}")

    return ask_user
