"""torchrun in a process that has imported everything once: its ranks are forked, so that they start at once.

`launcher.py` reads a job a line, and writes a line when the job has ended: what rank 0 gave, or how a rank
failed. The process learns nothing itself, so what is forked has no threads of torch's to miss.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args

from tests.training import ranks

ROOT = Path(__file__).parents[2]
LIMIT = 110.0  # seconds after which a job is taken to hang
JOBS: dict[str, Callable[..., Any]] = {
    "everything": lambda folder: ranks.everything(Path(folder)),
    "more": lambda folder: ranks.more_ranks(Path(folder)),
    "twice": lambda folder: ranks.joined_twice(Path(folder)),
    "killed": lambda folder: ranks.killed(Path(folder)),
    "own module": lambda folder, parallel: ranks.train_own_module(Path(folder), parallel),
    "command": lambda *argv: ranks.command(list(argv)),
}
# As --standalone has it, and forked.
OPTIONS = ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--start-method=fork")


class Failed(Exception):
    """A job ended because a rank failed; what torchrun says of it."""


class Launcher:
    """A process that launches jobs, one after the other."""

    def __init__(self, process: subprocess.Popen[str], heard: Path) -> None:
        self._process, self._heard, self._jobs = process, heard, 0

    def __call__(
        self, number: int, job: str, *args: object, options: Sequence[str] = (), env: Mapping[str, str] = {}
    ) -> Any:
        """What rank 0 of `number` ranks gives for a job."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._jobs += 1
        argv = [*OPTIONS, f"--rdzv-id={self._jobs}", f"--nproc-per-node={number}", *options]
        request = {"words": [*argv, job, *map(str, args)], "env": dict(env)}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        readable, _, _ = select.select([self._process.stdout], [], [], LIMIT)
        line = self._process.stdout.readline() if readable else ""
        assert line, f"{job} did not end: {self._heard.read_text()[-3000:]}"
        reply = json.loads(line)
        if "failed" in reply:
            raise Failed(f"{reply['failed']}\n{self._heard.read_text()[-3000:]}")
        return reply["answer"]


@contextmanager
def launching(folder: Path) -> Iterator[Launcher]:
    """A launcher that writes what its ranks say to a file in `folder`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    heard, pipe = folder / "said.txt", subprocess.PIPE
    with (
        heard.open("w") as file,
        subprocess.Popen(
            [sys.executable, __file__], env=environment, stdin=pipe, stdout=pipe, stderr=file, text=True
        ) as process,
    ):
        try:
            yield Launcher(process, heard)
        finally:
            process.kill()


def launch(argv: list[str]) -> dict[str, Any]:
    """A job in the ranks that torchrun's options ask for."""
    request = parse_args(argv)
    config, _, _ = config_from_args(request)
    try:
        answers = elastic_launch(config, JOBS[request.training_script])(*request.training_script_args)
    except ChildFailedError as error:
        return {"failed": str(error)}
    return {"answer": answers[0]}


if __name__ == "__main__":
    torch.set_num_threads(1)
    reply = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what ranks print goes to the file
    for line in sys.stdin:
        job = json.loads(line)
        before = dict(os.environ)
        os.environ.update(job["env"])
        print(json.dumps(launch(job["words"])), file=reply, flush=True)
        os.environ.clear()
        os.environ.update(before)
