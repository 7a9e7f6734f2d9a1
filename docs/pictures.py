"""Draws every picture of the documentation anew: `python -m docs.pictures`, from the repository's root.

The attention maps come from a small Transformer that learns to write dates, as in the demo (a minute).
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from torch import Tensor

import glassformer
from docs.wirings_picture import wirings
from glassformer import Mask, SinusoidalPositions, plotting
from glassformer.cli import demo
from glassformer.interpret.schema import TraceInput
from glassformer.interpret.trace import trace_model
from glassformer.plotting.canvas import FAINT, bare, blank, look

FOLDER = Path(__file__).parent / "pictures"


def positions() -> None:
    table = SinusoidalPositions(64, max_len=100).table
    heatmap = position_heatmap(table, title="Sinusoidal positions, d_model = 64")
    plotting.save(heatmap, FOLDER / "position-heatmap.png")
    plotting.save(position_waves(table, (0, 8, 16, 24, 32)), FOLDER / "position-waves.png")


def position_heatmap(table: Tensor, *, title: str = "Position table") -> Figure:
    """A table (positions, D): a row for each position, red above 0 and blue below."""
    top = float(table.abs().max()) or 1.0
    with look():
        figure = blank(7.2, 3.8)
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
    """Columns of a table (positions, D) as curves over the position, one strip each."""
    top = 1.15 * (float(table.abs().max()) or 1.0)
    with look():
        figure = blank(7.2, 0.5 + 0.72 * len(dimensions))
        strips = figure.subplots(len(dimensions), 1, sharex=True, squeeze=False)[:, 0]
        for n, (axes, dimension) in enumerate(zip(strips, dimensions, strict=True)):
            colour = colormaps["viridis"](0.85 * n / max(1, len(dimensions) - 1))
            axes.axhline(0, color=FAINT, linewidth=0.8)
            axes.plot(table[:, dimension].numpy(), color=colour, linewidth=1.8)
            axes.set(ylim=(-top, top), xlim=(0, len(table) - 1), yticks=[])
            axes.set_ylabel(f"dim {dimension}", rotation=0, ha="right", va="center")
            bare(axes)
        strips[0].set_title(title)
        strips[-1].set_xlabel("position")
    return figure


def masks() -> None:
    real = torch.arange(8)[None] < 5
    documents = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2]])
    kinds = {
        "causal": Mask(causal=True),
        "causal, window 3": Mask(causal=True, window=3),
        "padding": Mask(padding=real),
        "causal, segments": Mask(causal=True, segments=documents),
    }
    squares = {}
    for name, mask in kinds.items():
        dense = mask.dense(8, 8)
        assert dense is not None
        squares[name] = dense.expand(1, 1, 8, 8)
    plotting.save(plotting.mask_row(squares), FOLDER / "masks.png")


def attention(steps: int = 900, folder: Path = FOLDER) -> None:
    """Where each letter of a date in words looked: the last cross-attention's mean, then every head."""
    source = "2024-03-17"
    with TemporaryDirectory() as place:
        table = Path(place) / "dates.tsv"
        demo.write_pairs(table, demo.date_pairs()[0])
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
        bundle = glassformer.train(recipe, Path(place) / "run")
    trace = trace_model(bundle, TraceInput(text=source))
    read = [token.piece for token in trace.sequence("source").tokens]
    # each row writes the piece after the one it reads
    written = [*(token.piece for token in trace.sequence("target").tokens[1:]), "end"]
    heads = trace.record.weights("decoder.blocks.1.cross_attn")[0]  # (H, T, S)
    figure = plotting.attention_map(
        heads.mean(0),
        queries=written,
        keys=read,
        title=f"{source} → {''.join(written[:-1])}",
        query_name="written",
        key_name="read",
    )
    plotting.save(figure, folder / "attention.png")
    title = "The last cross-attention, head by head"
    plotting.save(
        plotting.attention_grid(heads, queries=written, keys=read, title=title), folder / "heads.png"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)  # sums in one order, so the same pictures every time
    for picture in (positions, masks, wirings, attention):
        picture()
    print(f"drawn: {', '.join(sorted(p.name for p in FOLDER.glob('*.png')))}")
