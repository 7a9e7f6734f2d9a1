"""glassformer verify MODEL: every promise with its worst difference and its tolerance."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from glassformer.cli.screen import console, print_json
from glassformer.cli.source import MODEL_HELP, TINY, bundle_of

if TYPE_CHECKING:
    from rich.console import Console

    from glassformer.verify import Claim

SIGNS = {"holds": "[green]✓[/]", "fails": "[bold red]✗[/]", "skipped": "[dim]–[/]"}

NOTE_BESIDE = 100  # columns from which a note fits beside its numbers


def verify(
    model: str = typer.Argument(..., metavar="MODEL", help=MODEL_HELP),
    reference: bool | None = typer.Option(
        None,
        "--reference/--no-reference",
        help="Demand the comparison with the reference library, or leave it out; "
        "by default it is made where that library is installed.",
    ),
    exported: Path | None = typer.Option(
        None, help="An exported folder of this model, run in its own runtime beside it."
    ),
    device: str = typer.Option("cpu", help="Where to run: cpu, cuda, cuda:1, ..."),
    dtype: str | None = typer.Option(None, help="The precision to run in: float32, bfloat16, float16."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document."),
) -> None:
    """Prove on this machine that a model's numbers are right.

    Each claim is printed with the worst difference found and the largest one allowed. Exit 1 if one fails.
    """
    from glassformer.verify import open_exported, proofs, stir

    beside = None if exported is None else open_exported(exported)
    bundle = bundle_of(model, dtype=dtype, device=device)
    if model.startswith(TINY) and beside is None:
        stir(bundle.model)  # an export was made of it as it was drawn
    wanted = proofs("auto" if reference is None else "required" if reference else "skipped", beside)
    precision = str(next(bundle.model.parameters()).dtype).removeprefix("torch.")
    claims: list[Claim] = []
    if as_json:
        claims = [prove(bundle, name) for name, prove in wanted.items()]
        print_json(_document(model, precision, device, claims))
    else:
        out = console()
        _heading(out, f"{model}, {precision} on {device}")
        width = max(map(len, wanted))
        for name, prove in wanted.items():
            with out.status(f"{name} …"):
                claims.append(prove(bundle, name))
            out.print(_line(claims[-1], width, out.width))
        _summary(out, claims)
    if any(claim.status == "fails" for claim in claims):
        raise typer.Exit(1)


def _document(model: str, precision: str, device: str, claims: list[Claim]) -> dict[str, Any]:
    return {
        "model": model,
        "dtype": precision,
        "device": device,
        "holds": all(claim.status != "fails" for claim in claims),
        "claims": [asdict(claim) for claim in claims],
    }


def _heading(out: Console, text: str) -> None:
    out.print(f"[bold]{text}[/]", soft_wrap=True)


def _line(claim: Claim, width: int, room: int) -> Any:
    """One claim: its numbers on the first line, and its note beside them or, where room is short, below."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table

    beside = room >= NOTE_BESIDE
    table = Table.grid(padding=(0, 2), expand=False)
    table.add_column(width=1)
    table.add_column(width=width)
    table.add_column(width=8, justify="right")
    table.add_column(width=9)
    table.add_column(overflow="fold")
    worst = "" if claim.worst is None else f"{claim.worst:.1e}" if claim.worst else "0"
    allowed = "" if claim.tolerance is None else f"≤ {claim.tolerance:.0e}" if claim.tolerance else "= 0"
    colour = {"holds": "green", "fails": "bold red", "skipped": "dim"}[claim.status]
    name = claim.name if claim.status != "skipped" else f"[dim]{claim.name}[/]"
    note = f"[dim]{claim.note}[/]"
    numbers = f"[{colour}]{worst}[/]"
    table.add_row(SIGNS[claim.status], name, numbers, allowed, note if beside else "")
    return table if beside else Group(table, Padding(note, (0, 0, 0, 3)))


def _summary(out: Console, claims: list[Claim]) -> None:
    counts = {s: sum(claim.status == s for claim in claims) for s in SIGNS}
    colour = "red" if counts["fails"] else "green"
    words = [f"{n} {s}" for s, n in counts.items() if n]
    words[0] = words[0].replace("holds", "hold")
    out.print(f"[bold {colour}]{', '.join(words).replace(' fails', ' fail')}[/]")
