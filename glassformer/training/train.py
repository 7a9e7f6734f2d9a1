"""Training from Python: a recipe in, the finished model out."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glassformer.api import Bundle, load
from glassformer.pretrained.run_folder import MODEL
from glassformer.training.notes.bar import hush
from glassformer.training.prepare import Say
from glassformer.training.recipe import Recipe, read_recipe, recipe_from
from glassformer.training.run import run


def tell(sentence: str) -> None:
    """To standard error, where the progress is shown too."""
    try:
        print(sentence, file=sys.stderr, flush=True)
    except BrokenPipeError:  # a run goes on without its listeners
        hush()


def train(recipe: Recipe | Mapping[str, Any] | str | Path, folder: str | Path, *, say: Say = tell) -> Bundle:
    """Train in a run folder, as `glassformer train` does, and load the model that comes of it.

    recipe: a recipe's file, or what one holds; all but its job and data may be left out.
    folder: called again with the same recipe, a run goes on where it stopped, or is found finished.
    say: is given a sentence for each choice made on the way.

    Ctrl-C saves a checkpoint, once there are steps, and is raised as KeyboardInterrupt; another signal as
    SystemExit.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place:
    ...     _ = Path(place, "sea.txt").write_text("the old captain sang to the sea. " * 99)
    ...     recipe = {
    ...         "job": "lm",
    ...         "data": {"train": f"{place}/sea.txt"},
    ...         "tokenizer": {"kind": "char"},
    ...         "model": {"d_model": 16, "num_heads": 2, "d_ff": 32, "num_layers": 1},
    ...         "training": {"steps": 2, "device": "cpu"},
    ...     }
    ...     bundle = train(recipe, f"{place}/run", say=lambda sentence: None)
    >>> bundle.family, bundle.tokenizer.decode(bundle.tokenizer.encode("sea").ids)
    ('gpt2', 'sea')
    """
    if isinstance(recipe, str | Path):
        recipe = read_recipe(recipe)
    elif not isinstance(recipe, Recipe):
        recipe = recipe_from(recipe)
    outcome = run(recipe, folder, say=say)
    if outcome.exit_code == 128 + signal.SIGINT:
        raise KeyboardInterrupt
    if outcome.exit_code:
        raise SystemExit(outcome.exit_code)
    return load(outcome.folder / MODEL)
