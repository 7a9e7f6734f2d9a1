"""Tiny random models of diffusers, with every parameter redrawn, and the same weights in ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer
from glassformer.families.registry import families
from glassformer.weights.convert import to_theirs

diffusers = pytest.importorskip("diffusers", reason="compares with diffusers, a development dependency")


def reference(name: str, settings: dict[str, Any], seed: int = 0) -> Any:
    """Build a model of diffusers with every parameter redrawn, large enough for a mistake to show."""
    model = getattr(diffusers, name)(**settings).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in model.parameters():
            noise = torch.randn(value.shape, generator=generator)
            value.copy_(noise * 0.8 / value[0].numel() ** 0.5 if value.dim() > 1 else value + 0.2 * noise)
    return model


def load_saved(model: Any, folder: Path) -> glassformer.Pipeline:
    """Load a reference from a folder that it saved."""
    model.save_pretrained(folder)
    return glassformer.load(folder)


def assert_saved_folder_is_exact(bundle: glassformer.Pipeline, model: Any, folder: Path) -> None:
    """The reference reads what we save, with the original config and with one written from the spec."""
    again = type(model).from_pretrained(glassformer.save(bundle, folder / "saved"))
    assert (folder / "saved" / "diffusion_pytorch_model.safetensors").is_file()
    assert_same_state(again, model)
    folder = glassformer.save(bundle.model, folder / "written", layout="hf")
    fresh = type(model).from_pretrained(folder)
    assert_same_state(fresh, model)
    assert glassformer.load(folder).model.spec == bundle.model.spec


def assert_same_state(model: Any, expected: Any) -> None:
    state = model.state_dict()
    assert state.keys() == expected.state_dict().keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in expected.state_dict().items())


def assert_same_gradients(bundle: glassformer.Pipeline, ours: Tensor, model: Any, theirs: Tensor) -> None:
    """Compare the gradients of all parameters, by their published names, for a random projection as loss."""
    generator = torch.Generator().manual_seed(5)
    weights = torch.randn(theirs.shape, generator=generator)
    (theirs * weights).mean().backward()
    (ours * weights).mean().backward()
    table = families()[str(bundle.family)].table(bundle.model.spec, ())
    named = {name: p.grad for name, p in bundle.model.named_parameters()}
    assert all(grad is not None for grad in named.values())
    found = to_theirs({name: grad for name, grad in named.items() if grad is not None}, table)
    for name, parameter in model.named_parameters():
        scale = max(float(parameter.grad.abs().max()), 1e-3)
        assert float((found[name] - parameter.grad).abs().max()) < 1e-4 * scale, name
