"""python -m experiments.page: write the measured figures into docs/results.md, between its marks.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; experiments/tables.py says what it holds;
every number comes from experiments/figures.
"""

from __future__ import annotations

import re
from pathlib import Path

from experiments.paths import FIGURES, ROOT
from experiments.tables import TABLES

PAGE = ROOT / "docs" / "results.md"
_PLACE = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str, figures: Path = FIGURES) -> str:
    """The page with every table made anew."""
    return _PLACE.sub(lambda found: f"{found[1]}{TABLES[found['name']](figures)}\n{found[3]}", text)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
