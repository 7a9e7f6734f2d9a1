"""Pairs that are all in one language, as a table that says so: for a model that is told which to write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from glassformer.data.names import TO
from glassformer.data.pairs import FIELDS, pairs
from glassformer.data.problems import Problems
from glassformer.data.sources import Paths, Rows
from glassformer.data.tables import Column
from glassformer.errors import GlassformerError

COLUMNS = (*FIELDS, TO)  # of the table that is written


def write_in_language(
    paths: Paths, language: str, out: Path, *, columns: Sequence[Column] | None = None, problems: Problems
) -> None:
    """Write pairs as JSON Lines with a third column that names the language of every target."""
    source = pairs(paths, columns=columns)
    if isinstance(source, Rows):
        own = next((name for name in source.unread if str(name).lower() == TO), None)
        if own is not None and columns is None:
            raise GlassformerError(
                f"'{source.tables[0].path}' has a column '{own}'; if it names the language of each target, "
                "leave --to out, else name the two columns to read with --columns"
            )
    with out.open("w", encoding="utf-8") as file:
        for row in source.rows(problems):
            named = dict(zip(COLUMNS, (*row, language), strict=True))
            file.write(f"{json.dumps(named, ensure_ascii=False)}\n")
