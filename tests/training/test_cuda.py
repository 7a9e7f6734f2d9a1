"""The trainer on a GPU: compiled, in bfloat16, with packed rows; bit-exact resume."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from glassformer.training.hardware import configure_torch
from tests.training.reverse_task import OPTIONS, same, trainer_in, weights

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CUDA = replace(OPTIONS, device="cuda", max_steps=24, eval_steps=8, save_steps=8, deterministic=True)


@pytest.mark.parametrize("packing", [False, True])
def test_resume_is_bit_identical(tmp_path: Path, packing: bool) -> None:
    options = replace(CUDA, packing=packing, ema=0.9, batch_tokens=512)
    configure_torch(options, torch.device("cuda"))
    with trainer_in(tmp_path / "through", options) as trainer:
        assert trainer.run_steps() == "finished"
        through = weights(trainer)
    with trainer_in(tmp_path / "stopped", replace(options, max_steps=8)) as trainer:
        trainer.schedule = replace(trainer.schedule, max_steps=24)
        trainer.run_steps()
    with trainer_in(tmp_path / "stopped", options) as trainer:
        saved = trainer.checkpoints.newest()
        assert saved is not None and saved.step == 8
        trainer.restore(saved)
        trainer.run_steps()
        assert same(weights(trainer), through)


def test_compiled_training_equals_eager(tmp_path: Path) -> None:
    """CUDA graphs of packed rows against eager steps."""
    results = []
    for name, compile in (("plain", "off"), ("compiled", "auto")):
        options = replace(CUDA, packing=True, batch_tokens=512, precision="float32", compile=compile)
        with trainer_in(tmp_path / name, options, dropout=0.0) as trainer:
            trainer.run_steps()
            results.append(weights(trainer))
    assert all(torch.allclose(results[0][n], results[1][n], atol=2e-4) for n in results[0])


def test_non_finite_step_is_skipped(tmp_path: Path) -> None:
    def spoil(times: int, _: Tensor, loss: Tensor) -> Tensor:
        return loss * float("nan") if times == 5 else loss

    with trainer_in(tmp_path, replace(CUDA, compile="off"), change=spoil) as trainer:
        trainer.run_steps()
        assert trainer.state.skipped == 1
        assert all(tensor.isfinite().all() for tensor in weights(trainer).values())


def test_out_of_memory_splits_the_batches(tmp_path: Path) -> None:
    free, _ = torch.cuda.mem_get_info()

    def full(_: int, src: Tensor, loss: Tensor) -> Tensor:
        if src.shape[0] > 5:
            torch.empty(2 * free, dtype=torch.uint8, device="cuda")
        return loss

    with trainer_in(tmp_path, replace(CUDA, compile="off"), change=full) as trainer:
        trainer.run_steps()
        assert trainer.state.splits > 1 and trainer.state.step == CUDA.max_steps
