"""Parts that only some text encoders have: the published form matches transformers, and others do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

import glassformer
from glassformer.core.masks import Mask
from glassformer.core.positions import log_bucket
from glassformer.core.spec import FeaturesSpec
from glassformer.inference.encoder import InferenceEncoder
from glassformer.verify import perturb_parameters
from tests.families import harness
from tests.families.cases import _ALBERT, _DEBERTA, _MODERNBERT


def norm_after_projection(model: Any) -> None:
    model.embed.norm, model.embed.project = nn.Sequential(model.embed.project, model.embed.norm), None


def alternate_groups(model: Any) -> None:
    first, *_, last = model.encoder.blocks
    model.encoder.blocks = nn.ModuleList([first, last] * (len(model.encoder.blocks) // 2))


def norm_first_layer(model: Any) -> None:
    model.encoder.blocks[0].norm_self = nn.LayerNorm(24)


def widen_window(model: Any) -> None:
    for attention in model.encoder.attentions:
        attention.window = None if attention.window is None else attention.window + 1


def share_rotary_base(model: Any) -> None:
    model.encoder.local_position = model.encoder.position


def swap_gate(model: Any) -> None:
    for block in model.encoder.blocks:
        block.ffn.gate, block.ffn.up = block.ffn.up, block.ffn.gate


def reverse_distances(model: Any) -> None:
    rows = model.encoder.position.rows
    model.encoder.position.rows = lambda distance: rows(-distance)


def use_linear_buckets(model: Any) -> None:
    model.encoder.position.buckets = None


def drop_p2c(model: Any) -> None:
    model.encoder.position.kinds = ("c2p",)


def scale_content_only(model: Any) -> None:
    for attention in model.encoder.attentions:
        attention.scale = attention.head_dim**-0.5


WRONG = [
    ("DebertaV2Model", _DEBERTA, reverse_distances),
    ("DebertaV2Model", _DEBERTA, use_linear_buckets),
    ("DebertaV2Model", _DEBERTA, drop_p2c),
    ("DebertaV2Model", _DEBERTA, scale_content_only),
    ("ModernBertModel", _MODERNBERT, norm_first_layer),
    ("ModernBertModel", _MODERNBERT, widen_window),
    ("ModernBertModel", _MODERNBERT, share_rotary_base),
    ("ModernBertModel", _MODERNBERT, swap_gate),
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


def test_layers_of_a_group_share_parameters_also_in_inference() -> None:
    model = glassformer.tiny("albert", num_layers=4, num_groups=2)
    for stack in (model.encoder, InferenceEncoder(model).encoder):
        assert [id(block) for block in stack.blocks] == [id(stack.blocks[n]) for n in (0, 0, 2, 2)]
        assert stack.blocks[0] is not stack.blocks[2]
    one_group = sum(p.numel() for p in model.encoder.blocks[0].parameters())
    assert sum(p.numel() for p in model.encoder.parameters()) == 2 * one_group


@pytest.mark.parametrize("family", ["modernbert", "deberta"])
def test_packed_rows_equal_separate_rows(family: str) -> None:
    model = glassformer.tiny(family, head=FeaturesSpec()).eval()
    perturb_parameters(model)
    lengths = (9, 4, 13)
    rows = [torch.randint(1, 100, (1, length)) for length in lengths]
    segments = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))[None]
    with torch.no_grad():
        packed = model(torch.cat(rows, 1), Mask(segments=segments)).split(lengths, 1)
        for row, states in zip(rows, packed, strict=True):
            torch.testing.assert_close(states, model(row), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("buckets", "max_distance"), [(256, 512), (4, 40), (32, 128)])
def test_log_buckets_match_transformers(buckets: int, max_distance: int) -> None:
    distance = torch.arange(-700, 701)
    expected = make_log_bucket_position(distance, buckets, max_distance).long()
    assert torch.equal(log_bucket(distance, buckets=buckets, max_distance=max_distance), expected)
