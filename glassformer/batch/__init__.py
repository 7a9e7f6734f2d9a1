"""Run a task over tables of any size with Ray Data, on one machine or a cluster.

The input is split into blocks of rows. Each worker process holds a copy of the model, and writes the result
of a block to its own file, which appears complete or not at all. So every row is written exactly once: a
block whose worker died is processed again, and an interrupted run continues with the missing blocks.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from glassformer.batch.plan import BatchPlan, BatchRequest, TableFormat, delete_leftovers, open_plan
from glassformer.batch.storage import Location
from glassformer.data.readers import file_format
from glassformer.errors import FileMissingError, GlassformerError, InvalidValueError, MissingDependencyError
from glassformer.families.sidecars import JOB_FILE, read_job
from glassformer.json_text import as_list
from glassformer.pretrained import hub_hint, model_folder, resolve_name
from glassformer.tasks.registry import find_task

CONNECT_SECONDS = 10


@dataclass(eq=False)
class WorkersDiedError(GlassformerError):
    """The cluster or its workers are gone. reason: Ray's error."""

    reason: str
    hint: str = "the finished blocks are kept: fix the cause, and run the same again"
    template: ClassVar[str] = "the workers died: {reason}"


@dataclass(frozen=True, kw_only=True)
class BatchProgress:
    """How far a run is. rows: done, including those of earlier runs. errors: rows of this run that failed."""

    rows: int
    total: int
    errors: int = 0
    resumed: int = 0


def run(
    task: str,
    model: str | Path,
    inputs: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    columns: Sequence[str] = (),
    format: TableFormat | None = None,
    encoding: str = "utf-8",
    delimiter: str | None = None,
    decimal: str | None = None,
    options: Mapping[str, Any] | None = None,
    workers: int = 1,
    batch_size: int | None = None,
    threads: int | None = None,
    gpus_per_worker: float = 0,
    device: str = "auto",
    dtype: str | None = None,
    overwrite: bool = False,
    on_progress: Callable[[BatchProgress], None] = lambda progress: None,
) -> BatchProgress:
    """Run a task on all rows of tables, and write them with the columns of the results to a folder.

    If the folder has the output of an interrupted run, continue it. Rows keep all their columns. A row that
    cannot be processed has the reason in the column `error`. Runs on the Ray cluster that the process is
    connected to, or of the variable RAY_ADDRESS, else on this machine.

    task: name of a declared task. Columns have texts, paths of images, or series as lists of numbers.
    inputs: files or folders of CSV, TSV, JSON Lines, Parquet or Excel tables; paths or URIs, e.g. s3://bucket/folder.
    output: a folder. format: of its files; by default that of the first input, or CSV if it is Excel.
    columns: with the inputs, names or numbers from 1; by default those of the training data, or of text.
    options: of the task, e.g. {"num_beams": 4}.
    workers: processes with a copy of the model each. batch_size: rows per block and output file.
    threads: CPU threads of a worker, and CPUs that it reserves (default: 1).
    gpus_per_worker: may be a fraction. device, dtype: of the model; the device is a GPU if there is one.
    encoding: of text files. delimiter, decimal: separators of CSV files; None detects them.
    overwrite: delete the output of an earlier run.
    on_progress: called after each block.
    """
    for name, value in (("workers", workers), ("batch_size", batch_size), ("threads", threads)):
        if value is not None and value < 1:
            raise InvalidValueError(name, value, "at least 1")
    find_task(task).read_options(options or {})
    folder = resolve_name(model).absolute()
    if not folder.is_dir():
        raise FileMissingError(model, "model folder", hub_hint(model))
    sources = [Location(path) for path in as_list(inputs)]
    target = Location(output)
    if file_format(target.path) != "plain":
        raise InvalidValueError("output", str(output), "a folder", hint="set the format to choose the files")
    input_format = file_format(sources[0].tables()[0].path)
    request = BatchRequest(
        task=task,
        model=str(folder),
        inputs=tuple(source.uri for source in sources),
        columns=tuple(columns),
        format=format or ("csv" if input_format == "xlsx" else input_format),  # type: ignore[arg-type]
        encoding=encoding,
        delimiter=delimiter,
        decimal=decimal,
        dtype=dtype,
        options=dict(options or {}),
        trained_columns=read_job(model_folder(folder) / JOB_FILE, None).data_columns or {},
    )
    plan = open_plan(request, target, workers=workers, batch_size=batch_size, overwrite=overwrite)
    pending = plan.pending(target)
    total = sum(block.stop - block.start for block in plan.blocks)
    rows = resumed = total - sum(block.stop - block.start for block in pending)
    progress = BatchProgress(rows=rows, total=total, resumed=resumed)
    if not pending:
        return progress
    errors = 0
    cpus = threads or 1
    with _ray_cluster(cpus=workers * cpus):
        numbers = [block.number for block in pending]
        arguments = {"device": device, "threads": threads}
        for counts in _map_blocks(
            plan, target, numbers, arguments, workers=workers, cpus=cpus, gpus=gpus_per_worker
        ):
            rows, errors = rows + int(sum(counts["rows"])), errors + int(sum(counts["errors"]))
            progress = BatchProgress(rows=rows, total=total, errors=errors, resumed=resumed)
            on_progress(progress)
    delete_leftovers(target)
    return progress


def _map_blocks(
    plan: BatchPlan,
    output: Location,
    numbers: Sequence[int],
    arguments: Mapping[str, Any],
    *,
    workers: int,
    cpus: int,
    gpus: float,
) -> Iterator[Mapping[str, Any]]:
    """Process the blocks with these numbers on Ray; yield the counts of finished blocks."""
    import ray
    import ray.data

    from glassformer.batch.worker import BatchWorker

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    dataset = ray.data.from_items([{"number": n} for n in numbers], override_num_blocks=len(numbers))
    results = dataset.map_batches(
        BatchWorker,
        fn_constructor_args=(plan, output.uri),
        fn_constructor_kwargs=dict(arguments),
        batch_size=None,
        compute=ray.data.ActorPoolStrategy(size=min(workers, len(numbers)), max_tasks_in_flight_per_actor=1),
        num_cpus=cpus,
        num_gpus=gpus,
    )
    try:
        for counts in results.iter_batches(batch_size=None):
            for error in counts.get("failure", ()):
                raise error
            yield counts
    except ray.exceptions.RayError as error:
        raise WorkersDiedError(str(error).strip().splitlines()[-1]) from None


def _check_address(address: str) -> None:
    """Raise if nothing listens at host:port; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdecimal() and "/" not in host:
        try:
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        except OSError as error:
            raise InvalidValueError("RAY_ADDRESS", address, f"a running Ray cluster ({error})") from None


@contextmanager
def _ray_cluster(cpus: int) -> Iterator[None]:
    """Connect to a Ray cluster, or start one on this machine; leave an existing connection as it is."""
    is_local = not os.environ.get("RAY_ADDRESS")
    if is_local:
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # read when ray is imported
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise MissingDependencyError(str(error.name or "ray"), extra="ray") from None
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {}
    address = os.environ.get("RAY_ADDRESS", "")
    if not is_local:
        _check_address(address)
    else:
        options = {"address": "local", "num_cpus": max(cpus, os.cpu_count() or 1), "include_dashboard": False}
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    except ConnectionError as error:
        raise InvalidValueError("RAY_ADDRESS", address, f"a running Ray cluster ({error})") from None
    try:
        yield
    finally:
        with suppress(Exception):  # keep the original error
            ray.shutdown()
