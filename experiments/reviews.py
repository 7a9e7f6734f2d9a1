"""Korean film reviews, good or bad, by an encoder that has read nothing but the 150,000 to learn from.

A run is a way and a seed: "recipe/1" is as it stands, the others are with one thing changed, and "ngrams" is
no Transformer but the linear model over pieces of words that any of them should beat. The split is not the
published one. Some short reviews of the test set stand in the training set too, as they would among any
viewers' words, so the accuracy on those that do not is noted beside that on all.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from experiments import ngrams
from experiments.paths import Place, glassformer
from experiments.records import RunRecord, hardware, keep, note
from experiments.training_runs import Trained, train
from glassformer.weights.atomic_write import atomic_write

ROW, RECIPE = "nsmc", "classify-nsmc"
LEAN = ("training.max_generate_samples=16", "training.log_samples=0", "training.save_steps=100000")
WAYS: dict[str, tuple[str, ...]] = {
    "recipe": (),
    "plain": (
        *(
            "data.bpe_dropout=0",
            "data.mask_prob=0",
            "data.mlm_weight=0",
            "training.r_drop=0",
            "training.label_smoothing=0",
        ),
        *("training.ema=0", "training.load_best_model_at_end=true", "model.dropout=0.1", "training.epochs=6"),
    ),
    "no-recut": ("data.bpe_dropout=0",),
    "more-recut": ("data.bpe_dropout=0.25",),
    "no-guess": ("data.mlm_weight=0",),
    "no-hide": ("data.mlm_weight=0", "data.mask_prob=0"),
    "no-twice": ("training.r_drop=0",),
    "more-guess": ("data.mlm_weight=1",),
    "unigram": ("tokenizer.kind=unigram",),
    "vocab16k": ("tokenizer.vocab_size=16000",),
    "vocab4k": ("tokenizer.vocab_size=4000",),
    "wide": ("model.d_model=384", "model.d_ff=1536", "model.num_heads=6", "training.lr=0.0005"),
    "shallow": ("model.num_layers=2",),
    "long": ("training.epochs=30",),
    "after-guessing": ("training.epochs=6", "training.lr=0.0003"),
}
# What comes before: almost nothing but guessing hidden tokens, of the same reviews.
GUESSING = ("data.mlm_weight=30", "training.r_drop=0", "training.epochs=25", "training.lr=0.001")


def run(place: Place, name: str) -> None:
    """Train one way with one seed, and measure it on the test set."""
    way, seed = name.split("/")
    data = place.data / "nsmc"
    if way == "ngrams":
        _linear(place, name, data)
        return
    (data / "train.tsv.gz").stat()  # what is not there is told before a run begins, not by the run
    trained = learned(place, name, int(seed), way, (f"data.train=[{data / 'train.tsv.gz'}]", *LEAN))
    tests = {"accuracy": data / "test.tsv.gz", "accuracy of unseen": unseen(data, place.prepared(ROW))}
    figures: dict[str, float] = {}
    for figure, path in tests.items():
        command = ("evaluate", trained.model, path, "--columns", "document,label", "--device", place.device)
        metrics = json.loads(glassformer(*command, "--batch-size", "65536", "--json"))["metrics"]
        figures[figure] = 100 * metrics["accuracy"]
    note(place, ROW, name, seed=int(seed), trained=trained, figures=figures)


def learned(place: Place, name: str, seed: int, way: str, changes: Sequence[str]) -> Trained:
    """The run of a way; where it comes after another, with the seconds of both."""

    def go(name: str, *more: str) -> Trained:
        return train(place, ROW, name, RECIPE, seed=seed, of="accuracy", changes=(*changes, *more))

    if way != "after-guessing":
        return go(name, *WAYS[way])
    first = go(f"guessing/{seed}", *GUESSING)
    then = go(name, *WAYS[way], f"model.folder={first.model}")
    return replace(then, seconds=first.seconds + then.seconds)


def rows_of(path: Path) -> list[str]:
    """The lines of a table, its header first: id, review, label."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def unseen(data: Path, folder: Path) -> Path:
    """The test reviews whose words are no training review's, as a file."""
    path = folder / "unseen.tsv"
    if not path.exists():
        known = {row.split("\t")[1] for row in rows_of(data / "train.tsv.gz")[1:]}
        header, *rows = rows_of(data / "test.tsv.gz")
        unique_rows = [row for row in rows if row.split("\t")[1] not in known]
        with atomic_write(path) as file:  # another run may be making the same file
            file.writelines(f"{row}\n".encode() for row in (header, *unique_rows))
    return path


def _linear(place: Place, name: str, data: Path) -> None:
    """The linear model over pieces of words."""
    began = time.monotonic()
    learned = ngrams.learn(*_texts(rows_of(data / "train.tsv.gz")))
    seconds = time.monotonic() - began
    tests: Mapping[str, list[str]] = {
        "accuracy": rows_of(data / "test.tsv.gz"),
        "accuracy of unseen": unseen(data, place.prepared(ROW)).read_text(encoding="utf-8").splitlines(),
    }
    figures = {figure: 100 * learned.accuracy(*_texts(rows)) for figure, rows in tests.items()}
    keep(
        place,
        RunRecord(
            row=ROW,
            name=name,
            seed=1,
            parameters=learned.parameters,
            seconds=round(seconds, 1),
            figures={figure: round(value, 4) for figure, value in figures.items()},
            hardware=hardware("cpu"),
        ),
    )


def _texts(rows: list[str]) -> tuple[list[str], list[int]]:
    """Reviews and labels of a table."""
    cells = [row.split("\t") for row in rows[1:]]
    return [cell[1] for cell in cells], [int(cell[2]) for cell in cells]
