"""A spec survives JSON, and whatever is misspelt, ill-typed or impossible in it is one sentence."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from glassformer.core import spec
from glassformer.core.schema import from_dict, to_dict
from glassformer.errors import GlassformerError
from glassformer.families.registry import families, tiny
from tests.core.models import SHAPES, spec_of


@pytest.mark.parametrize("name", families())
def test_every_family_survives_json(name: str) -> None:
    what = tiny(name)
    again = from_dict(json.loads(json.dumps(to_dict(what))))
    assert again == what
    assert type(again) is type(what)
    assert hash(again) == hash(what)  # lists came back as tuples


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "position",
    [
        spec.Rotary(width=4, scaling=spec.LinearScaling(factor=2.0)),
        spec.Rotary(
            scaling=spec.BandScaling(
                factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_len=64
            )
        ),
        spec.Relative(buckets=8),
        spec.Alibi(scale=0.5),
        None,
    ],
    ids=str,
)
def test_nested_kinds_survive_json(shape: str, position: spec.ScorePosition | None) -> None:
    data = to_dict(spec_of(shape))
    stack = "encoder" if shape == "encoder_only" else "decoder"
    data[stack]["position"] = to_dict(position)
    again = from_dict(json.loads(json.dumps(data)))
    assert getattr(again, stack).position == position
    assert to_dict(again) == data


def test_whole_numbers_serve_as_floats() -> None:
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
WRONG = [
    (
        changed("decoder", "num_layer", to=3),
        r"spec.decoder \(Stack\) has unknown key 'num_layer'; did you mean 'num_layers'\?",
    ),
    (changed("decoder", "zebra", to=3), r"unknown key 'zebra'; known are block, causal"),
    (changed("kind", to="DecoderOnyl"), r"spec has unknown kind 'DecoderOnyl'; did you mean 'DecoderOnly'\?"),
    (changed("decoder", "position", "kind", to=["Rotary"]), r"spec.decoder.position has unknown kind"),
    (changed("decoder", to={"d_model": 4}), r"spec.decoder must be an object with a 'kind'"),
    (changed("decoder", to=None), r"spec.decoder cannot be None; it takes Stack"),
    (changed("decoder", "d_model", to="16"), r"spec.decoder.d_model cannot be '16'; it takes int"),
    (changed("decoder", "d_model", to=16.5), r"spec.decoder.d_model cannot be 16.5; it takes int"),
    (changed("decoder", "d_model", to=True), r"spec.decoder.d_model cannot be True; it takes int"),
    (changed("decoder", "causal", to=1), r"spec.decoder.causal cannot be 1; it takes bool"),
    (
        changed(*BLOCK, "norm", to={"kind": "Attention", "num_heads": 2}),
        r"spec.decoder.block.norm cannot be .* it takes LayerNorm or RMSNorm or BatchNorm",
    ),
    (
        changed(*BLOCK, "wiring", to="sandwich"),
        r"spec.decoder.block.wiring cannot be 'sandwich'; it takes 'pre' or 'post' or 'parallel'",
    ),
    (
        changed(*BLOCK, "attention", "biases", to=["q", "z"]),
        r"spec.decoder.block.attention.biases\[1\] cannot be 'z'; it takes 'q' or 'k' or 'v' or 'out'",
    ),
    (changed(*BLOCK, "attention", "biases", to="q"), r"attention.biases cannot be 'q'; it takes tuple"),
    (changed(*BLOCK, "feed_forward", "d_ff", to=KeyError), r"feed_forward \(FeedForward\) lacks 'd_ff'"),
    (changed("decoder", "d_model", to=18), r"d_model 18 is not divisible by num_heads 4; choose a divisor"),
    (
        changed(*BLOCK, "attention", "num_kv_heads", to=3),
        r"num_heads 4 is not a multiple of num_kv_heads 3; choose a divisor of num_heads",
    ),
    (
        changed(*BLOCK, "attention", "window", to=0),
        r"Attention.window is 0; it must be a whole number from 1 to 2147483647",
    ),
    (
        changed("input", "vocab_size", to=-1),
        r"Tokens.vocab_size is -1; it must be a whole number from 1 to 2147483647",
    ),
    (changed("decoder", "num_layers", to=-1), r"num_layers is -1; it must be a whole number from 0 to 10000"),
    (changed("decoder", "causal", to=False), r"the stack of a DecoderOnly must be causal=True"),
    (
        changed(*BLOCK, "feed_forward", "d_ff", to=0),
        r"FeedForward.d_ff is 0; it must be a whole number from 1 to 2147483647",
    ),
    (changed(*BLOCK, "dropout", to=1.5), r"Block.dropout is 1.5; it must be at least 0 and less than 1"),
    (changed(*BLOCK, "attention", "dropout", to=-0.1), r"Attention.dropout is -0.1; it must be at least 0"),
]


@pytest.mark.parametrize(("data", "sentence"), WRONG, ids=[s for _, s in WRONG])
def test_what_is_wrong_is_said_in_a_sentence(data: Any, sentence: str) -> None:
    with pytest.raises(GlassformerError, match=sentence) as caught:
        from_dict(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [None, [], "x", 3, {}])
def test_what_is_no_spec_at_all_is_said_in_a_sentence(data: Any) -> None:
    with pytest.raises(GlassformerError, match="spec must be an object with a 'kind'"):
        from_dict(data)


MISTAKES: list[tuple[Any, dict[str, Any], str]] = [
    (
        spec.Classify,
        {"num_labels": 2, "pool": "avg"},
        "Classify.pool is 'avg'; it must be one of first, last",
    ),
    (
        spec.Classify,
        {"num_labels": 0},
        "Classify.num_labels is 0; it must be a whole number from 1 to 2147483647",
    ),
    (
        spec.Classify,
        {"num_labels": 2, "hidden": ["tanh"]},
        r"Classify.hidden is \['tanh'\]; it must be one of",
    ),
    (
        spec.Attention,
        {"num_heads": 4, "biases": ("q", "key")},
        r"biases is \('q', 'key'\); it must be one of q, k",
    ),
    (spec.Tokens, {"vocab_size": 9, "dropout": 1.0}, "Tokens.dropout is 1.0; it must be at least 0 and less"),
    (spec.Learned, {"max_len": -3}, "Learned.max_len is -3; it must be a whole number from 1 to 2147483647"),
    (spec.Relative, {"buckets": 2}, "Relative.buckets is 2; it must be at least 4"),
    (spec.Relative, {"max_distance": 16}, "less than twice max_distance 16"),
]


@pytest.mark.parametrize(("kind", "words", "sentence"), MISTAKES, ids=[s for *_, s in MISTAKES])
def test_a_mistake_in_a_spec_is_said_where_it_is_made(kind: Any, words: Any, sentence: str) -> None:
    with pytest.raises(GlassformerError, match=sentence):
        kind(**words)
