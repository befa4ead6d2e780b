"""A line of bash → every command it can run, parsed by tree-sitter's grammar. Pure.

The grammar forgives what bash does not, so each byte, node and opener must be accounted for; whatever is not is
`Unclear`, and an unclear line is never allowed by a rule about words.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any

from latchstep.core.printable import printable

from . import cover
from .builtins import NAME, judge_builtin, judge_test
from .line import RESERVED, TOKENS, WORDS, Command, Commands, Found, Unclear
from .words import DASH, Doubt, Word, joined, leaf, quoted, source
from .wrappers import unwrap

MAX_LINE = 20_000
"""Characters of a command beyond which it is not read."""
MAX_DEPTH = 60
"""How deep commands may stand in one another."""


@cache
def _parser() -> Any:
    """The parser; None where the grammar is not installed."""
    try:
        import tree_sitter
        import tree_sitter_bash
    except ImportError:
        return None
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def can_parse() -> bool:
    return _parser() is not None


@lru_cache(maxsize=256)
def parse(command: str) -> Commands | Unclear:
    """Every command that the line can run, in wrappers and substitutions too, or why that is not known."""
    found = Found()
    try:
        _read(command, found)
    except RecursionError:
        return Unclear("too deep")
    except Doubt as doubt:
        return Unclear(str(doubt)[:200])
    only = found.commands[0] if len(found.commands) == 1 else None
    plain = only is not None and not (found.writes or found.reads or found.wrapped or only.assigns)
    return Commands(
        tuple(found.commands),
        tuple(found.writes),
        tuple(found.reads),
        plain and only is not None and all(word.literal for word in only.words),
    )


_LONE_DASH = re.compile(r"(?<=[ \t])-(?=[ \t\n;&|)]|\Z)")


def _read(command: str, found: Found) -> None:
    if (parser := _parser()) is None:
        raise Doubt("no grammar of bash is installed")
    if len(command) > MAX_LINE:
        raise Doubt(f"it has {len(command)} characters; {MAX_LINE} are read")
    if re.search(r"[^\n\t\x20-\x7e]", command) and printable(command.replace(" ", "").replace("\t", "")) != (
        command.replace(" ", "").replace("\t", "")
    ):
        raise Doubt("it holds characters that cannot be seen")
    data = _LONE_DASH.sub(DASH, command).encode()
    root = parser.parse(data).root_node
    if root.has_error or root.type != "program":
        raise Doubt("its syntax is not understood")
    cover.check(root, data)
    _statement(root, found)


# -- statements ------------------------------------------------------------------------------------------


def _statement(node: Any, found: Found) -> None:
    found.depth += 1
    if found.depth > MAX_DEPTH:
        raise Doubt("too deep")
    match node.type:
        case "comment":
            pass
        case "command":
            _command(node, [], found)
        case "redirected_statement":
            _redirected(node, found)
        case "variable_assignment":
            _assignment(node, found)
        case "variable_assignments":
            for child in node.children:
                _assignment(child, found)
        case "for_statement":
            _for(node, found)
        case "case_statement":
            _case(node, found)
        case "function_definition":
            _function(node, found)
        case "test_command":
            _test(node, found)
        case "declaration_command":
            _export(node, found)
        case kind if kind in TOKENS:
            for child in node.children:
                if child.is_named:
                    _statement(child, found)
                elif child.type.strip() and child.type not in TOKENS[kind]:
                    raise Doubt(f"{child.type} is not understood here")
        case kind:
            raise Doubt(f"{kind.replace('_', ' ')} is not understood")
    found.depth -= 1


def _command(node: Any, more: list[Any], found: Found) -> None:
    """A simple command. `more`: words of it that stand behind a redirection."""
    words: list[Word] = []
    assigns: list[Word] = []
    for child in [*node.children, *more]:
        match child.type:
            case "variable_assignment":
                assigns.append(_value(child, found))
            case "command_name":
                (name,) = child.children
                word = _word(name, found)
                if not word.literal or source(name) in RESERVED or re.match(r"[A-Za-z_]\w*(\[.*)?\+?=", word.text):
                    raise Doubt(f"which command {source(name)} is cannot be known")
                words.append(word)
            case "file_redirect":
                if _redirect(child, found):
                    raise Doubt("a redirection that is not understood")
            case "herestring_redirect":
                _herestring(child, found)
            case kind if kind in WORDS:
                words.append(_word(child, found))
            case "=" | "==":
                words.append(Word(child.type))
            case kind:
                raise Doubt(f"{kind.replace('_', ' ')} is not understood in a command")
    _runs(tuple(words), tuple(assigns), found)


def _runs(words: tuple[Word, ...], assigns: tuple[Word, ...], found: Found) -> None:
    """Note a command, and what it starts in turn."""
    if not words or not words[0].literal or not words[0].text:
        raise Doubt("which command runs cannot be known")
    found.depth += 1
    if found.depth > MAX_DEPTH:
        raise Doubt("too deep")
    judge_builtin(words)
    started = unwrap(words)
    if started is None or started.itself:
        found.commands.append(Command(words, assigns))
    if started is not None:
        found.wrapped = True
        for inner in started.commands:
            inner_assigns = [*assigns]
            while inner and (inner[0].kind != "any") and re.match(r"[A-Za-z_]\w*(\[.*)?\+?=", inner[0].text):
                if not started.assigns or "+" in inner[0].text.partition("=")[0]:
                    raise Doubt("which command runs cannot be known")
                inner_assigns.append(inner[0])
                inner = inner[1:]
            if inner[:1] and inner[0].text in RESERVED:
                raise Doubt(f"{inner[0].text} is not understood here")
            _runs(inner, tuple(inner_assigns), found)
        if started.scripts and assigns:
            raise Doubt("a shell in an environment that is changed")
        for script in started.scripts:
            _read(script, found)
    found.depth -= 1


def _value(node: Any, found: Found) -> Word:
    """`NAME=value` before a command, or by itself."""
    children = node.children
    if len(children) not in (2, 3) or children[0].type != "variable_name" or children[1].type != "=":
        raise Doubt("an assignment that is not understood")
    name = source(children[0])
    if len(children) == 2:
        return Word(f"{name}=")
    value = _word(children[2], found)
    known = value.literal or (value.kind == "any" and children[2].type == "word" and "{" in value.text)
    return Word(f"{name}={value.text}", "literal" if known else "one")


def _assignment(node: Any, found: Found) -> None:
    name = _value(node, found).text.partition("=")[0]
    if not NAME.fullmatch(name):
        raise Doubt(f"{name} changes what commands do")


def _word(node: Any, found: Found) -> Word:
    word = leaf(node)
    if word is not None:
        return word
    match node.type:
        case "string":
            return quoted(node, lambda inner: _word(inner, found))
        case "concatenation":
            return joined(source(node), [_word(child, found) for child in node.children])
        case "command_substitution" if node.children[0].type == "$(":
            _substitution(node, found)
            return Word(source(node), "any")
        case "process_substitution":
            _statement(node, found)
            return Word(source(node), "paths")
        case kind:
            raise Doubt(f"{kind.replace('_', ' ')} {source(node)[:40]} is not understood")


def _substitution(node: Any, found: Found) -> None:
    inner = node.children[1:-1]
    if len(inner) == 1 and inner[0].type == "file_redirect":  # $(<file)
        if _redirect(inner[0], found):
            raise Doubt("a redirection that is not understood")
        return
    _statement(node, found)


# -- redirections ----------------------------------------------------------------------------------------

_HARMLESS = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/stdin"})


def _redirected(node: Any, found: Found) -> None:
    """A statement with redirections; words behind one belong to its command."""
    body, more = None, []
    for child in node.children:
        match child.type:
            case "file_redirect":
                more += _redirect(child, found)
            case "herestring_redirect":
                _herestring(child, found)
            case "heredoc_redirect":
                more += _heredoc(child, found)
            case _ if body is None and child.is_named and not more:
                body = child
            case kind:
                raise Doubt(f"{kind} is not understood beside a redirection")
    if body is not None and body.type == "command":
        _command(body, more, found)
    elif more:
        raise Doubt("words behind a redirection that belong to no command")
    elif body is not None:
        _statement(body, found)


def _redirect(node: Any, found: Found) -> list[Any]:
    """Note the file of one redirection; the words behind it."""
    children = [child for child in node.children if child.type != "file_descriptor"]
    operator, rest = children[0].type, children[1:]
    if operator in (">&-", "<&-") and not rest:
        return []
    if operator not in (">", ">>", ">|", "&>", "&>>", ">&", "<", "<&") or not rest:
        raise Doubt(f"the redirection {operator} is not understood")
    target = _word(rest[0], found)
    if operator in (">&", "<&") and re.fullmatch(r"\d+-?|-", target.text) and target.literal:
        return rest[1:]
    if rest[0].type == "process_substitution" or (target.literal and target.text in _HARMLESS):
        return rest[1:]
    if operator == "<&" or (operator == "<" and not target.literal) or re.match(r"/+dev/+(tcp|udp)\b", target.text):
        raise Doubt("where a redirection leads cannot be known")
    (found.reads if operator == "<" else found.writes).append(target)
    return rest[1:]


def _herestring(node: Any, found: Found) -> None:
    found.wrapped = True  # what it reads is a part of it
    operator, *rest = [child for child in node.children if child.type != "file_descriptor"]
    if operator.type != "<<<" or len(rest) != 1:
        raise Doubt("a redirection that is not understood")
    _word(rest[0], found)


def _heredoc(node: Any, found: Found) -> list[Any]:
    """What stands on the line behind `<<`; `cover` has judged the body."""
    more: list[Any] = []
    found.wrapped = True
    for child in node.children:
        match child.type:
            case "<<" | "<<-" | "heredoc_start" | "heredoc_body" | "heredoc_end" | "file_descriptor":
                pass
            case "&&" | "||":
                pass
            case "file_redirect":
                more += _redirect(child, found)
            case "herestring_redirect":
                _herestring(child, found)
            case "pipeline":
                _statement(child, found)
            case kind if kind in WORDS:
                more.append(child)
            case _ if child.is_named:
                _statement(child, found)
            case kind:
                raise Doubt(f"{kind} is not understood behind <<")
    return more


# -- compound commands -----------------------------------------------------------------------------------


def _for(node: Any, found: Found) -> None:
    for child in node.children:
        match child.type:
            case "for" | "in" | ";" | "\n":
                pass
            case "variable_name":
                if not NAME.fullmatch(source(child)):
                    raise Doubt(f"{source(child)} changes what commands do")
            case "do_group" | "compound_statement" | "comment":
                _statement(child, found)
            case kind if kind in WORDS:
                _word(child, found)
            case kind:
                raise Doubt(f"{kind} is not understood in for")


def _case(node: Any, found: Found) -> None:
    for at, child in enumerate(node.children):
        match child.type:
            case "case" | "in" | "esac" | "\n" | "comment":
                pass
            case "case_item":
                for place, item in enumerate(child.children):
                    if child.field_name_for_child(place) == "value":
                        if not re.fullmatch(r"[\w.*?/:@%+,=-]+|'[^']*'|\"[^\"\\$`]*\"", source(item)):
                            raise Doubt(f"the pattern {source(item)[:40]} is not understood")
                    elif item.is_named:
                        _statement(item, found)
                    elif item.type.strip() and item.type not in ("(", ")", "|", ";;", ";&", ";;&", ";", "&"):
                        raise Doubt(f"{item.type} is not understood in case")
            case kind if kind in WORDS and node.field_name_for_child(at) == "value":
                _word(child, found)
            case kind:
                raise Doubt(f"{kind} is not understood in case")


def _function(node: Any, found: Found) -> None:
    for child in node.children:
        match child.type:
            case "function" | "(" | ")" | "comment":
                pass
            case "word" if re.fullmatch(r"[A-Za-z_][\w-]*", source(child)) and source(child) not in RESERVED:
                found.wrapped = True
            case "compound_statement" | "subshell" | "if_statement" | "while_statement" | "for_statement":
                _statement(child, found)
            case "file_redirect" if not _redirect(child, found):
                pass
            case kind:
                raise Doubt(f"{kind} is not understood in a function")


def _test(node: Any, found: Found) -> None:
    """`[ … ]` and `[[ … ]]`, as a row of words."""
    row: list[Word] = []

    def flatten(inner: Any) -> None:
        for child in inner.children:
            if child.type in ("unary_expression", "binary_expression", "parenthesized_expression"):
                flatten(child)
            elif child.type in WORDS:
                row.append(_word(child, found))
            elif child.type in ("extglob_pattern", "regex") and re.fullmatch(r"[\w.*?/:@%+,^-]+\$?", source(child)):
                row.append(Word(source(child), "one"))
            elif not child.is_named or child.type == "test_operator":
                row.append(Word(source(child)))
            else:
                raise Doubt(f"{child.type} is not understood in a test")

    flatten(node)
    judge_test(row)


def _export(node: Any, found: Found) -> None:
    """`export NAME=value`: a command like others, whose words are assignments."""
    first, *rest = node.children
    if first.type != "export" or not rest or any(child.type != "variable_assignment" for child in rest):
        raise Doubt(f"{source(first)} is not understood")
    found.commands.append(Command((Word("export"), *(_value(child, found) for child in rest))))
