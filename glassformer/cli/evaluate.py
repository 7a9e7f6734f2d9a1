"""glassformer evaluate MODEL DATA...: evaluate a model on test data."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from glassformer.cli.console import console, message, print_json
from glassformer.cli.lines import check_output_file
from glassformer.cli.options import (
    OUTPUT_PANEL,
    BatchTokens,
    Columns,
    Device,
    Encoding,
    Json,
    Model,
    Overwrite,
    Settings,
    To,
    locate_model,
    resolve_language,
)
from glassformer.errors import ConflictError, UnsupportedError
from glassformer.messages import quantity

if TYPE_CHECKING:
    from rich.table import Table

# settings of the data section that have no effect on an evaluation
TRAINING_SETTINGS = frozenset(
    {"train", "valid", "split", "max_len", "horizon"}
    | {"bpe_dropout", "mask_prob", "mlm_weight", "flip_prob", "vertical_flip_prob", "scale_jitter"}
    | {"color_jitter", "max_shift", "max_rotation", "erase_prob", "cutmix_prob", "mixup_prob"}
)

BleuTokenizer = Literal["13a", "intl", "char", "zh", "none", "ko-mecab", "ja-mecab"]


def evaluate(
    model: Model,
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA...",
            help="Test files, in the same format as for training.",
        ),
    ],
    job: Annotated[
        str | None,
        typer.Option(
            help="Job the model was trained for, e.g. translate or lm (default: read from the model folder)."
        ),
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(
            help="Folder of the images, for contrastive, and for detect and segment with COCO JSON."
        ),
    ] = None,
    columns: Columns = None,
    encoding: Encoding = "utf-8",
    to: To = None,
    tokenize: Annotated[
        BleuTokenizer, typer.Option(help="BLEU tokenizer; char for Korean or Chinese.")
    ] = "13a",
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="Compute case-insensitive BLEU and chrF.")
    ] = False,
    settings: Settings = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of examples per batch.")
    ] = None,
    batch_tokens: BatchTokens = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the model's outputs to this file, one per line.", rich_help_panel=OUTPUT_PANEL
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    device: Device = "auto",
) -> None:
    """Evaluate a model on test data.

    translate: loss, perplexity, BLEU, chrF. restore: also exact matches.
    summarize: ROUGE. lm: loss, perplexity, bits per character. classify:
    accuracy and per-class F1. ner: F1 of entities. answer: exact matches and
    F1. embed: recall@1, or rank correlation. contrastive: recall@1, 5 and 10,
    from images to texts and back. detect: average precision of boxes.
    segment: mean IoU, or average precision of masks and panoptic quality.
    forecast: MSE and MAE, compared with a baseline that repeats the last
    value.
    """
    from rich.console import Console

    from glassformer.metrics.text import bleu, chrf
    from glassformer.training.evaluation import evaluate_files
    from glassformer.training.recipe import BatchLimits
    from glassformer.weights.atomic_write import write_file

    settings = settings or []
    if out is not None:
        check_output_file(out, overwrite=overwrite, inputs=data)
    for setting in settings:
        section, _, name = setting.partition("=")[0].strip().partition(".")
        if section == "data" and name in TRAINING_SETTINGS:
            raise UnsupportedError(subject="evaluation", feature=f"the training setting data.{name}")
    if images is not None:
        settings = [f"data.images={json.dumps(images)}", *settings]
    folder = locate_model(model)
    names = [name.strip() for name in columns.split(",")] if columns else []
    with Console(stderr=True).status(f"evaluating {model} …"), TemporaryDirectory() as temporary:
        files = data
        if to is not None:
            files, names, settings = _add_language(
                folder, data, to, names, settings, Path(temporary), encoding=encoding
            )
            encoding = "utf-8"
        evaluation = evaluate_files(
            folder,
            files,
            job=job,
            columns=names,
            overrides=settings,
            batch=BatchLimits(batch_size, batch_tokens),
            encoding=encoding,
            device=device,
            log=message,
        )
    validation, job = evaluation.validation, evaluation.job
    metrics, signatures = dict(validation.metrics), dict(validation.signatures)
    outputs = [sample.got for sample in validation.samples]
    if tokenize != "13a" or lowercase:
        if "bleu" not in metrics:
            raise UnsupportedError(subject=f"the job {job!r}", feature="BLEU options")
        references = [sample.expected for sample in validation.samples]
        case: Literal["lower", "mixed"] = "lower" if lowercase else "mixed"
        scores = {
            "bleu": bleu(outputs, references, tokenize=tokenize, case=case),
            "chrf": chrf(outputs, references, case=case),
        }
        if scores["bleu"].note:
            message(scores["bleu"].note)
        metrics |= {name: result.score for name, result in scores.items()}
        signatures = {name: result.signature for name, result in scores.items()}
    if out is not None:
        if not outputs:
            raise UnsupportedError(subject=f"the job {job!r}", feature="writing outputs (--out)")
        write_file(out, "".join(" ".join(output.split()) + "\n" for output in outputs).encode())
        message(f"wrote {quantity(len(outputs), 'line')} to {out}")
    tables = {
        name: [{key: _number_or_none(value) for key, value in row.items()} for row in rows]
        for name, rows in validation.tables.items()
    }
    if as_json:
        document = {"model": model, "job": job, "data": list(data), "metrics": metrics}
        print_json(document | {"signatures": signatures, **tables})
        return
    screen = console()
    screen.print(f"[bold]{model}[/]  {job}", soft_wrap=True)
    width = max(map(len, metrics))
    for name, value in metrics.items():
        line = f"  {name:<{width}}  {value:>10.4f}  {signatures.get(name, '')}"
        screen.print(line.rstrip(), soft_wrap=True)
    if "classes" in tables:
        screen.print(_class_table(tables["classes"]))


def _add_language(
    folder: Path,
    data: Sequence[str],
    to: str,
    columns: Sequence[str],
    settings: Sequence[str],
    temporary: Path,
    *,
    encoding: str,
) -> tuple[list[str], list[str], list[str]]:
    """Add a column for the target language to the pairs; return the new files, columns and settings."""
    from glassformer.api import load
    from glassformer.data.readers import LANGUAGE_COLUMN, parse_columns
    from glassformer.data.row_errors import RowErrors
    from glassformer.data.sources import PAIR_FIELDS, write_pairs_with_language
    from glassformer.training.evaluation import remembered_columns

    for setting in settings:
        name = setting.partition("=")[0].strip()
        if name in ("data.language_column", "data.columns"):
            raise ConflictError(names=("to", name), reason="use --to with --columns, or the settings alone")
    language, errors = resolve_language(load(folder), to), RowErrors()
    table = temporary / "pairs.jsonl"
    chosen = parse_columns(columns) or remembered_columns(folder, None, data, encoding=encoding, log=message)
    write_pairs_with_language(data, language, table, columns=chosen or None, encoding=encoding, errors=errors)
    if errors.count:
        message(errors.summary())
    return [str(table)], list(PAIR_FIELDS), [*settings, f"data.language_column={LANGUAGE_COLUMN}"]


def _number_or_none(value: Any) -> Any:
    """Return None for NaN: the metric of a class that the data does not have."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _class_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return a table of the classes that have metrics."""
    from rich.table import Table

    known = [row for row in rows if None not in row.values()]
    title = "classes" if len(known) == len(rows) else f"classes ({len(known)} of {len(rows)})"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in rows[0]:
        table.add_column(column, justify="left" if isinstance(rows[0][column], str) else "right")
    for row in known:
        table.add_row(*(f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row.values()))
    return table
