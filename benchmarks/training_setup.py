"""Set up Glassformer's training loop for the benchmarks, to run it step by step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import reference_models
from glassformer.data.store import Store, write_store
from glassformer.training.data_loader import Prefetcher
from glassformer.training.distributed import SingleProcess
from glassformer.training.hardware import configure_torch
from glassformer.training.job import Job
from glassformer.training.logging.run_log import RunLog
from glassformer.training.recipe import Recipe, parse_recipe
from glassformer.training.run import prepare_job
from glassformer.training.signals import StopSignals
from glassformer.training.trainer import Trainer

UNLIMITED = 1_000_000  # steps; the benchmarks stop earlier


def translation_recipe(data: Path, *, batch: int, device: torch.device, **options: Any) -> Recipe:
    """Return a recipe for Multi30k, English to German, at base size with 8000 tokens; else defaults."""
    files = {
        "train": [str(data / "train.en.gz"), str(data / "train.de.gz")],
        "valid": [str(data / "val.en.gz"), str(data / "val.de.gz")],
    }
    never = dict.fromkeys(("max_steps", "eval_steps", "save_steps"), UNLIMITED)
    training = {"batch_tokens": batch, "device": str(device), **never, **options}
    return parse_recipe(
        {
            "job": "translate",
            "data": files,
            "tokenizer": {"kind": "bpe", "vocab_size": 8000},
            "model": {"preset": "original", **reference_models.BASE, "dropout": 0.1},
            "training": training,
        }
    )


def prepare(recipe: Recipe, folder: Path) -> Any:
    """Prepare the job: train the tokenizer, encode the data and fill in all settings."""
    return prepare_job(recipe, folder, torch.device(recipe.training.device), lambda message: None)


def language_model_trainer(
    folder: Path, *, tokens: int, vocab: int, length: int, rows: int, device: torch.device
) -> Trainer:
    """Return a trainer of GPT-2 124M without dropout on one document of random ids."""
    from glassformer import api
    from glassformer.data.examples import PackedBlocks
    from glassformer.training.learner import TextLearner, count_labels
    from glassformer.training.recipe import TrainingOptions
    from glassformer.training.task import TrainingPlan, ValidationResult

    ids = np.random.default_rng(0).integers(0, vocab, tokens)
    store = write_store(folder / "data", ["text"], [[ids]], max_id=vocab - 1)
    no_dropout = {"dropout": 0.0, "attention_dropout": 0.0, "embed_dropout": 0.0}
    task = TrainingPlan(
        learner=TextLearner(api.build("gpt2", vocab_size=vocab, **no_dropout)),
        train=PackedBlocks(store, length=length, seed=0),
        unit="tokens",
        count=count_labels,
        metric="loss",
        validate=lambda device: ValidationResult(metrics={}),
        save=lambda path: None,
    )
    never = dict.fromkeys(("max_steps", "eval_steps", "save_steps"), UNLIMITED)
    options = TrainingOptions(
        batch_tokens=rows * length, lr=1e-4, lr_scheduler="constant", device=str(device), **never
    )
    return make_trainer(task, options, folder, device)


def make_trainer(task: Any, options: Any, folder: Path, device: torch.device, seed: int = 1) -> Trainer:
    """Return the trainer of a task, with its log in the folder."""
    configure_torch(options, device)
    log = RunLog(folder, total_steps=UNLIMITED, unit=task.unit, every=options.logging_steps or 50)
    task.learner.to(device)
    trainer = Trainer.of_plan(task, options, seed=seed, folder=folder)
    return trainer.start(parallel=SingleProcess(device=device), log=log, signals=StopSignals())


def trainer_of_job(job: Job[Any], device: torch.device) -> Trainer:
    torch.manual_seed(job.recipe.seed)
    return make_trainer(job.plan(), job.recipe.training, job.folder, device, job.recipe.seed)


@contextmanager
def prefetching(trainer: Trainer) -> Iterator[Prefetcher]:
    """Prefetch the data of a trainer, as `Trainer.run_steps` does."""
    trainer.learner.train()
    with Prefetcher(trainer.loader, trainer.state.position) as prefetcher:
        yield prefetcher


def sentences(store: Store) -> tuple[list[list[int]], list[list[int]]]:
    """Return the token ids of all sources and all targets, for the other libraries."""
    (sources, targets), lengths = store.gather(np.arange(len(store)))
    ends = lengths.cumsum(0)[:-1]  # (rows - 1, 2): end of each row but the last
    return (
        [ids.tolist() for ids in np.split(sources, ends[:, 0])],
        [ids.tolist() for ids in np.split(targets, ends[:, 1])],
    )


def private_memory() -> int:
    """Return the private memory of this process in bytes, without mapped files."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))


def repeat_store(job: Any, times: int, folder: Path) -> Path:
    """Write a store with the training pairs of the job, repeated."""
    pairs = list(zip(*sentences(job.corpus.train), strict=True))
    repetitions = (pair for _ in range(times) for pair in pairs)
    return write_store(folder, job.corpus.train.fields, repetitions, max_id=job.corpus.max_id).folder


def measure_memory(recipe: Recipe, run: Path, store: Path, steps: int) -> dict[str, float]:
    """Train a tiny model from a store; return its pairs, bytes, peak memory and fraction of time waiting."""
    torch.set_num_threads(1)
    cpu, small = torch.device("cpu"), {"d_model": 32, "num_heads": 2, "d_ff": 64, "num_layers": 1}
    job = prepare(recipe, run)
    job.recipe = replace(
        job.recipe, model=replace(job.recipe.model, overrides={**job.recipe.model.overrides, **small})
    )
    job.corpus = replace(job.corpus, train=Store(store))
    trainer = trainer_of_job(job, cpu)
    peak, start = 0, time.perf_counter()
    with prefetching(trainer) as prefetcher:
        for _ in range(steps):
            trainer.run_step(prefetcher)
            peak = max(peak, private_memory())
    waited = trainer.data_seconds / (time.perf_counter() - start)
    size = sum(file.stat().st_size for file in store.iterdir())
    return {"rows": len(job.corpus.train), "bytes": size, "private": peak, "waited": waited}
