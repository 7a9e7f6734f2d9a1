"""MNIST with the published split: a Vision Transformer from scratch; a run is a seed."""

from __future__ import annotations

from experiments.paths import Workspace
from experiments.pictures import DIGITS, accuracy_of, learn, prepare
from experiments.records import note


def run(workspace: Workspace, name: str, row: str, recipe: str) -> None:
    """Train a recipe with one seed, and record its accuracy on the 10,000 test images."""
    folder = prepare(workspace.data / "mnist", DIGITS, workspace, "mnist")
    trained = learn(workspace, row, name, recipe, folder, int(name), ())
    accuracy = accuracy_of(trained.model, folder / "test", workspace)
    note(workspace, row, name, seed=int(name), trained=trained, figures={"accuracy": accuracy})
