"""glassformer inspect MODEL: show a model's layers, shapes, parameters and memory."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassformer.cli.console import console, format_bytes, print_json
from glassformer.cli.options import Json, load_transformer
from glassformer.messages import quantity
from glassformer.tasks.registry import tasks_of

if TYPE_CHECKING:
    from rich.table import Table

    from glassformer.bundle import Bundle
    from glassformer.cli.model_summary import ModelSummary

BAR_WIDTH = 24


def inspect(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Model folder, preset such as gpt2, or tiny:FAMILY.")
    ],
    batch_size: Annotated[int, typer.Option(min=1, help="Batch size for the printed shapes.")] = 2,
    length: Annotated[
        int | None, typer.Option(min=1, help="Sequence length for the printed shapes (default: 16).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a model's layers, shapes, parameters, memory and kernels.

    The model runs on the meta device, so even the largest preset needs
    almost no memory.
    """
    bundle = load_transformer(model, feature="inspect", allow_presets=True)
    from glassformer.cli.model_summary import draw_model, summarize_model

    bundle.model.to("meta").tie()
    parts = bundle.models() or {"": bundle}  # a model that draws is several
    summaries = {name: summarize_model(part, batch_size, length) for name, part in parts.items()}
    if as_json:
        documents = {name: _document(model, part, summaries[name]) for name, part in parts.items()}
        print_json(documents.get("") or _drawing_document(model, bundle, documents))
        return
    screen = console()
    total = sum(summary.total for summary in summaries.values())
    title = f"[bold]{model}[/]  {_family(bundle)}{bundle.spec.architecture}, {total:,} parameters"
    screen.print(title, "", sep="\n", soft_wrap=True)
    for name, part in parts.items():
        summary = summaries[name]
        if name:
            title = f"[bold]{name}[/]  {_family(part)}{part.spec.architecture}, {summary.total:,} parameters"
            screen.print(title, "", sep="\n", soft_wrap=True)
        screen.print(draw_model(part.spec, summary, screen.width), "", sep="\n")
        screen.print(_parameter_table(part, summary), "", sep="\n")
        screen.print(_facts_table(part, summary, batch_size), *[""] * bool(name), sep="\n")
    screen.print(_tasks_table(bundle))


def _family(bundle: Bundle) -> str:
    return f"{bundle.family}, " if bundle.family else ""


def _parameter_table(bundle: Bundle, summary: ModelSummary) -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", min_width=16)
    table.add_column(justify="right")
    table.add_column(justify="right", min_width=6)
    table.add_column(style="green", width=BAR_WIDTH)
    for part, count in summary.parameters.items():
        share = count / summary.total
        percent = f"{share:.1%}" if share >= 0.0005 else "<0.1%"
        table.add_row(part, f"{count:,}", percent, "━" * round(BAR_WIDTH * share) or "╸")
    table.add_row("[bold]total[/]", f"[bold]{summary.total:,}[/]", "", "")
    if bundle.spec.tied:
        table.caption = f"[dim]the token embedding is tied to: {', '.join(bundle.spec.tied)}[/]"
        table.caption_justify = "left"
    return table


def _facts_table(bundle: Bundle, summary: ModelSummary, batch_size: int) -> Table:
    """Build the table of memory and kernels."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", min_width=16)
    table.add_column()
    dtype = " and ".join(summary.dtypes)
    half = f", {format_bytes(summary.total * 2)} in bfloat16" if summary.dtypes == ("float32",) else ""
    table.add_row("weights", f"{format_bytes(summary.weight_bytes)} in {dtype}{half}")
    if summary.cache_bytes is not None:
        size, positions = format_bytes(summary.cache_bytes), summary.inputs[-1][1]
        table.add_row("KV cache", f"{size} for {batch_size} × {positions} positions in {dtype}")
    kernels = Counter(summary.kernels.values())
    table.add_row(
        "kernels", ", ".join(f"{name} in {quantity(count, 'layer')}" for name, count in kernels.items())
    )
    return table


def _tasks_table(bundle: Bundle) -> Table:
    """Build the table of what a model can be used for, and its tokenizer."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", min_width=16)
    table.add_column()
    if names := [spec.name for spec in tasks_of(bundle.spec)]:
        table.add_row("can be used for", ", ".join(names))
    if bundle.tokenizer is not None:
        tokenizer = type(bundle.tokenizer).__name__
        table.add_row("tokenizer", f"{tokenizer}, {bundle.tokenizer.vocab_size:,} tokens")
    elif bundle.folder is not None:
        table.add_row("tokenizer", "[dim]none[/]")
    return table


def _drawing_document(model: str, bundle: Bundle, parts: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": model,
        "architecture": bundle.spec.architecture,
        "parameters": {"total": sum(part["parameters"]["total"] for part in parts.values())},
        "tasks": [spec.name for spec in tasks_of(bundle.spec)],
        "tokenizer": None if bundle.tokenizer is None else type(bundle.tokenizer).__name__,
        "parts": parts,
    }


def _document(model: str, bundle: Bundle, summary: ModelSummary) -> dict[str, Any]:
    from glassformer.schema import to_dict

    return {
        "model": model,
        "family": bundle.family,
        "architecture": bundle.spec.architecture,
        "parameters": {"total": summary.total, **summary.parameters},
        "tied": list(bundle.spec.tied),
        "inputs": summary.inputs,
        "activations": summary.activations,
        "outputs": summary.outputs,
        "dtypes": summary.dtypes,
        "memory": {"weights": summary.weight_bytes, "cache": summary.cache_bytes},
        "kernels": summary.kernels,
        "tasks": [spec.name for spec in tasks_of(bundle.spec)],
        "tokenizer": None if bundle.tokenizer is None else type(bundle.tokenizer).__name__,
        "spec": to_dict(bundle.spec),
    }
