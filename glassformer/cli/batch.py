"""glassformer batch: run a task over large tables with Ray Data."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from glassformer.cli.console import message
from glassformer.cli.lines import PROGRESS_SECONDS, format_progress
from glassformer.cli.options import (
    Decimal,
    Delimiter,
    DeviceOptions,
    Encoding,
    Model,
    Overwrite,
    locate_model,
    optional,
    output_option,
    with_options,
)
from glassformer.cli.tasks import with_declared
from glassformer.messages import quantity
from glassformer.tasks.registry import Option, tasks

if TYPE_CHECKING:
    from glassformer.batch import BatchProgress

WORKER_PANEL = "Workers"


def batch_options() -> list[Option]:
    """Return the options of all tasks that a command has; those of several tasks once."""
    options: dict[str, Option] = {}
    owners: dict[str, list[str]] = {}
    for spec in tasks().values():
        for option in spec.all_options:
            if option.is_on("command") and not option.metadata.get("of_file"):
                options.setdefault(option.name, option)
                owners.setdefault(option.name, []).append(spec.name)
    return [_for_tasks(option, owners[name]) for name, option in options.items()]


def _for_tasks(option: Option, owners: Sequence[str]) -> Option:
    """Return an option that is not set by default, with the names of its tasks in the help."""
    help = option.help.rstrip(".")
    text = help if option.owner or len(owners) > 3 else f"{help}, for {', '.join(owners)}"
    panel = option.metadata.get("panel", "Task")
    metadata = {**option.metadata, "description": f"{text}.", "panel": panel, "command_default": None}
    return option._replace(metadata=metadata, default=None, hint=option.hint | None)


@dataclass(kw_only=True)
class BatchOptions(DeviceOptions):
    """Options of the model and of a worker."""

    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            show_default=False,
            rich_help_panel=WORKER_PANEL,
            help="CPU threads per worker, and CPUs that it reserves (default: 1).",
        ),
    ] = None


@with_options(BatchOptions)
@with_declared(batch_options())
def batch(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Name of the task to run on every row.")],
    model: Model,
    inputs: Annotated[
        list[str],
        typer.Option(
            "--input",
            "--file",
            help="Table, or folder of tables: .csv, .tsv, .jsonl, .parquet or .xlsx; also s3://. Repeatable.",
        ),
    ],
    output: Annotated[
        str, typer.Option("--output", "--out", help="Folder for the output files; also s3://.")
    ],
    columns: Annotated[
        list[str] | None,
        optional("--column", help="Column to read: a name, or a number from 1. Repeatable."),
    ] = None,
    encoding: Encoding = "utf-8",
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    format: Annotated[
        Literal["parquet", "jsonl", "csv", "tsv"] | None,
        output_option(help="Format of the output files (default: as the input)."),
    ] = None,
    overwrite: Overwrite = False,
    workers: Annotated[
        int,
        typer.Option(min=1, help="Processes, each with a copy of the model.", rich_help_panel=WORKER_PANEL),
    ] = 1,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Rows per block and output file (default: at most 10,000; 32 for images to draw).",
            show_default=False,
            rich_help_panel=WORKER_PANEL,
        ),
    ] = None,
    gpus_per_worker: Annotated[
        float,
        typer.Option(min=0, help="GPUs per worker; may be a fraction.", rich_help_panel=WORKER_PANEL),
    ] = 0.0,
    *,
    values: dict[str, Any],
    options: BatchOptions,
) -> None:
    """Run a task over large tables, with several workers on one machine or a Ray cluster.

    Adds the columns that TASK writes with --out, and a column error for rows
    that cannot be processed. The output is a folder with a file per block of
    rows. If it has the output of an interrupted run, that run continues.
    Runs on the Ray cluster of RAY_ADDRESS, else on this machine.
    """
    from glassformer.batch import run

    progress = _ProgressMessages()
    result = run(
        task,
        locate_model(model),
        inputs,
        output,
        columns=columns or (),
        format=format,
        encoding=encoding,
        delimiter=delimiter,
        decimal=decimal,
        options=values,
        workers=workers,
        batch_size=batch_size,
        threads=options.threads,
        gpus_per_worker=gpus_per_worker,
        device=options.device,
        dtype=options.dtype,
        overwrite=overwrite,
        on_progress=progress.show,
    )
    if result.resumed:
        message(f"{result.resumed:,} of {quantity(result.total, 'row')} done already")
    if result.rows > result.resumed:
        progress.print(result)
    if result.errors:
        message(f"warning: {quantity(result.errors, 'row')} with an error; see the column error")


class _ProgressMessages:
    """Prints progress on stderr at intervals."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()

    def show(self, progress: BatchProgress) -> None:
        if time.monotonic() - self._last >= PROGRESS_SECONDS:
            self.print(progress)

    def print(self, progress: BatchProgress) -> None:
        self._last = time.monotonic()
        seconds = self._last - self._start
        message(format_progress(progress.rows, progress.total, seconds, "row", skipped=progress.resumed))
