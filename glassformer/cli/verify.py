"""glassformer verify MODEL: verify a model's numerical guarantees on this machine."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glassformer.cli.console import console, print_json
from glassformer.cli.options import TINY, Device, Dtype, Json, ModelOrTiny, load_transformer

if TYPE_CHECKING:
    from rich.table import Table

    from glassformer.verify import Claim

SYMBOLS = {"holds": "[green]✓[/]", "fails": "[bold red]✗[/]", "skipped": "[dim]–[/]"}
COLOURS = {"holds": "green", "fails": "bold red", "skipped": "dim"}


def verify(
    model: ModelOrTiny,
    reference: Annotated[
        bool | None,
        typer.Option(help="Require or skip the comparison with transformers (default: if installed)."),
    ] = None,
    exported: Annotated[
        Path | None, typer.Option(help="Exported folder of this model to compare with.")
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """Verify a model's numerical guarantees on this machine.

    Prints the largest difference and the tolerance of each claim.
    Exits with status 1 if a claim fails.
    """
    from glassformer.verify import open_exported, proofs, stir

    other = None if exported is None else open_exported(exported)
    bundle = load_transformer(model, feature="verify", dtype=dtype, device=device)
    if model.startswith(TINY) and other is None:
        stir(bundle.model)  # not for an export, which has the weights as initialized
    checks = proofs("auto" if reference is None else "required" if reference else "skipped", other)
    precision = str(next(bundle.model.parameters()).dtype).removeprefix("torch.")
    claims: list[Claim] = []
    if as_json:
        claims = [check(bundle, name) for name, check in checks.items()]
        holds = all(claim.status != "fails" for claim in claims)
        document = {"model": model, "dtype": precision, "device": device, "holds": holds}
        print_json(document | {"claims": [asdict(claim) for claim in claims]})
    else:
        screen = console()
        screen.print(f"[bold]{model}, {precision} on {device}[/]", soft_wrap=True)
        width = max(map(len, checks))
        for name, check in checks.items():
            with screen.status(f"{name} …"):
                claims.append(check(bundle, name))
            screen.print(_row(claims[-1], width))
        screen.print(_totals(claims))
    if any(claim.status == "fails" for claim in claims):
        raise typer.Exit(1)


def _row(claim: Claim, name_width: int) -> Table:
    """One claim with its numbers and its note."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2), expand=False)
    table.add_column(width=1)
    table.add_column(width=name_width)
    table.add_column(width=8, justify="right")
    table.add_column(width=9)
    table.add_column(overflow="fold", style="dim")
    worst = "" if claim.worst is None else f"{claim.worst:.1e}" if claim.worst else "0"
    allowed = "" if claim.tolerance is None else f"≤ {claim.tolerance:.0e}" if claim.tolerance else "= 0"
    name = claim.name if claim.status != "skipped" else f"[dim]{claim.name}[/]"
    table.add_row(SYMBOLS[claim.status], name, f"[{COLOURS[claim.status]}]{worst}[/]", allowed, claim.note)
    return table


def _totals(claims: list[Claim]) -> str:
    """`12 hold, 1 fails, 2 skipped`."""
    counts = Counter[str](claim.status for claim in claims)
    verbs = {"holds": ("holds", "hold"), "fails": ("fails", "fail"), "skipped": ("skipped", "skipped")}
    parts = [f"{counts[key]} {words[counts[key] > 1]}" for key, words in verbs.items() if counts[key]]
    return f"[bold {'red' if counts['fails'] else 'green'}]{', '.join(parts)}[/]"
