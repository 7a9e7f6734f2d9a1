"""What may be written next, as bars: the same few tokens under several ways of choosing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from glassformer.errors import GlassformerError
from glassformer.plotting.canvas import BLUE, FAINT, GREY, INK, bare, blank, look
from glassformer.plotting.fonts import label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REST = "all others"


def next_token_bars(
    chances: Mapping[str, Tensor], words: Sequence[str], *, title: str = "", columns: int = 3
) -> Figure:
    """Probabilities of the next token, a panel for each way of choosing, each under its name.

    chances: of each way the probabilities (V,) of the whole vocabulary; words: what each of its tokens
    shows, those drawn being the likeliest ten of the first way. The outlines are the first way's bars.
    """
    first = next(iter(chances.values()), None)
    if first is None or any(one.dim() != 1 or len(one) != len(words) for one in chances.values()):
        raise GlassformerError(f"each way needs the probabilities of all {len(words)} words, as one row")
    top = first.topk(min(10, len(words))).indices
    names = [label(words[int(n)]) for n in top]
    rows = [*names, REST] if len(words) > len(names) else names
    across = min(columns, len(chances))
    down = math.ceil(len(chances) / across)
    with look():
        figure = blank(3.1 * across + 0.6, down * (0.2 * len(rows) + 0.62) + (0.35 if title else 0.05))
        places = figure.subplots(down, across, squeeze=False, sharex=True).flatten()
        most = 1.18 * max(_bars(one, top).max().item() for one in chances.values())
        for n, axes in enumerate(places):
            axes.set_visible(n < len(chances))
        for n, (axes, (name, one)) in enumerate(zip(places, chances.items(), strict=False)):
            _panel(axes, _bars(one, top)[: len(rows)], _bars(first, top)[: len(rows)])
            axes.set(xlim=(0, most), ylim=(len(rows) - 0.4, -0.6))
            axes.set_title(name, fontsize=10, loc="left", pad=5)
            axes.set_yticks(
                range(len(rows)), labels=rows if n % across == 0 else [""] * len(rows), fontsize=9
            )
            axes.set_xticks([])
            bare(axes)
        if title:
            figure.suptitle(title, fontsize=11, fontweight="bold", x=0.01, ha="left")
    return figure


def _bars(chances: Tensor, top: Tensor) -> Tensor:
    """The probabilities of the tokens drawn, and that of all others together."""
    own = chances.detach().float().cpu()
    shown = own[top.cpu()]
    return shown.new_tensor([*shown.tolist(), max(0.0, float(own.sum() - shown.sum()))])


def _panel(axes: Axes, bars: Tensor, plain: Tensor) -> None:
    for row, (chance, before) in enumerate(zip(bars.tolist(), plain.tolist(), strict=True)):
        axes.barh(row, before, height=0.72, facecolor="none", edgecolor=FAINT, linewidth=1.0)
        axes.barh(row, chance, height=0.72, color=BLUE)
        told = "never" if chance == 0 else "< 0.1 %" if chance < 0.0005 else f"{100 * chance:.1f} %"
        axes.text(
            max(chance, before), row, f" {told}", va="center", fontsize=8, color=INK if chance > 0 else GREY
        )
