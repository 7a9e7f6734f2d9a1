"""How good a saved model is on files it has not seen: a job's own validation, over all of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from glassformer.core.schema import nearest
from glassformer.data.tables import numbered
from glassformer.errors import GlassformerError
from glassformer.families.sidecars import JOB_FILE, read_object
from glassformer.pretrained.run_folder import result_of
from glassformer.training.hardware import device_for
from glassformer.training.jobs import job_for
from glassformer.training.recipe import JOBS, changed, recipe_from
from glassformer.training.task import Validation
from glassformer.training.text_encoding import Say, quiet

COLUMNS = {"translate": "columns", "classify": "columns", "lm": "column", "restore": "column"}


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What a model's job is, and how it did."""

    job: str
    found: Validation


def judge(
    folder: str | Path,
    files: Sequence[str],
    *,
    job: str | None = None,
    columns: Sequence[str] = (),
    changes: Sequence[str] = (),
    batch: int | None = None,
    device: str = "auto",
    say: Say,
) -> Judged:
    """Run a job's validation on all that the files hold.

    job: what the model does; its folder says so where it was trained here.
    columns: names or numbers of the columns, in tables. changes: of the data's settings, as `data.unit=line`.
    """
    folder = result_of(folder)
    name = job or job_of(folder)
    if name not in JOBS:
        raise GlassformerError(f"there is no job '{name}'{nearest(name, JOBS)}")
    where = device_for(device)
    asked: dict[str, Any] = {
        "job": name,
        "data": {side: list(files) for side in ("train", "valid") if side in JOBS[name].__dataclass_fields__},
        "model": {"folder": str(folder)},
        "training": {"batch": batch, "max_valid": sys.maxsize, "samples": 0, "device": device},
    }
    if columns:
        if name not in COLUMNS:
            raise GlassformerError(f"--columns is for tables of text; {name} has data.target, or no columns")
        one = COLUMNS[name] == "column"
        if one and len(columns) != 1:
            raise GlassformerError(f"{len(columns)} columns were named; {name} reads one")
        meant = numbered(columns)
        asked["data"][COLUMNS[name]] = meant[0] if one else meant
    for change in changes:
        if not change.startswith("data."):
            raise GlassformerError(f"'{change}' is no setting of the data, such as data.unit=line")
    recipe = recipe_from(changed(asked, changes), "evaluate")
    with TemporaryDirectory(prefix="glassformer-") as place:
        made = job_for(recipe, Path(place), quiet)
        made.follow_model()
        made.gather()
        for what, told in made.facts.items():
            if what.endswith(("left out", "over max_len")):
                say(f"{what}: {told}")
        task = made.task()
        task.learner.to(where).eval()
        with torch.no_grad():
            found = task.validate(where)
        if any(isnan(value) for value in found.metrics.values()):
            raise GlassformerError(
                f"the model in '{folder}' answers with what is no number (nan): its weights are damaged, it "
                "overflowed, or the files hold nothing to measure; fetch it anew, or give other files"
            )
        return Judged(job=name, found=found)


def job_of(folder: str | Path) -> str:
    """The job that a model folder was trained for."""
    path = Path(folder)
    if not path.is_dir():
        raise GlassformerError(f"there is no folder '{folder}'; give a model folder, as runs/x/model")
    if not (path / JOB_FILE).is_file():
        raise GlassformerError(f"'{folder}' does not say what its model does; name its job with --job")
    found = read_object(path / JOB_FILE).get("job")
    if not isinstance(found, str):
        raise GlassformerError(f"'{path / JOB_FILE}' names no job; name it with --job")
    return found
