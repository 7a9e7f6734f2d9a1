"""A model summary from one forward pass: shapes, parameters and memory, and a drawing of the layers as text.

The residual stream runs down the left; each sublayer branches off and is added back:

├─╮ norm_self      LayerNorm                (2, 16, 32)
│ │ self_attn      4 heads × 8
⊕─╯   out                                   (2, 16, 32)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from glassformer.bundle import Bundle
from glassformer.core import spec
from glassformer.core.observe import observe
from glassformer.verify.inputs import fitting_length, outputs, sample_for

# the blocks of a stack are alike, so the first stands for all
OBSERVED = ("*embed.*", "*.blocks.0.*", "*.final_norm", "head.*")
PARTS = ("embedding", "positions", "self-attention", "cross-attention", "feed-forward", "norms", "head")
DEFAULT_LENGTH = 16
MAX_WIDTH = 100
WIRINGS = {
    "pre": "pre-norm",
    "post": "post-norm",
    "parallel": "parallel, one norm",
    "parallel_split": "parallel, two norms",
}

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ModelSummary:
    """Shapes by observation name, parameters by part, memory in bytes, attention kernels by module."""

    inputs: tuple[Shape, ...]
    activations: dict[str, Shape]
    outputs: dict[str, Shape]
    parameters: dict[str, int]
    dtypes: tuple[str, ...]
    weight_bytes: int
    cache_bytes: int | None
    kernels: dict[str, str]

    @property
    def total(self) -> int:
        return sum(self.parameters.values())


def summarize_model(bundle: Bundle, batch: int, length: int | None = None) -> ModelSummary:
    """Run the model once on random inputs (on the meta device: shapes only) and count its parameters."""
    model = bundle.model
    length = length or fitting_length(model.spec, DEFAULT_LENGTH)
    sample = sample_for(model, batch=batch, length=length, target_length=length)
    record = observe(model, (*sample.inputs, *sample.real), want=OBSERVED)
    activations = {name: tuple(record[name].shape) for name in record}
    for name in record.attentions():
        q, k = activations[f"{name}.q"], activations[f"{name}.k"]
        activations[f"{name}.weights"] = (*q[:3], k[2])
    parameters = list(model.named_parameters())
    counts = {part: sum(p.numel() for n, p in parameters if part_of(n) == part) for part in PARTS}
    longest = max((shape[2] for name, shape in activations.items() if name.endswith(".k")), default=1)
    return ModelSummary(
        inputs=tuple(tuple(x.shape) for x in sample.inputs),
        activations=activations,
        outputs={name: tuple(t.shape) for name, t in outputs(record.output).items()},
        parameters={part: count for part, count in counts.items() if count},
        dtypes=tuple(sorted({str(p.dtype).removeprefix("torch.") for _, p in parameters})),
        weight_bytes=sum(p.numel() * p.element_size() for _, p in parameters),
        cache_bytes=_cache_bytes(bundle, activations),
        kernels=dict(bundle.kernels(longest)),
    )


def num_positions(model: spec.Model, batch: int, length: int) -> int:
    """The number of positions of a forward pass; for images and series it follows from the spec."""
    match getattr(model, "input", None):
        case spec.ImagePatches() as patches:
            return batch * (patches.prefix + patches.num_patches)
        case spec.SeriesPatches() as patches:
            return (
                batch * patches.channels * max(patches.prefix + patches.num_patches, patches.context_length)
            )
    return batch * length


def part_of(name: str) -> str:
    """The part of the model that a parameter belongs to.

    >>> part_of("decoder.blocks.0.norm_self.weight"), part_of("embed.token.weight")
    ('norms', 'embedding')
    """
    path = name.split(".")
    if path[0] == "head":
        return "head"
    if any(step.startswith("norm_") or step in ("norm", "final_norm") for step in path):
        return "norms"
    parts = {
        "self_attn": "self-attention",
        "cross_attn": "cross-attention",
        "ffn": "feed-forward",
        "position": "positions",
    }
    return next((parts[step] for step in path if step in parts), "embedding")


def _cache_bytes(bundle: Bundle, activations: dict[str, Shape]) -> int | None:
    """The size of the KV cache: keys and values of self-attention and cross-attention in all layers."""
    if not isinstance(bundle.spec, spec.EncoderDecoder | spec.DecoderOnly):
        return None
    names = [f"decoder.blocks.0.{attention}.{x}" for attention in ("self_attn", "cross_attn") for x in "kv"]
    numbers = sum(math.prod(activations[name]) for name in names if name in activations)
    return numbers * bundle.spec.decoder.num_layers * next(bundle.model.parameters()).dtype.itemsize


@dataclass(frozen=True)
class Row:
    """One line of a drawing: the wire, a name (indented inside a sublayer), a description, a shape."""

    wire: str
    name: str = ""
    detail: str = ""
    shape: Shape | None = None


def draw_model(model: spec.Model, summary: ModelSummary, width: int) -> RenderableType:
    """The whole model as a rich renderable."""
    width = min(width, MAX_WIDTH)
    head = _head_rows(model, summary)
    if not isinstance(model, spec.EncoderDecoder):
        name = "decoder" if isinstance(model, spec.DecoderOnly) else "encoder"
        stack: spec.Stack = getattr(model, name)
        rows = _input_rows("embed", model.input, stack.d_model, summary.inputs[0], summary)
        return _draw_stack(name, stack, rows, head, summary, width)
    source, target = summary.inputs[:2]
    encoder_input = _input_rows("src_embed", model.source, model.encoder.d_model, source, summary)
    decoder_input = _input_rows("tgt_embed", model.target, model.decoder.d_model, target, summary)
    memory = [Row("╰─▶", "memory", "to every cross_attn", (*source[:2], model.encoder.d_model))]
    return Group(
        _draw_stack("encoder", model.encoder, encoder_input, memory, summary, width),
        "",
        _draw_stack("decoder", model.decoder, decoder_input, head, summary, width),
    )


def _draw_stack(
    name: str, stack: spec.Stack, before: list[Row], after: list[Row], summary: ModelSummary, width: int
) -> RenderableType:
    """The input, one block in a frame, the final norm, and what follows."""
    rows = list(_block_rows(f"{name}.blocks.0", stack, summary))
    wire_width = 5 if stack.block.wiring.startswith("parallel") else 3
    blocks = f"{name}.blocks.0" + (f"–{stack.num_layers - 1}" if stack.num_layers > 1 else "")
    frame = Panel(
        _table(rows, width - 4, wire_width),
        title=f"[bold]{stack.num_layers} ×[/] [cyan]{blocks}[/]  [dim]{WIRINGS[stack.block.wiring]}[/]",
        title_align="left",
        border_style="dim",
        width=width,
    )
    if stack.final_norm is not None:
        shape = summary.activations.get(f"{name}.final_norm")
        after = [Row("◇", f"{name}.final_norm", describe(stack.final_norm), shape), *after]
    outside = [_indented(_table(rows, width - 4, wire_width)) for rows in (before, after)]
    return Group(outside[0], frame, outside[1]) if rows else Group(*outside)


def _indented(table: Table) -> Table:
    """A table whose wires line up with those inside a frame."""
    outer = Table.grid()
    outer.add_column(width=2)
    outer.add_column()
    outer.add_row("", table)
    return outer


def _table(rows: Sequence[Row], width: int, wire_width: int) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.width = width
    table.add_column(width=wire_width, style="green", no_wrap=True)
    table.add_column(min_width=18, no_wrap=True)
    table.add_column(ratio=1, style="dim")
    table.add_column(justify="right", no_wrap=True, style="yellow")
    for row in rows:
        name = Text(row.name, "" if row.name.startswith(" ") else "cyan")
        shape = "" if row.shape is None else f"({', '.join(map(str, row.shape))})"
        table.add_row(row.wire, name, row.detail, shape)
    return table


def _input_rows(name: str, what: spec.Input, d_model: int, shape: Shape, summary: ModelSummary) -> list[Row]:
    kind = {spec.Tokens: "token ids", spec.ImagePatches: "images", spec.SeriesPatches: "series"}
    shapes = summary.activations
    rows = [Row("╷", kind.get(type(what), "vectors"), "", shape)]
    later = ("position", "kind", "norm", "out")
    steps = [n for n in shapes if n.startswith(f"{name}.") and n.rpartition(".")[2] not in later]
    steps = steps or [f"{name}.out"]
    for step in steps:
        rows.append(Row("│", step, describe(what, d_model) if step == steps[-1] else "", shapes.get(step)))
    position = getattr(what, "position", None)
    if f"{name}.position" in shapes:
        detail = position if isinstance(position, str) else describe(position)
        rows.append(Row("⊕", f"{name}.position", detail or "learned", shapes[f"{name}.position"]))
    if f"{name}.kind" in shapes:
        rows.append(Row("⊕", f"{name}.kind", "token types", shapes[f"{name}.kind"]))
    if f"{name}.norm" in shapes and isinstance(what, spec.Tokens) and what.norm is not None:
        rows.append(Row("◇", f"{name}.norm", describe(what.norm), shapes[f"{name}.norm"]))
    out = shapes.get(f"{name}.out")
    return rows if out == rows[-1].shape else [*rows, Row("│", f"{name}.out", "", out)]


def _head_rows(model: spec.Model, summary: ModelSummary) -> list[Row]:
    tied = ", tied" if "head" in model.tied else ""
    row = Row("▼", "head", f"{describe(model.head)}{tied}")
    if len(summary.outputs) == 1:
        (shape,) = summary.outputs.values()
        return [replace(row, shape=shape)]
    return [row, *(Row("", f"  {name}", "", shape) for name, shape in summary.outputs.items())]


def _block_rows(at: str, stack: spec.Stack, summary: ModelSummary) -> Iterator[Row]:
    """The rows of one block, by its wiring."""
    block, shapes = stack.block, summary.activations
    if f"{at}.resid_in" not in shapes:
        return
    self_attn = _attention_rows(
        f"{at}.self_attn", block.attention, stack.d_model, describe(stack.position), stack.causal, summary
    )
    ffn = _ffn_rows(at, stack, summary)

    def norm(name: str, wire: str) -> Row:
        return Row(wire, name, describe(block.norm), shapes.get(f"{at}.{name}"))

    yield Row("│", "resid_in", "residual stream", shapes[f"{at}.resid_in"])
    if block.wiring == "parallel":
        yield norm("norm_self", "├─╮")
        yield from _wired("│ ├─╮", "│ │ │", "⊕─│─╯", self_attn)
        yield from _wired("│ ╰─╮", "│   │", "⊕───╯", ffn)
        return
    if block.wiring == "parallel_split":
        yield norm("norm_self", "├───╮")
        yield norm("norm_ffn", "├─╮ │")
        yield from _wired("│ │ │", "│ │ │", "⊕─│─╯", self_attn)
        yield from _wired("│ │", "│ │", "⊕─╯", ffn)
        return
    sublayers = [("norm_self", self_attn), ("norm_ffn", ffn)]
    if block.cross_attention is not None:
        cross = _attention_rows(
            f"{at}.cross_attn", block.cross_attention, stack.d_model, "k and v from memory", False, summary
        )
        sublayers.insert(1, ("norm_cross", cross))
    for name, rows in sublayers:
        if block.wiring == "pre":
            yield norm(name, "├─╮")
            yield from _wired("│ │", "│ │", "⊕─╯", rows)
        else:
            yield from _wired("├─╮", "│ │", "⊕─╯", rows)
            yield norm(name, "◇")


def _wired(first: str, middle: str, last: str, rows: list[Row]) -> Iterator[Row]:
    """Rows with their wires: how the branch leaves, runs and comes back."""
    for n, row in enumerate(rows):
        yield replace(row, wire=first if n == 0 else last if n == len(rows) - 1 else middle)


def _attention_rows(
    at: str, what: spec.Attention, d_model: int, position: str, causal: bool, summary: ModelSummary
) -> list[Row]:
    shapes = summary.activations
    by_shape: dict[Shape | None, list[str]] = {}
    for letter in "qkv":
        by_shape.setdefault(shapes.get(f"{at}.{letter}"), []).append(letter)
    detail = f"{what.num_heads} heads × {what.head_dim or d_model // what.num_heads}"
    if what.num_kv_heads and what.num_kv_heads != what.num_heads:
        detail += f", {what.num_kv_heads} for k and v"
    reach = "causal" if causal else "" if what.window else "every position"
    if what.window:
        reach = f"{reach}, window {what.window}".removeprefix(", ")
    kernel = summary.kernels.get(at, "")
    return [
        Row("", at.rpartition(".")[2], detail),
        *(
            Row("", f"  {', '.join(letters)}", position if "q" in letters else "", shape)
            for shape, letters in by_shape.items()
        ),
        Row("", "  weights", reach, shapes.get(f"{at}.weights")),
        Row("", "  heads", f"{kernel} kernel" if kernel else "", shapes.get(f"{at}.heads")),
        Row("", "  out", "", shapes.get(f"{at}.out")),
    ]


def _ffn_rows(at: str, stack: spec.Stack, summary: ModelSummary) -> list[Row]:
    shapes, what = summary.activations, stack.block.feed_forward
    gated = "gated " if isinstance(what, spec.GatedFeedForward) else ""
    detail = f"{stack.d_model} → {what.d_ff} → {stack.d_model}, {gated}{what.activation}"
    upper = "gate, up" if f"{at}.ffn.gate" in shapes else "up"
    return [
        Row("", "ffn", detail),
        Row("", f"  {upper}", "", shapes.get(f"{at}.ffn.up")),
        Row("", "  down", "", shapes.get(f"{at}.ffn.down")),
    ]


def describe(what: Any, d_model: int = 0) -> str:
    """A part of a spec in a few words.

    >>> describe(spec.Learned(max_len=512))
    'learned table, 512 rows'
    """
    match what:
        case None:
            return ""
        case spec.Sinusoidal():
            return f"sines and cosines, {what.max_len} rows"
        case spec.Learned():
            return f"learned table, {what.max_len} rows"
        case spec.Rotary():
            features = f" on {what.width} features" if what.width else ""
            scaling = f", {_class_name(what.scaling)}" if what.scaling else ""
            return f"rotary{features}, base {what.base:g}{scaling}"
        case spec.Relative():
            return f"learned bias by distance, {what.buckets} buckets"
        case spec.Alibi():
            return "ALiBi"
        case spec.Tokens():
            root = round(what.scale**2)
            scale = f"√{root}" if math.isclose(math.sqrt(root), what.scale) else f"{what.scale:g}"
            return f"{what.vocab_size:,} tokens × {d_model}" + (f", scaled by {scale}" if root != 1 else "")
        case spec.ImagePatches():
            rows, columns = (i // p for i, p in zip(what.image_size, what.patch_size, strict=True))
            return f"{rows} × {columns} patches of {what.patch_size[0]} × {what.patch_size[1]}"
        case spec.SeriesPatches():
            return f"{what.num_patches} patches of {what.patch_length}, stride {what.stride}"
        case spec.LanguageModel():
            return f"logits over {what.vocab_size:,} tokens"
        case spec.MaskedLanguageModel():
            return f"dense, {what.activation}, norm, {what.vocab_size:,} tokens"
        case spec.Classify():
            hidden = f"dense, {what.hidden}, " if what.hidden else ""
            return f"{what.pool} vector, {hidden}{what.num_labels} labels"
        case spec.TokenClassify():
            return f"{what.num_labels} labels per token"
        case spec.ClassifyTwice():
            return f"two heads of {what.num_labels} labels, and their mean"
        case spec.Answer():
            return "start and end of the answer"
        case spec.Features():
            return "hidden states" + (", and a pooled vector" if what.pooler else "")
        case spec.Embed():
            return f"{what.pool} pooling" + (", normalized" if what.normalize else "")
        case spec.Forecast():
            return f"the next {what.prediction_length} values"
        case spec.LayerNorm() | spec.RMSNorm() | spec.BatchNorm():
            return type(what).__name__
    return _class_name(what)


def _class_name(what: Any) -> str:
    """`LinearScaling` -> `linear scaling`."""
    return "".join(f" {c.lower()}" if c.isupper() else c for c in type(what).__name__).strip()
