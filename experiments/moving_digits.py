"""A small Sora: train a Latte that draws videos of moving digits from a caption, and measure what it draws.

    python -m experiments.moving_digits --out runs/moving-digits --max-seconds 480
    python -m experiments.moving_digits --out runs/try --tiny           # on a CPU, in about a minute

A clip has 16 frames of 32 x 32 pixels with one or two digits of MNIST, 14 x 14 pixels large, which move
straight and bounce off the borders. Its caption names each digit and the direction in which it starts: "a 3
goes right and a 7 goes up". Where a digit starts and how fast it is, 1 or 2 pixels per frame, is chance. The
model is trained by flow matching on the pixels; a small text encoder is trained with it. Running the command
again resumes the training if it was stopped by the time limit, and continues up to --max-steps.

Two figures say whether a drawn clip is right:

- identity: the share of digits, over all frames, that the shipped model pocket-digits reads as the caption
  says. Every digit is cut out and enlarged.
- path error: the distance in pixels of a digit's center of mass from the nearest path that starts in the
  direction of the caption, moves with a speed of 1 or 2 and bounces: mean over frames and digits.

The same figures for real clips are their upper bound. Text is drawn from 1 of 40 (one digit) and 1 of 1600
(two digits) captions; images of the test set of MNIST are used for real clips only.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

import glassformer
from experiments.paths import data_folder
from glassformer.bundle import Bundle
from glassformer.core import spec
from glassformer.core.build import build_model
from glassformer.core.inputs import LatentInputs, TextInputs
from glassformer.diffusion import FlowMatchEuler, write_scheduler_config
from glassformer.families.sidecars import SCHEDULER_FILE
from glassformer.tasks.animation import VideoGenerator, encode_video
from glassformer.tokenization.train import TokenizerPlan, train_tokenizer

FRAMES, SIDE, DIGIT = 16, 32, 14
REACH = SIDE - DIGIT  # the corner of a digit moves from 0 to here
GAP = 10  # two digits are at least so far apart, in rows or in columns
DIRECTIONS = {"right": (1, 0), "left": (-1, 0), "down": (0, 1), "up": (0, -1)}
TURNED = 0.9  # share of candidates with one digit along x and one along y: most of these would collide
SPEEDS, FRAMES_AHEAD = (1, 2), 4  # a digit moves so many frames before it bounces
INK = 0.2  # darker pixels do not count
TEXT_LEN, TIMESTEPS = 10, 1000
LATTE: dict[str, Any] = {"text_dim": 128}
TINY: dict[str, Any] = {"text_dim": 32, "d_model": 64, "num_heads": 2, "num_layers": 2}

Wanted = tuple[tuple[int, str], ...]  # digit and direction of each digit of a clip
Clip = NDArray[np.float32]  # (frames, side, side), from 0 to 1


# ---- data -------------------------------------------------------------------------------------------------


class Bank(NamedTuple):
    """Digits of 14 x 14 pixels from 0 to 1, (N + 1, 16, 16) with a border; the last one is empty."""

    images: Tensor
    labels: NDArray[np.int64]


def read_bank(folder: Path, split: str, limit: int | None = None) -> Bank:
    """Read MNIST's "train" or "t10k" images at half of their size."""
    read = {
        kind: gzip.decompress((folder / f"{split}-{kind}-ubyte.gz").read_bytes())
        for kind in ("images-idx3", "labels-idx1")
    }
    labels = np.frombuffer(read["labels-idx1"], np.uint8, offset=8)[:limit].astype(np.int64)
    pixels = np.frombuffer(read["images-idx3"], np.uint8, offset=16).reshape(-1, 1, 28, 28)[:limit]
    small = F.avg_pool2d(torch.tensor(pixels, dtype=torch.float32) / 255, 2)[:, 0]
    return Bank(F.pad(small, (1, 1, 1, 1, 0, 1)), labels)


def bounce(start: NDArray[np.int64], velocity: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places (..., frames) from 0 to REACH of what moves straight and bounces."""
    free = (start[..., None] + velocity[..., None] * np.arange(FRAMES)) % (2 * REACH)
    return REACH - np.abs(free - REACH)


def allowed_starts(velocity: Any) -> tuple[Any, Any]:
    """Return the first and the last start from which a digit does not bounce at once."""
    margin = FRAMES_AHEAD * velocity
    return np.maximum(-margin, 0), np.minimum(REACH - margin, REACH)


def make_plans(bank: Bank, count: int, seed: int) -> tuple[NDArray[np.int64], list[Wanted]]:
    """Return plans of clips (N, 2, 5), with what they show: index, start and velocity of each digit.

    Half of the clips show one digit; the second index is then that of the empty image.
    """
    rng = np.random.default_rng(seed)
    steps, names, empty = np.array([*DIRECTIONS.values()]), [*DIRECTIONS], len(bank.labels)
    plans: list[NDArray[np.int64]] = []
    while (missing := count - sum(map(len, plans))) > 0:  # one digit first, then pairs that stay apart
        index = rng.integers(empty, size=(count, 2))
        axis = rng.integers(2, size=(count, 1)) ^ (rng.random((count, 2)) < [0, TURNED])
        velocity = steps[2 * axis + rng.integers(2, size=(count, 2))] * rng.choice(SPEEDS, (count, 2, 1))
        first, last = allowed_starts(velocity)
        start = rng.integers(first, last + 1)
        place = bounce(start, velocity)  # (N, 2 digits, 2 axes, frames)
        apart = (np.abs(place[:, 0] - place[:, 1]) >= GAP).any(1).all(-1)
        if not plans:
            index[:, 1], apart, missing = empty, np.ones(count, bool), (count + 1) // 2
        plans.append(np.concatenate([index[..., None], start, velocity], -1)[apart][:missing])
    chosen = rng.permutation(np.concatenate(plans))
    speeds = np.abs(chosen[..., 3:]).max(-1, keepdims=True)
    which = (chosen[..., None, 3:] == steps * speeds[..., None]).all(-1).argmax(-1)
    labels = np.append(bank.labels, -1)[chosen[..., 0]]
    wanted = [
        tuple((int(label), names[d]) for label, d in zip(*row, strict=True) if label >= 0)
        for row in zip(labels, which, strict=True)
    ]
    return chosen, wanted


def caption(wanted: Wanted) -> str:
    """Return the caption of a clip.

    >>> caption(((3, "right"), (7, "up")))
    'a 3 goes right and a 7 goes up'
    """
    return " and ".join(f"a {digit} goes {direction}" for digit, direction in wanted)


def render(images: Tensor, plans: Tensor) -> Tensor:
    """Draw the clips (B, 1, frames, side, side) of plans (B, 2, 5), from -1 to 1."""
    index, start, velocity = plans.long().split((1, 2, 2), -1)
    times = torch.arange(FRAMES, device=plans.device)
    free = (start[..., None] + velocity[..., None] * times) % (2 * REACH)
    corner = REACH - (free - REACH).abs()  # (B, 2, 2, frames)
    pixel = torch.arange(SIDE, device=plans.device)
    columns, rows = (pixel - corner[..., None] + 1).clamp(0, DIGIT + 1).unbind(2)  # (B, 2, frames, side)
    digits = images[index[..., None, None], rows[..., :, None], columns[..., None, :]]
    return digits.amax(1)[:, None] * 2 - 1


# ---- model and training -----------------------------------------------------------------------------------


class Moving(glassformer.TrainingTask):
    """Flow matching on clips that are drawn on the device; a tenth of the captions is left out."""

    def __init__(self, images: Tensor, pad_id: int) -> None:
        self.images, self.pad_id = images, pad_id

    def loss(self, model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        plans, ids = batch
        clean = self.clips(plans)
        amount = torch.randn(len(plans), device=plans.device).sigmoid()
        left_out = torch.rand(len(plans), 1, device=plans.device) < 0.1
        return self.flow_matching(model, clean, ids.masked_fill(left_out, self.pad_id), amount)

    def evaluate(self, model: Any, batches: Any) -> Mapping[str, float]:
        torch.manual_seed(0)
        losses = []
        for plans, ids in batches:
            amount = torch.linspace(0.05, 0.95, len(plans), device=plans.device)
            losses.append(float(self.flow_matching(model, self.clips(plans), ids, amount)))
        return {"loss": sum(losses) / len(losses)}

    def clips(self, plans: Tensor) -> Tensor:
        self.images = self.images.to(plans.device)
        return render(self.images, plans)

    def flow_matching(self, model: Any, clean: Tensor, ids: Tensor, amount: Tensor) -> Tensor:
        """Mix clips with noise and let the model predict noise - clean. amount (B,): 1 is noise alone."""
        noise, share = torch.randn_like(clean), amount.view(-1, 1, 1, 1, 1)
        text = model.encode_text(TextInputs(ids, mask=torch.ones_like(ids, dtype=torch.bool)))
        mixed = (1 - share) * clean + share * noise
        return F.mse_loss(model(LatentInputs(mixed, amount * TIMESTEPS, text=text)).float(), noise - clean)


def build(options: Mapping[str, Any]) -> Bundle:
    """Build a fresh model with its tokenizer of words and its noise schedule."""
    texts = [caption(((digit, way), (digit, way))) for digit in range(10) for way in DIRECTIONS]
    tokenizer = train_tokenizer(texts, TokenizerPlan(kind="word", min_frequency=1, template="none"))
    width = options["text_dim"]
    words = {"d_model": width, "num_heads": 4, "d_ff": 4 * width, "num_layers": 2, "max_len": TEXT_LEN}
    text = glassformer.tiny("bert", vocab_size=tokenizer.vocab_size, head=spec.FeaturesSpec(), **words).spec
    denoiser = glassformer.families.registry.preset_spec("latte-mini", **options)
    model = build_model(spec.DiffusionModelSpec(denoiser=denoiser, text_encoder=text))
    files = {SCHEDULER_FILE: write_scheduler_config(FlowMatchEuler())}
    return Bundle(model=model, tokenizer=tokenizer, files=files)


def token_rows(bundle: Bundle, wanted: Sequence[Wanted]) -> Tensor:
    """Return the token ids of captions, padded: (N, TEXT_LEN)."""
    assert bundle.tokenizer is not None
    pad = bundle.tokenizer.pad_id or 0
    known = {one: bundle.tokenizer.encode(caption(one)).ids for one in set(wanted)}
    return torch.tensor([known[one] + [pad] * (TEXT_LEN - len(known[one])) for one in wanted])


def train(args: argparse.Namespace, bank: Bank) -> None:
    torch.manual_seed(0)
    bundle = build(TINY if args.tiny else LATTE)
    plans, wanted = make_plans(bank, args.clips, seed=1)
    examples = list(zip(torch.tensor(plans, dtype=torch.int32), token_rows(bundle, wanted), strict=True))
    held_out = min(512, len(examples) // 30)
    assert bundle.tokenizer is not None
    trainer = glassformer.Trainer(
        bundle,
        Moving(bank.images, bundle.tokenizer.pad_id or 0),
        train_dataset=examples[held_out:],
        eval_dataset=examples[:held_out],
        folder=args.out / "run",
        max_steps=args.max_steps,
        time_limit=f"{args.max_seconds}s",
        batch_size=args.batch_size,
        lr=args.lr,
        lr_scheduler="constant",
        warmup_steps=min(500, args.max_steps // 10),
        betas=(0.9, 0.99),
        ema=0.999 if args.max_steps > 2000 else 0.9,
        eval_steps=min(2000, max(1, args.max_steps // 4)),
        load_best_model_at_end=False,
        num_workers=args.num_workers,
    )
    result = trainer.train()
    print(f"training: {result.outcome}")


# ---- measures ---------------------------------------------------------------------------------------------

Reader = Callable[[Tensor], NDArray[np.int64]]  # images (N, 28, 28) from 0 to 1 -> digits (N,)


class Scores(NamedTuple):
    """Measures of clips: share of digits read as asked over all frames, share of digits that are read as
    asked in every frame, and mean distance from the path in pixels."""

    identity: float
    kept: float
    path_error: float


def pocket_reader() -> Reader:
    """Return a function that reads digits with the shipped model."""
    bundle = glassformer.load("pocket-digits")
    settings: Any = bundle.files["preprocessor_config.json"]

    @torch.no_grad()
    def read(images: Tensor) -> NDArray[np.int64]:
        x = (images[:, None] - settings["image_mean"][0]) / settings["image_std"][0]
        return np.concatenate([bundle.model(part).argmax(-1).numpy() for part in x.split(512)])

    return read


def split_digits(clip: Clip, count: int) -> NDArray[np.float32]:
    """Return the ink of each of one or two digits, (count, frames, side, side): the nearer center decides.

    In the first frame the two centers start at the two pixels with ink that are farthest apart, later where
    they were in the frame before.
    """
    ink = np.where(clip >= INK, clip, 0)
    if count == 1:
        return ink[None]
    parts = np.zeros((2, *ink.shape), np.float32)
    centers: NDArray[np.float64] | None = None
    for frame, part in zip(ink, parts.swapaxes(0, 1), strict=True):
        points = np.argwhere(frame).astype(float)
        if len(points) < 2:
            continue
        if centers is None:
            distance = np.square(points[:, None] - points).sum(-1)
            centers = points[[*np.unravel_index(distance.argmax(), distance.shape)]]
        for _ in range(10):
            near = np.square(points[:, None] - centers).sum(-1).argmin(1)
            centers = np.stack(
                [points[near == n].mean(0) if (near == n).any() else centers[n] for n in (0, 1)]
            )
        part[near, points[:, 0].astype(int), points[:, 1].astype(int)] = frame[frame > 0]
    return parts


def mass_centers(ink: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return x and y of the center of mass of every frame, (frames, 2); the middle if a frame is empty."""
    total = ink.sum((1, 2))
    place = np.arange(SIDE)
    with np.errstate(invalid="ignore"):
        x, y = ((ink.sum(axis) * place).sum(1) / total for axis in (1, 2))
    return np.nan_to_num(np.stack([x, y], -1), nan=(SIDE - 1) / 2)


def crops(ink: NDArray[np.float32], centers: NDArray[np.float64]) -> Tensor:
    """Cut out the digit of every frame around its center, and enlarge it: (frames, 28, 28)."""
    padded = np.pad(ink, ((0, 0), (DIGIT, DIGIT), (DIGIT, DIGIT)))
    first = np.rint(centers - (DIGIT - 1) / 2).astype(int) + DIGIT
    cut = [frame[y : y + DIGIT, x : x + DIGIT] for frame, (x, y) in zip(padded, first, strict=True)]
    small = torch.tensor(np.stack(cut))[:, None]
    return F.interpolate(small, (28, 28), mode="bicubic").clamp(0, 1)[:, 0]


def path_error(centers: NDArray[np.float64], direction: str) -> float:
    """Return the mean distance of centers (frames, 2) from the nearest path that starts in a direction.

    The center of mass may lie up to 2.5 pixels beside the middle of a digit, by as much in every frame.
    """
    step = np.array(DIRECTIONS[direction])
    along = int(np.abs(step).argmax())
    across = centers[:, 1 - along] - centers[:, 1 - along].mean()
    best = np.inf
    for speed in SPEEDS:
        first, last = allowed_starts(step[along] * speed)
        starts = np.arange(first, last + 1)
        places = bounce(starts, np.full_like(starts, step[along] * speed))  # (starts, frames)
        away = centers[:, along] - places - (DIGIT - 1) / 2
        away = away - away.mean(1, keepdims=True).clip(-2.5, 2.5)
        best = min(best, float(np.hypot(away, across).mean(1).min()))
    return best


def measure(clips: Sequence[Clip], wanted: Sequence[Wanted], read: Reader) -> Scores:
    """Measure clips against what was asked. Of two digits, that which is read as asked more often is it."""
    parts = [split_digits(clip, len(one)) for clip, one in zip(clips, wanted, strict=True)]
    centers = [[mass_centers(ink) for ink in part] for part in parts]
    cut = [
        crops(*pair)
        for part, middle in zip(parts, centers, strict=True)
        for pair in zip(part, middle, strict=True)
    ]
    digits = iter(read(torch.cat(cut)).reshape(-1, FRAMES))
    right: list[NDArray[np.bool_]] = []
    errors: list[float] = []
    for one, middle in zip(wanted, centers, strict=True):
        found = [(next(digits), track) for track in middle]
        choices = []
        for order in permutations(found):
            pairs = [*zip(one, order, strict=True)]
            matches = [row == digit for (digit, _), (row, _) in pairs]
            away = [path_error(track, direction) for (_, direction), (_, track) in pairs]
            choices.append((-float(np.mean(matches)), sum(away), matches, away))
        _, _, matches, away = min(choices, key=lambda choice: choice[:2])
        right, errors = right + matches, errors + away
    every = np.stack(right)
    return Scores(float(every.mean()), float(every.all(1).mean()), float(np.mean(errors)))


# ---- drawing ----------------------------------------------------------------------------------------------


def draw(bundle: Bundle, wanted: Sequence[Wanted], args: argparse.Namespace) -> list[Clip]:
    """Draw a clip for each caption, each with a seed of its own."""
    generator = VideoGenerator(bundle, num_inference_steps=args.steps, guidance_scale=args.guidance)
    prompts = [*generator.load([caption(one) for one in wanted])]
    clips: list[Clip] = []
    for start in range(0, len(prompts), args.draw_batch_size):
        part = prompts[start : start + args.draw_batch_size]
        videos = generator.draw(part, range(1000 + start, 1000 + start + len(part)))
        clips += [video[0].clamp(-1, 1).float().cpu().numpy() / 2 + 0.5 for video in videos]
    return clips


def save_sheet(path: Path, clips: Sequence[Clip], scale: int = 3) -> None:
    """Save clips as one picture: a row for each clip, its frames from left to right."""
    rows = [np.concatenate(np.pad(clip, ((0, 0), (1, 1), (1, 1)), constant_values=0.4), 1) for clip in clips]
    image = Image.fromarray((np.concatenate(rows) * 255).astype(np.uint8))
    image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST).save(path)


def save_animation(path: Path, clip: Clip, fps: int = 8, scale: int = 6) -> None:
    size = (SIDE * scale, SIDE * scale)
    frames = [
        Image.fromarray((f * 255).astype(np.uint8)).resize(size, Image.Resampling.NEAREST) for f in clip
    ]
    path.write_bytes(encode_video(frames, fps, path.suffix[1:]))


def show(args: argparse.Namespace, mnist: Path) -> dict[str, Any]:
    """Draw clips, measure them and real ones with the same captions, and write pictures."""
    bundle, read = glassformer.load(args.out / "run" / "model", device=args.device), pocket_reader()
    bank = read_bank(mnist, "t10k")
    plans, wanted = make_plans(bank, args.samples, seed=2)
    real = [clip.numpy()[0] / 2 + 0.5 for clip in render(bank.images, torch.tensor(plans))]
    start = time.monotonic()
    drawn = draw(bundle, wanted, args)
    seconds = time.monotonic() - start
    figures = {
        "parameters": sum(value.numel() for value in bundle.model.parameters()),
        "clips": len(wanted),
        "seconds_per_clip": seconds / len(wanted),
        "drawn": measure(drawn, wanted, read)._asdict(),
        "real": measure(real, wanted, read)._asdict(),
    }
    (args.out / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")
    save_sheet(args.out / "drawn.png", drawn[:8])
    save_sheet(args.out / "real.png", real[:8])
    for n, (clip, one) in enumerate(zip(drawn[:4], wanted, strict=False)):
        save_animation(args.out / f"{n}-{caption(one).replace(' ', '-')}.webp", clip)
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/moving-digits"))
    parser.add_argument("--data", type=Path, default=data_folder() / "mnist")
    parser.add_argument("--max-seconds", type=int, default=480)
    parser.add_argument("--max-steps", type=int, default=200_000)
    parser.add_argument("--clips", type=int, default=200_000, help="number of clips to train with")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--num-workers", type=int, default=4)
    parser.add_argument("--samples", type=int, default=512, help="number of clips to draw and measure")
    parser.add_argument("--steps", type=int, default=30, help="number of denoising steps")
    parser.add_argument("--guidance", type=float, default=2.0)
    parser.add_argument("--draw-batch-size", type=int, default=128)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to try the script on a CPU")
    parser.add_argument("--draw-only", action="store_true", help="do not train")
    tiny = {"max_steps": 80, "clips": 1000, "batch_size": 8, "num_workers": 0, "samples": 4, "steps": 8}
    if parser.parse_args(arguments).tiny:
        parser.set_defaults(**tiny, lr=2e-3)
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    if not args.draw_only:
        train(args, read_bank(args.data, "train"))
    print(json.dumps(show(args, args.data), indent=2))
    print(f"wrote {args.out / 'drawn.png'}")


if __name__ == "__main__":
    main()
