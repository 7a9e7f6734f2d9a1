"""Int8 storage: quantization error, exact requantization, rejected values."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import glassformer
from glassformer.core.build import unique_state_dict
from glassformer.errors import FileProblemError, NonFiniteError
from glassformer.families.registry import families
from glassformer.weights.checksums import write_checksums
from glassformer.weights.int8 import MIN_SCALE, StoredWeights, quantize_rows
from glassformer.weights.store import WEIGHTS_FILE, open_weights, save_weights

NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)
ROWS = st.integers(1, 6).flatmap(
    lambda width: st.lists(st.lists(NUMBERS, min_size=width, max_size=width), min_size=1, max_size=4)
)


def dequantized(numbers: Tensor, scale: Tensor) -> Tensor:
    return StoredWeights({"x": numbers, "x.scale": scale}, "here").dequantize("x")


@given(ROWS)
@settings(max_examples=100)
def test_quantization_error_is_half_a_step_and_requantizing_is_exact(
    rows: list[list[float]],
) -> None:
    inputs = torch.tensor(rows)
    numbers, scale = quantize_rows(inputs)
    read = dequantized(numbers, scale)
    far = (read.double() - inputs.double()).abs()
    lost = inputs.abs().amax(1) < 128 * MIN_SCALE  # so near to nothing that it is stored as nothing
    assert ((far <= 0.5 * (1 + 1e-9) * scale.double()[:, None]) | lost[:, None]).all()
    assert read.isfinite().all()
    again, same = quantize_rows(read)
    assert torch.equal(again, numbers) and torch.equal(same, scale)
    assert torch.equal(dequantized(again, same), read)


@pytest.mark.parametrize("family", sorted(families()))
def test_int8_model_is_close_and_saving_it_again_is_exact(family: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = glassformer.tiny(family)
    first, second = tmp_path / "first", tmp_path / "second"
    read = glassformer.load(glassformer.save(model, first, dtype="int8"))
    glassformer.save(read, second, dtype="int8")
    assert (first / WEIGHTS_FILE).read_bytes() == (second / WEIGHTS_FILE).read_bytes()
    was, now = unique_state_dict(model), unique_state_dict(read.model)
    assert was.keys() == now.keys() and not any(f"{name}.scale" in was for name in was)
    assert {tensor.dtype for tensor in now.values() if tensor.is_floating_point()} == {torch.float32}
    for name, tensor in was.items():
        if tensor.ndim < 2 or name not in dict(model.named_parameters()):
            assert torch.equal(tensor, now[name]), name
        else:
            step = tensor.detach().abs().flatten(1).amax(1) / 127
            far = (tensor - now[name]).detach().abs().flatten(1).amax(1)
            assert (far <= 0.5001 * step).all(), name


def test_int8_file_has_one_byte_per_weight_and_no_computed_tables(tmp_path: Path) -> None:
    options = {"d_model": 64, "num_heads": 4, "d_ff": 256, "num_layers": 2, "src_vocab_size": 2000}
    model = glassformer.build("original", **options)
    folder = glassformer.save(model, tmp_path / "eight", dtype="int8")
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count < (folder / WEIGHTS_FILE).stat().st_size < 1.12 * count
    assert not any(name.endswith("table") for name in open_weights(folder))
    read = unique_state_dict(glassformer.load(folder).model)
    tables = [name for name in read if name.endswith("table")]
    assert tables and all(torch.equal(read[name], unique_state_dict(model)[name]) for name in tables)


def test_averaging_reads_int8_checkpoints(tmp_path: Path) -> None:
    from glassformer.training.checkpoint import average_folders

    models = [glassformer.tiny("original"), glassformer.tiny("original")]
    folders = [glassformer.save(one, tmp_path / str(n), dtype="int8") for n, one in enumerate(models)]
    average_folders(folders, tmp_path / "mean")
    one, other, mean = (
        unique_state_dict(glassformer.load(path).model) for path in (*folders, tmp_path / "mean")
    )
    for name in mean:
        torch.testing.assert_close(mean[name], (one[name] + other[name]) / 2)


def test_non_finite_weights_are_rejected(tmp_path: Path) -> None:
    model = glassformer.tiny("gpt2")
    next(model.parameters()).data.flatten()[0] = torch.nan
    with pytest.raises(NonFiniteError):
        glassformer.save(model, tmp_path / "x", dtype="int8")


def test_wrong_scale_is_rejected(tmp_path: Path) -> None:
    folder = glassformer.save(glassformer.tiny("original"), tmp_path / "x", dtype="int8")
    good = {name: tensor.clone() for name, tensor in open_weights(folder).items()}
    name = next(name for name in good if name.endswith(".scale"))
    for bad in (None, good[name][:-1], good[name].half(), good[name] * torch.inf):
        state = {**good, name: bad} if bad is not None else {n: t for n, t in good.items() if n != name}
        write_checksums(folder, [*save_weights(folder, state), "spec.json"])
        with pytest.raises(FileProblemError):
            glassformer.load(folder)
