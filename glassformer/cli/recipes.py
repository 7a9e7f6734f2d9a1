"""glassformer recipes: list the training recipes, or copy one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from glassformer.errors import FileExistsAlreadyError


def recipes(
    name: Annotated[str | None, typer.Argument(help="Recipe to copy (default: list all).")] = None,
    out: Annotated[Path | None, typer.Argument(help="Output file (default: NAME.yaml).")] = None,
) -> None:
    """List the training recipes, or copy one to edit it."""
    from glassformer.recipes import names, recipe_path, title

    if name is None:
        width = max(map(len, names()))
        for each in names():
            typer.echo(f"{each:<{width}}  {title(recipe_path(each))}")
        return
    path = out or Path(f"{name}.yaml")
    if path.exists():
        raise FileExistsAlreadyError(path=path, hint="choose another output file")
    shutil.copyfile(recipe_path(name), path)
    typer.echo(f"wrote {path}; train with: glassformer train {path}")
