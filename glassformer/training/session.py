"""Open a run folder for training: process group, lock and stop signals; and compare a run's settings."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glassformer.errors import ConflictError, GlassformerError
from glassformer.pretrained import BEST, LOCK, MODEL, RECIPE, REQUEST, check_run_folder
from glassformer.training.checkpoint import recover_folder
from glassformer.training.data_cache import NOTE
from glassformer.training.distributed import Parallel, parallel_from_environment
from glassformer.training.hardware import device_for
from glassformer.training.lock import HOLDER, RunLock
from glassformer.training.logging.history import METRICS_FILE, read_history
from glassformer.training.recipe import TrainingOptions
from glassformer.training.signals import StopSignals

# Training settings that may change when a run is resumed.
RESUMABLE = frozenset(
    """
    max_steps epochs time_limit early_stopping_patience eval_steps save_steps logging_steps save_total_limit
    snapshots log_samples device compile parallel gradient_checkpointing max_skipped_steps report_to
    """.split()
)

# What a run writes before its first step.
STARTED = (REQUEST, RECIPE, LOCK, HOLDER, NOTE, METRICS_FILE, "train.log", "tensorboard", "data", "tokenizer")

# Defaults of version 0.2.0 of settings that are now chosen for each run: its runs resume without naming them.
FORMER_DEFAULTS: dict[str, tuple[object, ...]] = {
    "data.max_len": (128, 64),
    "data.horizon": (96,),
    "training.max_grad_norm": (1.0,),
    "training.ema": (0.0,),
}


@dataclass(frozen=True, kw_only=True)
class Session:
    """The process group and the stop signals of a training process. started: when, for the time limit."""

    parallel: Parallel
    signals: StopSignals
    started: float = field(default_factory=time.monotonic)


@contextmanager
def open_session(folder: Path, options: TrainingOptions) -> Iterator[Session]:
    """Join the process group, lock the run folder and handle stop signals; every rank calls it."""
    parallel = parallel_from_environment(options.parallel, device_for(options.device))
    try:
        if parallel.main:
            check_run_folder(folder)
        with _locked(folder) if parallel.main else nullcontext(), StopSignals(main=parallel.main) as signals:
            if parallel.main:
                for name in (BEST, MODEL, "tokenizer"):
                    recover_folder(folder / name)
            yield Session(parallel=parallel, signals=signals)
        parallel.barrier()
    finally:
        parallel.close()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a run folder; remove it if it is new and the run is rejected before its first step.

    Only what a start writes is removed, and folders that are empty then.
    """
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        with RunLock(folder):
            yield
    except GlassformerError:
        if folder in new and not (folder / "checkpoints").exists() and not _has_steps(folder):
            with suppress(OSError):  # e.g. a file system that has become read-only
                for name in STARTED:
                    if (folder / name).is_dir():
                        shutil.rmtree(folder / name, ignore_errors=True)
                    else:
                        (folder / name).unlink(missing_ok=True)
                for path in new:
                    path.rmdir()
        raise


def _has_steps(folder: Path) -> bool:
    return (folder / METRICS_FILE).is_file() and bool(read_history(folder).steps)


def has_results(folder: Path) -> bool:
    """Whether a run has saved anything; before that, all of its settings may still change."""
    return any((folder / name).exists() for name in ("checkpoints", MODEL))


def check_unchanged(folder: Path, now: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Raise an error if a setting changed that must not change when a run is resumed."""
    differs = first_difference(now, before)
    if differs:
        setting, new, old = differs
        raise ConflictError(
            (setting, str(folder)),
            f"the folder contains a run that was started with {_describe(old)}, not {_describe(new)}",
            "use another folder, or delete this one to start from scratch",
        )


def first_difference(now: Mapping[str, Any], before: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """Return name, new value and old value of the first changed setting that must not change, or None."""
    new, old = _flat(now), _flat(before)
    for name in {**new, **old}:
        now_set, old_set = new.get(name), old.get(name)
        if name.removeprefix("training.") in RESUMABLE or now_set == old_set:
            continue
        if now_set is not None or old_set not in FORMER_DEFAULTS.get(name, ()):
            return name, now_set, old_set
    return None


def _describe(value: Any) -> str:
    return "the default" if value is None else f"{value!r:.60}"


def _flat(content: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten settings to `section.name` keys."""
    sections = {name: value for name, value in content.items() if isinstance(value, Mapping)}
    inner = {f"{section}.{key}": item for section, value in sections.items() for key, item in value.items()}
    return {name: value for name, value in content.items() if name not in sections} | inner
