"""Decoder-only families: config variants, pad ids, published sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import glassformer
from glassformer.core import spec
from glassformer.core.build import build_model
from glassformer.families.config import Config
from glassformer.families.registry import families, preset_spec
from tests.families import harness
from tests.families.cases import FAMILIES

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 61,
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 37,
}
BANDS = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def read(family: str, **values: Any) -> spec.DecoderOnlySpec:
    module = families()[family].from_config(Config({**LLAMA, **values}))
    assert isinstance(module, spec.DecoderOnlySpec)
    return module


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"rope_theta": 500.0}, {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
        (
            {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2}},
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}},
        ),
        (
            {"max_position_embeddings": 64, "rope_scaling": {"rope_type": "llama3", **BANDS}},
            {
                "max_position_embeddings": 64,
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 10000.0,
                    "original_max_position_embeddings": 64,
                    **BANDS,
                },
            },
        ),
    ],
    ids=["default", "linear", "bands"],
)
def test_old_and_new_rope_config_keys_are_equivalent(old: Any, new: Any) -> None:
    assert read("llama", **old) == read("llama", **new) != read("llama")


def test_head_without_published_class_is_saved_in_our_layout(tmp_path: Path) -> None:
    model = glassformer.tiny("llama", head=spec.EmbedSpec())
    folder = glassformer.save(model, tmp_path / "saved")
    assert (folder / "spec.json").is_file() and glassformer.load(folder).spec == model.spec


def test_pad_token_that_is_also_eos_is_not_masked(tmp_path: Path) -> None:
    """Chat models pad with the token that ends a turn; a prompt full of them must not lose them."""
    model: Any = harness.reference("LlamaForCausalLM", {**FAMILIES["llama"][0][1], "pad_token_id": 2})
    ids = torch.tensor([[2, 5, 7, 2, 9, 2]])
    with torch.no_grad():
        ours = glassformer.load(harness.save_reference(model, tmp_path)).model(ids)
        assert (ours - model(input_ids=ids).logits).abs().max() < 1e-5
    assert read("llama", pad_token_id=3, eos_token_id=[2, 4]).input == spec.TokensSpec(
        vocab_size=61, pad_id=3
    )


@pytest.mark.parametrize("family", ["llama", "falcon"])
def test_computed_and_duplicate_tensors_in_old_files_are_ignored(family: str, tmp_path: Path) -> None:
    """Rotary frequencies in every layer, and a tied head written out beside the token matrix."""
    name, settings = FAMILIES[family][1] if family == "llama" else FAMILIES[family][0]
    folder = harness.save_reference(harness.reference(name, settings), tmp_path)
    before = glassformer.load(folder).model
    tensors = load_file(folder / "model.safetensors")
    token, place = {
        "llama": ("model.embed_tokens.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"),
        "falcon": ("transformer.word_embeddings.weight", "transformer.h.0.self_attention.rotary.inv_freq"),
    }[family]
    more = {"lm_head.weight": tensors[token].clone(), place: torch.ones(2)}
    save_file({**tensors, **more}, folder / "model.safetensors", metadata={"format": "pt"})
    after = glassformer.load(folder).model
    ids = torch.arange(6)[None]
    with torch.no_grad():
        assert torch.equal(before(ids), after(ids))
    more["lm_head.weight"] += 1
    save_file({**tensors, **more}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(glassformer.GlassformerError):
        glassformer.load(folder)


@pytest.mark.parametrize("old_layout", [True, False])
def test_language_model_of_an_image_text_checkpoint_is_read(old_layout: bool, tmp_path: Path) -> None:
    settings = dict(FAMILIES["gemma3"][1][1])
    text = {**settings, "vocab_size": 270}
    vision = {"hidden_size": 12, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 28, "patch_size": 14}
    config = {"text_config": text, "vision_config": vision, "mm_tokens_per_image": 4}
    tokens = {"boi_token_index": 266, "eoi_token_index": 267, "image_token_index": 268}
    model: Any = harness.reference("Gemma3ForConditionalGeneration", {**config, **tokens})
    folder = harness.save_reference(model, tmp_path / "both")
    tensors = load_file(folder / "model.safetensors")
    old = {"model.language_model.": "language_model.model.", "model.vision": "vision", "model.multi": "multi"}
    if old_layout:
        for new, before in old.items():
            tensors = {
                before + n.removeprefix(new) if n.startswith(new) else n: t for n, t in tensors.items()
            }
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    pipeline = glassformer.load(folder)
    ids = torch.arange(3, 12)[None]
    glassformer.save(pipeline, tmp_path / "text")
    again = transformers.Gemma3ForCausalLM.from_pretrained(tmp_path / "text")
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        assert (pipeline.model(ids) - expected).abs().max() < 1e-5
        assert (again(input_ids=ids).logits - expected).abs().max() < 1e-5


# as published with the weights; PaLM's as in its paper, to two decimals
SIZES = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "tinyllama-1.1b": 1_100_048_384,
    "mistral-7b": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "falcon-7b": 6_921_720_704,
    "falcon-rw-1b": 1_311_625_216,
    "pythia-70m": 70_426_624,
    "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
    "pythia-1.4b": 1_414_647_808,
    "pythia-2.8b": 2_775_208_960,
    "pythia-6.9b": 6_857_302_016,
    "pythia-12b": 11_846_072_320,
    "gpt-neox-20b": 20_554_567_680,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-270m": 268_098_176,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_263_168,
    "gemma-3-12b": 11_766_034_176,
    "gemma-3-27b": 27_009_346_304,
    "palm-8b": 8.63e9,
    "palm-62b": 62.50e9,
    "palm-540b": 540.35e9,
}


@pytest.mark.parametrize("name", SIZES)
def test_presets_have_the_published_number_of_parameters(name: str) -> None:
    with torch.device("meta"):
        model = build_model(preset_spec(name))
    count = sum(p.numel() for p in model.parameters())
    assert abs(count - SIZES[name]) <= (1e7 if isinstance(SIZES[name], float) else 0)


def _block(model: spec.DecoderOnlySpec, **changes: Any) -> spec.DecoderOnlySpec:
    """The spec with changes in every block; the keys of `attention` change its attention."""
    attention = changes.pop("attention", {})
    stack = model.decoder

    def change(block: spec.BlockSpec) -> spec.BlockSpec:
        return replace(block, attention=replace(block.attention, **attention), **changes)

    pattern = tuple(map(change, stack.pattern))
    return replace(model, decoder=replace(stack, block=change(stack.block), pattern=pattern))


def _stack(model: spec.DecoderOnlySpec, **changes: Any) -> spec.DecoderOnlySpec:
    return replace(model, decoder=replace(model.decoder, **changes))


WRONG = {
    "all features rotated": ("gpt_neox", 0, lambda s: _stack(s, position=spec.RotarySpec())),
    "sequential residual": ("gpt_neox", 0, lambda s: _block(s, wiring="pre")),
    "scores without softcap": ("gemma2", 1, lambda s: _block(s, attention={"softcap": None})),
    "logits without softcap": ("gemma2", 1, lambda s: replace(s, head=replace(s.head, softcap=None))),
    "weight instead of 1 + weight": ("gemma2", 1, lambda s: _block(s, norm=spec.RMSNormSpec())),
    "no norm after a sublayer": ("gemma2", 1, lambda s: _block(s, wiring="pre")),
    "scale of the head width": ("gemma2", 1, lambda s: _block(s, attention={"scale": None})),
    "unscaled embeddings": ("gemma2", 1, lambda s: replace(s, input=replace(s.input, scale=1.0))),
    "one rotary base": ("gemma3", 1, lambda s: _stack(s, local_position=None)),
    "queries and keys not normed": ("gemma3", 1, lambda s: _block(s, attention={"qk_norm": None})),
    "queries and keys times weight": (
        "gemma3",
        1,
        lambda s: _block(s, attention={"qk_norm": spec.RMSNormSpec()}),
    ),
    "windows in all layers": ("gemma2", 1, lambda s: _stack(s, pattern=())),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_deliberately_wrong_variant_differs_from_transformers(what: str, tmp_path: Path) -> None:
    family, case, change = WRONG[what]
    reference: Any = harness.reference(*FAMILIES[family][case])
    right = glassformer.load(harness.save_reference(reference, tmp_path)).model
    wrong = build_model(change(right.spec)).eval()
    wrong.load_state_dict(right.state_dict(), strict=False)  # some have fewer norms
    ids = torch.randint(2, 60, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = reference(input_ids=ids).logits
        assert (right(ids) - expected).abs().max() < 1e-5
        assert (wrong(ids) - expected).abs().max() > 1e-3
