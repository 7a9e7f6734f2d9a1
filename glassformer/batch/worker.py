"""The worker of a batch run: loads the model once, then reads, processes and writes blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import torch

from glassformer.batch.plan import BatchPlan, BatchRequest, RowBlock, open_input
from glassformer.batch.storage import Location
from glassformer.bundle import load
from glassformer.core.precision import resolve_device
from glassformer.data.row_errors import Invalid
from glassformer.data.tables import InputTable, TableRow, TableWriter
from glassformer.errors import GlassformerError
from glassformer.tasks.base import Callbacks
from glassformer.tasks.cells import cell_reader, locate_image
from glassformer.tasks.registry import find_task

MAX_ATTEMPTS = 3  # to process a block; one that ends every worker would be retried forever
ERROR = "error"  # the column with the reason why a row has no result


@dataclass(eq=False)
class DeadlyBlockError(GlassformerError):
    """Rows of a file that end every worker, e.g. because they need too much memory."""

    path: str
    start: int
    stop: int
    attempts: int
    hint: str = "use a smaller batch_tokens, or remove the rows"
    template: ClassVar[str] = "{attempts} workers died at rows {start:,} to {stop:,} of {path}"


class BatchWorker:
    """Processes one block per call; Ray Data runs one instance in each worker process.

    The model is loaded by the first call, which can return an error.
    """

    def __init__(
        self, plan: BatchPlan, output: str, *, device: str = "auto", threads: int | None = None
    ) -> None:
        self._plan, self._output = plan, Location(output)
        self._device, self._threads = device, threads
        self._predictor: RowPredictor | None = None
        self._reader = BlockReader(plan.request)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Process the blocks with these numbers; return how many rows and errors each has.

        An error that ends the run is returned, because Ray does not keep the type of errors that are raised.
        """
        counts: dict[str, list[Any]] = {"rows": [], "errors": []}
        try:
            if self._predictor is None:
                self._predictor = RowPredictor(self._plan.request, device=self._device, threads=self._threads)
            for number in batch["number"]:
                block = self._plan.blocks[int(number)]
                counts["errors"].append(self._process(block, self._predictor))
                counts["rows"].append(block.stop - block.start)
        except GlassformerError as error:
            return {"failure": [error]}
        return counts

    def _process(self, block: RowBlock, predictor: RowPredictor) -> int:
        part = self._plan.part(block)
        attempts = self._output.interrupted(part)
        if attempts >= MAX_ATTEMPTS:
            raise DeadlyBlockError(block.path, block.start + 1, block.stop, attempts)
        table, rows = self._reader.read(block)
        folder = table.table.path.parent
        texts = [locate_image(row.texts, predictor.bundle, folder) for row in rows]
        types = {**predictor.types, ERROR: str}
        errors = 0
        with (
            self._output.new_file(part) as path,
            TableWriter(path, types, source=table) as out,
        ):
            for number, (row, cells) in enumerate(zip(rows, predictor.cells(texts), strict=True)):
                out.write(row.record, self._store_images(block, number, cells))
                errors += ERROR in cells
        return errors

    def _store_images(self, block: RowBlock, row: int, cells: dict[str, object]) -> dict[str, object]:
        """Write the images of a row as files, and return its cells with their names."""
        for column, content in cells.items():
            if isinstance(content, bytes):
                name = self._plan.image(block, row, column, content)
                with self._output.new_file(name) as path:
                    path.write_bytes(content)
                cells[column] = name
        return cells


class BlockReader:
    """Reads blocks. A file is read on from the last block, so that it is parsed once for blocks in order."""

    def __init__(self, request: BatchRequest) -> None:
        self._request = request
        self._file: tuple[str, str] | None = None
        self._stack = ExitStack()
        self._position = 0
        self._table: InputTable
        self._rows: Iterator[TableRow]

    def read(self, block: RowBlock) -> tuple[InputTable, list[TableRow]]:
        """Return the table of a block, and its rows."""
        if self._file != (block.source, block.path):
            self._stack.close()
            path = self._stack.enter_context(Location(block.source).local_file(block.path))
            self._table = open_input(path, self._request)
            self._file, self._rows, self._position = (block.source, block.path), self._table.rows(), 0
        if block.start < self._position:
            self._rows, self._position = self._table.rows(), 0
        rows = list(islice(self._rows, block.start - self._position, block.stop - self._position))
        self._position = block.stop
        return self._table, rows


class RowPredictor:
    """A task whose results are cells of a table; a row that fails gets the reason in the column `error`."""

    def __init__(self, request: BatchRequest, *, device: str = "auto", threads: int | None = None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self.bundle = bundle = load(request.model, dtype=request.dtype, device=resolve_device(device))
        self._spec = find_task(request.task)
        self._read, more = cell_reader(self._spec, bundle)
        options = self._spec.brief(bundle, self._spec.read_options({**more, **request.options}))
        self._task = self._spec.make(bundle, options)
        self.types = self._spec.result.column_types(bundle, options)

    def cells(self, texts: Sequence[tuple[str, ...] | Invalid]) -> Iterator[dict[str, object]]:
        """Yield the cells of each row. texts: of its columns, or why there are none."""
        errors = {n: text.reason for n, text in enumerate(texts) if isinstance(text, Invalid)}
        valid = [n for n in range(len(texts)) if n not in errors]
        inputs, results = list[Any](), dict[int, Any]()
        for n in list(valid):
            try:
                inputs.append(self._read(texts[n]))
            except GlassformerError as error:
                errors[n] = str(error)
                valid.remove(n)
        try:
            results = dict(zip(valid, self._run(inputs, valid, errors), strict=True))
        except (GlassformerError, torch.OutOfMemoryError):  # of a batch: find the rows that cause it
            for n, text in zip(valid, inputs, strict=True):
                try:
                    results[n] = self._run([text], [n], errors)[0]
                except (GlassformerError, torch.OutOfMemoryError) as error:
                    errors[n] = str(error)
        for n in range(len(texts)):
            yield {ERROR: errors[n]} if n in errors else dict(self._spec.result.of(results[n]).cells())

    def _run(self, inputs: Sequence[Any], rows: Sequence[int], errors: dict[int, str]) -> list[Any]:
        def on_reject(number: int, reason: GlassformerError) -> None:
            errors.setdefault(rows[number - 1], str(reason))

        return list(self._task.run(inputs, Callbacks(on_reject=on_reject, skip_blank=True)))
