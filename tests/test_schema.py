"""Specs survive JSON; unknown keys, wrong types and invalid values are rejected."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from glassformer.core import spec
from glassformer.errors import GlassformerError, InvalidValueError, MissingValueError, UnknownNameError
from glassformer.families.registry import families, tiny_spec
from glassformer.schema import InvalidSpecError, from_dict, to_dict
from tests.core.models import SHAPES, spec_of


@pytest.mark.parametrize("name", families())
def test_specs_of_every_family_survive_json(name: str) -> None:
    what = tiny_spec(name)
    again = from_dict(json.loads(json.dumps(to_dict(what))))
    assert again == what
    assert type(again) is type(what)
    assert hash(again) == hash(what)  # lists came back as tuples


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "position",
    [
        spec.RotarySpec(width=4, scaling=spec.LinearScalingSpec(factor=2.0)),
        spec.RotarySpec(
            scaling=spec.BandScalingSpec(
                factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_len=64
            )
        ),
        spec.RelativeSpec(buckets=8),
        spec.AlibiSpec(scale=0.5),
        None,
    ],
    ids=str,
)
def test_nested_specs_survive_json(shape: str, position: spec.AttentionPositionSpec | None) -> None:
    data = to_dict(spec_of(shape))
    stack = "encoder" if shape == "encoder_only" else "decoder"
    data[stack]["position"] = to_dict(position)
    again = from_dict(json.loads(json.dumps(data)))
    assert getattr(again, stack).position == position
    assert to_dict(again) == data


def test_integers_are_converted_to_float_fields() -> None:
    data = to_dict(spec_of("decoder_only"))
    data["decoder"]["block"]["dropout"] = 0
    assert isinstance(from_dict(data).decoder.block.dropout, float)


def changed(*path: str, to: Any) -> dict[str, Any]:
    data: dict[str, Any] = copy.deepcopy(to_dict(spec_of("decoder_only", position="rotary")))
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    if to is KeyError:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return data


BLOCK = ("decoder", "block")
WRONG: list[tuple[Any, type[GlassformerError], str]] = [
    (changed("decoder", "num_layer", to=3), UnknownNameError, "spec.decoder"),
    (changed("kind", to="DecoderOnyl"), UnknownNameError, "spec"),
    (changed("decoder", "position", "kind", to=["Rotary"]), UnknownNameError, "spec.decoder.position"),
    (changed("decoder", to={"d_model": 4}), InvalidValueError, "spec.decoder"),
    (changed(*BLOCK, "feed_forward", "d_ff", to=KeyError), MissingValueError, "d_ff"),
    (changed("decoder", to=None), InvalidSpecError, "DecoderOnly.decoder"),
    (changed("decoder", "d_model", to="16"), InvalidSpecError, "Stack.d_model"),
    (changed("decoder", "d_model", to=16.5), InvalidSpecError, "Stack.d_model"),
    (changed("decoder", "d_model", to=True), InvalidSpecError, "Stack.d_model"),
    (changed("decoder", "causal", to=1), InvalidSpecError, "Stack.causal"),
    (changed(*BLOCK, "norm", to={"kind": "Attention", "num_heads": 2}), InvalidSpecError, "Block.norm"),
    (changed(*BLOCK, "wiring", to="ring"), InvalidSpecError, "Block.wiring"),
    (changed(*BLOCK, "attention", "biases", to=["q", "z"]), InvalidSpecError, "Attention.biases"),
    (changed(*BLOCK, "attention", "biases", to="q"), InvalidSpecError, "Attention.biases"),
    (changed("decoder", "d_model", to=18), InvalidSpecError, "spec.decoder"),
    (changed(*BLOCK, "attention", "num_kv_heads", to=3), InvalidSpecError, "num_kv_heads"),
    (changed(*BLOCK, "attention", "window", to=0), InvalidSpecError, "Attention.window"),
    (changed("decoder", "num_layers", to=-1), InvalidSpecError, "num_layers"),
    (changed("decoder", "causal", to=False), InvalidSpecError, "causal"),
    (changed(*BLOCK, "dropout", to=1.5), InvalidSpecError, "Block.dropout"),
]


@pytest.mark.parametrize(("data", "kind", "where"), WRONG)
def test_invalid_spec_is_rejected_with_its_path(data: Any, kind: type[GlassformerError], where: str) -> None:
    with pytest.raises(kind) as caught:
        from_dict(data)
    assert any(where in str(value) for value in caught.value.fields.values())


@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [
        (spec.ClassifySpec, {"num_labels": 2, "pool": "avg"}, "Classify.pool"),
        (spec.ClassifySpec, {"num_labels": 0}, "Classify.num_labels"),
        (spec.ClassifySpec, {"num_labels": 2, "hidden": ["tanh"]}, "Classify.hidden"),
        (spec.AttentionSpec, {"num_heads": 4, "biases": ("q", "key")}, "Attention.biases"),
        (spec.LearnedSpec, {"max_len": -3}, "Learned.max_len"),
        (spec.RelativeSpec, {"max_distance": 16}, "buckets"),
    ],
)
def test_invalid_field_is_rejected_on_construction(kind: Any, options: Any, name: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        kind(**options)
    assert caught.value.name == name
