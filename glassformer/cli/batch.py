"""glassformer batch: run a task over large tables with Ray Data."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from glassformer.cli.console import message
from glassformer.cli.lines import PROGRESS_SECONDS, format_progress
from glassformer.cli.options import (
    OUTPUT_PANEL,
    BatchTokens,
    DeviceOptions,
    Encoding,
    JsonSchema,
    Model,
    Overwrite,
    SearchOptions,
    locate_model,
    read_json_schema,
    with_options,
)

if TYPE_CHECKING:
    from glassformer.batch import BatchProgress

WORKER_PANEL = "Workers"
_task = partial(typer.Option, rich_help_panel="Task", show_default=False)
TaskName = Literal[
    "translate", "summarize", "restore", "generate", "classify", "ner", "embed", "fill", "answer"
]


@dataclass(kw_only=True)
class BatchOptions(SearchOptions, DeviceOptions):
    """Options of the model, of a worker, and of text generation."""

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
    batch_tokens: BatchTokens = None


@with_options(BatchOptions)
def batch(
    task: Annotated[
        TaskName, typer.Argument(metavar="TASK", help="Name of the command to run on every row.")
    ],
    model: Model,
    inputs: Annotated[
        list[str],
        typer.Option(
            "--input",
            help="Table, or folder of tables: .csv, .tsv, .jsonl or .parquet; also s3://. Repeatable.",
        ),
    ],
    output: Annotated[str, typer.Option(help="Folder for the output files; also s3://.")],
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--column", help="Column to read: a name, or a number from 1. Repeatable.", show_default=False
        ),
    ] = None,
    encoding: Encoding = "utf-8",
    format: Annotated[
        Literal["parquet", "jsonl", "csv", "tsv"] | None,
        typer.Option(
            help="Format of the output files (default: as the input).",
            show_default=False,
            rich_help_panel=OUTPUT_PANEL,
        ),
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
            help="Rows per block and output file (default: at most 10,000).",
            show_default=False,
            rich_help_panel=WORKER_PANEL,
        ),
    ] = None,
    gpus_per_worker: Annotated[
        float,
        typer.Option(min=0, help="GPUs per worker; may be a fraction.", rich_help_panel=WORKER_PANEL),
    ] = 0.0,
    to: Annotated[str | None, _task(help="Target language, for translate, e.g. de.")] = None,
    prefix: Annotated[
        str | None, _task(help="Text to prepend to every input, for translate and summarize.")
    ] = None,
    split: Annotated[
        Literal["long", "always", "never"] | None,
        _task(help="Which texts to split into sentences, for translate."),
    ] = None,
    parse_special: Annotated[
        bool, _task("--parse-special", help="Parse special tokens in prompts, for generate.")
    ] = False,
    json_schema: JsonSchema = None,
    top: Annotated[int | None, _task(min=1, help="Number of labels, for classify.")] = None,
    aggregation_strategy: Annotated[
        Literal["none", "simple", "first"] | None, _task(help="How tokens form entities, for ner.")
    ] = None,
    prompt: Annotated[str | None, _task(help="Name of a prompt of the model, for embed.")] = None,
    max_answer_tokens: Annotated[
        int | None, _task(min=1, help="Maximum number of answer tokens, for answer.")
    ] = None,
    handle_impossible_answer: Annotated[
        bool, _task("--handle-impossible-answer", help="Allow empty answers, for answer.")
    ] = False,
    truncate: Annotated[
        bool, _task("--truncate", help="Truncate long inputs, for classify, ner and embed.")
    ] = False,
    *,
    options: BatchOptions,
) -> None:
    """Run a task over large tables, with several workers on one machine or a Ray cluster.

    Adds the columns that TASK writes with --out, and a column error for rows
    that cannot be processed. The output is a folder with a file per block of
    rows. If it has the output of an interrupted run, that run continues.
    Runs on the Ray cluster of RAY_ADDRESS, else on this machine.
    """
    from glassformer.batch import run

    chosen = {
        "to": to,
        "prefix": prefix,
        "split": split,
        "parse_special": parse_special or None,
        "top": top,
        "aggregation_strategy": aggregation_strategy,
        "prompt": prompt,
        "max_answer_tokens": max_answer_tokens,
        "handle_impossible_answer": handle_impossible_answer or None,
        "truncate": truncate or None,
        "batch_tokens": options.batch_tokens,
        **read_json_schema(json_schema),
    }
    progress = _ProgressMessages()
    result = run(
        task,
        locate_model(model),
        inputs,
        output,
        columns=columns or (),
        format=format,
        encoding=encoding,
        options={
            **{name: value for name, value in chosen.items() if value is not None},
            **options.generation_kwargs(field.name for field in fields(SearchOptions)),
        },
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
        message(f"{result.resumed:,} of {result.total:,} rows were done already")
    if result.rows > result.resumed:
        progress.print(result)
    if result.errors:
        message(f"warning: {result.errors:,} rows have an error; see the column error")


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
