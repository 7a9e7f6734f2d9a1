"""A film keeps weights on the way and changes nothing of the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from glassformer.errors import GlassformerError
from glassformer.training.model_folders import film_steps, keep_frame
from glassformer.training.recipe import Training
from glassformer.weights.store import open_weights
from tests.training.reversing import WORDS, loop_in, same, weights


@pytest.mark.parametrize("frames", range(15))
@pytest.mark.parametrize("steps", [1, 2, 7, 1000, 123_456])
def test_a_film_runs_from_the_first_weights_to_the_last(frames: int, steps: int) -> None:
    found = film_steps(frames, steps)
    assert len(found) <= frames and all(0 <= step <= steps for step in found)
    assert not frames or steps in found
    assert frames < 2 or 0 in found
    if steps >= 1000:
        assert len(found) == frames


def test_the_frames_are_the_weights_of_their_steps_and_the_run_is_the_same(tmp_path: Path) -> None:
    filmed = replace(WORDS, film=4)
    with loop_in(tmp_path / "plain") as plain, loop_in(tmp_path / "filmed", filmed) as loop:
        first = weights(loop)
        plain.run()
        loop.run()
        assert same(weights(plain), weights(loop))
        last = weights(loop)
    folder = tmp_path / "filmed" / "film"
    assert sorted(path.name for path in folder.iterdir()) == [f"step-{n:08}" for n in (0, 1, 3, 12)]
    assert same(first, dict(open_weights(folder / "step-00000000")))
    assert same(last, dict(open_weights(folder / "step-00000012")))
    assert not same(last, dict(open_weights(folder / "step-00000003")))
    assert not (tmp_path / "plain" / "film").exists()


def test_a_frame_that_cannot_be_written_is_said_and_ends_nothing(tmp_path: Path) -> None:
    said: list[str] = []

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    keep_frame(tmp_path, 7, full, said.append)
    assert len(said) == 1 and "step 7 is not in the film" in said[0] and "No space left" in said[0]
    with pytest.raises(GlassformerError, match=r"training\.film is -1"):
        Training(film=-1)
