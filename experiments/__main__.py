"""python -m experiments [ROW...]: run rows of the scoreboard anew, or list their commands."""

from __future__ import annotations

import argparse
import importlib
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from experiments.paths import FIGURES, Place, data_folder
from experiments.rows import ROWS, Row
from glassformer.errors import GlassformerError


def chosen(runs: Sequence[str], only: str) -> list[str]:
    """The run of that name, or all below it; all of them where nothing is asked for.

    >>> chosen(("en-de/1", "en-de/11", "en-de-deep/1"), "en-de")
    ['en-de/1', 'en-de/11']
    >>> chosen(("en-de/1", "en-de/11", "en-de-deep/1"), "en-de/1")
    ['en-de/1']
    """
    return [one for one in runs if not only or f"{one}/".startswith(f"{only.removesuffix('/')}/")]


class Parser(argparse.ArgumentParser):
    """A command line that reports its errors like every other one."""

    def error(self, message: str) -> NoReturn:
        raise GlassformerError(f"{message}; `{self.prog} --help` tells what can be said")


def read(args: Sequence[str] | None = None) -> tuple[Place, list[tuple[Row, str]]]:
    """Where to run what: rows with the names of their runs."""
    parser = Parser(prog="python -m experiments", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="what to run; none lists all")
    parser.add_argument("--data", type=Path, default=data_folder(), help="the folder of data sets")
    parser.add_argument("--work", type=Path, default=Path("runs/results"), help="for prepared files and runs")
    parser.add_argument("--figures", type=Path, help="where figures are noted; of a quick try, below --work")
    parser.add_argument("--only", default="", help="of a row, one run (en-de/1), or all of a kind (en-de)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--concurrent-runs", type=int, default=0, help="other runs on the same device")
    parser.add_argument("--seconds", type=float, help=f"how long to train; of {_taking('seconds')}")
    parser.add_argument("--most", type=int, help=f"how many lines of a set to measure; of {_taking('most')}")
    parser.add_argument("--set", action="append", default=[], help="change every recipe, for a quick try")
    options = parser.parse_args(args)
    if options.concurrent_runs < 0:
        raise GlassformerError(
            f"--concurrent-runs is {options.concurrent_runs}; it counts other runs, 0 or more"
        )
    for option in ("seconds", "most"):
        value = getattr(options, option)
        if value is not None and not 0 < value < math.inf:
            raise GlassformerError(f"--{option} is {value}; give a number above 0")
    if not options.rows:
        said = [name for name, value in vars(options).items() if value and value != parser.get_default(name)]
        if said:
            raise GlassformerError(f"--{said[0]} is for a row; name one of {', '.join(ROWS)}")
    wanted = []
    for name in options.rows:
        if name not in ROWS:
            raise GlassformerError(f"there is no row '{name}'; there are {', '.join(ROWS)}")
        row = ROWS[name]
        runs = chosen(row.runs, options.only)
        if not runs:
            raise GlassformerError(f"{name} has no run '{options.only}'; it has {', '.join(row.runs)}")
        for option in ("seconds", "most"):
            if getattr(options, option) is not None and option not in row.takes:
                raise GlassformerError(f"{name} takes no --{option}; it is for {_taking(option)}")
        wanted += [(row, run) for run in runs]
    if wanted:
        _check(options.device, options.set)
    place = Place(
        data=options.data,
        work=options.work,
        figures=options.figures or (options.work / "figures" if options.set or options.most else FIGURES),
        device=options.device,
        concurrent_runs=options.concurrent_runs,
        seconds=options.seconds,
        changes=tuple(options.set),
        most=options.most,
    )
    return place, wanted


def _check(device: str, changes: Sequence[str]) -> None:
    """Refuse a device that is not there, and what is no change of a recipe, before anything is prepared."""
    from glassformer.training.hardware import device_for  # brings torch, which the list of rows does without
    from glassformer.training.recipe import with_overrides

    with_overrides({}, changes)
    try:
        device_for(device)
    except GlassformerError:
        raise GlassformerError(
            f"--device is '{device}', which is not there; `glassformer env` lists devices"
        ) from None


def _taking(option: str) -> str:
    """The rows that take an option."""
    return ", ".join(name for name, row in ROWS.items() if option in row.takes)


def run(place: Place, wanted: Sequence[tuple[Row, str]]) -> None:
    """One run after another; a folder that cannot be written is found out before any."""
    for folder in (place.work, place.figures):
        folder.mkdir(parents=True, exist_ok=True)
    for row, name in wanted:
        try:
            importlib.import_module(f"experiments.{row.module}").run(place, name, *row.arguments)
        except FileNotFoundError as error:
            if error.filename is None or not Path(error.filename).is_relative_to(place.data):
                raise
            place.tidy()
            raise GlassformerError(
                f"'{error.filename}' does not exist; name the folder of data sets with --data or "
                "the variable GLASSFORMER_DATA"
            ) from None


def main(args: Sequence[str] | None = None) -> None:
    try:
        place, wanted = read(args)
        if wanted:
            run(place, wanted)
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


def _fail(sentence: str) -> NoReturn:
    print(f"error: {sentence}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
