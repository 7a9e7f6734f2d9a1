"""Draw the pictures of concepts/parts.md: `python -m docs.concept_pictures`, from the root.

The attention maps come from a small Transformer that learns to spell out dates, as in the demo (a minute).
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from torch import Tensor

import glassformer
from glassformer import Mask, SinusoidalPositions, plotting
from glassformer.cli.demo import date_pairs
from glassformer.interpret.schema import TraceInput
from glassformer.interpret.trace import trace_model
from glassformer.plotting.canvas import BLUE, FAINT, GREEN, INK, ORANGE, figure_style, hide_frame, new_figure

FOLDER = Path(__file__).parent / "pictures"
LABELS = {"norm": "norm", "attn": "attention", "ffn": "feed-forward"}
COLORS = {"norm": ORANGE, "attn": BLUE, "ffn": GREEN}


def draw_positions() -> None:
    table = SinusoidalPositions(64, max_len=100).table
    heatmap = position_heatmap(table, title="Sinusoidal positions, d_model = 64")
    plotting.save(heatmap, FOLDER / "position-heatmap.png")
    plotting.save(position_waves(table, (0, 8, 16, 24, 32)), FOLDER / "position-waves.png")


def position_heatmap(table: Tensor, *, title: str = "Position table") -> Figure:
    """Draw a table (positions, D) as a heatmap: a row for each position, red above 0 and blue below."""
    top = float(table.abs().max()) or 1.0
    with figure_style():
        figure = new_figure(7.2, 3.8)
        axes = figure.subplots()
        image = axes.imshow(
            table.numpy(), cmap="RdBu_r", vmin=-top, vmax=top, aspect="auto", interpolation="nearest"
        )
        axes.set(xlabel="dimension", ylabel="position", title=title)
        bar = figure.colorbar(image, ax=axes, pad=0.02, ticks=[-top, 0, top], format="%.2g")
        bar.outline.set_visible(False)
    return figure


def position_waves(
    table: Tensor, dimensions: Sequence[int] = (0, 8, 16, 24, 32), *, title: str = "Each dimension is a wave"
) -> Figure:
    """Draw columns of a table (positions, D) as curves over the position, one strip each."""
    top = 1.15 * (float(table.abs().max()) or 1.0)
    with figure_style():
        figure = new_figure(7.2, 0.5 + 0.72 * len(dimensions))
        strips = figure.subplots(len(dimensions), 1, sharex=True, squeeze=False)[:, 0]
        for n, (axes, dimension) in enumerate(zip(strips, dimensions, strict=True)):
            color = colormaps["viridis"](0.85 * n / max(1, len(dimensions) - 1))
            axes.axhline(0, color=FAINT, linewidth=0.8)
            axes.plot(table[:, dimension].numpy(), color=color, linewidth=1.8)
            axes.set(ylim=(-top, top), xlim=(0, len(table) - 1), yticks=[])
            axes.set_ylabel(f"dim {dimension}", rotation=0, ha="right", va="center")
            hide_frame(axes)
        strips[0].set_title(title)
        strips[-1].set_xlabel("position")
    return figure


def draw_masks() -> None:
    padding = torch.arange(8)[None] < 5
    documents = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2]])
    masks = {
        "causal": Mask(causal=True),
        "causal, window 3": Mask(causal=True, window=3),
        "padding": Mask(padding=padding),
        "causal, segments": Mask(causal=True, segments=documents),
    }
    dense_masks = {}
    for name, mask in masks.items():
        dense = mask.dense(8, 8)
        assert dense is not None
        dense_masks[name] = dense.expand(1, 1, 8, 8)
    plotting.save(plotting.mask_row(dense_masks), FOLDER / "masks.png")


def draw_attention(steps: int = 900, folder: Path = FOLDER) -> None:
    """Draw the last cross-attention while a date is spelled out: the mean over heads, then each head."""
    text = "2024-03-17"
    with TemporaryDirectory() as folder_name:
        table = Path(folder_name) / "dates.tsv"
        table.write_text("".join(f"{source}\t{target}\n" for source, target in date_pairs()[0]))
        recipe = {
            "job": "translate",
            "data": {"train": [str(table)], "valid": 0.02},
            "tokenizer": {"kind": "char"},
            "model": {"preset": "original", "d_model": 64, "num_heads": 4, "d_ff": 256, "num_layers": 2},
            "training": {
                "max_steps": steps,
                "batch_tokens": 2048,
                "lr": 0.003,
                "label_smoothing": 0.0,
                "load_best_model_at_end": False,
                "eval_steps": steps,
                "device": "cpu",
            },
        }
        pipeline = glassformer.train(recipe, Path(folder_name) / "run")
    trace = trace_model(pipeline, TraceInput(text=text))
    keys = [token.piece for token in trace.sequence("source").tokens]
    # row n predicts token n + 1
    queries = [*(token.piece for token in trace.sequence("target").tokens[1:]), "end"]
    heads = trace.record.weights("decoder.blocks.1.cross_attn")[0]  # (H, T, S)
    figure = plotting.attention_map(
        heads.mean(0),
        queries=queries,
        keys=keys,
        title=f"{text} → {''.join(queries[:-1])}",
        query_name="output",
        key_name="input",
    )
    plotting.save(figure, folder / "attention.png")
    title = "The last cross-attention, head by head"
    plotting.save(
        plotting.attention_grid(heads, queries=queries, keys=keys, title=title), folder / "heads.png"
    )


def draw_wirings() -> None:
    """Draw the norms of a block in each arrangement; data flows upwards, residual stream on the left."""
    with figure_style():
        figure = new_figure(7.2, 4.2)
        post, pre, parallel = figure.subplots(1, 3)
        for axes, title, note in (
            (post, "post (the paper)", "norm(x + f(x))"),
            (pre, "pre (today)", "x + f(norm(x))"),
            (parallel, "parallel", "x + attn(norm(x)) + ffn(norm(x))"),
        ):
            axes.set(xlim=(0, 4), ylim=(-0.7, 8.6))
            axes.axis("off")
            axes.set_title(title, pad=18)
            axes.text(2, 8.75, note, ha="center", va="bottom", fontsize=8.5)
        _draw_post(post)
        _draw_pre(pre)
        _draw_parallel(parallel)
    plotting.save(figure, FOLDER / "wirings.png")


def _draw_box(axes: Axes, kind: str, x: float, y: float, width: float = 1.9) -> None:
    axes.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - 0.3),
            width,
            0.6,
            boxstyle="round,pad=0.04,rounding_size=0.12",
            facecolor=COLORS[kind],
            edgecolor="none",
            zorder=3,
        )
    )
    axes.text(x, y, LABELS[kind], ha="center", va="center", color="white", fontsize=8, zorder=4)


def _draw_plus(axes: Axes, x: float, y: float) -> None:
    axes.scatter([x], [y], s=150, facecolor="white", edgecolor=INK, linewidth=1.2, zorder=5)
    axes.text(x, y - 0.02, "+", ha="center", va="center", fontsize=11, zorder=6)


def _draw_path(axes: Axes, *points: tuple[float, float]) -> None:
    """Draw a line through the points with an arrow head at its end."""
    xs, ys = zip(*points, strict=True)
    axes.plot(xs[:-1], ys[:-1], color=INK, linewidth=1.2, solid_joinstyle="round", zorder=1)
    axes.annotate(
        "",
        xy=points[-1],
        xytext=points[-2],
        arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0},
        zorder=1,
    )


def _draw_stream(axes: Axes, x: float) -> None:
    """Draw the residual stream from the input straight up to the output."""
    axes.text(x, -0.35, "x", ha="center", va="top", style="italic")
    _draw_path(axes, (x, -0.3), (x, 8.4))


def _draw_post(axes: Axes) -> None:
    stream, side = 0.8, 2.6
    for low, kind in ((0.0, "attn"), (4.0, "ffn")):
        _draw_path(axes, (stream, low + 0.5), (side, low + 0.5), (side, low + 1.0))
        _draw_box(axes, kind, side, low + 1.35)
        _draw_path(axes, (side, low + 1.65), (side, low + 2.2), (stream + 0.2, low + 2.2))
        _draw_plus(axes, stream, low + 2.2)
        _draw_box(axes, "norm", stream, low + 3.2, 1.3)
    _draw_stream(axes, stream)


def _draw_pre(axes: Axes) -> None:
    stream, side = 0.8, 2.6
    for low, kind in ((0.0, "attn"), (4.0, "ffn")):
        _draw_path(axes, (stream, low + 0.4), (side, low + 0.4), (side, low + 0.8))
        _draw_box(axes, "norm", side, low + 1.15, 1.3)
        _draw_path(axes, (side, low + 1.45), (side, low + 2.05))
        _draw_box(axes, kind, side, low + 2.4)
        _draw_path(axes, (side, low + 2.7), (side, low + 3.2), (stream + 0.2, low + 3.2))
        _draw_plus(axes, stream, low + 3.2)
    _draw_stream(axes, stream)


def _draw_parallel(axes: Axes) -> None:
    stream, left, right = 0.4, 1.55, 3.2
    middle = (left + right) / 2
    _draw_path(axes, (stream, 1.0), (middle, 1.0), (middle, 1.6))
    _draw_box(axes, "norm", middle, 1.95, 1.3)
    for x, kind in ((left, "attn"), (right, "ffn")):
        _draw_path(axes, (middle, 2.3), (middle, 2.9), (x, 2.9), (x, 3.5))
        _draw_box(axes, kind, x, 3.85, 1.45)
    _draw_path(axes, (right, 4.2), (right, 5.6), (stream + 0.2, 5.6))
    axes.plot([left, left], [4.2, 5.6], color=INK, linewidth=1.2, zorder=1)
    _draw_plus(axes, stream, 5.6)
    _draw_stream(axes, stream)


if __name__ == "__main__":
    torch.set_num_threads(1)  # one order of summation, so the same pictures every time
    for draw in (draw_positions, draw_masks, draw_wirings, draw_attention):
        draw()
    print(f"wrote {', '.join(sorted(p.name for p in FOLDER.glob('*.png')))}")
