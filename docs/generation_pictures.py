"""Draw the pictures of guides/generate.md: `python -m docs.generation_pictures MODEL`, from the root.

MODEL is a small English-German translator. The one of the page was trained in ten minutes on one CPU core, in
a folder with Multi30k (task 1) in multi30k/:

    glassformer train translate --train multi30k/train.en.gz --train multi30k/train.de.gz \
        --valid multi30k/val.en.gz --valid multi30k/val.de.gz --out runs/multi30k \
        --set tokenizer.vocab_size=4000 --set model.d_model=128 --set model.num_layers=2 \
        --set model.num_heads=4 --set model.d_ff=384 --set model.dropout=0.05 \
        --set training.batch_tokens=1280 --set training.max_steps=3300 --set training.lr_scheduler=linear \
        --set training.lr=0.004 --set training.warmup_steps=300 \
        --set training.eval_steps=1100 --set training.max_generate_samples=100
"""

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

import glassformer
from glassformer import plotting
from glassformer.generation import GenerationConfig, GenerationParams, generate, logits_processors
from glassformer.plotting.canvas import BLUE, FAINT, GREY, INK, figure_style, hide_frame, new_figure
from glassformer.plotting.fonts import label

FOLDER = Path(__file__).parent / "pictures"
SOURCE = "Two men wearing black in a city"
SAMPLING_SOURCE, SAMPLING_PREFIX = "A kid is looking at coffee machines inside a store.", "Ein Kind"
COLORS = 128  # the file is a third of the size with all colors
REST = "all others"


def draw_tree(bundle: glassformer.Bundle) -> Path:
    """Draw the tree of a beam search."""
    tokenizer = bundle.tokenizer
    assert tokenizer is not None and tokenizer.pad_id is not None
    (best,) = generate(
        bundle.model,
        torch.tensor([tokenizer.encode(SOURCE).ids]),
        GenerationParams(
            config=GenerationConfig(num_beams=4, max_new_tokens=36),
            eos_token_id=tokenizer.eos_id,
            pad_token_id=tokenizer.pad_id,
            return_tree=True,
        ),
    )[0]
    assert best.tree is not None
    figure = plotting.search_tree(
        best.tree, lambda ids: tokenizer.pieces(ids, side="target"), title=f"“{SOURCE}”, 4 beams"
    )
    return plotting.save(figure, FOLDER / "tree.png")


def draw_next_token(bundle: glassformer.Bundle) -> Path:
    """Draw the probabilities of the next token under each sampling option."""
    tokenizer = bundle.tokenizer
    assert tokenizer is not None
    source = torch.tensor([tokenizer.encode(SAMPLING_SOURCE).ids])
    prefix = [bundle.spec.start_id, *tokenizer.encode(SAMPLING_PREFIX, special=False).ids]
    with torch.inference_mode():
        logits = bundle.model(source, torch.tensor([prefix]))[:, -1]
    options = {
        "as the model gives them": logits,
        "temperature 0.5": logits / 0.5,
        "temperature 1.5": logits / 1.5,
        "top-k 4": logits_processors.keep_top_k(logits, 4),
        "top-p 0.7": logits_processors.keep_top_p(logits, 0.7),
        "min-p 0.1": logits_processors.keep_min_p(logits, 0.1),
    }
    figure = next_token_bars(
        {name: scores[0].softmax(-1) for name, scores in options.items()},
        tokenizer.pieces(range(logits.shape[-1]), side="target"),
        title=f"“{SAMPLING_SOURCE}”: what follows “{SAMPLING_PREFIX}”",
    )
    return plotting.save(figure, FOLDER / "next-token.png")


def next_token_bars(
    probabilities: Mapping[str, Tensor], tokens: Sequence[str], *, title: str = "", columns: int = 3
) -> Figure:
    """Draw next-token probabilities (V,), one panel per sampling option; outlines show the first one.

    tokens: the text of every token; the ten most likely ones under the first option are drawn.
    """
    first = next(iter(probabilities.values()))
    top = first.topk(min(10, len(tokens))).indices
    names = [label(tokens[int(n)]) for n in top]
    rows = [*names, REST] if len(tokens) > len(names) else names
    columns = min(columns, len(probabilities))
    lines = math.ceil(len(probabilities) / columns)
    with figure_style():
        figure = new_figure(3.1 * columns + 0.6, lines * (0.2 * len(rows) + 0.62) + (0.35 if title else 0.05))
        panels = figure.subplots(lines, columns, squeeze=False, sharex=True).flatten()
        limit = 1.18 * max(_bars(values, top).max().item() for values in probabilities.values())
        for n, axes in enumerate(panels):
            axes.set_visible(n < len(probabilities))
        for n, (axes, (name, values)) in enumerate(zip(panels, probabilities.items(), strict=False)):
            _panel(axes, _bars(values, top)[: len(rows)], _bars(first, top)[: len(rows)])
            axes.set(xlim=(0, limit), ylim=(len(rows) - 0.4, -0.6))
            axes.set_title(name, fontsize=10, loc="left", pad=5)
            axes.set_yticks(
                range(len(rows)), labels=rows if n % columns == 0 else [""] * len(rows), fontsize=9
            )
            axes.set_xticks([])
            hide_frame(axes)
        if title:
            figure.suptitle(title, fontsize=11, fontweight="bold", x=0.01, ha="left")
    return figure


def _bars(probabilities: Tensor, top: Tensor) -> Tensor:
    """Return the probabilities of the top tokens, and the sum of all others."""
    probabilities = probabilities.detach().float().cpu()
    bars = probabilities[top.cpu()]
    return bars.new_tensor([*bars.tolist(), max(0.0, float(probabilities.sum() - bars.sum()))])


def _panel(axes: Axes, bars: Tensor, outlines: Tensor) -> None:
    for row, (value, outline) in enumerate(zip(bars.tolist(), outlines.tolist(), strict=True)):
        axes.barh(row, outline, height=0.72, facecolor="none", edgecolor=FAINT, linewidth=1.0)
        axes.barh(row, value, height=0.72, color=BLUE)
        text = "never" if value == 0 else "< 0.1 %" if value < 0.0005 else f"{100 * value:.1f} %"
        axes.text(
            max(value, outline), row, f" {text}", va="center", fontsize=8, color=INK if value > 0 else GREY
        )


def reduce_colors(path: Path) -> None:
    with Image.open(path) as image:
        reduced = image.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    reduced.save(path, optimize=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    translator = glassformer.load(sys.argv[1])
    for picture in (draw_tree(translator), draw_next_token(translator)):
        reduce_colors(picture)
        print(f"wrote {picture.name}, {picture.stat().st_size:,} bytes")
