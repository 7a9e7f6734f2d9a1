"""Summarize a model from one forward pass: shapes, parameters, memory, and a text diagram of the layers.

The residual stream runs down the left; each sublayer branches off and is added back:

├─╮ norm_self      LayerNorm                (2, 16, 32)
│ │ self_attn.q    4 heads × 8              (2, 4, 16, 8)
⊕─╯ self_attn.out                           (2, 16, 32)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table

from glassformer.bundle import Bundle
from glassformer.core import spec
from glassformer.core.observe import observe
from glassformer.verify.inputs import fitting_length, named_outputs, random_inputs

# all blocks of a stack have the same shapes, so the first one is enough
OBSERVED = ("*embed.*", "*.blocks.0.*", "*.final_norm", "*.merging.*", "head.*")
LEVELS = ("*.layers.?", "*.attentions.?", "*.levels.?.down", "*.levels.?.up", "bottleneck")  # of convolutions
PARTS: tuple[str, ...] = ("backbone", "embedding", "positions", "self-attention", "cross-attention")
PARTS += ("feed-forward", "patch merging", "convolutions", "norms", "head")
NORMS = ("norm_self", "norm_cross", "norm_ffn", "norm_self_out", "norm_cross_out", "norm_ffn_out")
BLOCK_PARTS = ("resid_in", "self_attn", "cross_attn", "ffn", *NORMS)
DEFAULT_LENGTH = 16
MAX_WIDTH = 100
WIRINGS = {
    "pre": "pre-norm",
    "post": "post-norm",
    "sandwich": "norms before and after each sublayer",
    "res_post": "norm after each sublayer",
    "parallel": "parallel, one norm",
    "parallel_split": "parallel, two norms",
}

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ModelSummary:
    """Shapes by activation name, parameter counts by group, memory in bytes, attention kernels by module."""

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
    sample = random_inputs(model, batch=batch, length=length, target_length=length)
    record = observe(model, sample.arguments(), want=(*OBSERVED, *LEVELS))
    activations: dict[str, Shape] = {}
    for name in record:
        if name.endswith("_attn.heads"):
            q, k = (activations[name.replace(".heads", letter)] for letter in (".q", ".k"))
            activations[name.replace(".heads", ".weights")] = (*q[:3], k[2])
        activations[name] = tuple(record[name].shape)
    parameters = list(model.named_parameters())
    counts = {part: sum(p.numel() for n, p in parameters if part_of(n) == part) for part in PARTS}
    longest = max((shape[2] for name, shape in activations.items() if name.endswith(".k")), default=1)
    return ModelSummary(
        inputs=tuple(tuple(x.shape) for x in (*sample.inputs, *sample.conditions.values())),
        activations=activations,
        outputs={name: tuple(t.shape) for name, t in named_outputs(record.output).items()},
        parameters={part: count for part, count in counts.items() if count},
        dtypes=tuple(sorted({str(p.dtype).removeprefix("torch.") for _, p in parameters})),
        weight_bytes=sum(p.numel() * p.element_size() for _, p in parameters),
        cache_bytes=_cache_bytes(bundle, activations),
        kernels=dict(bundle.kernels(longest)),
    )


def part_of(name: str) -> str:
    """Return the group that a parameter is counted in, e.g. norms or feed-forward.

    >>> part_of("decoder.blocks.0.norm_self.weight"), part_of("embed.token.weight")
    ('norms', 'embedding')
    """
    path = name.split(".")
    if "head" in path[:2]:
        return "head"
    if "backbone" in path:
        return "backbone"
    norms = ("norm", "norm1", "norm2", "final_norm")
    if any(step.startswith(("norm_", "scale_")) or step in norms for step in path):
        return "norms"
    parts = {
        "self_attn": "self-attention",
        "cross_attn": "cross-attention",
        "ffn": "feed-forward",
        "position": "positions",
        "attention": "self-attention",
        "merging": "patch merging",
    }
    rest = "convolutions" if "levels" in path else "embedding"
    return next((parts[step] for step in path if step in parts), rest)


def _cache_bytes(bundle: Bundle, activations: dict[str, Shape]) -> int | None:
    """Return the size of the KV cache in bytes: keys and values of all self- and cross-attention layers."""
    model: Any = bundle.spec
    decodes = model.architecture in ("encoder-decoder", "decoder-only")
    if not decodes or any(read.trained for read in model.embeddings().values()):  # object queries: one pass
        return None
    names = [f"decoder.blocks.0.{attention}.{x}" for attention in ("self_attn", "cross_attn") for x in "kv"]
    numbers = sum(math.prod(activations[name]) for name in names if name in activations)
    return numbers * model.decoder.num_layers * next(bundle.model.parameters()).dtype.itemsize


Row = tuple[str, str, str, Shape]  # wire, name, description, shape


def draw_model(model: spec.ModelSpec, summary: ModelSummary, width: int) -> RenderableType:
    """Draw the model as a rich renderable: the input, one framed block and the output of each stack."""
    width, parts = min(width, MAX_WIDTH), list[RenderableType]()
    for number, (name, stack, embedding, stack_input) in enumerate(_stacks(model)):
        blocks = f"{name}.blocks.0" + (f"–{stack.num_layers - 1}" if stack.num_layers > 1 else "")
        frame = Panel(
            _table(_block_rows(f"{name}.blocks.0", stack, summary), width - 4),
            title=f"[bold]{stack.num_layers} ×[/] [cyan]{blocks}[/]  [dim]{WIRINGS[stack.block.wiring]}[/]",
            title_align="left",
            subtitle=_describe_windows(stack),
            subtitle_align="left",
            border_style="dim",
            width=width,
        )
        after = _rows(f"{name}.final_norm", {f"{name}.final_norm": describe(stack.final_norm)}, summary)
        if stack_input is None:
            merged = {f"{embedding}.out": "2 × 2 neighbors merged"}
            before = _rows(f"{embedding}.", merged, summary)
        else:
            before = _input_rows(embedding, stack_input, summary, number)
        parts += [
            _outside(before, width),
            frame,
            _outside(after, width),
        ]
    if "encoder.final_norm" in summary.activations and "" not in model.stacks()["encoder"].parts():
        norm = {"encoder.final_norm": describe(getattr(model.stacks()["encoder"], "final_norm", None))}
        parts.append(_outside(_rows("encoder.final_norm", norm, summary), width))
    if not parts:  # convolutions
        parts.append(_outside(_level_rows(summary), width))
    tied = ", tied to the token embedding" if "head" in model.tied else ""
    head = [("▼", "head", describe(model.head) + tied, shape) for shape in summary.outputs.values()]
    return Group(*parts, _outside(head, width))


def _stacks(model: spec.ModelSpec) -> list[tuple[str, spec.StackSpec, str, spec.InputSpec | None]]:
    """Return the name and spec of each stack, and of its input embedding; of a later stage, its merging."""
    rows: list[tuple[str, spec.StackSpec, str, spec.InputSpec | None]] = []
    stacks = zip(model.stacks().items(), model.embeddings().items(), strict=False)
    if any(".levels." in name for name in model.stacks()):
        return rows
    for (name, stack), (embed, source) in stacks:
        first, *rest = stack.parts().items()
        rows.append((f"{name}{first[0]}", first[1], embed, source))
        for path, part in rest:
            number = int(path.rpartition(".")[2])
            rows.append((f"{name}{path}", part, f"{name}.merging.{number - 1}", None))
    return rows


def _describe_windows(stack: spec.StackSpec) -> str | None:
    """Describe the layers with a window in a stack whose layers differ; None if they are all drawn."""
    spatial = [stack.block_at(n).attention.spatial_window for n in range(stack.num_layers)]
    shifted = [str(n) for n, window in enumerate(spatial) if getattr(window, "shift", 0)]
    if shifted:
        return f"[dim]shifted windows in layers {', '.join(shifted)}[/]"
    windows = [stack.block_at(n).attention.window for n in range(stack.num_layers)]
    layers = [str(n) for n, window in enumerate(windows) if window is not None]
    if not layers or len(set(windows)) == 1:
        return None
    base = getattr(stack.local_position, "base", None)
    rotary = "" if base is None else f", rotary base {base:g}"
    return f"[dim]window {max(w for w in windows if w)}{rotary} in layers {', '.join(layers)}[/]"


def _outside(rows: Iterator[Row] | list[Row], width: int) -> Padding:
    """Indent rows so that their wires line up with those inside a frame."""
    return Padding(_table(rows, width - 4), (0, 0, 0, 2))


def _table(rows: Iterator[Row] | list[Row], width: int) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.width = width
    table.add_column(width=3, style="green", no_wrap=True)
    table.add_column(min_width=18, no_wrap=True, style="cyan")
    table.add_column(ratio=1, style="dim")
    table.add_column(justify="right", no_wrap=True, style="yellow")
    for wire, name, detail, shape in rows:
        table.add_row(wire, name, detail, f"({', '.join(map(str, shape))})")
    return table


def _rows(prefix: str, details: dict[str, str], summary: ModelSummary) -> Iterator[Row]:
    """Yield a row for each activation whose name starts with `prefix`."""
    wires = {"position": "⊕", "kind": "⊕", "norm": "◇", "final_norm": "◇"}
    for name, shape in summary.activations.items():
        if name.startswith(prefix):
            yield wires.get(name.rpartition(".")[2], "│"), name, details.get(name, ""), shape


def _level_rows(summary: ModelSummary) -> Iterator[Row]:
    """Yield the rows of a model of convolutions: its input, every layer, and the attention after it."""
    yield "╷", "input", "", summary.inputs[0]
    for name, shape in summary.activations.items():
        if not name.startswith("head.") and any(fnmatchcase(name, p) for p in (*LEVELS, "embed.out")):
            yield "│", name, "", shape


def _input_rows(name: str, stack_input: spec.InputSpec, summary: ModelSummary, number: int) -> Iterator[Row]:
    position = getattr(stack_input, "position", None)
    details = {f"{name}.{first}": describe(stack_input) for first in ("token", "patch", "project")}
    details[f"{name}.position"] = position if isinstance(position, str) else describe(position)
    if number < len(summary.inputs):  # object queries are trained, not given
        yield "╷", "input", "", summary.inputs[number]
    yield from _rows(f"{name}.", details, summary)


def _block_rows(at: str, stack: spec.StackSpec, summary: ModelSummary) -> Iterator[Row]:
    """Yield the rows of one block. A pre-norm opens a branch; a post-norm comes after the sum."""
    wiring, details = stack.block.wiring, _block_details(at, stack, summary)
    last = {"out": "⊕─┤" if wiring.startswith("parallel") else "⊕─╯", "down": "⊕─╯"}
    if wiring in ("sandwich", "res_post"):  # the output is normed before it is added
        last = {}
    previous = ""
    for name, shape in summary.activations.items():
        own = name.removeprefix(f"{at}.")
        sublayer, _, step = own.partition(".")
        if own == name or sublayer not in BLOCK_PARTS:
            continue
        if sublayer == "resid_in":
            wire = "│"
        elif sublayer.endswith("_out"):
            wire = "⊕─╯"
        elif sublayer.startswith("norm_"):
            wire = {"post": "◇", "res_post": "⊕─╯"}.get(wiring, "├─╮")
        else:
            wire = "├─╮" if wiring in ("post", "res_post") and sublayer != previous else "│ │"
        yield last.get(step, wire), own, details.get(own, ""), shape
        previous = sublayer


def _block_details(at: str, stack: spec.StackSpec, summary: ModelSummary) -> dict[str, str]:
    block, ffn = stack.block, stack.block.feed_forward
    gated = "gated " if ffn.gated else ""
    details = {name: describe(block.norm) for name in NORMS}
    details["resid_in"] = "residual stream"
    details["ffn.up"] = f"{stack.d_model} → {ffn.d_ff}, {gated}{ffn.activation}"
    for name, attention in (("self_attn", block.attention), ("cross_attn", block.cross_attention)):
        if attention is None:
            continue
        details[f"{name}.q"] = (
            f"{attention.num_heads} heads × {attention.head_dim or stack.d_model // attention.num_heads}"
        )
        position = attention.position_bias or stack.position
        details[f"{name}.k"] = describe(position) if name == "self_attn" else "from the encoder output"
        causal = "causal" if stack.causal and name == "self_attn" else ""
        window = f"window {attention.window}" if attention.window else ""
        if (spatial := attention.spatial_window) is not None:
            axis = getattr(spatial, "axis", None)
            window = f"along {axis}" if axis else f"windows of {spatial.size} × {spatial.size}"  # type: ignore[union-attr]
        details[f"{name}.weights"] = ", ".join(filter(None, (causal, window))) or "every position"
        details[f"{name}.heads"] = f"{summary.kernels.get(f'{at}.{name}', 'no')} kernel"
    return details


def describe(part: Any) -> str:
    """Describe a part of a spec by its kind and non-default settings.

    >>> describe(spec.LearnedSpec(max_len=512))
    'Learned, max_len 512'
    """
    if part is None:
        return ""
    settings = [
        f"{field.name} {value:g}" if isinstance(value, float) else f"{field.name} {value}"
        for field in fields(part)
        if isinstance(value := getattr(part, field.name), int | float | str | tuple)
        and value != field.default
    ]
    return ", ".join([part.kind, *settings])
