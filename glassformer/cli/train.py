"""glassformer train: from a recipe, or straight from files, to a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from glassformer.errors import GlassformerError


def train(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|JOB",
            help="A recipe file, a ready recipe's name, or a job: translate, lm, classify, images, "
            "forecast, restore.",
        ),
    ],
    files: Annotated[
        list[str] | None, typer.Option("--train", help="A file to learn from; give it again for more.")
    ] = None,
    valid: Annotated[
        list[str] | None,
        typer.Option("--valid", help="A file to validate with, or the share to hold out, as 0.01."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run's folder; by default runs/ and the recipe's or file's name.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting: --set training.lr=3e-4.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Say what would be done, from a few timed steps, and leave nothing."),
    ] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Insist on a run to go on with; without it one is found or begun."),
    ] = False,
) -> None:
    """Train a model on your files, or go on with a run: the same command continues where it stopped.

    What a recipe leaves open is chosen for the data and the machine, and written into the run folder.
    Ctrl-C saves a checkpoint.
    """
    from glassformer.cli.rehearsal import rehearse
    from glassformer.pretrained.run_folder import is_run
    from glassformer.training.recipe import parse_recipe
    from glassformer.training.run import log_to_stderr, run

    data = _asked(what, files or [], valid or [], changes or [])
    recipe = parse_recipe(data)
    folder = out or Path("runs") / _short(what, recipe.data.train[0])
    if resume and not is_run(folder):
        raise GlassformerError(f"'{folder}' holds no run to resume; leave --resume out to begin one")
    if dry_run:
        rehearse(recipe)
        return
    outcome = run(recipe, folder, log=log_to_stderr)
    if outcome.exit_code:
        raise typer.Exit(outcome.exit_code)


def _asked(what: str, files: list[str], valid: list[str], changes: list[str]) -> dict[str, Any]:
    """The recipe's data from a file or a job's name and options, with the changes made."""
    from glassformer.recipes import recipe_path
    from glassformer.training.recipe import DATA_SECTIONS, read_recipe_dict, with_overrides

    data: dict[str, Any]
    if what in DATA_SECTIONS and not Path(what).is_file():
        if not files:
            raise GlassformerError(f"train {what} needs files to learn from; give --train FILE")
        data = {"job": what, "data": {}}
    else:
        path = Path(what) if Path(what).is_file() else recipe_path(what, alternatives=DATA_SECTIONS)
        data = read_recipe_dict(path)
    section = dict(data.get("data") or {}) if isinstance(data.get("data") or {}, dict) else {}
    if files:
        section["train"] = files
    if valid:
        section["valid"] = _share(valid[0]) if len(valid) == 1 else valid
    if files or valid:
        data = {**data, "data": section}
    return with_overrides(data, changes)


def _share(text: str) -> float | list[str]:
    """0.01 is a share; anything else names a file."""
    try:
        return float(text)
    except ValueError:
        return [text]


def _short(what: str, file: str) -> str:
    """A name for the run: the recipe's, or the job's and its first file's."""
    stem = Path(what).name.removesuffix(".yaml").removesuffix(".yml")
    if Path(what).is_file() or stem != what or not file:
        return stem
    return f"{stem}-{Path(file).name.split('.')[0]}"
