"""MNIST and a part of CIFAR-10, classified by a Vision Transformer from scratch.

Runs of MNIST are seeds. Those of CIFAR-10 are "vit/1" and "convolution/1": the same 7,600 images,
augmentation and epochs, for a ViT and a small ResNet. The images are the first 8,000 of the training set
and the first 2,000 of the test set, so the accuracy cannot be compared with published results.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from experiments import convolution
from experiments.paths import Workspace, glassformer
from experiments.records import note
from experiments.training_runs import Trained, train
from glassformer.weights.atomic_write import atomic_write

Arrays = tuple[NDArray[np.uint8], NDArray[np.uint8]]
PHOTOGRAPHS, DIGITS = 400, 5000  # held out of the training set; the rest fills complete batches
LEAN = ("training.max_generate_samples=16", "training.log_samples=0", "training.save_steps=100000")


def run(workspace: Workspace, name: str) -> None:
    """One run on CIFAR-10."""
    kind, seed = name.split("/")
    folder = workspace.prepared("cifar")
    if not (folder / "valid.npz").exists():
        source = workspace.data / "cifar10-10k"
        split(photographs(source / "train_8000.bin.gz"), PHOTOGRAPHS, folder)
    if kind == "convolution":
        trained, accuracy = convolution.run(
            workspace.run("cifar", name),
            folder,
            photographs(workspace.data / "cifar10-10k" / "test_2000.bin.gz"),
            seed=int(seed),
            device=workspace.device,
        )
    else:
        trained = learn(workspace, "cifar", name, "images-cifar", folder, int(seed), ())
        accuracy = accuracy_of(trained.model, workspace.data / "cifar10-10k" / "test_2000.bin.gz", workspace)
    note(workspace, "cifar", name, seed=int(seed), trained=trained, figures={"accuracy": accuracy})


def learn(
    workspace: Workspace, row: str, name: str, recipe: str, folder: Path, seed: int, more: tuple[str, ...]
) -> Trained:
    """Train a recipe on the prepared images, on a GPU with CUDA graphs."""
    changes = (f"data.train=[{folder / 'train.npz'}]", f"data.valid=[{folder / 'valid.npz'}]", *LEAN, *more)
    if workspace.device != "cpu" and torch.cuda.is_available():
        changes += ("training.compile=reduce-overhead",)
    return train(workspace, row, name, recipe, seed=seed, of="accuracy", changes=changes)


def accuracy_of(model: Path, pictures: Path, workspace: Workspace) -> float:
    """Test accuracy in percent."""
    command = ("evaluate", model, pictures, "--device", workspace.device, "--batch-size", "1000", "--json")
    return 100 * float(json.loads(glassformer(*command))["metrics"]["accuracy"])


def photographs(path: Path) -> Arrays:
    """Images (N, 32, 32, 3) and labels (N,) from CIFAR's binary files."""
    with gzip.open(path) as file:
        records = np.frombuffer(file.read(), np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    return records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, 0]


def digits(folder: Path, part: str) -> Arrays:
    """Images (N, 28, 28) and labels (N,) from MNIST's files."""
    arrays = []
    for kind, head in (("images-idx3", 16), ("labels-idx1", 8)):
        with gzip.open(folder / f"{part}-{kind}-ubyte.gz") as file:
            arrays.append(np.frombuffer(file.read(), np.uint8, offset=head))
    return arrays[0].reshape(-1, 28, 28), arrays[1]


def digits_folder(workspace: Workspace) -> Path:
    """The training and validation digits."""
    folder = workspace.prepared("mnist")
    if not (folder / "valid.npz").exists():
        split(digits(workspace.data / "mnist", "train"), DIGITS, folder)
    return folder


def split(arrays: Arrays, held: int, folder: Path) -> None:
    """Write the last images as a validation set; a concurrent run may do the same."""
    for name, part in (("train", slice(None, -held)), ("valid", slice(-held, None))):
        with atomic_write(folder / f"{name}.npz") as file:
            np.savez(file, images=arrays[0][part], labels=arrays[1][part].astype(np.int64))
