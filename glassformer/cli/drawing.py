"""A model drawn as text: the residual stream runs down the left, each part branches off and comes back.

├─╮ norm_self      LayerNorm                (2, 16, 32)
│ │ self_attn      4 heads × 8, causal
⊕─╯   out                                   (2, 16, 32)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from glassformer.cli import words
from glassformer.cli.screen import shape_text
from glassformer.cli.stations import Report, Shape
from glassformer.core import spec

BESIDE = 150  # columns from which an encoder and a decoder stand side by side
WIDEST = 100


@dataclass(frozen=True)
class Row:
    """One line: a piece of wire, a name (indented when inner), what it is, the shape after it."""

    wire: str
    name: str = ""
    detail: str = ""
    shape: Shape | None = None


def drawing(model: spec.Model, report: Report, width: int) -> RenderableType:
    """The whole model as something rich prints."""
    if not isinstance(model, spec.EncoderDecoder):
        name = "decoder" if isinstance(model, spec.DecoderOnly) else "encoder"
        stack = getattr(model, name)
        top = _input_rows("embed", model.input, stack.d_model, report.inputs[0], report)
        return _column(name, stack, top, _head_rows(model, report), report, min(width, WIDEST))
    beside = width >= BESIDE
    room = (width - 2) // 2 if beside else min(width, WIDEST)
    wide = model.encoder.d_model, model.decoder.d_model
    source = _input_rows("src_embed", model.source, wide[0], report.inputs[0], report)
    target = _input_rows("tgt_embed", model.target, wide[1], report.inputs[1], report)
    memory = [Row("╰─▶", "memory", "to every cross_attn", (*report.inputs[0][:2], wide[0]))]
    encoder = _column("encoder", model.encoder, source, memory, report, room)
    decoder = _column("decoder", model.decoder, target, _head_rows(model, report), report, room)
    if not beside:
        return Group(encoder, "", decoder)
    both = Table.grid(padding=(0, 2, 0, 0))
    both.add_row(encoder, decoder)
    return both


def _column(
    name: str, stack: spec.Stack, top: list[Row], bottom: list[Row], report: Report, width: int
) -> RenderableType:
    """Input, the repeated block in a frame, final norm, and what follows."""
    rows = list(_block_rows(f"{name}.blocks.0", stack, report))
    parallel = stack.block.wiring.startswith("parallel")  # two branches at once need a wider wire
    span = f"{name}.blocks.0" + (f"–{stack.num_layers - 1}" if stack.num_layers > 1 else "")
    frame = Panel(
        _grid(rows, width - 4, parallel),
        title=f"[bold]{stack.num_layers} ×[/] [cyan]{span}[/]  [dim]{words.wiring_words(stack.block)}[/]",
        title_align="left",
        border_style="dim",
        width=width,
    )
    after = bottom
    if stack.final_norm is not None:
        shape = report.stations.get(f"{name}.final_norm")
        after = [Row("◇", f"{name}.final_norm", words.norm_words(stack.final_norm), shape), *bottom]
    inside = [_outer(top, width, parallel), frame, _outer(after, width, parallel)]
    return Group(*(inside if rows else (inside[0], inside[2])))


def _outer(rows: list[Row], width: int, parallel: bool) -> RenderableType:
    """Rows outside the frame, set so that their wires meet those inside."""
    table = Table.grid()
    table.add_column(width=2)
    table.add_column()
    table.add_row("", _grid(rows, width - 4, parallel))
    return table


def _grid(rows: list[Row], width: int, parallel: bool) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.width = width
    table.add_column(width=5 if parallel else 3, style="green", no_wrap=True)
    table.add_column(min_width=18, no_wrap=True)
    table.add_column(ratio=1, style="dim")
    table.add_column(justify="right", no_wrap=True, style="yellow")
    for row in rows:
        inner = row.name.startswith(" ")
        table.add_row(row.wire, Text(row.name, "" if inner else "cyan"), row.detail, shape_text(row.shape))
    return table


def _input_rows(name: str, what: spec.Input, d_model: int, given: Shape, report: Report) -> list[Row]:
    kind = {spec.Tokens: "token ids", spec.ImagePatches: "images", spec.SeriesPatches: "series"}
    seen = report.stations
    rows = [Row("╷", kind.get(type(what), "vectors"), "", given)]
    tails = ("position", "kind", "norm", "out")
    made = [n for n in seen if n.startswith(f"{name}.") and n.rpartition(".")[2] not in tails]
    for station in made or [f"{name}.out"]:
        last = station == (made or [station])[-1]  # earlier ones only prepare what this one embeds
        rows.append(Row("│", station, words.input_words(what, d_model) if last else "", seen.get(station)))
    position = getattr(what, "position", None)
    if f"{name}.position" in seen:
        told = position if isinstance(position, str) else words.position_words(position)
        rows.append(Row("⊕", f"{name}.position", told or "learned", seen[f"{name}.position"]))
    if f"{name}.kind" in seen:
        rows.append(Row("⊕", f"{name}.kind", "token types", seen[f"{name}.kind"]))
    if f"{name}.norm" in seen and isinstance(what, spec.Tokens) and what.norm is not None:
        rows.append(Row("◇", f"{name}.norm", words.norm_words(what.norm), seen[f"{name}.norm"]))
    out = seen.get(f"{name}.out")
    if out != rows[-1].shape:
        rows.append(Row("│", f"{name}.out", "", out))
    return rows


def _head_rows(model: spec.Model, report: Report) -> list[Row]:
    shapes = list(report.outputs.items())
    rows = [Row("▼", "head", words.head_words(model.head, "head" in model.tied), shapes[0][1])]
    if len(shapes) > 1:
        rows = [Row("▼", "head", words.head_words(model.head, "head" in model.tied))]
        rows += [Row("", f"  {name}", "", shape) for name, shape in shapes]
    return rows


def _block_rows(at: str, stack: spec.Stack, report: Report) -> Iterator[Row]:
    """The rows of one block by its wiring."""
    block, seen = stack.block, report.stations
    if f"{at}.resid_in" not in seen:
        return
    norm = words.norm_words(block.norm)
    yield Row("│", "resid_in", "the residual stream", seen[f"{at}.resid_in"])
    if block.wiring == "parallel":
        yield Row("├─╮", "norm_self", norm, seen[f"{at}.norm_self"])
        yield from _part("│ ├─╮", "│ │ │", "⊕─│─╯", _self_rows(at, stack, report))
        yield from _part("│ ╰─╮", "│   │", "⊕───╯", _ffn_rows(at, stack, report))
        return
    if block.wiring == "parallel_split":
        yield Row("├───╮", "norm_self", norm, seen[f"{at}.norm_self"])
        yield Row("├─╮ │", "norm_ffn", norm, seen[f"{at}.norm_ffn"])
        yield from _part("│ │ │", "│ │ │", "⊕─│─╯", _self_rows(at, stack, report))
        yield from _part("│ │", "│ │", "⊕─╯", _ffn_rows(at, stack, report))
        return
    parts = [("norm_self", _self_rows(at, stack, report)), ("norm_ffn", _ffn_rows(at, stack, report))]
    if block.cross_attention is not None:
        parts.insert(1, ("norm_cross", _cross_rows(at, stack, report)))
    for name, rows in parts:
        if block.wiring == "pre":
            yield Row("├─╮", name, norm, seen.get(f"{at}.{name}"))
            yield from _part("│ │", "│ │", "⊕─╯", rows)
        else:
            yield from _part("├─╮", "│ │", "⊕─╯", rows)
            yield Row("◇", name, norm, seen.get(f"{at}.{name}"))


def _part(first: str, middle: str, last: str, rows: list[Row]) -> Iterator[Row]:
    """Rows with their wires: how the branch leaves, goes on and comes back."""
    for n, row in enumerate(rows):
        wire = first if n == 0 else last if n == len(rows) - 1 else middle
        yield Row(wire, row.name, row.detail, row.shape)


def _self_rows(at: str, stack: spec.Stack, report: Report) -> list[Row]:
    what = stack.block.attention
    detail, reach = words.attention_words(what, stack.d_model), words.reach_words(what, stack.causal)
    return _attention_rows(f"{at}.self_attn", detail, words.position_words(stack.position), reach, report)


def _cross_rows(at: str, stack: spec.Stack, report: Report) -> list[Row]:
    assert stack.block.cross_attention is not None
    detail = words.attention_words(stack.block.cross_attention, stack.d_model)
    return _attention_rows(f"{at}.cross_attn", detail, "k and v from memory", "every position", report)


def _attention_rows(at: str, detail: str, position: str, reach: str, report: Report) -> list[Row]:
    seen = report.stations
    q, k, v = (seen.get(f"{at}.{letter}") for letter in "qkv")
    if q == k == v:
        split = [Row("", "  q, k, v", position, q)]
    elif k == v:
        split = [Row("", "  q", position, q), Row("", "  k, v", "", k)]
    else:
        split = [Row("", "  q", position, q), Row("", "  k", "", k), Row("", "  v", "", v)]
    kernel = report.kernels.get(at, "")
    return [
        Row("", at.rpartition(".")[2], detail),
        *split,
        Row("", "  weights", reach, seen.get(f"{at}.weights")),
        Row("", "  heads", f"by the {kernel} kernel" if kernel else "", seen.get(f"{at}.heads")),
        Row("", "  out", "", seen.get(f"{at}.out")),
    ]


def _ffn_rows(at: str, stack: spec.Stack, report: Report) -> list[Row]:
    seen, what = report.stations, stack.block.feed_forward
    upper = "gate, up" if f"{at}.ffn.gate" in seen else "up"
    return [
        Row("", "ffn", words.ffn_words(what, stack.d_model)),
        Row("", f"  {upper}", "", seen.get(f"{at}.ffn.up")),
        Row("", "  down", "", seen.get(f"{at}.ffn.down")),
    ]
