"""Time-series classification on 16 sets of the UCR and UEA archives, with the published split, three seeds.

python -m experiments.ucr --out ucr.json                  # all sets and seeds on one device
python -m experiments.ucr --holdout --out tried.json --set training.lr=0.003    # to compare settings
python experiments/ucr_baselines.py --out baselines.json --ours ucr.json        # 1-NN DTW and ROCKET (aeon)

Compare settings with --holdout, which holds out a third of each training part and never reads the test part.
A measured model is trained on the whole training part and has the weights of the last step.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.paths import Workspace, data_folder
from experiments.rows import UCR_SETS as SETS
from glassformer.errors import GlassformerError

ROW = "ucr"
FOLDER = "ucr-uea"
SEEDS = (1, 2, 3)
RECIPE = "classify-series-ucr"
HOLDOUT = 1 / 3


def run(workspace: Workspace, name: str) -> None:
    """A run is a set and a seed, e.g. "GunPoint/1"."""
    from experiments.records import note
    from experiments.training_runs import read

    which, seed = name.split("/")
    result = train_and_test(
        which, int(seed), workspace.data, workspace.run(ROW, name), workspace.device, workspace.changes
    )
    trained = read(workspace.run(ROW, name), "accuracy")
    note(workspace, ROW, name, seed=int(seed), trained=trained, figures={"accuracy": result["accuracy"]})


def write_ts(path: Path, values: NDArray[np.float32], labels: NDArray[np.int16]) -> None:
    """Write series (N, C, T) and class numbers as .ts; missing values at the end are padding."""
    classes = " ".join(map(str, range(int(labels.max()) + 1)))
    lines = [f"@problemName {path.stem}", f"@classLabel true {classes}", "@data"]
    for series, label in zip(values, labels, strict=True):
        length = int(np.flatnonzero(~np.isnan(series).all(0))[-1]) + 1
        channels = (",".join(f"{value:.9g}" for value in channel[:length]) for channel in series)
        lines.append(":".join((*channels, str(label))).replace("nan", "?"))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def train_and_test(
    which: str,
    seed: int,
    data: Path,
    folder: Path,
    device: str,
    changes: Sequence[str] = (),
    holdout: bool = False,
) -> dict[str, Any]:
    """Train on one set, and return the accuracy and the probabilities on its test part, or on the holdout."""
    import torch

    from glassformer import api
    from glassformer.data.labeled_series import read_labeled_series, split_by_label
    from glassformer.recipes import recipe_path
    from glassformer.tasks.series_classification import SeriesClassifier
    from glassformer.training.data_cache import no_log
    from glassformer.training.hardware import device_for
    from glassformer.training.recipe import parse_recipe, read_recipe_dict, with_overrides
    from glassformer.training.run import run as run_training

    torch.set_num_threads(1)
    began = time.monotonic()
    with np.load(data / FOLDER / f"{which}.npz", allow_pickle=False) as arrays:
        values, labels, tests, truth = (arrays[k] for k in ("X_train", "y_train", "X_test", "y_test"))
    if holdout:
        train, valid = split_by_label([*map(str, labels)], HOLDOUT, seed=seed)
        tests, truth, values, labels = values[valid], labels[valid], values[train], labels[train]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    files = {"train": folder / "train.ts", "test": folder / "test.ts"}
    write_ts(files["train"], values, labels)
    write_ts(files["test"], tests, truth)
    recipe = with_overrides(read_recipe_dict(recipe_path(RECIPE)), changes)
    steps = recipe["training"]["max_steps"]
    every = [f"training.{key}={steps}" for key in ("eval_steps", "save_steps")]
    fixed = [
        f"seed={seed}",
        f"data.train=[{files['train']}]",
        f"data.valid=[{files['train']}]",  # nothing is held out, and nothing is chosen by it
        f"training.device={device}",
        f"training.logging_steps={max(1, steps // 10)}",
        "training.log_samples=0",
        *every,
    ]
    with (
        (folder / "console.log").open("w", encoding="utf-8") as console,
        redirect_stdout(console),
        redirect_stderr(console),
    ):
        run_training(parse_recipe(with_overrides(recipe, fixed)), folder / "run", log=no_log)
    pipeline = api.load(folder / "run" / "model", device=device_for(device))
    classifier = SeriesClassifier(pipeline)
    results = list(classifier.run(read_labeled_series(files["test"]).values))
    names = sorted(set(map(int, labels.tolist())))
    by_name = [{label.label: label.score for label in result.labels} for result in results]
    scores = np.array([[one[str(n)] for n in names] for one in by_name])
    predicted = np.array(names)[scores.argmax(1)]
    return {
        "set": which,
        "seed": seed,
        "accuracy": float((predicted == truth).mean()),
        "seconds": round(time.monotonic() - began, 1),
        "probabilities": scores.round(5).tolist(),
        "classes": names,
        "truth": truth.tolist(),
    }


def summarize(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the accuracy of each seed by set, their mean, and the accuracy of all seeds together."""
    sets: dict[str, Any] = {}
    for which in sorted({result["set"] for result in results}):
        runs = sorted((one for one in results if one["set"] == which), key=lambda one: one["seed"])
        accuracies = {str(one["seed"]): one["accuracy"] for one in runs}
        sets[which] = {"accuracy": accuracies, "mean": float(np.mean([*accuracies.values()]))}
        if all(one["truth"] == runs[0]["truth"] for one in runs):  # not so with --holdout
            together = np.mean([one["probabilities"] for one in runs], 0).argmax(1)
            predicted = np.array(runs[0]["classes"])[together]
            sets[which]["ensemble"] = float((predicted == np.array(runs[0]["truth"])).mean())
    return {"sets": sets, "mean": float(np.mean([one["mean"] for one in sets.values()]))}


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.ucr", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the accuracies")
    parser.add_argument("--data", type=Path, default=data_folder(), help="the folder of data sets")
    parser.add_argument("--work", type=Path, default=Path("runs/results/ucr"), help="for run folders")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="runs at the same time")
    parser.add_argument("--sets", nargs="*", default=SETS, choices=SETS, metavar="SET")
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    parser.add_argument("--holdout", action="store_true", help="test on a third of each training part")
    parser.add_argument("--set", action="append", default=[], help="override a recipe key")
    options = parser.parse_args(args)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes, which share the cores
    began, results = time.monotonic(), list[dict[str, Any]]()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, mp_context=context) as pool:
        jobs = {
            pool.submit(
                train_and_test,
                which,
                seed,
                options.data,
                options.work / which / str(seed),
                options.device,
                tuple(options.set),
                options.holdout,
            ): f"{which}/{seed}"
            for which in SETS
            if which in options.sets
            for seed in options.seeds
        }
        for job in as_completed(jobs):
            try:
                results.append(job.result())
            except GlassformerError as error:
                pool.shutdown(cancel_futures=True)
                sys.exit(f"error: {jobs[job]}: {error}")
            print(f"{jobs[job]}: {results[-1]['accuracy']:.4f}, {results[-1]['seconds']:.0f} s", flush=True)
    summary = summarize(results)
    document = {
        "settings": list(options.set),
        "holdout": options.holdout,
        "seconds": round(time.monotonic() - began, 1),
        **summary,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"mean accuracy {summary['mean']:.4f} of {len(summary['sets'])} sets; wrote {options.out}")


if __name__ == "__main__":
    main()
