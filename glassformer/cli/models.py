"""glassformer models [NAME]: the models that come with the package, or the card of one."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from glassformer.errors import GlassformerError


def models(
    name: Annotated[
        str | None, typer.Argument(help="The model whose card to print; without it all are listed.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List the models that come with the package, or print the card of one.

    Every verb takes their bare names where it takes MODEL: glassformer translate pocket --to de "Hello."
    """
    from glassformer.cli.screen import print_json
    from glassformer.pretrained import card, names

    if name is not None:
        if as_json:
            print_json(_facts(name))
        else:
            typer.echo(card(name).text, nl=False)
        return
    if as_json:
        print_json([_facts(each) for each in names()])
    else:
        _show([_facts(each) for each in names()])


def _facts(name: str) -> dict[str, Any]:
    from glassformer.pretrained import card, folder_of

    folder = folder_of(name)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {"name": name, **asdict(card(name)), "bytes": size, "folder": str(folder)}


def _show(found: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from glassformer.cli.screen import bytes_text, console

    if not found:
        raise GlassformerError("no models came with this installation; install the package's wheel")
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("model", style="bold", no_wrap=True)
    table.add_column("what it does")
    table.add_column("languages")
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("on disk", justify="right", no_wrap=True)
    table.add_column("licence")
    for one in found:
        size, count = bytes_text(one["bytes"]), f"{one['parameters']:,}"
        table.add_row(one["name"], one["does"], " ".join(one["languages"]), count, size, one["licence"])
    out = console()
    out.print(table)
    out.print("\n`glassformer models NAME` prints a model's card: data, licence, scores, what it is bad at")
