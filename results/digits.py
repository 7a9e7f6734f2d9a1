"""Handwritten digits (MNIST), the published split, by a Vision Transformer from scratch; a run is a seed."""

from __future__ import annotations

from results.noted import note
from results.pictures import accuracy_of, digits_folder, learn
from results.place import Place


def run(place: Place, name: str) -> None:
    """Train with one seed, and measure on the 10,000 test pictures."""
    measure(place, "mnist", name, "images-digits")


def measure(place: Place, row: str, name: str, recipe: str) -> None:
    """Train a recipe on the digits, and note how many of the test pictures it tells right."""
    trained = learn(place, row, name, recipe, digits_folder(place), int(name), ())
    accuracy = accuracy_of(trained.model, place.data / "mnist", place)
    note(place, row, name, seed=int(name), trained=trained, figures={"accuracy": accuracy})
