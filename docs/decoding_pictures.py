"""Draws the pictures of guides/generate.md anew: `python -m docs.decoding_pictures MODEL`, from the root.

MODEL is a small translator from English to German. That of the page was trained on one core in ten minutes,
in a folder that has the files of Multi30k's task 1 in multi30k/:

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
from glassformer.plotting.canvas import BLUE, FAINT, GREY, INK, bare, blank, look
from glassformer.plotting.fonts import label

FOLDER = Path(__file__).parent / "pictures"
SEARCHED = "Two men wearing black in a city"
CHOSEN, BEGUN = "A kid is looking at coffee machines inside a store.", "Ein Kind"
COLOURS = 128  # of a flat drawing; the file is a third of what all colours take
REST = "all others"


def tree(bundle: glassformer.Bundle) -> Path:
    tokenizer = bundle.tokenizer
    assert tokenizer is not None and tokenizer.pad_id is not None
    (best,) = generate(
        bundle.model,
        torch.tensor([tokenizer.encode(SEARCHED).ids]),
        GenerationParams(
            config=GenerationConfig(num_beams=4, max_new_tokens=36),
            eos_token_id=tokenizer.eos_id,
            pad_token_id=tokenizer.pad_id,
            return_tree=True,
        ),
    )[0]
    assert best.tree is not None
    figure = plotting.search_tree(
        best.tree, lambda ids: tokenizer.pieces(ids, side="target"), title=f"“{SEARCHED}”, 4 beams"
    )
    return plotting.save(figure, FOLDER / "tree.png")


def chances(bundle: glassformer.Bundle) -> Path:
    tokenizer = bundle.tokenizer
    assert tokenizer is not None
    source = torch.tensor([tokenizer.encode(CHOSEN).ids])
    begun = [bundle.spec.start_id, *tokenizer.encode(BEGUN, special=False).ids]
    with torch.inference_mode():
        logits = bundle.model(source, torch.tensor([begun]))[:, -1]
    ways = {
        "as the model gives them": logits,
        "temperature 0.5": logits / 0.5,
        "temperature 1.5": logits / 1.5,
        "top-k 4": logits_processors.keep_top_k(logits, 4),
        "top-p 0.7": logits_processors.keep_top_p(logits, 0.7),
        "min-p 0.1": logits_processors.keep_min_p(logits, 0.1),
    }
    figure = next_token_bars(
        {name: scores[0].softmax(-1) for name, scores in ways.items()},
        tokenizer.pieces(range(logits.shape[-1]), side="target"),
        title=f"“{CHOSEN}”: what follows “{BEGUN}”",
    )
    return plotting.save(figure, FOLDER / "chances.png")


def next_token_bars(
    chances: Mapping[str, Tensor], words: Sequence[str], *, title: str = "", columns: int = 3
) -> Figure:
    """Probabilities (V,) of the next token: a panel for each sampling method, outlined as the first one.

    words: the text of every token; the ten most likely under the first method are drawn.
    """
    first = next(iter(chances.values()))
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


def smaller(path: Path) -> None:
    with Image.open(path) as picture:
        flat = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    flat.save(path, optimize=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    loaded = glassformer.load(sys.argv[1])
    for drawn in (tree(loaded), chances(loaded)):
        smaller(drawn)
        print(f"drawn: {drawn.name}, {drawn.stat().st_size:,} bytes")
