"""The data and the measures of moving digits: perfect clips are perfect, wrong ones are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from experiments import moving_digits as moving
from experiments.moving_digits import FRAMES, GAP, REACH, Bank, Clip, Wanted, measure


def shapes() -> Bank:
    """Ten random shapes of 8 x 8 pixels in the place of digits: half of 4 x 4 squares are ink."""
    order = torch.rand((10, 16), generator=torch.Generator().manual_seed(0)).argsort(-1).argsort(-1)
    ink = F.interpolate((order < 8).float().view(10, 1, 4, 4), (8, 8))[:, 0]
    return Bank(F.pad(ink, (4, 4, 4, 4, 0, 1)), np.arange(10))


def read_shapes(images: Tensor) -> NDArray[np.int64]:
    """Read the shape that is most similar at any of a few places: cutting rounds to whole pixels."""
    small = F.interpolate(images[:, None], (14, 14), mode="area")
    scores = F.conv2d(small, shapes().images[:10, None, 4:12, 4:12] * 2 - 1)
    return scores.flatten(2).amax(-1).argmax(-1).numpy()


@pytest.fixture(scope="module")
def clips() -> tuple[list[Clip], list[Wanted]]:
    bank = shapes()
    plans, wanted = moving.make_plans(bank, 40, seed=3)
    return [clip.numpy()[0] / 2 + 0.5 for clip in moving.render(bank.images, torch.tensor(plans))], wanted


def changed(wanted: Wanted, digit: int = 0, direction: dict[str, str] | None = None) -> Wanted:
    return tuple(((old + digit) % 10, (direction or {}).get(way, way)) for old, way in wanted)


OPPOSITE = {"left": "right", "right": "left", "up": "down", "down": "up"}
TURNED = {"left": "up", "right": "down", "up": "right", "down": "left"}


def test_perfect_clips_are_perfect(clips: Any) -> None:
    drawn, wanted = clips
    assert {len(one) for one in wanted} == {1, 2}
    scores = measure(drawn, wanted, read_shapes)
    assert scores.identity == scores.kept == 1 and scores.path_error < 0.05
    single = [n for n, one in enumerate(wanted) if len(one) == 1]
    alone = measure([drawn[n] for n in single], [wanted[n] for n in single], read_shapes)
    assert alone.path_error < 1e-5


def test_the_order_of_two_digits_does_not_matter(clips: Any) -> None:
    drawn, wanted = clips
    first = measure(drawn, wanted, read_shapes)
    assert measure(drawn, [one[::-1] for one in wanted], read_shapes) == pytest.approx(first)


@pytest.mark.parametrize("ways", [OPPOSITE, TURNED])
def test_other_directions_are_far_from_the_path(clips: Any, ways: dict[str, str]) -> None:
    drawn, wanted = clips
    scores = measure(drawn, [changed(one, direction=ways) for one in wanted], read_shapes)
    assert scores.path_error > 1.5


def test_other_digits_are_not_read_as_asked(clips: Any) -> None:
    drawn, wanted = clips
    scores = measure(drawn, [changed(one, digit=1) for one in wanted], read_shapes)
    assert scores.identity < 0.2 and scores.kept < 0.2


def still(clip: Clip) -> Clip:
    return np.repeat(clip[:1], FRAMES, 0)


def backward_from_the_middle(clip: Clip) -> Clip:
    return np.concatenate([clip[:3], clip[2::-1], clip[1:3], clip[:8]])[:FRAMES]


def jumping(clip: Clip) -> Clip:
    return clip[[*range(0, FRAMES, 2), *range(1, FRAMES, 2)]]


def shaking(clip: Clip) -> Clip:
    return np.stack([np.roll(frame, (n % 2) * 4, (n // 2) % 2) for n, frame in enumerate(clip)])


@pytest.mark.parametrize("change", [still, backward_from_the_middle, jumping, shaking])
def test_other_motions_are_far_from_the_path(clips: Any, change: Any) -> None:
    drawn, wanted = clips
    assert measure([change(clip) for clip in drawn], wanted, read_shapes).path_error > 1


def test_a_digit_that_changes_is_not_kept(clips: Any) -> None:
    """A quarter of the frames shows other digits; nothing at all is no digit either."""
    drawn, wanted = clips
    single = [n for n, one in enumerate(wanted) if len(one) == 1]
    ours = [drawn[n].copy() for n in single]
    for clip in ours:
        clip[8:12] = clip[8:12].transpose(0, 2, 1)
    scores = measure(ours, [wanted[n] for n in single], read_shapes)
    assert 0.7 <= scores.identity < 0.85 and scores.kept < 0.3
    empty = measure(
        [np.zeros_like(clip) for clip in ours], [((3, "up"),)] * len(ours), lambda x: read_shapes(x) * 0
    )
    assert empty.identity == 0 and empty.path_error > 1


def test_plans_keep_digits_inside_and_apart() -> None:
    plans, wanted = moving.make_plans(shapes(), 300, seed=0)
    place = moving.bounce(plans[..., 1:3], plans[..., 3:])
    assert place.min() == 0 and place.max() == REACH
    assert sum(len(one) == 2 for one in wanted) == 150
    steps = np.diff(place[..., :5], axis=-1)
    assert (steps == plans[..., 3:, None]).all()  # no bounce in the first frames
    for plan, path, one in zip(plans, place, wanted, strict=True):
        for (digit, way), (index, *_, dx, dy) in zip(one, plan, strict=False):
            assert index == digit and tuple(np.sign((dx, dy))) == moving.DIRECTIONS[way]
        if len(one) == 2:
            assert (np.abs(path[0] - path[1]) >= GAP).any(0).all()


def test_every_caption_has_its_own_tokens() -> None:
    bundle = moving.build(moving.TINY)
    wanted: list[Wanted] = [
        ((digit, way), (other, turn))
        for digit in range(10)
        for other in range(10)
        for way in moving.DIRECTIONS
        for turn in moving.DIRECTIONS
    ]
    rows = moving.token_rows(bundle, [*wanted, *(one[:1] for one in wanted[::10])])
    assert rows.shape[1] == moving.TEXT_LEN and not (rows == 1).any()  # 1 is an unknown word
    assert len(rows[: len(wanted)].unique(dim=0)) == len(wanted)


def test_the_script_trains_draws_and_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps; then real clips are right, and drawn ones, which are noise, are not."""
    monkeypatch.setattr(moving, "read_bank", lambda *_: shapes())
    monkeypatch.setattr(moving, "pocket_reader", lambda: read_shapes)
    sizes = ["--max-steps", "2", "--clips", "60", "--samples", "6", "--steps", "2"]
    moving.main(["--tiny", "--out", str(tmp_path), *sizes])
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["real"]["identity"] == 1 and figures["real"]["path_error"] < 0.1
    assert figures["drawn"]["identity"] < 0.5 and figures["drawn"]["path_error"] > 1
    with Image.open(tmp_path / "drawn.png") as sheet:
        assert sheet.size == (FRAMES * 34 * 3, 6 * 34 * 3)
    assert len(list(tmp_path.glob("*.webp"))) == 4
