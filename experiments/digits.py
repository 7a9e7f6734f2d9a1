"""Handwritten digits (MNIST), the published split, by a Vision Transformer from scratch; a run is a seed."""

from __future__ import annotations

from experiments.paths import Place
from experiments.pictures import accuracy_of, digits_folder, learn
from experiments.records import note


def run(place: Place, name: str, row: str, recipe: str) -> None:
    """Train a recipe with one seed, and note how many of the 10,000 test pictures it tells right."""
    trained = learn(place, row, name, recipe, digits_folder(place), int(name), ())
    accuracy = accuracy_of(trained.model, place.data / "mnist", place)
    note(place, row, name, seed=int(name), trained=trained, figures={"accuracy": accuracy})
