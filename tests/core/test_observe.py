"""Observers do not change the output, record what was computed, and apply edits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from glassformer.core.build import build_model
from glassformer.core.kv_cache import KVCache
from glassformer.core.observe import Observer, Record, observe
from glassformer.errors import InvalidValueError, UnknownNameError, UnsupportedError
from glassformer.families.registry import tiny_spec
from tests.core.models import POSITIONS, SHAPES, D, H, ids, inputs_of, model_of

WIDTH = D // H
EVERY = [(shape, position) for shape in SHAPES for position in POSITIONS]


def padded(shape: str) -> tuple[Tensor, ...]:
    """Inputs of which the second row is short."""
    inputs = tuple(x.clone() for x in inputs_of(shape))
    for x in inputs:
        x[1, 4:] = 0
    return inputs


@pytest.mark.parametrize(("shape", "position"), EVERY)
def test_observed_output_is_bit_identical(shape: str, position: str) -> None:
    model, inputs = model_of(shape, position=position, num_kv_heads=2), padded(shape)
    with torch.no_grad():
        plain = model(*inputs)
    assert torch.equal(observe(model, inputs).output, plain)


@pytest.mark.parametrize(("shape", "position"), EVERY)
def test_recomputed_weights_match_the_forward(shape: str, position: str) -> None:
    model, inputs = model_of(shape, position=position, num_kv_heads=2, value_dim=3), padded(shape)
    record = observe(model, inputs)
    names = record.attentions()
    assert len(names) == {"encoder_decoder": 6}.get(shape, 2)
    for name in names:
        weights, v = record.weights(name), record[f"{name}.v"]
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        mixed = weights @ v.repeat_interleave(H // v.shape[1], 1)
        torch.testing.assert_close(mixed, record[f"{name}.heads"], atol=1e-5, rtol=0)
        for head in range(H):
            torch.testing.assert_close(record.weights(name, head), weights[:, head])
            for stage in ("dot", "scaled", "masked"):
                one, every = record.scores(name, head, stage), record.scores(name, stage=stage)
                torch.testing.assert_close(one, every[:, head])


def test_score_stages_lead_to_the_weights() -> None:
    model, inputs = model_of("decoder_only", position="alibi"), padded("decoder_only")
    record = observe(model, inputs)
    name = "decoder.blocks.1.self_attn"
    q, k = record[f"{name}.q"], record[f"{name}.k"]
    torch.testing.assert_close(record.scores(name, stage="dot"), q @ k.transpose(-1, -2))
    bias = model.decoder.position(torch.arange(6)[None]).bias
    scaled = record.scores(name)
    torch.testing.assert_close(scaled, record.scores(name, stage="dot") * WIDTH**-0.5 + bias)
    allowed = torch.ones(6, 6).tril().bool() & (inputs[0] != 0)[:, None, None]
    masked = record.scores(name, stage="masked")
    assert torch.equal(masked == -torch.inf, ~allowed.expand_as(masked))
    assert torch.equal(masked.masked_fill(~allowed, 0), scaled.masked_fill(~allowed, 0))
    torch.testing.assert_close(record.weights(name), masked.softmax(-1))


def test_pre_norm_outputs_sum_to_the_final_residual() -> None:
    for shape in SHAPES:
        record = observe(model_of(shape), inputs_of(shape))
        for stack, embed in (("encoder", "src_embed"), ("decoder", "tgt_embed")):
            if record.names(f"{stack}.*"):
                start = record[f"{embed if shape == 'encoder_decoder' else 'embed'}.out"]
                parts = record.names(f"{stack}.blocks.*_attn.out") + record.names(
                    f"{stack}.blocks.*.ffn.down"
                )
                total = start + sum(record[name] for name in parts)
                torch.testing.assert_close(total, record[f"{stack}.blocks.1.resid_out"])


def test_only_matching_names_are_recorded() -> None:
    model, inputs = model_of("encoder_decoder"), inputs_of("encoder_decoder")
    record = observe(model, inputs, want=("decoder.blocks.1.*.q", "head.*"))
    assert list(record) == ["decoder.blocks.1.self_attn.q", "decoder.blocks.1.cross_attn.q", "head.logits"]
    with pytest.raises(UnknownNameError):
        record["encoder.final_norm"]
    with pytest.raises(UnknownNameError):
        record.weights("decoder.blocks.1.self_attn")
    full = observe(model, inputs)
    with pytest.raises(InvalidValueError):
        full.weights("decoder.blocks.1.self_attn", head=4)


# ---- edits ---------------------------------------------------------------------------------------------


def test_edited_scores_are_recorded_as_used() -> None:
    model, inputs = model_of("decoder_only"), inputs_of("decoder_only")
    name = "decoder.blocks.0.self_attn"
    record = observe(model, inputs, edit={f"{name}.scores": torch.zeros_like})
    even = torch.ones(6, 6).tril() / torch.arange(1, 7)[:, None]
    torch.testing.assert_close(record.weights(name), even.expand(3, H, 6, 6))
    assert not record.scores(name).any()
    masked = record.scores(name, stage="masked")
    torch.testing.assert_close(masked.softmax(-1), record.weights(name))
    torch.testing.assert_close(record.scores(name, 1, "masked"), masked[:, 1])


# ---- with a cache ------------------------------------------------------------------------------------------


def test_observed_cached_step_records_all_keys() -> None:
    model = model_of("decoder_only", position="relative")
    tokens = ids(3, 6)
    full = observe(model, tokens)
    cache = KVCache.allocate(model.spec, 3, 6)
    steps: list[Record] = []
    with torch.no_grad():
        for piece in tokens.split([3, 1, 2], 1):
            observer = Observer()
            model(piece, cache=cache, obs=observer)
            steps.append(observer.record)
    name = "decoder.blocks.1.self_attn"
    assert steps[1][f"{name}.q"].shape[2] == 1 and steps[1][f"{name}.k"].shape[2] == 4
    for step, rows in zip(steps, (slice(0, 3), slice(3, 4), slice(4, 6)), strict=True):
        keys = rows.stop
        torch.testing.assert_close(step.weights(name), full.weights(name)[:, :, rows, :keys])
        torch.testing.assert_close(step["head.logits"], full["head.logits"][:, rows], atol=1e-5, rtol=0)


def test_forward_hook_output_is_not_overwritten() -> None:
    """Inference writes over temporaries; one that a hook may have kept is left alone."""
    model = build_model(tiny_spec("llama")).eval()
    read = torch.randint(1, 50, (2, 6))
    plain = observe(model, read)
    stored: dict[str, torch.Tensor] = {}
    names = ("ffn.gate", "ffn.up", "ffn.down", "ffn", "self_attn", "self_attn.out_proj")
    for name in names:
        module = model.decoder.blocks[0].get_submodule(name)
        module.register_forward_hook(lambda _, __, out, name=name: stored.__setitem__(name, out))
    with torch.no_grad():
        assert torch.equal(model(read), plain.output)
    for name, recorded in {"ffn.gate": "ffn.gate", "self_attn": "self_attn.out", "ffn": "ffn.down"}.items():
        assert torch.equal(stored[name], plain[f"decoder.blocks.0.{recorded}"])


def test_names_that_match_nothing_are_rejected() -> None:
    model, inputs = model_of("decoder_only"), inputs_of("decoder_only")
    for wrong in ({"want": "nothing.*"}, {"edit": {"decoder.blocks.7.resid_out": torch.relu}}):
        with pytest.raises(UnknownNameError):
            observe(model, inputs, **wrong)
    with pytest.raises(InvalidValueError):
        observe(model, inputs, edit={"decoder.blocks.0.resid_out": lambda x: x[..., :8]})
    assert observe(model, inputs, want=("nothing.*", "*.q")).names()
    assert not observe(model, inputs, want=()).names()  # the output alone
    with pytest.raises(UnsupportedError) as layer:
        observe(torch.nn.TransformerEncoderLayer(8, 2), torch.ones(1, 2, 8))
    with pytest.raises(UnsupportedError) as other:
        observe(type("Other", (torch.nn.Linear,), {})(2, 2), torch.ones(1, 2))
    assert "from_torch" in layer.value.hint and "from_torch" not in other.value.hint
