"""Digits (MNIST) and small photographs (part of CIFAR-10), told apart by a Vision Transformer from scratch.

Runs of MNIST are seeds. Those of the photographs are "vit/1" and "convolution/1": the same 7,600, the
same changes to them, seen as often, by a Transformer and by a small residual network. The photographs are the
first 8,000 of the training set and the first 2,000 of the test set, so no published figure is comparable.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from experiments import convolution
from experiments.paths import Place, glassformer
from experiments.records import note
from experiments.training_runs import Trained, train
from glassformer.weights.atomic_write import atomic_write

Arrays = tuple[NDArray[np.uint8], NDArray[np.uint8]]
PHOTOGRAPHS, DIGITS = 400, 5000  # held out of the training set, whole batches being left
LEAN = ("training.max_generate_samples=16", "training.log_samples=0", "training.save_steps=100000")


def run(place: Place, name: str) -> None:
    """One run of the photographs."""
    kind, seed = name.split("/")
    folder = place.prepared("cifar")
    if not (folder / "valid.npz").exists():
        source = place.data / "cifar10-10k"
        split(photographs(source / "train_8000.bin.gz"), PHOTOGRAPHS, folder)
    if kind == "convolution":
        trained, accuracy = convolution.run(
            place.run("cifar", name),
            folder,
            photographs(place.data / "cifar10-10k" / "test_2000.bin.gz"),
            seed=int(seed),
            device=place.device,
        )
    else:
        trained = learn(place, "cifar", name, "images-cifar", folder, int(seed), ())
        accuracy = accuracy_of(trained.model, place.data / "cifar10-10k" / "test_2000.bin.gz", place)
    note(place, "cifar", name, seed=int(seed), trained=trained, figures={"accuracy": accuracy})


def learn(
    place: Place, row: str, name: str, recipe: str, folder: Path, seed: int, more: tuple[str, ...]
) -> Trained:
    """Train a recipe on the prepared pictures; on a GPU a step's launches are recorded once."""
    changes = (f"data.train=[{folder / 'train.npz'}]", f"data.valid=[{folder / 'valid.npz'}]", *LEAN, *more)
    if place.device != "cpu" and torch.cuda.is_available():
        changes += ("training.compile=reduce-overhead",)
    return train(place, row, name, recipe, seed=seed, of="accuracy", changes=changes)


def accuracy_of(model: Path, pictures: Path, place: Place) -> float:
    """The share of the test pictures that are told right, in percent."""
    command = ("evaluate", model, pictures, "--device", place.device, "--batch-size", "1000", "--json")
    return 100 * float(json.loads(glassformer(*command))["metrics"]["accuracy"])


def photographs(path: Path) -> Arrays:
    """Pictures (N, 32, 32, 3) and labels (N,) of CIFAR's binary layout."""
    with gzip.open(path) as file:
        records = np.frombuffer(file.read(), np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    return records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, 0]


def digits(folder: Path, part: str) -> Arrays:
    """Pictures (N, 28, 28) and labels (N,) of MNIST's files."""
    arrays = []
    for kind, head in (("images-idx3", 16), ("labels-idx1", 8)):
        with gzip.open(folder / f"{part}-{kind}-ubyte.gz") as file:
            arrays.append(np.frombuffer(file.read(), np.uint8, offset=head))
    return arrays[0].reshape(-1, 28, 28), arrays[1]


def digits_folder(place: Place) -> Path:
    """The digits to learn from and to validate with."""
    folder = place.prepared("mnist")
    if not (folder / "valid.npz").exists():
        split(digits(place.data / "mnist", "train"), DIGITS, folder)
    return folder


def split(arrays: Arrays, held: int, folder: Path) -> None:
    """Write the last pictures apart from the rest; another run may be doing the same."""
    for name, part in (("train", slice(None, -held)), ("valid", slice(-held, None))):
        with atomic_write(folder / f"{name}.npz") as file:
            np.savez(file, images=arrays[0][part], labels=arrays[1][part].astype(np.int64))
