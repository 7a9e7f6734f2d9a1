"""Plot position encodings: the table as a heat map, and its dimensions as waves. T positions, D d_model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from glassformer.core.positions import LearnedPositions, SinusoidalPositions, sinusoids
from glassformer.errors import UnsupportedError
from glassformer.plotting.canvas import FAINT, figure_style, hide_frame, new_figure
from glassformer.plotting.fonts import drawable
from glassformer.transformer import PositionalEncoding

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def positional_encoding(
    model_or_d_model: nn.Module | int,
    *,
    max_len: int = 100,
    dimensions: Sequence[int] | None = None,
    title: str = "",
) -> Figure:
    """Plot the table that is added to the embeddings: a heat map, red above 0 and blue below, and its waves.

    model_or_d_model: the width of sinusoidal positions, or a model or module with a position table
    max_len: number of positions to show
    dimensions: which dimensions to draw as waves; None: five, from the fastest wave to slower ones
    """
    table = _position_table(model_or_d_model, max_len)  # (T, D)
    width = table.shape[1]
    waves = [width * n // 8 for n in range(5)] if dimensions is None else list(dimensions)
    waves = list(dict.fromkeys(waves))
    top = float(table.abs().max()) or 1.0
    with figure_style():
        figure = new_figure(7.2, 4.3 + 0.6 * len(waves))
        heat, *strips = figure.subplots(1 + len(waves), 1, height_ratios=[5.5, *[1] * len(waves)])
        image = heat.imshow(
            table.numpy(), cmap="RdBu_r", vmin=-top, vmax=top, aspect="auto", interpolation="nearest"
        )
        shown = title or f"Positional encoding, d_model = {width}"
        heat.set(xlabel="dimension", ylabel="position", title=drawable(shown))
        bar = figure.colorbar(image, ax=heat, pad=0.02, ticks=[-top, 0, top], format="%.2g")
        bar.outline.set_visible(False)
        for n, axes in enumerate(strips):
            _draw_wave(axes, table[:, waves[n]], f"dim {waves[n]}", n / max(1, len(waves) - 1), top)
        strips[-1].set_xlabel("position")
        strips[-1].tick_params(labelbottom=True)
    return figure


def _draw_wave(axes: Axes, values: Tensor, name: str, shade: float, top: float) -> None:
    from matplotlib import colormaps

    axes.axhline(0, color=FAINT, linewidth=0.8)
    axes.plot(values.numpy(), color=colormaps["viridis"](0.85 * shade), linewidth=1.8)
    axes.set(ylim=(-1.15 * top, 1.15 * top), xlim=(0, len(values) - 1), yticks=[])
    axes.set_ylabel(name, rotation=0, ha="right", va="center")
    axes.tick_params(labelbottom=False)
    hide_frame(axes)


def _position_table(source: nn.Module | int, max_len: int) -> Tensor:
    """Return the first rows (T, D) of a position table."""
    if isinstance(source, int):
        return sinusoids(max_len, source)
    for module in source.modules():
        if isinstance(module, PositionalEncoding):
            return module.pe[0, :max_len].float().cpu()
        if isinstance(module, SinusoidalPositions | LearnedPositions):
            rows = torch.arange(
                min(max_len, module.max_len), device=next(iter(module.state_dict().values())).device
            )
            return module(rows).detach().float().cpu()
    raise UnsupportedError(
        f"a {type(source).__name__}", "a plot of its positions", hint="it adds no position table"
    )
