"""What a line of shell is made of: its commands and redirections, and the nodes of the grammar that are understood."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from .words import Word


class Command(msgspec.Struct, frozen=True):
    """A simple command: its words, the first of which is literal, and the assignments before them."""

    words: tuple[Word, ...]
    assigns: tuple[Word, ...] = ()


class Commands(msgspec.Struct, frozen=True):
    """All that a line can do by itself. writes, reads: the files of its redirections. plain: it is one command of
    literal words, which nothing wraps."""

    commands: tuple[Command, ...]
    writes: tuple[Word, ...] = ()
    reads: tuple[Word, ...] = ()
    plain: bool = False


class Unclear(msgspec.Struct, frozen=True):
    """Why the line cannot be judged by what it runs."""

    reason: str


@dataclass(slots=True)
class Found:
    commands: list[Command] = field(default_factory=list)
    writes: list[Word] = field(default_factory=list)
    reads: list[Word] = field(default_factory=list)
    depth: int = 0
    wrapped: bool = False


TOKENS: dict[str, frozenset[str]] = {
    name: frozenset(tokens.split())
    for name, tokens in {
        "program": "; & \n",
        "list": "&& ||",
        "pipeline": "| |&",
        "compound_statement": "{ } ; & \n",
        "subshell": "( ) ; & \n",
        "do_group": "do done ; & \n",
        "if_statement": "if then fi ; & \n",
        "elif_clause": "elif then ; & \n",
        "else_clause": "else ; & \n",
        "while_statement": "while until ; & \n",
        "negated_command": "!",
        "command_substitution": "$( ) ; & \n",
        "process_substitution": "<( >( ) ; & \n",
    }.items()
}

WORDS = frozenset(
    {
        "word", "number", "raw_string", "string", "ansi_c_string", "simple_expansion", "expansion", "concatenation",
        "command_substitution", "process_substitution", "arithmetic_expansion", "brace_expression",
    }
)  # fmt: skip

RESERVED = frozenset(
    "if then else elif fi do done case esac while until for select function time coproc { } ! in [[ ]]".split()
) - {"time"}
