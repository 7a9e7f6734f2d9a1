"""Draws every picture of the documentation anew: `python -m docs.pictures`, from the repository's root.

The attention maps come from the demo's model, trained on the spot (half a minute).
"""

from pathlib import Path

import torch

from glassformer import Mask, SinusoidalPositions, draw
from glassformer.cli import dates, demo

FOLDER = Path(__file__).parent / "pictures"


def positions() -> None:
    table = SinusoidalPositions(64, max_len=100).table
    draw.save(
        draw.position_heatmap(table, title="Sinusoidal positions, d_model = 64"),
        FOLDER / "position-heatmap.png",
    )
    draw.save(draw.position_waves(table, (0, 8, 16, 24, 32)), FOLDER / "position-waves.png")


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
    draw.save(draw.mask_row(squares), FOLDER / "masks.png")


def wirings() -> None:
    draw.save(draw.wirings(), FOLDER / "wirings.png")


def attention() -> None:
    learn, _ = dates.split()
    bundle = dates.fresh()
    dates.train(bundle, learn, steps=demo.STEPS)
    list(demo.pictures(dates.look(bundle), FOLDER))


if __name__ == "__main__":
    torch.set_num_threads(1)  # sums in one order, so the same pictures every time
    for picture in (positions, masks, wirings, attention):
        picture()
    print(f"drawn: {', '.join(sorted(p.name for p in FOLDER.glob('*.png')))}")
