"""glassformer verify MODEL: verify a model's numerical guarantees on this machine."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glassformer.cli.console import console, print_json, progress
from glassformer.cli.options import TINY, Device, Dtype, Json, ModelOrTiny, load_transformer

if TYPE_CHECKING:
    from rich.table import Table

    from glassformer.verify import CheckResult

SYMBOLS = {"passed": "[green]✓[/]", "failed": "[bold red]✗[/]", "skipped": "[dim]–[/]"}
COLORS = {"passed": "green", "failed": "bold red", "skipped": "dim"}


def verify(
    model: ModelOrTiny,
    reference: Annotated[
        bool | None,
        typer.Option(
            help="Require or skip the comparison with transformers (default: compare if installed)."
        ),
    ] = None,
    exported: Annotated[
        Path | None, typer.Option(help="Folder with an export of this model to compare with.")
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """Verify a model's numerical guarantees on this machine.

    Prints the largest difference and the tolerance of each check. The tolerance of float32 is raised for
    models with large rounding errors, which are measured in float64.
    Exits with status 1 if a check fails.
    """
    with progress(f"loading {model}"):
        from glassformer.verify import all_checks, open_exported, perturb_parameters

        other = None if exported is None else open_exported(exported)
        bundle = load_transformer(model, feature="verify", dtype=dtype, device=device)
    if model.startswith(TINY) and other is None:
        perturb_parameters(bundle.model)  # not for an export, which has the weights as initialized
    checks = all_checks(
        "auto" if reference is None else "required" if reference else "skipped", other, bundle
    )
    precision = str(next(bundle.model.parameters()).dtype).removeprefix("torch.")
    screen = console()
    if not as_json:
        screen.print(f"[bold]{model}, {precision} on {device}[/]", soft_wrap=True)
    results: list[CheckResult] = []
    for number, (name, check) in enumerate(checks.items(), 1):
        with progress(f"check {number} of {len(checks)}: {name}"):
            results.append(check(bundle, name))
        if not as_json:
            screen.print(_row(results[-1], max(map(len, checks))))
    passed = all(result.status != "failed" for result in results)
    if as_json:
        document = {"model": model, "dtype": precision, "device": device, "passed": passed}
        print_json(document | {"checks": [asdict(result) for result in results]})
    else:
        screen.print(_totals(results))
    if not passed:
        raise typer.Exit(1)


def _row(result: CheckResult, name_width: int) -> Table:
    """Format a result with its numbers and its note."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2), expand=False)
    table.add_column(width=1)
    table.add_column(width=name_width)
    table.add_column(width=8, justify="right")
    table.add_column(width=9)
    table.add_column(overflow="fold", style="dim")
    worst = "" if result.worst is None else f"{result.worst:.1e}" if result.worst else "0"
    allowed = "" if result.tolerance is None else f"≤ {result.tolerance:.0e}" if result.tolerance else "= 0"
    note = result.note
    if result.rounding_error is not None:
        allowed = f"≤ {result.tolerance:.1e}"
        note = f"rounding error of float32: {result.rounding_error:.1e}; {note}"
    name = result.name if result.status != "skipped" else f"[dim]{result.name}[/]"
    table.add_row(SYMBOLS[result.status], name, f"[{COLORS[result.status]}]{worst}[/]", allowed, note)
    return table


def _totals(results: list[CheckResult]) -> str:
    """Summarize the results, e.g. `12 passed, 1 failed, 2 skipped`."""
    counts = Counter[str](result.status for result in results)
    parts = [f"{counts[status]} {status}" for status in SYMBOLS if counts[status]]
    return f"[bold {'red' if counts['failed'] else 'green'}]{', '.join(parts)}[/]"
