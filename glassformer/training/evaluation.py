"""Evaluate a saved model on files: run the validation of its job on all rows."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from glassformer.bundle import load
from glassformer.data.readers import (
    LANGUAGE_COLUMN,
    UTF8,
    Column,
    JsonlReader,
    TsvReader,
    file_format,
    looks_like_header,
    open_table,
    parse_columns,
)
from glassformer.errors import (
    FileMissingError,
    InvalidValueError,
    MissingValueError,
    NonFiniteError,
    UnknownNameError,
)
from glassformer.families.sidecars import JOB_FILE, read_job
from glassformer.json_text import read_object
from glassformer.pretrained import model_folder
from glassformer.schema import field_types
from glassformer.training.data_cache import Log, no_log
from glassformer.training.hardware import device_for
from glassformer.training.job import create_job
from glassformer.training.jobs import current_name, find_job
from glassformer.training.recipe import BatchLimits, parse_recipe, with_overrides
from glassformer.training.task import ValidationResult


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The job of a model, and the result of its validation."""

    job: str
    validation: ValidationResult


def evaluate_files(
    folder: str | Path,
    files: Sequence[str],
    *,
    job: str | None = None,
    columns: Sequence[str] = (),
    overrides: Sequence[str] = (),
    batch: BatchLimits | None = None,
    encoding: str = UTF8,
    device: str = "auto",
    log: Log,
) -> Evaluation:
    """Run a job's validation on all rows of the files.

    folder: the model folder. job: by default the job that the model was trained for.
    columns: names or numbers of the columns in tables; by default those that the model was trained with.
    overrides: changes to the data section of the recipe, e.g. `data.sample_by=line`.
    batch: maximum size of a batch. encoding: of text files.
    """
    folder = model_folder(folder)
    name, renamed = current_name(job or job_of_model(folder), warn=job is not None)
    spec, base = find_job(name), load(folder, dtype="float32")
    if spec.variants:
        spec = spec.variant(renamed or {"input": base.spec.modalities[0]})
    recipe: dict[str, Any] = {
        "job": name,
        "model": {"folder": str(folder)},
        "training": {
            **(batch or BatchLimits())._asdict(),
            "max_generate_samples": sys.maxsize,
            "log_samples": 0,
            "device": device,
        },
    }
    known = field_types(spec.data)
    recipe["data"] = {split: list(files) for split in ("train", "valid") if split in known}
    if spec.input:
        recipe["data"]["input"] = spec.input
    if encoding != UTF8:
        recipe["data"]["encoding"] = encoding
    overridden = {override.partition("=")[0].strip() for override in overrides}
    if not columns and not overridden & {"data.columns", "data.text_column"}:
        remembered = remembered_columns(folder, name, files, encoding=encoding, log=log)
        columns = [str(column) for column in remembered]
    if columns and "columns" in known:
        recipe["data"]["columns"] = parse_columns(columns)
    elif columns and "text_column" in known and len(columns) == 1:
        recipe["data"]["text_column"] = parse_columns(columns)[0]
    elif columns:
        expected = "one column" if "text_column" in known else f"no columns for {name}"
        raise InvalidValueError("columns", list(columns), expected)
    for override in overrides:
        if not override.startswith("data."):
            raise InvalidValueError("override", override, "a data setting, e.g. data.sample_by=line")
    parsed = parse_recipe(with_overrides(recipe, overrides))
    if parsed.batch_warning:
        log(parsed.batch_warning)
    where = device_for(device)
    with TemporaryDirectory(prefix="glassformer-") as temporary:
        created = create_job(parsed, Path(temporary), no_log)
        created.base = base
        created.adopt_base_settings()
        created.prepare_data()
        for fact, value in created.facts.items():
            if fact.endswith("over max_len"):
                log(f"{fact}: {value}")
            elif fact == "skipped":
                log(value)
        plan = created.plan()
        assert plan.validate is not None
        plan.learner.to(where).eval()
        with torch.no_grad():
            validation = plan.validate(where)
        for fact in ("evaluated split", "unknown classes"):  # counted while the images are read
            if fact in created.facts:
                log(f"{fact}: {created.facts[fact]}")
    if any(math.isnan(value) for value in validation.metrics.values()):
        raise NonFiniteError(f"the evaluation of '{folder}'", "check the weights and the data")
    return Evaluation(job=name, validation=validation)


def remembered_columns(
    folder: Path, job: str | None, files: Sequence[str], *, encoding: str = UTF8, log: Log = no_log
) -> list[Column]:
    """Return the columns that a model was trained with; empty if it has none, or if the files have none.

    folder: the model folder. job: the job to evaluate (default: the model's). encoding: of text files.
    Raises if a table lacks one of the columns. A TSV file of the same width without a header has no names.
    """
    info = read_job(folder / JOB_FILE, None)
    trained = info.name and current_name(info.name, warn=False)[0]
    if not trained or job not in (None, trained) or not info.data_columns:
        return []
    reads_pairs = find_job(trained).factory.text_pairs and len(files) != 2  # two plain files are aligned
    tables = [file for file in files if file_format(file) != "plain" or reads_pairs]
    if not tables:
        return []
    columns = [column for field, column in info.data_columns.items() if field != LANGUAGE_COLUMN]
    for file in tables:
        table = open_table(file, encoding=encoding)
        header = table.head().header()
        by_name = any(isinstance(column, str) for column in columns)
        same_width = isinstance(table, TsvReader) and len(header) == len(columns)
        has_header = looks_like_header(header) or set(columns) <= set(header)
        if by_name and same_width and not has_header:
            order = ", ".join(f"column {number} as '{name}'" for number, name in enumerate(columns, 1))
            log(f"{file} has no header: {order}")
            return []
        for column in columns:
            known = column in header
            if isinstance(column, int):
                known = column <= len(header) and not isinstance(table, JsonlReader)
            if not known:
                listed = ", ".join(f"'{name}'" if isinstance(name, str) else str(name) for name in columns)
                hint = f"the model was trained with {listed}; name the columns of this file"
                raise UnknownNameError("column", str(column), header, hint, where=str(file))
    return columns


def job_of_model(folder: Path) -> str:
    """Return the job that a model folder was trained for."""
    if not folder.is_dir():
        raise FileMissingError(folder, "model folder", "give a model folder, e.g. runs/x/model")
    job = read_object(folder / JOB_FILE, missing_ok=True).get("job")
    if not isinstance(job, str):
        raise MissingValueError("job", f"since '{folder}' does not say what its model does")
    return job
