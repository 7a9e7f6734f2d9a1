"""python -m results [ROW...]: run rows of the scoreboard anew, or list their commands."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

from results.place import FIGURES, Place, data_folder
from results.rows import ROWS, Row


def chosen(runs: Sequence[str], only: str) -> list[str]:
    """The run of that name, or all below it; all of them where nothing is asked for.

    >>> chosen(("en-de/1", "en-de/11", "en-de-deep/1"), "en-de")
    ['en-de/1', 'en-de/11']
    >>> chosen(("en-de/1", "en-de/11", "en-de-deep/1"), "en-de/1")
    ['en-de/1']
    """
    return [one for one in runs if not only or f"{one}/".startswith(f"{only.removesuffix('/')}/")]


def read(given: Sequence[str] | None = None) -> tuple[Place, list[tuple[Row, str]]]:
    """Where to run what: rows with the names of their runs."""
    words = argparse.ArgumentParser(prog="python -m results", description=__doc__)
    words.add_argument("rows", nargs="*", metavar="ROW", help="what to run; none lists all")
    words.add_argument("--data", type=Path, default=data_folder(), help="the folder of data sets")
    words.add_argument("--work", type=Path, default=Path("runs/results"), help="for prepared files and runs")
    words.add_argument("--figures", type=Path, default=FIGURES, help="where figures are noted")
    words.add_argument("--only", default="", help="of a row, one run (en-de/1), or all of a kind (en-de)")
    words.add_argument("--device", default="auto")
    words.add_argument("--beside", type=int, default=0, help="how many other runs share the device meanwhile")
    words.add_argument(
        "--seconds", type=float, help="of runs that train for a time (the language rows and pocket): how long"
    )
    words.add_argument("--most", type=int, help="of pocket: how many lines of each set are translated")
    words.add_argument("--set", action="append", default=[], help="change every recipe, for a quick try")
    asked = words.parse_args(given)
    wanted = []
    for name in asked.rows:
        if name not in ROWS:
            words.error(f"there is no row '{name}'; there are {', '.join(ROWS)}")
        row = ROWS[name]
        runs = chosen(row.runs, asked.only)
        if not runs:
            words.error(f"{name} has no run '{asked.only}'; it has {', '.join(row.runs)}")
        wanted += [(row, run) for run in runs]
    place = Place(
        data=asked.data,
        work=asked.work,
        figures=asked.figures,
        device=asked.device,
        beside=asked.beside,
        seconds=asked.seconds,
        changes=tuple(asked.set),
        most=asked.most,
    )
    return place, wanted


def main() -> None:
    place, wanted = read()
    if not wanted:
        width = max(map(len, ROWS))
        for name, row in ROWS.items():
            print(f"python -m results {name:{width}}  # {row.title}")
    for row, name in wanted:
        importlib.import_module(f"results.{row.module}").run(place, name, *row.given)


if __name__ == "__main__":
    main()
