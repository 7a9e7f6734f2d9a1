"""python -m experiments.page: write the recorded figures into docs/results.md.

A table is between `<!-- table: NAME -->` and `<!-- end -->`; experiments/tables.py defines its content; every
number comes from experiments/figures.
"""

from __future__ import annotations

import re
from pathlib import Path

from experiments.paths import FIGURES, ROOT
from experiments.tables import TABLES

PAGE = ROOT / "docs" / "results.md"
_PLACE = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill_tables(text: str, figures: Path = FIGURES) -> str:
    """The page with every table rewritten."""
    return _PLACE.sub(lambda result: f"{result[1]}{TABLES[result['name']](figures)}\n{result[3]}", text)


if __name__ == "__main__":
    PAGE.write_text(fill_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
