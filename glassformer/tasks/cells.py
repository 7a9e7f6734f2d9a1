"""Inputs in the cells of a table: texts, paths of images, and series as lists of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os.path import isfile
from pathlib import Path
from typing import Any

import numpy as np

from glassformer.bundle import Bundle
from glassformer.data.image_files import is_image_name
from glassformer.errors import InvalidValueError
from glassformer.json_text import parse_json
from glassformer.tasks.forecasting import TIME, request_table
from glassformer.tasks.registry import SERIES_TABLE, TaskSpec

SINGLE_COLUMN = "value"  # of a series without names


def cell_reader(spec: TaskSpec, bundle: Bundle) -> tuple[Callable[[Any], Any], Mapping[str, Any]]:
    """Return the function from the cells of a row to an input, and the options that it needs."""
    if spec.inputs == SERIES_TABLE:
        names = bundle.job.columns or (SINGLE_COLUMN,)
        return lambda cells: request_table(read_columns(cells[0], names)), {"time": TIME}
    if "series" in spec.inputs.modalities and "series" in bundle.spec.modalities:
        return lambda cells: np.asarray(read_series(cells[0]), np.float64), {}
    return lambda cells: cells if len(cells) > 1 else cells[0], {}


def locate_image(cells: Any, bundle: Bundle, folder: Path) -> Any:
    """Return the cells of a row; the path of an image may be relative to the folder of the table.

    cells: one, or the cells of several columns. A path that exists in the working directory is kept.
    """
    if isinstance(cells, tuple):
        return locate_image(cells[0], bundle, folder), *cells[1:]
    is_image = "image" in bundle.spec.modalities and isinstance(cells, str) and is_image_name(Path(cells))
    if not is_image or isfile(cells) or not isfile(folder / cells):
        return cells
    return str(folder / cells)


def read_series(text: str) -> Any:
    """Read a series from a cell: a JSON list of numbers, or of lists (T, C)."""
    try:
        values = parse_json(text)
    except ValueError:
        values = None
    if not isinstance(values, list | dict):
        raise InvalidValueError("series", text[:60], "a list of numbers, e.g. [1.5, 2, 0.5]")
    return values


def read_columns(text: str, names: Sequence[str]) -> dict[str, Any]:
    """Read the columns of a series from a cell: an object of lists, or one list for a single column."""
    values = read_series(text)
    return values if isinstance(values, dict) else {names[0]: values}
