"""The loop on a GPU: compiled, in bfloat16, with packed rows; taken up again to the bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.training.hardware import settle_machine
from glassformer.training.optimizer import schedule_for
from tests.training.reversing import WORDS, loop_in, noted, same, weights

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CUDA = replace(WORDS, device="cuda", steps=24, validate_every=8, save_every=8, deterministic=True)


@pytest.mark.parametrize("batching", ["lengths", "rows"])
def test_a_run_taken_up_again_is_the_run_that_never_stopped(tmp_path: Path, batching: Any) -> None:
    words = replace(CUDA, batching=batching, ema=0.9, batch=512)
    settle_machine(words, torch.device("cuda"))
    with loop_in(tmp_path / "through", words) as loop:
        assert loop.run() == "finished"
        through = weights(loop)
    with loop_in(tmp_path / "stopped", replace(words, steps=8)) as loop:
        loop.schedule = schedule_for(words)
        loop.run()
    with loop_in(tmp_path / "stopped", words) as loop:
        saved = loop.saving.newest()
        assert saved is not None and saved.step == 8
        loop.restore(saved)
        loop.run()
        assert same(weights(loop), through)


def test_what_is_compiled_learns_what_is_written(tmp_path: Path) -> None:
    """Rows of one shape recorded and played back, against the same steps run plainly."""
    found = []
    for name, compile in (("plain", "off"), ("compiled", "auto")):
        words = replace(CUDA, batching="rows", batch=512, precision="float32", compile=compile)
        with loop_in(tmp_path / name, words, dropout=0.0) as loop:
            loop.run()
            found.append(weights(loop))
    assert all(torch.allclose(found[0][n], found[1][n], atol=2e-4) for n in found[0])


def test_a_step_that_is_not_finite_is_skipped(tmp_path: Path) -> None:
    def spoil(times: int, _: Tensor, loss: Tensor) -> Tensor:
        return loss * float("nan") if times == 5 else loss

    with loop_in(tmp_path, replace(CUDA, compile="off"), change=spoil) as loop:
        loop.run()
        assert loop.standing.skipped == 1
        assert all(tensor.isfinite().all() for tensor in weights(loop).values())
    assert "step 5 was skipped" in str(noted(tmp_path, "event"))


def test_out_of_memory_on_the_device_halves_the_batches(tmp_path: Path) -> None:
    free, _ = torch.cuda.mem_get_info()

    def full(_: int, src: Tensor, loss: Tensor) -> Tensor:
        if src.shape[0] > 5:
            torch.empty(2 * free, dtype=torch.uint8, device="cuda")
        return loss

    with loop_in(tmp_path, replace(CUDA, compile="off"), change=full) as loop:
        loop.run()
        assert loop.standing.parts > 1 and loop.standing.step == CUDA.steps
