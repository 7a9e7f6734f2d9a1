"""Published folders of image and series models, and their sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import glassformer
from glassformer.core.build import build_model
from glassformer.families.registry import preset_spec
from tests.families import harness
from tests.families.cases import DEIT, PATCHTST, VIT

Rewrite = Any


def folder_of(case: Any, folder: Path, change: Rewrite = None, **config: Any) -> tuple[Any, Path]:
    """A reference model saved, its tensors changed by `change`, its config by `config`."""
    model = harness.reference(*case)
    harness.save_reference(model, folder)
    if change is not None:
        save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors")
    if config:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return model, folder


def images(model: Any) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(2, model.embed.channels, *model.embed.image_size)


def test_bare_encoder_without_pooler_round_trips(tmp_path: Path) -> None:
    def drop(tensors: dict[str, Any]) -> dict[str, Any]:
        return {name: t for name, t in tensors.items() if "pooler" not in name}

    reference, folder = folder_of(VIT[4], tmp_path / "theirs", drop)
    bundle = glassformer.load(folder)
    values = images(bundle.model)
    with torch.no_grad():
        ours, theirs = bundle.model(values), reference(values).last_hidden_state
    assert (ours - theirs).abs().max() < 1e-5
    for name, saved in (("published", bundle), ("fresh", glassformer.Pipeline(model=bundle.model))):
        glassformer.save(saved, tmp_path / name)
        assert (tmp_path / name / "config.json").exists()
        assert glassformer.load(tmp_path / name).spec == bundle.spec
    stored = json.loads((tmp_path / "published" / "config.json").read_text())
    assert stored.items() >= json.loads((folder / "config.json").read_text()).items()


@pytest.mark.parametrize("case", [VIT[0], DEIT[0]], ids=["one", "two"])
def test_classifier_with_extra_tensors_is_read(case: Any, tmp_path: Path) -> None:
    def add(tensors: dict[str, Any]) -> dict[str, Any]:
        base = next(n for n in tensors if n.endswith("cls_token")).removesuffix("embeddings.cls_token")
        more = {
            "pooler.dense.weight": torch.zeros(24, 24),
            "pooler.dense.bias": torch.zeros(24),
            "embeddings.mask_token": torch.zeros(1, 1, 24),
        }
        return {**tensors, **{base + name: t for name, t in more.items()}}

    reference, folder = folder_of(case, tmp_path, add)
    model = glassformer.load(folder).model
    values = images(model)
    with torch.no_grad():
        out = dict(harness.outputs(model(values)))
        logits = out.get("logits", out.get("main"))
        assert (logits - reference(values).logits).abs().max() < 1e-5


def test_layers_with_newer_names_are_read(tmp_path: Path) -> None:
    reference = harness.reference(*VIT[1])
    reference.save_pretrained(tmp_path / "older")  # type: ignore[operator]
    reference.save_pretrained(tmp_path / "later")  # type: ignore[operator]
    save_file(dict(reference.state_dict()), tmp_path / "later" / "model.safetensors")
    older, later = (load_file(tmp_path / n / "model.safetensors").keys() for n in ("older", "later"))
    assert older != later
    one, other = (glassformer.load(tmp_path / n).model for n in ("older", "later"))
    assert torch.equal(one(images(one)), other(images(one)))


def test_per_channel_layers_read_their_weights(tmp_path: Path) -> None:
    """The reference's own forward cannot run this head, so its layers are applied to its vectors by hand."""
    name, settings = PATCHTST[0]
    reference, folder = folder_of((name, {**settings, "share_projection": False}), tmp_path)
    bundle = glassformer.load(folder)
    values = torch.randn(2, settings["context_length"], 3).cumsum(1)
    with torch.no_grad():
        inner = reference.model(values)
        pooled = inner.last_hidden_state.mean(2)
        each = [layer(pooled[:, c]) for c, layer in enumerate(reference.head.projections)]
        theirs = torch.stack(each, -1) * inner.scale + inner.loc
        assert (bundle.model(values) - theirs).abs().max() < 1e-5
    glassformer.save(glassformer.Pipeline(model=bundle.model), tmp_path / "again")
    before, after = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "again"))
    assert before.keys() == after.keys() and all(torch.equal(before[n], after[n]) for n in before)


@pytest.mark.parametrize(
    ("preset", "parameters"),  # as the papers' own code counts them
    [
        ("vit-base-patch16-224", 86_567_656),
        ("vit-large-patch16-224", 304_326_632),
        ("deit-tiny-patch16-224", 5_717_416),
        ("deit-small-patch16-224", 22_050_664),
        ("deit-tiny-distilled-patch16-224", 5_910_800),
        ("deit-small-distilled-patch16-224", 22_436_432),
        ("deit-base-distilled-patch16-224", 87_338_192),
    ],
)
def test_presets_have_the_published_number_of_parameters(preset: str, parameters: int) -> None:
    with torch.device("meta"):
        model = build_model(preset_spec(preset))
    assert sum(p.numel() for p in model.parameters()) == parameters
