"""python -m experiments [ROW...]: reproduce rows of docs/results.md, or list their commands.

With --processes N, N runs share the device. Each writes a log below --work; one that fails stops no other.
"""

from __future__ import annotations

import argparse
import importlib
import math
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

from experiments.paths import FIGURES, Workspace, data_folder, environment
from experiments.rows import ROWS
from glassformer.errors import GlassformerError


def select_runs(runs: Sequence[str], only: Sequence[str]) -> list[str]:
    """The runs of these names, or all runs below them; without names, all.

    >>> select_runs(("en-de/1", "en-de/11", "en-de-deep/1"), ["en-de"])
    ['en-de/1', 'en-de/11']
    >>> select_runs(("en-de/1", "en-de/11", "en-de-deep/1"), ["en-de/1", "en-fr"])
    ['en-de/1']
    """
    prefixes = tuple(f"{name.removesuffix('/')}/" for name in only)
    return [one for one in runs if not only or f"{one}/".startswith(prefixes)]


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `GlassformerError`."""

    def error(self, message: str) -> NoReturn:
        raise GlassformerError(f"{message}; see `{self.prog} --help`")


def read(args: Sequence[str] | None = None) -> tuple[Workspace, list[tuple[str, str]]]:
    """Parse the command line: the workspace, and the names of rows and their runs."""
    parser = Parser(prog="python -m experiments", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="rows to run (default: list all)")
    parser.add_argument("--data", type=Path, default=data_folder(), help="the folder of data sets")
    parser.add_argument("--work", type=Path, default=Path("runs/results"), help="for prepared files and runs")
    parser.add_argument(
        "--figures",
        type=Path,
        help="where to record figures (default: experiments/figures, or below --work for a quick try)",
    )
    parser.add_argument("--only", nargs="+", default=[], help="only these runs (en-de/1) or kinds (en-de)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--processes", type=int, default=1, help="number of runs at the same time")
    parser.add_argument(
        "--concurrent-runs", type=int, default=0, help="number of other runs on the same device"
    )
    parser.add_argument(
        "--seconds", type=float, help=f"training time in seconds; for {_rows_taking('seconds')}"
    )
    parser.add_argument(
        "--most", type=int, help=f"maximum number of lines per test set; for {_rows_taking('most')}"
    )
    parser.add_argument("--set", action="append", default=[], help="override a recipe key, for a quick try")
    options = parser.parse_args(args)
    if options.concurrent_runs < 0:
        raise GlassformerError(
            f"--concurrent-runs is {options.concurrent_runs}; it counts other runs, 0 or more"
        )
    if options.processes < 1:
        raise GlassformerError(f"--processes is {options.processes}; give a number above 0")
    for option in ("seconds", "most"):
        value = getattr(options, option)
        if value is not None and not 0 < value < math.inf:
            raise GlassformerError(f"--{option} is {value}; give a number above 0")
    if not options.rows:
        unused = [
            name for name, value in vars(options).items() if value and value != parser.get_default(name)
        ]
        if unused:
            raise GlassformerError(f"--{unused[0]} is for a row; name one of {', '.join(ROWS)}")
    requested = []
    for name in options.rows:
        if name not in ROWS:
            raise GlassformerError(f"there is no row '{name}'; there are {', '.join(ROWS)}")
        row = ROWS[name]
        runs = select_runs(row.runs, options.only)
        if not runs:
            only = " ".join(options.only)
            raise GlassformerError(f"{name} has no run '{only}'; it has {', '.join(row.runs)}")
        for option in ("seconds", "most"):
            if getattr(options, option) is not None and option not in row.takes:
                raise GlassformerError(f"{name} takes no --{option}; it is for {_rows_taking(option)}")
        requested += [(name, run) for run in runs]
    if requested:
        _check(options.device, options.set)
    workspace = Workspace(
        data=options.data,
        work=options.work,
        figures=options.figures or (options.work / "figures" if options.set or options.most else FIGURES),
        device=options.device,
        processes=options.processes,
        concurrent_runs=options.concurrent_runs,
        seconds=options.seconds,
        changes=tuple(options.set),
        most=options.most,
    )
    return workspace, requested


def _check(device: str, changes: Sequence[str]) -> None:
    """Reject a missing device or an invalid override before anything is prepared."""
    from glassformer.training.hardware import (
        device_for,  # imports torch, which listing the rows does not need
    )
    from glassformer.training.recipe import with_overrides

    with_overrides({}, changes)
    try:
        device_for(device)
    except GlassformerError:
        raise GlassformerError(
            f"--device is '{device}', which is not available; `glassformer env` lists devices"
        ) from None


def _rows_taking(option: str) -> str:
    """The rows that take an option."""
    return ", ".join(name for name, row in ROWS.items() if option in row.takes)


def run(workspace: Workspace, requested: Sequence[tuple[str, str]]) -> None:
    """Run one after another; check first that the output folders can be written."""
    for folder in (workspace.work, workspace.figures):
        folder.mkdir(parents=True, exist_ok=True)
    for row, name in requested:
        try:
            module = importlib.import_module(f"experiments.{ROWS[row].module}")
            module.run(workspace, name, *ROWS[row].arguments)
        except FileNotFoundError as error:
            if error.filename is None or not Path(error.filename).is_relative_to(workspace.data):
                raise
            workspace.tidy()
            raise GlassformerError(
                f"'{error.filename}' does not exist; name the folder of data sets with --data or "
                "the variable GLASSFORMER_DATA"
            ) from None


def run_processes(workspace: Workspace, requested: Sequence[tuple[str, str]]) -> list[str]:
    """Run each in its own process, some at the same time; return the rows and names of those that failed."""
    others = min(workspace.processes, len(requested)) - 1 + workspace.concurrent_runs
    options = {
        "--data": workspace.data,
        "--work": workspace.work,
        "--figures": workspace.figures,
        "--device": workspace.device,
        "--concurrent-runs": others,
        "--seconds": workspace.seconds,
        "--most": workspace.most,
    }
    words = [f"{option}={value}" for option, value in options.items() if value is not None]
    words += [f"--set={change}" for change in workspace.changes]

    def one(row: str, name: str) -> bool:
        log = workspace.run(row, name).with_suffix(".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-u", "-m", "experiments", row, *words, "--only", name]
        with log.open("wb") as file:
            code = subprocess.run(command, stdout=file, stderr=file, env=environment()).returncode
        last = log.read_text("utf-8", "replace").strip().rpartition("\n")[2]
        print(last if not code else f"{row} {name} failed, see {log}: {last}", flush=True)
        return code == 0

    with ThreadPoolExecutor(workspace.processes) as pool:
        succeeded = list(pool.map(one, *zip(*requested, strict=True)))
    return [" ".join(run) for run, good in zip(requested, succeeded, strict=True) if not good]


def main(args: Sequence[str] | None = None) -> None:
    try:
        workspace, requested = read(args)
        if requested:
            if workspace.processes == 1:
                run(workspace, requested)
            elif failed := run_processes(workspace, requested):
                raise GlassformerError(f"{len(failed)} of {len(requested)} runs failed: {', '.join(failed)}")
            return
    except GlassformerError as error:
        _fail(str(error))
    except OSError as error:
        if error.filename is None:
            raise
        _fail(f"'{error.filename}': {error.strerror}")
    except KeyboardInterrupt:
        sys.exit(130)
    width = max(map(len, ROWS))
    for name, row in ROWS.items():
        print(f"python -m experiments {name:{width}}  # {row.title}")


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
