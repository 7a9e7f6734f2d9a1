"""MNIST and a part of CIFAR-10, classified by a Vision Transformer from scratch.

Runs of MNIST are seeds. Those of CIFAR-10 are "vit/1" and "convolution/1": the same 7,600 images,
augmentation and epochs, for a ViT and a small ResNet. The images are the first 8,000 of the training set
and the first 2,000 of the test set, so the accuracy cannot be compared with published results.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from experiments import convolution
from experiments.image_folders import Arrays, read_images, write_folder
from experiments.paths import Workspace, glassformer
from experiments.records import note
from experiments.training_runs import Trained, train

PHOTOGRAPHS, DIGITS = 400, 5000  # held out of the training set; the rest fills complete batches
LEAN = ("training.max_generate_samples=16", "training.log_samples=0", "training.save_steps=100000")


def run(workspace: Workspace, name: str) -> None:
    """One run on CIFAR-10."""
    kind, seed = name.split("/")
    source = workspace.data / "cifar10-10k"
    if kind == "convolution":
        trained, accuracy = convolution.run(
            workspace.run("cifar", name), split(source, PHOTOGRAPHS), seed=int(seed), device=workspace.device
        )
    else:
        folder = prepare(source, PHOTOGRAPHS, workspace, "cifar")
        trained = learn(workspace, "cifar", name, "images-cifar", folder, int(seed), ())
        accuracy = accuracy_of(trained.model, folder / "test", workspace)
    note(workspace, "cifar", name, seed=int(seed), trained=trained, figures={"accuracy": accuracy})


def learn(
    workspace: Workspace, row: str, name: str, recipe: str, folder: Path, seed: int, more: tuple[str, ...]
) -> Trained:
    """Train a recipe on the prepared images, on a GPU with CUDA graphs."""
    changes = (f"data.train=[{folder / 'train'}]", f"data.valid=[{folder / 'valid'}]", *LEAN, *more)
    if workspace.device != "cpu" and torch.cuda.is_available():
        changes += ("training.compile=reduce-overhead",)
    return train(workspace, row, name, recipe, seed=seed, of="accuracy", changes=changes)


def accuracy_of(model: Path, pictures: Path, workspace: Workspace) -> float:
    """Test accuracy in percent."""
    command = ("evaluate", model, pictures, "--device", workspace.device, "--batch-size", "1000", "--json")
    return 100 * float(json.loads(glassformer(*command))["metrics"]["accuracy"])


def split(source: Path, held: int) -> dict[str, Arrays]:
    """Training, validation and test images; the last `held` of the training set are for validation."""
    source.stat()  # a missing folder is reported as such
    parts = read_images(source)
    images, labels = parts["train"]
    return {
        "train": (images[:-held], labels[:-held]),
        "valid": (images[-held:], labels[-held:]),
        "test": parts["test"],
    }


def prepare(source: Path, held: int, workspace: Workspace, row: str) -> Path:
    """Write the images of `split` to folders of a row."""
    parts = split(source, held)
    folder = workspace.prepared(row)
    for part, arrays in parts.items():
        write_folder(folder / part, arrays)
    return folder
