"""The plan of a batch run: its input in blocks of rows, each of which becomes one output file.

The plan is stored in the output folder before the first block, so that an interrupted run is continued with
the same blocks.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from glassformer.batch.storage import Location, StoredFile
from glassformer.data.readers import Column, file_format, open_table
from glassformer.data.tables import InputTable, choose_columns
from glassformer.errors import (
    ConflictError,
    EmptyInputError,
    FileExistsAlreadyError,
    FileProblemError,
    InvalidValueError,
)
from glassformer.json_text import parse_json
from glassformer.tasks.registry import find_task

PLAN_FILE = "_batch.json"
PART = "part-"
_PART = re.compile(PART + r"\d{6,}\.(csv|tsv|jsonl|parquet)")
_IMAGE = re.compile(PART + r"\d{6,}-\d{6,}-(image|video)(_\d+)?\.(png|webp|mp4)")
SUFFIXES = {b"\x89PNG": ".png", b"RIFF": ".webp"}  # by the start of the file
_LEFTOVER = re.compile(
    rf"\.({_PART.pattern}|{_IMAGE.pattern}|{re.escape(PLAN_FILE)})-[0-9a-f]{{8}}"
)  # of `Location.new_file`
BLOCKS_PER_WORKER = 4  # at least, so that the workers finish at about the same time
TableFormat = Literal["csv", "tsv", "jsonl", "parquet"]


@dataclass(frozen=True, kw_only=True)
class BatchRequest:
    """What a run computes, without how: another number of workers gives the same output.

    inputs: locations. columns: with the inputs; by default `trained_columns`, those of the training data.
    format: of the output files.
    """

    task: str
    model: str
    inputs: tuple[str, ...]
    columns: tuple[str, ...] = ()
    format: TableFormat
    encoding: str = "utf-8"
    delimiter: str | None = None
    decimal: str | None = None
    dtype: str | None = None
    options: Mapping[str, Any]
    trained_columns: Mapping[str, Column] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RowBlock:
    """Rows `start` to `stop` of a file, counted from 0. number: in the plan. source: location of the file."""

    number: int
    source: str
    path: str
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """A request, the state of its input files, and its blocks."""

    request: BatchRequest
    files: Sequence[tuple[str, int, float]]
    blocks: Sequence[RowBlock]

    def part(self, block: RowBlock) -> str:
        """Return the name of a block's output file."""
        return f"{PART}{block.number:06}.{self.request.format}"

    def image(self, block: RowBlock, row: int, column: str, content: bytes) -> str:
        """Return the name of the file of an image or video of a row, counted from 0 in its block."""
        suffixes = (suffix for start, suffix in SUFFIXES.items() if content.startswith(start))
        return f"{PART}{block.number:06}-{row + 1:06}-{column}{next(suffixes, '.mp4')}"

    def pending(self, output: Location) -> list[RowBlock]:
        """Return the blocks that have no output file yet."""
        done = output.names()
        return [block for block in self.blocks if self.part(block) not in done]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        blocks = [[b.number, b.source, b.path, b.start, b.stop] for b in self.blocks]
        parts = [self.part(block) for block in self.blocks]
        return {"request": asdict(self.request), "files": self.files, "blocks": blocks, "parts": parts}


def open_plan(
    request: BatchRequest, output: Location, *, workers: int, batch_size: int | None, overwrite: bool
) -> BatchPlan:
    """Return the stored plan if the output folder has one for this request; else make and store a plan.

    A stored plan of which no block is finished is replaced, whatever it was for.
    overwrite: delete the output of an earlier run, i.e. the files that its plan lists, and nothing else.
    """
    sources = [(uri, file) for uri in request.inputs for file in Location(uri).tables()]
    linked = [file.path for uri, file in sources if Location(uri).is_local]  # may link into the output
    for location in map(Location, [*request.inputs, *linked]):
        if output.overlaps(location):
            reason = f"{output} is, contains or lies in the input {location}"
            raise ConflictError(["output", "input"], reason, hint="choose another folder")
    files = [(file.path, file.size, file.stamp) for _, file in sources]
    names = output.names()
    stored = _read_stored(output) if PLAN_FILE in names else None
    if names and stored is None:
        hint = "choose a new or empty folder: no batch run wrote these files"
        raise FileExistsAlreadyError(str(output), hint=hint)
    finished = names.intersection(stored["parts"]) if stored else set[str]()
    if stored and finished and not overwrite:
        delete_leftovers(output)
        return _resume(output, stored, request, files)
    plan = BatchPlan(request=request, files=files, blocks=_make_blocks(request, sources, workers, batch_size))
    if taken := sorted((names - finished).intersection(map(plan.part, plan.blocks))):
        raise FileExistsAlreadyError(f"{output}/{taken[0]}", hint="no batch run wrote it; move it away")
    delete_leftovers(output)
    output.delete(finished | {name for name in names if stored and _IMAGE.fullmatch(name)})
    with output.new_file(PLAN_FILE) as path:
        path.write_text(json.dumps(plan.to_json(), ensure_ascii=False), encoding="utf-8")
    return plan


def delete_leftovers(output: Location) -> None:
    """Delete the temporary folders of killed workers, which contain nothing but the unfinished file."""
    folders = Path(output.path).glob(".*") if output.is_local else ()
    for folder in folders:
        match = _LEFTOVER.fullmatch(folder.name)
        if not match or folder.is_symlink() or not folder.is_dir():
            continue
        if all(match[1] in path.name for path in folder.iterdir()):
            shutil.rmtree(folder, ignore_errors=True)  # another process may delete it, too


def _read_stored(output: Location) -> dict[str, Any]:
    """Read the plan in the output folder; raise unless a batch run wrote it."""
    try:
        stored: dict[str, Any] = parse_json(output.read(PLAN_FILE))
        stored["blocks"] = [
            RowBlock(number=number, source=source, path=path, start=start, stop=stop)
            for number, source, path, start, stop in stored["blocks"]
        ]
        if {*stored} >= {"request", "files"} and all(map(_PART.fullmatch, stored["parts"])):
            return stored
    except (ValueError, KeyError, TypeError):
        pass
    hint = "choose another folder"
    raise FileProblemError(
        f"{output}/{PLAN_FILE}", "is not the plan of a batch run, or is damaged", hint=hint
    )


def _resume(
    output: Location,
    stored: Mapping[str, Any],
    request: BatchRequest,
    files: Sequence[tuple[str, int, float]],
) -> BatchPlan:
    before = {**stored["request"], "files": stored["files"]}
    now = json.loads(json.dumps({**asdict(request), "files": files}))
    changed = [name for name in now if now[name] != before.get(name)]
    if changed:
        reason = f"the folder has the output of a run with different {', '.join(changed)}"
        raise ConflictError(["output", changed[0]], reason, hint="choose another folder, or overwrite it")
    return BatchPlan(request=request, files=files, blocks=stored["blocks"])


def _make_blocks(
    request: BatchRequest, sources: Sequence[tuple[str, StoredFile]], workers: int, batch_size: int | None
) -> list[RowBlock]:
    counts = [_count_rows(request, Location(uri), file) for uri, file in sources]
    total = sum(counts)
    if not total:
        raise EmptyInputError("input", hint="at least one row is required")
    rows = batch_size or min(
        find_task(request.task).batch_rows, math.ceil(total / (BLOCKS_PER_WORKER * workers))
    )
    blocks: list[RowBlock] = []
    for (uri, file), count in zip(sources, counts, strict=True):
        for start in range(0, count, rows):
            stop = min(start + rows, count)
            blocks.append(RowBlock(number=len(blocks), source=uri, path=file.path, start=start, stop=stop))
    return blocks


def _count_rows(request: BatchRequest, source: Location, file: StoredFile) -> int:
    """Count the rows of a file, good and bad, and check that it has the columns."""
    is_parquet = file_format(file.path) == "parquet"
    if is_parquet and not source.is_local:
        return source.count_parquet_rows(file.path)
    with source.local_file(file.path) as path:
        try:
            table = open_input(path, request)
            return source.count_parquet_rows(file.path) if is_parquet else table.count()
        except EmptyInputError:
            return 0


def open_input(path: Path, request: BatchRequest) -> InputTable:
    """Open a table with the columns that the task reads."""
    reader = open_table(path, encoding=request.encoding, delimiter=request.delimiter, decimal=request.decimal)
    kind = find_task(request.task).inputs
    named = request.columns or (() if request.trained_columns else kind.names)
    trained = kind.trained_columns(request.trained_columns)
    columns = choose_columns(reader, named, trained, kind.columns)
    table = InputTable(reader, columns, lists="series" in kind.modalities)
    if kind.pairs == "always" and len(table.columns) != kind.columns:
        raise InvalidValueError("column", list(table.columns), f"two columns: {kind.name}")
    return table
