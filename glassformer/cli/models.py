"""glassformer models and recipes: list shipped models and recipes, print a card, copy a recipe."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from glassformer.cli.console import console, format_bytes, print_json
from glassformer.cli.options import Json
from glassformer.errors import FileExistsAlreadyError, FileMissingError


def models(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Print the card of this model (default: list all models)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the shipped models, or print a model card.

    Every command accepts their names as MODEL, e.g.
    glassformer translate pocket --to de "Hello."
    """
    from glassformer.pretrained import HERE, card, names

    if not names():
        raise FileMissingError(path=HERE, kind="shipped models", hint="install the package from its wheel")
    if name is not None and not as_json:
        typer.echo(card(name).text, nl=False)
    elif as_json:
        print_json(_info(name) if name is not None else [_info(name) for name in names()])
    else:
        _print_table([_info(name) for name in names()])


def _info(name: str) -> dict[str, Any]:
    from glassformer.pretrained import card, folder_of

    folder = folder_of(name)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {"name": name, **asdict(card(name)), "bytes": size, "folder": str(folder)}


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("model", style="bold", no_wrap=True)
    table.add_column("task")
    table.add_column("languages")
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("license")
    for row in rows:
        size, count = format_bytes(row["bytes"]), f"{row['parameters']:,}"
        table.add_row(row["name"], row["task"], " ".join(row["languages"]), count, size, row["license"])
    screen = console()
    screen.print(table)
    screen.print("\n`glassformer models NAME` prints a model card: data, license, scores, limitations")


def recipes(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Recipe to copy (default: list all).")
    ] = None,
    out: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="Output file (default: NAME.yaml).")
    ] = None,
) -> None:
    """List the training recipes, or copy one to edit it."""
    from glassformer.recipes import names, recipe_path, title

    if name is None:
        width = max(map(len, names()))
        for recipe in names():
            typer.echo(f"{recipe:<{width}}  {title(recipe_path(recipe))}")
        return
    path = out or Path(f"{name}.yaml")
    if path.exists():
        raise FileExistsAlreadyError(path=path, hint="choose another output file")
    shutil.copyfile(recipe_path(name), path)
    typer.echo(f"wrote {path}; train with: glassformer train {path}")
