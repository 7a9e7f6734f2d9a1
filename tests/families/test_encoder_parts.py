"""Parts that only some text encoders have: the published form matches transformers, and others do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import glassformer
from tests.families import harness
from tests.families.cases import _ALBERT


def norm_after_projection(model: Any) -> None:
    model.embed.norm, model.embed.project = nn.Sequential(model.embed.project, model.embed.norm), None


def alternate_groups(model: Any) -> None:
    first, *_, last = model.encoder.blocks
    model.encoder.blocks = nn.ModuleList([first, last] * (len(model.encoder.blocks) // 2))


WRONG = [
    ("AlbertModel", {**_ALBERT, "embedding_size": 24}, norm_after_projection),
    ("AlbertModel", {**_ALBERT, "num_hidden_groups": 2}, alternate_groups),
]


@pytest.mark.parametrize(("name", "settings", "change"), WRONG, ids=lambda v: getattr(v, "__name__", ""))
def test_wrong_variant_differs_from_transformers(
    name: str, settings: dict[str, Any], change: Callable[[Any], None], tmp_path: Path
) -> None:
    reference = harness.reference(name, settings)
    model = glassformer.load(harness.save_reference(reference, tmp_path)).model
    ids, real = harness.token_batch(61, harness.pad_of(model), "right")
    with torch.no_grad():
        theirs = reference(input_ids=ids, attention_mask=real.long())
        assert harness.worst(model(ids, real), theirs, real) < 1e-5
        change(model)
        assert harness.worst(model(ids, real), theirs, real) > 1e-2


def test_layers_of_a_group_share_parameters_in_training_and_inference() -> None:
    model = glassformer.tiny("albert", num_layers=4, num_groups=2)
    blocks = model.encoder.blocks
    assert [blocks.index(block) if False else id(block) for block in blocks] == [
        id(blocks[n]) for n in (0, 0, 2, 2)
    ]
    one_group = sum(p.numel() for p in blocks[0].parameters())
    assert sum(p.numel() for p in model.encoder.parameters()) == 2 * one_group
