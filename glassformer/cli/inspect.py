"""glassformer inspect MODEL: the stack as text, shapes, parameters, memory, kernels, tokenizer."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import typer

from glassformer.cli.screen import bytes_text, console, print_json
from glassformer.cli.source import bundle_of
from glassformer.errors import GlassformerError

if TYPE_CHECKING:
    from rich.table import Table

    from glassformer.bundle import Bundle
    from glassformer.cli.stations import Report

SHAPES = {"EncoderDecoder": "encoder-decoder", "EncoderOnly": "encoder-only", "DecoderOnly": "decoder-only"}
BAR = 24
MOST_TOKENS, MOST_REAL_TOKENS = 2**24, 2**12


def inspect(
    model: str = typer.Argument(
        ..., metavar="MODEL", help="A model folder, a preset such as gpt2, or tiny:FAMILY."
    ),
    batch: int = typer.Option(2, min=1, help="Rows of the batch whose shapes are shown."),
    length: int | None = typer.Option(None, min=1, help="Its length in tokens; 16 unless told."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document."),
) -> None:
    """Draw a model: its stack, the shape at every station, parameters, memory, kernels.

    The shapes come from a real forward; those of a preset, or of many tokens, from one that holds
    no numbers, so that the largest model is drawn on the smallest machine.
    """
    bundle = bundle_of(model, presets="described")
    from glassformer.cli.stations import positions_of, report

    if batch * (length or 1) > MOST_TOKENS:
        raise GlassformerError(
            f"{batch} x {length} tokens are too many to draw; batch times length may be {MOST_TOKENS:,}"
        )
    if positions_of(bundle.spec, batch, length or 1) > MOST_REAL_TOKENS:
        bundle.model.to("meta").tie()  # shapes alone: the numbers of a long forward would fill the memory
    found = report(bundle, batch, length)
    if as_json:
        print_json(_document(model, bundle, found, batch))
        return
    from glassformer.cli.drawing import drawing

    out = console()
    shape = SHAPES[type(bundle.spec).__name__]
    family = f"{bundle.family}, " if bundle.family else ""
    out.print(f"[bold]{model}[/]  {family}{shape}, {found.total:,} parameters", "", sep="\n", soft_wrap=True)
    out.print(drawing(bundle.spec, found, out.width), "", sep="\n")
    out.print(_parts(bundle, found), "", sep="\n")
    out.print(_facts(bundle, found, batch))


def _parts(bundle: Bundle, found: Report) -> Table:
    """Parameters of each part, with their share as a bar."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", min_width=16)
    table.add_column(justify="right")
    table.add_column(justify="right", min_width=6)
    table.add_column(style="green", width=BAR)
    for part, count in found.parameters.items():
        share = count / found.total
        told = f"{share:.1%}" if share >= 0.0005 else "<0.1%"
        table.add_row(part, f"{count:,}", told, "━" * round(BAR * share) or "╸")
    tied = ", ".join(f"the {name}" for name in bundle.spec.tied)
    note = f"[dim]the token matrix serves {tied} too[/]" if tied else ""
    table.add_row("[bold]all[/]", f"[bold]{found.total:,}[/]", "", "")
    if note:
        table.caption, table.caption_justify = note, "left"
    return table


def _facts(bundle: Bundle, found: Report, batch: int) -> Table:
    """Memory, kernels, tokenizer: a line each."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", min_width=16)
    table.add_column()
    kind = " and ".join(found.dtypes)
    half = f", {bytes_text(found.total * 2)} in bfloat16" if found.dtypes == ("float32",) else ""
    table.add_row("weights", f"{bytes_text(found.weight_bytes)} in {kind}{half}")
    if found.cache_bytes is not None:
        steps = found.inputs[-1][1]
        table.add_row("cache", f"{bytes_text(found.cache_bytes)} for {batch} × {steps} positions in {kind}")
    kernels = Counter(found.kernels.values())
    table.add_row("kernels", ", ".join(f"{name} in {count} attentions" for name, count in kernels.items()))
    if bundle.tokenizer is not None:
        size = bundle.tokenizer.vocab_size
        table.add_row("tokenizer", f"{type(bundle.tokenizer).__name__}, {size:,} tokens")
    elif bundle.folder is not None:
        table.add_row("tokenizer", "[dim]none in this folder[/]")
    return table


def _document(model: str, bundle: Bundle, found: Report, batch: int) -> dict[str, Any]:
    from glassformer.core.schema import to_dict

    return {
        "model": model,
        "family": bundle.family,
        "shape": SHAPES[type(bundle.spec).__name__],
        "parameters": {"all": found.total, **found.parameters},
        "tied": list(bundle.spec.tied),
        "inputs": found.inputs,
        "stations": found.stations,
        "outputs": found.outputs,
        "dtypes": found.dtypes,
        "memory": {"weights": found.weight_bytes, "cache": found.cache_bytes},
        "kernels": found.kernels,
        "tokenizer": None if bundle.tokenizer is None else type(bundle.tokenizer).__name__,
        "spec": to_dict(bundle.spec),
    }
