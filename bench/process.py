"""Whole processes: import, and `latchstep run` up to its first request."""

from __future__ import annotations

import http.server
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, ClassVar

ROUNDS = 7

ENV = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Compiled modules are kept, as in any installation; without them each start compiles the whole package."""


def child_cpu(*arguments: str) -> float:
    """CPU seconds of `python ARGUMENTS`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, env=ENV)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def imports() -> dict[str, Any]:
    """Milliseconds over bare Python: the package, and `Agent` with `tool` resolved."""
    code = {
        "bare": "pass",
        "package": "import latchstep",
        "agent_and_tool": "import latchstep as ls\nls.Agent\n@ls.tool\ndef f(x: int) -> int:\n    'd'\n    return x",
    }
    for _ in range(2):
        child_cpu("-c", code["agent_and_tool"])
    took = {name: min(child_cpu("-c", text) for _ in range(ROUNDS)) for name, text in code.items()}
    return {
        "bare_ms": round(took["bare"] * 1e3, 1),
        "package_ms": round((took["package"] - took["bare"]) * 1e3, 1),
        "agent_and_tool_ms": round((took["agent_and_tool"] - took["bare"]) * 1e3, 1),
    }


class _Answer(http.server.BaseHTTPRequestHandler):
    """Says "hi" to every request, and notes when the first byte of the request came."""

    arrived: ClassVar[list[float]] = []

    def do_POST(self) -> None:
        self.arrived.append(time.perf_counter())
        self.rfile.read(int(self.headers.get("content-length", "0")))
        body = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def first_request() -> dict[str, Any]:
    """Wall milliseconds from starting `latchstep run` to its first request, and the CPU of the whole "say hi"."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    took, used, bare = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        env = {**ENV, "LATCHSTEP_HOME": folder}
        command = [sys.executable, "-m", "latchstep", "run", "say hi", "--base-url", url, "--cwd", folder]
        subprocess.run(command, env=env, check=True, capture_output=True)  # compiles what was not compiled yet
        for _ in range(ROUNDS):
            _Answer.arrived.clear()
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            began = time.perf_counter()
            subprocess.run(command, env=env, check=True, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            took.append(_Answer.arrived[0] - began)
            used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", "pass"], check=True, env=ENV)
            bare.append(time.perf_counter() - began)
    server.shutdown()
    server.server_close()
    return {
        "first_request_ms": round(statistics.median(took) * 1e3),
        "bare_python_ms": round(statistics.median(bare) * 1e3),
        "say_hi_cpu_s": round(statistics.median(used), 3),
    }
