"""The failures of `tests/model/test_error_lines.py` as `latchstep run` says them, each over one of the wires."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import Any

from latchstep.errors import RETRYABLE
from tests.cli.cli_kit import Home, ended
from tests.model.strict_chat import StrictChat
from tests.model.test_error_lines import KEY, LINES, WIRES, key_of, refusals


def test_what_a_person_reads_when_a_server_refuses(tmp_path: Path) -> None:
    """One line, the same that the library raises; what cannot pass is asked once, and the key is not shown."""
    cases: list[tuple[str, str, tuple[Any, str, list[str]]]] = [
        *((name, what, case) for name in WIRES for what, case in refusals(name).items()),
        *((name, what, case) for name, (what, case) in zip(cycle(WIRES), LINES.items(), strict=False)),
    ]
    cases = [case for case in cases if case[2][1] not in RETRYABLE or case[1] == "too much"]
    assert len(cases) > 18
    with ExitStack() as stack:
        begun = []
        for at, (name, what, (script, kind, words)) in enumerate(cases):
            (tmp_path / str(at)).mkdir()
            home = Home(tmp_path / str(at))
            server = stack.enter_context(StrictChat([script], strict=False))
            process = home.start("run", "go", "--model", name, "--base-url", server.url, env={key_of(name): KEY})
            begun.append((name, what, kind, words, server, process))
            if at % 4 == 3:  # the machine is small
                process.wait(30)
        for name, what, kind, words, server, process in begun:
            done = ended(process)
            assert done.status == 1, (what, done)
            assert len(server.bodies) == 1, (what, done)
            host = server.url.split("/")[2]
            url = f"http://{host}{server.paths[0].partition('?')[0]}"
            code = "CONTEXT_FULL" if kind == "context_overflow" else f"MODEL_{kind.upper()}"
            (line,) = (line for line in done.out.splitlines() if line.startswith(f"{code}: "))
            for word in words:
                assert word.replace("URL", url).replace("HOST", host).replace("VARIABLE", key_of(name)) in line, done
            assert KEY not in done.out + done.err, (what, done)
            assert "Traceback" not in done.err, (what, done)
