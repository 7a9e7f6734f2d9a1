"""Run the shell commands of a page in this process, within seconds.

Trainings take two steps; a server runs in a thread until the page ends or starts another; torchrun's parser
reads its command, which runs in one process, as do the workers of `batch`. `pip install`, `make` and Ray's
`serve` are only checked.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from torch.distributed.run import get_args_parser

from experiments.__main__ import read as parse_experiments
from glassformer import __version__, batch
from glassformer.batch.worker import BatchWorker
from glassformer.cli.main import main
from glassformer.server import run as server
from glassformer.server.ray_serve import RayServeOptions
from tests.docs.pages import ROOT, CodeBlock

QUICK = ["training.max_steps=2", "training.eval_steps=1", "training.device=cpu"]
ADDRESS = re.compile(r"http://127\.0\.0\.1:(?:8000|8017)")
SERVERS = ("serve", "explore")
OUTPUT_OPTIONS = ("--out", "--tree", "--export", "--site")
SHARED_FOLDER = "/shared"  # of a cluster


class Shell:
    """Runs the commands of one page in the working directory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys
        self._servers: list[uvicorn.Server] = []
        self._thread: threading.Thread | None = None
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        make_server = server.make_server

        def record_server(*args: object, **kwargs: object) -> uvicorn.Server:
            self._servers.append(make_server(*args, **kwargs))  # type: ignore[arg-type]
            return self._servers[-1]

        monkeypatch.setattr(server, "make_server", record_server)
        monkeypatch.setattr(batch, "_ray_cluster", lambda cpus: nullcontext())
        monkeypatch.setattr(batch, "_map_blocks", map_blocks)

    def with_port(self, code: str) -> str:
        """The code with the port of this page's server."""
        return ADDRESS.sub(f"http://127.0.0.1:{self.port}", code)

    def run(self, block: CodeBlock) -> None:
        code = self.with_port(block.code).replace("\\\n", " ")
        code = code.replace(SHARED_FOLDER, str(Path.cwd() / "shared"))
        for line in filter(None, map(str.strip, code.splitlines())):
            with self._output_on_failure(line):
                self._run_line(line)

    @contextmanager
    def _output_on_failure(self, line: str) -> Iterator[None]:
        self._capsys.readouterr()
        try:
            yield
        except BaseException as error:
            output = self._capsys.readouterr()
            error.add_note(f"{line}\n{output.out}{output.err}")
            raise

    def _run_line(self, line: str) -> None:
        if match := re.fullmatch(r"(\w+)=\$\((.+?)\) (glassformer .+)", line):
            name, substitution, line = match.groups()
            program, *args = shlex.split(substitution)
            assert program == "python", line
            value = subprocess.check_output([sys.executable, *args], text=True).strip()
            self._monkeypatch.setenv(name, value)
        command = shlex.split(line, comments=True)
        match command:
            case []:
                pass  # a comment
            case ["glassformer", name, *_] if name in SERVERS and not {"--export", "--site"} & {*command}:
                self._start_server(command[1:])
            case ["glassformer", *args]:
                self._run_glassformer(args)
            case ["serve", "run", "glassformer.server.ray_serve:app_builder", *args]:
                RayServeOptions.model_validate(dict(arg.split("=", 1) for arg in args))
            case ["serve", "deploy", file]:
                assert (ROOT / file).is_file(), line  # tests/deploy validates it
            case ["torchrun", *args]:
                parsed = get_args_parser().parse_args(args)
                assert parsed.module and parsed.training_script == "glassformer", line
                self._run_glassformer(parsed.training_script_args)
            case ["curl", *_]:
                subprocess.run([*command, "--silent", "--fail-with-body"], check=True, capture_output=True)
            case ["export", setting]:
                self._monkeypatch.setenv(*setting.split("=", 1))
            case ["git", "clone", url, *_]:
                assert url in (ROOT / "pyproject.toml").read_text(encoding="utf-8"), line
            case ["make", target]:
                subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)
            case ["python", "-m", "build"]:
                pass  # tests/explorer builds the wheel
            case ["pip", "install", *args]:
                check_requirement(args[-1])
            case ["python", "-m", "experiments", *args]:
                parse_experiments(args)
            case _:
                pytest.fail(f"no way to run '{line}'")

    def _run_glassformer(self, args: list[str]) -> None:
        if args[0] == "train":
            args = [*args, *(arg for setting in QUICK for arg in ("--set", setting))]
        with pytest.raises(SystemExit) as stop:
            main(args)
        assert stop.value.code in (0, None)
        for option, name in pairwise(args):
            assert option not in OUTPUT_OPTIONS or Path(name).exists(), f"{name} was not written"

    def _start_server(self, args: list[str]) -> None:
        self.stop_server()
        args = [*args, "--port", str(self.port), *(["--no-browser"] if args[0] == "explore" else [])]
        exit_codes: list[object] = []

        def serve() -> None:
            try:
                main(args)
            except SystemExit as stop:
                exit_codes.append(stop.code)

        self._thread = threading.Thread(target=serve, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 60
        while not (self._servers and self._servers[-1].started):
            assert not exit_codes and time.monotonic() < deadline, f"the server did not start: {exit_codes}"
            time.sleep(0.02)
        response = httpx.get(f"http://127.0.0.1:{self.port}/", follow_redirects=True)
        assert response.status_code == (401 if "GLASSFORMER_API_KEY" in os.environ else 200)

    def stop_server(self) -> None:
        if self._thread is None:
            return
        while self._servers:
            self._servers.pop().should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()
        self._thread = None


def map_blocks(
    plan: batch.BatchPlan,
    output: batch.Location,
    numbers: Sequence[int],
    arguments: Mapping[str, Any],
    **_: object,
) -> Iterator[Mapping[str, Any]]:
    """Process the blocks of a batch run in this process."""
    worker = BatchWorker(plan, output.uri, **arguments)
    yield from (worker({"number": [number]}) for number in numbers)


def check_requirement(requirement: str) -> None:
    """Check the extras, e.g. of `.[serve]`, and the file name of a wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    match = re.fullmatch(r"([\w./-]+)(?:\[([\w,]+)\])?", requirement)
    assert match, requirement
    name, extras = match.groups()
    assert name in (".", f"dist/glassformer-{__version__}-py3-none-any.whl"), requirement
    assert set((extras or "").split(",")) - {""} <= set(project["optional-dependencies"]), requirement
