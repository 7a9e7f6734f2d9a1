"""Train a diffusion Transformer that draws digits, from scratch, and draw with it.

    python examples/draw_digits.py

The model is DiT: it sees an image with noise, the amount of noise and the digit that is wanted, and predicts
in which direction the noise lies. Drawing starts from noise alone and takes small steps in the opposite
direction. The images are the 1,797 digits of 8 x 8 pixels that come with scikit-learn.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F

import glassformer
from glassformer.core.inputs import LatentInputs
from glassformer.diffusion import FlowMatchEuler, ImageNoise, denoise

SIDE, DIGITS = 8, 10
TIMESTEPS = 1000  # of the amount of noise, as the model reads it
NOISE_LEVELS = (0.2, 0.5, 0.8)  # at which the validation loss is measured


def read_digits() -> tuple[Tensor, Tensor]:
    """Return images (N, 1, 8, 8) from -1 to 1, and their labels (N,)."""
    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images, dtype=torch.float32).view(-1, 1, SIDE, SIDE)
    return pixels / 8 - 1, torch.tensor(labels)


def flow_matching_loss(model: Any, clean: Tensor, labels: Tensor, amount: Tensor) -> Tensor:
    """Mix images with noise and let the model predict noise - clean. amount (B,): 0 is clean, 1 is noise."""
    noise = torch.randn_like(clean)
    share = amount[:, None, None, None]
    mixed = (1 - share) * clean + share * noise
    velocity = model(LatentInputs(mixed, amount * TIMESTEPS, labels=labels))
    return F.mse_loss(velocity, noise - clean)


class Denoising(glassformer.TrainingTask):
    """Learn to tell noise from digits. A tenth of the labels is dropped, for guidance."""

    def loss(self, model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        clean, labels = batch
        amount = torch.randn(len(clean)).sigmoid()  # mostly around one half
        return flow_matching_loss(model, clean, labels, amount)

    def evaluate(self, model: Any, batches: Any) -> Mapping[str, float]:
        torch.manual_seed(0)
        losses = {
            f"loss_at_{level}": torch.stack(
                [flow_matching_loss(model, x, y, torch.full((len(x),), level)) for x, y in batches]
            ).mean()
            for level in NOISE_LEVELS
        }
        return {"loss": float(sum(losses.values()) / len(losses)), **{k: float(v) for k, v in losses.items()}}


def draw(model: Any, labels: Tensor, *, seed: int, steps: int, guidance: float) -> list[Tensor]:
    """Draw a digit for each label; return the images after each step, (B, 1, 8, 8)."""
    film: list[Tensor] = []
    denoise(
        model,
        FlowMatchEuler().sampler(steps),
        ImageNoise(range(seed, seed + len(labels)), (1, SIDE, SIDE)),
        {"labels": labels},
        negative={"labels": torch.full_like(labels, DIGITS)},  # no digit in particular
        guidance_scale=guidance,
        callback=lambda index, step: film.append(step.prev_sample),
    )
    return film


def save_grid(path: Path, rows: list[Tensor], scale: int = 6) -> None:
    """Save rows of images (B, 1, 8, 8) as one picture, with lines between them."""
    framed = [F.pad(images[:, 0], (1, 1, 1, 1), value=-0.5) for images in rows]
    pixels = torch.cat([torch.cat([*images], 1) for images in framed])
    image = Image.fromarray(((pixels + 1) * 127.5).clamp(0, 255).to(torch.uint8).numpy())
    image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST).save(path)


def recognized(drawn: Tensor, labels: Tensor, images: Tensor, known: Tensor) -> float:
    """Return the share of drawings whose nearest real digit is the one that was wanted."""
    nearest = torch.cdist(drawn.flatten(1), images.flatten(1)).argmin(1)
    return float((known[nearest] == labels).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--max-steps", type=int, default=600)
    parser.add_argument("--guidance", type=float, default=2.0)
    parser.add_argument("--sampling-steps", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("runs/digits"))
    args = parser.parse_args()
    torch.manual_seed(0)
    images, labels = read_digits()
    examples = list(zip(images, labels, strict=True))
    model: Any = glassformer.build("dit-mini", image_size=SIDE, d_model=128, num_heads=4, num_layers=4)
    trainer = glassformer.Trainer(
        model,
        Denoising(),
        train_dataset=examples[:-200],
        eval_dataset=examples[-200:],
        folder=args.out,
        max_steps=args.max_steps,
        batch_size=64,
        lr=3e-3,
        ema=0.995,
        eval_steps=max(1, args.max_steps // 5),
    )
    trainer.train()
    model.eval()
    wanted = torch.arange(DIGITS).repeat(20)
    film = draw(model, wanted, seed=1, steps=args.sampling_steps, guidance=args.guidance)
    share = recognized(film[-1], wanted, images, labels)
    print(f"{share:.0%} of {len(wanted)} drawings are nearest to the digit that was asked for")
    save_grid(args.out / "digits.png", [film[-1][n : n + DIGITS] for n in range(0, 5 * DIGITS, DIGITS)])
    save_grid(args.out / "denoising.png", [step[:DIGITS] for step in film[:: max(1, len(film) // 8)]])
    print(f"wrote {args.out / 'digits.png'} and {args.out / 'denoising.png'}")


if __name__ == "__main__":
    main()
