"""glassformer recipes: list the ready ones, or copy one out."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from glassformer.errors import GlassformerError


def recipes(
    name: Annotated[
        str | None, typer.Argument(help="The recipe to copy out; without it all are listed.")
    ] = None,
    to: Annotated[Path | None, typer.Argument(help="The file to write; by default NAME.yaml here.")] = None,
) -> None:
    """List the ready recipes, or copy one out to be changed: every key in it is commented."""
    from glassformer.recipes import names, recipe_path, title

    if name is None:
        width = max(map(len, names()))
        for each in names():
            typer.echo(f"{each:<{width}}  {title(recipe_path(each))}")
        return
    path = to or Path(f"{name}.yaml")
    if path.exists():
        raise GlassformerError(f"'{path}' is there already; give another name to write to")
    shutil.copyfile(recipe_path(name), path)
    typer.echo(f"wrote {path}; train it with: glassformer train {path}")
