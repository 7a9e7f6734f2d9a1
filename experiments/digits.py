"""MNIST with the published split: a Vision Transformer from scratch; a run is a seed."""

from __future__ import annotations

from experiments.paths import Workspace
from experiments.pictures import accuracy_of, digits_folder, learn
from experiments.records import note


def run(workspace: Workspace, name: str, row: str, recipe: str) -> None:
    """Train a recipe with one seed, and record its accuracy on the 10,000 test images."""
    trained = learn(workspace, row, name, recipe, digits_folder(workspace), int(name), ())
    accuracy = accuracy_of(trained.model, workspace.data / "mnist", workspace)
    note(workspace, row, name, seed=int(name), trained=trained, figures={"accuracy": accuracy})
