"""Makes a page for each built-in tool from its definition, with an example that is run: see `generate.py`."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import json
import re
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from latchstep.core.message import Image, Text
from latchstep.core.rules import Limits
from latchstep.journal.store import Store
from latchstep.model.scripted import ScriptedModel
from latchstep.session.build import build_kit, build_rules
from latchstep.session.task import task_tool
from latchstep.tool.base import Context, Tool
from latchstep.tool.define import render
from latchstep.tool.fetch import fetch_tool
from latchstep.tool.jobs import Jobs
from latchstep.tool.preset import file_tools, session_tools
from latchstep.tool.ripgrep import ripgrep_tool
from latchstep.tool.seen import Seen
from latchstep.tool.spawner import Spawner
from latchstep.tool.threads import invoke
from latchstep.tool.workspace import Workspace

MONEY = """\
def cents(euros):
    return int(euros * 100)


def shown(amount):
    return amount / 100
"""
SERVE = """\
until test -e shop/tax.py; do sleep 0.05; done
echo listening on port 8000
sleep 300
"""
FILES = {
    "shop/__init__.py": "",
    "shop/money.py": MONEY,
    "README.md": "# Shop\n\nCounts in cents.\n",
    "serve.sh": SERVE,
}
"""The workspace of the examples."""

SITE = "https://docs.example.com"
PAGE = b"<html><title>Guide</title><body><h1>Guide</h1><p>Amounts are whole cents.</p></body></html>"

PATCH = """\
*** Begin Patch
*** Add File: CHANGES.md
+Money is rounded.
*** Update File: README.md
@@ # Shop

-Counts in cents.
+Counts in whole cents.
*** End Patch
"""

EXAMPLES: list[tuple[str, dict[str, Any]]] = [
    ("list", {}),
    ("find", {"glob": "*.py"}),
    ("grep", {"pattern": r"def \w+", "path": "shop", "context": 1}),
    ("read", {"path": "shop/money.py", "limit": 2}),
    ("edit", {"path": "shop/money.py", "old": "int(euros * 100)", "new": "round(euros * 100)"}),
    ("apply_patch", {"patch": PATCH}),
    ("bash", {"command": "cat CHANGES.md; exit 3"}),
    ("bash", {"command": "sh serve.sh", "background": True}),
    ("write", {"path": "shop/tax.py", "content": "RATE = 19\n"}),
    ("job_read", {"job": "job-1", "wait": 60, "until": "listening"}),
    ("job_stop", {"job": "job-1"}),
    ("todo", {"items": [{"text": "read money.py", "status": "done"}, {"text": "round", "status": "doing"}]}),
    ("ask_user", {"question": "Round half up, or to even?", "choices": ["up", "to even"]}),
    ("fetch", {"url": f"{SITE}/guide"}),
    (
        "task",
        {"prompt": "Find out who calls cents() in shop/, and say whether anybody passes a text.", "max_steps": 10},
    ),
]
"""Run in this order in one workspace; each page shows its own."""

BOUNDS = {
    "read": ("tool.read", "tool.opened MAX_FILE_BYTES"),
    "list": ("tool.list",),
    "find": ("tool.find",),
    "grep": ("tool.grep", "tool.regex", "tool.ripgrep"),
    "write": ("tool.opened MAX_FILE_BYTES",),
    "edit": ("tool.edit", "tool.replace", "tool.opened MAX_FILE_BYTES"),
    "apply_patch": ("tool.patch", "tool.opened MAX_FILE_BYTES"),
    "bash": (
        "tool.spawner DEFAULT_TIMEOUT MAX_TIMEOUT GRACE MAX_COMMAND",
        "tool.show",
        "tool.capture",
        "tool.bash",
        "tool.jobs MAX_JOBS FIRST_LOOK",
    ),
    "job_read": ("tool.jobs MAX_WAIT MAX_KEPT MAX_NAMED", "tool.show"),
    "job_stop": ("tool.jobs STOP_GRACE MAX_NAMED",),
    "todo": ("tool.todo",),
    "ask_user": ("tool.ask_user",),
    "fetch": ("tool.fetch",),
    "task": ("session.task",),
}
"""Modules whose numbers bound a tool, and where not all of them do, which."""

TESTS = {
    "read": ("tool/test_read.py",),
    "list": ("tool/test_find.py",),
    "find": ("tool/test_find.py",),
    "grep": ("tool/test_find.py",),
    "write": ("tool/test_write.py",),
    "edit": ("tool/test_edit.py", "tool/test_write.py"),
    "apply_patch": ("tool/test_apply_patch.py",),
    "bash": ("tool/test_bash.py", "tool/test_spawner.py", "tool/test_spawner_lifetime.py"),
    "job_read": ("tool/test_jobs.py", "cli/test_work.py"),
    "job_stop": ("tool/test_jobs.py", "cli/test_work.py"),
    "todo": ("tool/test_todo.py", "cli/test_work.py"),
    "ask_user": ("session/test_ask_user.py", "cli/test_work.py"),
    "fetch": ("tool/test_fetch.py",),
    "task": ("session/test_task.py", "cli/test_parts.py"),
}

NOTES = {
    "bash": "`timeout` comes before the deadline above, which is there for what even that does not end.",
    "grep": "Where ripgrep (`rg`) is installed it searches. `pattern` is in Rust's language then, and there is also:",
    "fetch": "The hosts in the description are those given by `--fetch`; without one the tool is not there.",
    "task": "Not there in mode `plan`, nor within a task.",
}


def pages() -> dict[str, str]:
    """The text of each page, by the tool's name. Runs the examples."""
    return asyncio.run(_pages())


async def _pages() -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder, _Site() as site, Workspace(_filled(Path(folder))) as workspace:
        spawner = Spawner()
        jobs = Jobs(spawner)
        rg = ripgrep_tool(workspace, spawner, "rg")
        tools = [
            *file_tools(workspace, Seen()),
            *session_tools(jobs, workspace.root),
            fetch_tool(["localhost"], may=lambda address: True),
            task_tool(Store(Path(folder) / "home"), "parent", lambda directory, steps: _helper()),
        ]
        by_name = {tool.name: tool for tool in tools}
        try:
            shown = [(name, given, await _result(by_name[name], given, site.port)) for name, given in EXAMPLES]
        finally:
            await jobs.close()
            await spawner.close()
        return {name: _page(tool, [it for it in shown if it[0] == name], rg) for name, tool in by_name.items()}


def _filled(folder: Path) -> Path:
    for name, text in FILES.items():
        path = folder / "shop" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / "shop"


def _helper() -> tuple[Any, Any]:
    kit = build_kit(ScriptedModel(["Only shop/cart.py, line 12, and it passes a float."]), (), "")
    return kit, build_rules(kit)


async def _result(tool: Tool, given: dict[str, Any], port: int) -> str:
    """What the model reads, with what differs from run to run written as it always is."""
    arguments = json.loads(json.dumps(given).replace(SITE, f"http://localhost:{port}"))
    context = Context(call_id="call-1", idempotency_key="example", answer="up")
    valid = tool.validate(arguments)
    output = render(
        await invoke(tool.function, (), tool.thread, {**valid, **({tool.context: context} if tool.context else {})})
    )
    parts = [Text(output.content)] if isinstance(output.content, str) else output.content
    text = "\n".join(f"({part.media_type})" if isinstance(part, Image) else part.text for part in parts)
    return re.sub(r"\b\d+(\.\d+)? s\b", "2 s", text.replace(f"http://localhost:{port}", SITE))


class _Site:
    """A server of one page on the loopback."""

    def __enter__(self) -> _Site:
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


# -- the page ----------------------------------------------------------------------------------------------


def _page(tool: Tool, examples: list[tuple[str, dict[str, Any], str]], rg: Tool) -> str:
    lines = [
        f"# `{tool.name}`\n",
        "Generated from the tool's definition by `python docs/generate.py`; do not edit. See [tools.md](../tools.md).",
        "What the model reads of it:\n",
        f"```text\n{tool.description.replace('localhost', 'docs.example.com').rstrip()}\n```\n",
        *_traits(tool),
        "\n## Parameters\n",
        *_parameters(tool.schema, set()),
        *(["", NOTES[tool.name]] if tool.name in NOTES else []),
        *(["", *_parameters(rg.schema, set(tool.schema["properties"]))] if tool.name == rg.name else []),
        "\n## Bounds\n",
        "| name | value | |\n| --- | --- | --- |",
        *_bounds(tool.name),
        "\n## Results\n",
    ]
    for _, given, shown in examples:
        line = json.dumps(given, ensure_ascii=False)
        line = line if len(line) <= 100 else json.dumps(given, ensure_ascii=False, indent=2)
        lines += ["```json", line, "```\n", "gives\n", "```text", shown, "```\n"]
    return "\n".join(
        [*lines, "## Tests\n", *(f"- [`tests/{name}`](../../tests/{name})" for name in TESTS[tool.name]), ""]
    )


def _traits(tool: Tool) -> list[str]:
    effect = (
        "`read`: it changes nothing"
        if tool.effect == "read"
        else "`write`: it may change something, and is recorded first"
    )
    replay = (
        "`safe`: after a crash it may run again"
        if tool.replay == "safe"
        else "`never`: after a crash it is not run again by itself"
    )
    rows = {"effect": effect, "replay": replay}
    rows["deadline"] = (
        f"{tool.timeout:,g} s" if tool.timeout else f"the run's ({Limits().tool_timeout:g} s unless it says otherwise)"
    )
    if tool.prepare is not None:
        rows["prepare"] = "looks first: what it finds is shown when a person is asked, and must still hold when it runs"
    if tool.settle is not None:
        rows["settle"] = "after a crash it is looked up whether it was done"
    if tool.asks:
        rows["asks"] = "a call is a question to a person, and never runs without an answer"
    if tool.alone:
        rows["alone"] = "never beside other calls"
    return ["| | |\n| --- | --- |", *(f"| {name} | {said} |" for name, said in rows.items())]


def _parameters(schema: dict[str, Any], known: set[str]) -> list[str]:
    """A table of them, without those that are known."""
    defs, required = schema.get("$defs", {}), schema.get("required", [])
    rows = ["| name | type | default | |\n| --- | --- | --- | --- |"]
    for name, it in schema["properties"].items():
        default = "required" if name in required else f"`{json.dumps(it.get('default'))}`"
        if name not in known:
            rows.append(f"| `{name}` | {_type(it, defs)} | {default} | {_cell(it.get('description', ''))} |")
    return rows


def _type(it: dict[str, Any], defs: dict[str, Any]) -> str:
    """A schema in words."""
    match it:
        case {"$ref": name}:
            return _type(defs[name.rpartition("/")[2]], defs)
        case {"enum": words}:
            return " or ".join(f"`{json.dumps(word)}`" for word in words)
        case {"anyOf": kinds}:
            return " or ".join(_type(kind, defs) for kind in kinds)
        case {"type": "object", "properties": fields}:
            needed = it.get("required", [])
            told = (f"`{at}`{'' if at in needed else ' (optional)'}: {_type(one, defs)}" for at, one in fields.items())
            return f"object of {'; '.join(told)}"
        case {"type": "array", "items": items}:
            return f"list{_range(it, 'minItems', 'maxItems', ' items')}; each: {_type(items, defs)}"
        case {"type": "string"}:
            return f"string{_range(it, 'minLength', 'maxLength', ' characters')}"
        case {"type": "integer" | "number" as kind, "exclusiveMinimum": over, "maximum": most}:
            return f"{kind}, over {_number(over)}, at most {_number(most)}"
        case {"type": "integer" | "number" | "boolean" | "null" as kind}:
            return f"{kind}{_range(it, 'minimum', 'maximum', '')}"
    raise ValueError(f"no words for {it}")


def _range(it: dict[str, Any], low: str, high: str, unit: str) -> str:
    least, most = it.get(low), it.get(high)
    if least is not None and most is not None:
        return f", {_number(least)} to {_number(most)}{unit}"
    if most is not None:
        return f", at most {_number(most)}{unit}"
    if least is not None:
        return ", not empty" if unit and least == 1 else f", at least {_number(least)}{unit}"
    return ""


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def _bounds(name: str) -> list[str]:
    """The named numbers of its modules, each with what its docstring says."""
    rows = []
    for module, *wanted in map(str.split, BOUNDS[name]):
        loaded = importlib.import_module(f"latchstep.{module}")
        body = ast.parse(inspect.getsource(loaded)).body
        for node, after in zip(body, [*body[1:], None], strict=True):
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
                continue
            value = getattr(loaded, bound := node.targets[0].id)
            if (
                bound.isupper()
                and bound[0] != "_"
                and isinstance(value, int | float)
                and (not wanted or bound in wanted)
            ):
                match after:
                    case ast.Expr(value=ast.Constant(value=str(said))):
                        rows.append(f"| `{bound}` | {_number(value)} | {_cell(' '.join(said.split()))} |")
                    case _:
                        raise ValueError(f"{module}.{bound} has no docstring")
    return rows


def _cell(text: str) -> str:
    return re.sub(r"([|*])", r"\\\1", text)
