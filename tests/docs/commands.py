"""The commands of a page, run as a shell would run them, as far as one process and a few seconds go.

`glassformer` runs in this process: trainings are cut short, servers answer in a thread until the page's end
or its next server, and torchrun's own parser reads what torchrun is given while its command runs in one
process. What would install is looked up, and a make target is asked what it would do.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
import uvicorn
from torch.distributed.run import get_args_parser

from experiments.__main__ import read as scoreboard
from glassformer import __version__
from glassformer.cli.main import main
from glassformer.server import run as serving
from tests.docs.pages import ROOT, Block

QUICK = ["training.max_steps=2", "training.eval_steps=1", "training.device=cpu"]
ADDRESS = re.compile(r"http://127\.0\.0\.1:(?:8000|8017)")
SERVERS = ("serve", "explore")
WRITTEN = ("--out", "--tree", "--export")
SHARED = "/shared"  # a cluster's own folder


class Shell:
    """Runs the commands of one page, in the folder the process is in."""

    def __init__(self, patch: pytest.MonkeyPatch, heard: pytest.CaptureFixture[str]) -> None:
        self._patch, self._heard = patch, heard
        self._servers: list[uvicorn.Server] = []
        self._answering: threading.Thread | None = None
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        made = serving.make_server

        def noted(*args: object, **words: object) -> uvicorn.Server:
            self._servers.append(made(*args, **words))  # type: ignore[arg-type]
            return self._servers[-1]

        patch.setattr(serving, "make_server", noted)

    def led(self, code: str) -> str:
        """The code with the addresses of this page's server."""
        return ADDRESS.sub(f"http://127.0.0.1:{self.port}", code)

    def run(self, block: Block) -> None:
        code = self.led(block.code).replace("\\\n", " ").replace(SHARED, str(Path.cwd() / "shared"))
        for line in filter(None, map(str.strip, code.splitlines())):
            with self._telling(line):
                self._line(line)

    @contextmanager
    def _telling(self, line: str) -> Iterator[None]:
        """Where a command fails, the failure names it and what it said."""
        self._heard.readouterr()
        try:
            yield
        except BaseException as error:
            said = self._heard.readouterr()
            error.add_note(f"{line}\n{said.out}{said.err}")
            raise

    def _line(self, line: str) -> None:
        if found := re.fullmatch(r"(\w+)=\$\((.+?)\) (glassformer .+)", line):
            name, inner, line = found.groups()
            program, *given = shlex.split(inner)
            assert program == "python", line
            self._patch.setenv(name, subprocess.check_output([sys.executable, *given], text=True).strip())
        words = shlex.split(line, comments=True)
        match words:
            case []:
                pass  # a comment
            case ["glassformer", verb, *_] if verb in SERVERS and "--export" not in words:
                self._serve(words[1:])
            case ["glassformer", *rest]:
                self._glassformer(rest)
            case ["torchrun", *rest]:
                given = get_args_parser().parse_args(rest)
                assert given.module and given.training_script == "glassformer", line
                self._glassformer(given.training_script_args)
            case ["curl", *_]:
                subprocess.run([*words, "--silent", "--fail-with-body"], check=True, capture_output=True)
            case ["export", setting]:
                self._patch.setenv(*setting.split("=", 1))
            case ["make", target]:
                subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)
            case ["python", "-m", "build"]:
                pass  # tests/explorer builds the wheel
            case ["pip", "install", *what]:
                installable(what[-1])
            case ["python", "-m", "experiments", *rows]:
                scoreboard(rows)
            case _:
                pytest.fail(f"there is nothing here to run '{line}' with")

    def _glassformer(self, words: list[str]) -> None:
        if words[0] == "train":
            words = [*words, *(word for change in QUICK for word in ("--set", change))]
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code in (0, None)
        for option, name in pairwise(words):
            assert option not in WRITTEN or Path(name).exists(), f"{name} was not written"

    def _serve(self, words: list[str]) -> None:
        self.end()
        more = ["--port", str(self.port), *(["--no-browser"] if words[0] == "explore" else [])]
        ended: list[object] = []

        def answer() -> None:
            try:
                main([*words, *more])
            except SystemExit as stop:
                ended.append(stop.code)

        self._answering = threading.Thread(target=answer, daemon=True)
        self._answering.start()
        deadline = time.monotonic() + 60
        while not (self._servers and self._servers[-1].started):
            assert not ended and time.monotonic() < deadline, f"the server did not start: {ended}"
            time.sleep(0.02)
        asked = httpx.get(f"http://127.0.0.1:{self.port}/", follow_redirects=True)
        assert asked.status_code == (401 if "GLASSFORMER_TOKEN" in os.environ else 200)

    def end(self) -> None:
        """End the server that still answers."""
        if self._answering is None:
            return
        while self._servers:
            self._servers.pop().should_exit = True
        self._answering.join(30)
        assert not self._answering.is_alive()
        self._answering = None


def installable(what: str) -> None:
    """Check the extras, e.g. of `.[serve]`, and the file name of a wheel."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name, extras = re.fullmatch(r"([\w./-]+)(?:\[([\w,]+)\])?", what).groups()  # type: ignore[union-attr]
    assert name in (".", f"dist/glassformer-{__version__}-py3-none-any.whl"), what
    assert set((extras or "").split(",")) - {""} <= set(about["optional-dependencies"]), what
