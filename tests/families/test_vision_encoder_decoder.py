"""Image encoders with text decoders, compared with transformers' VisionEncoderDecoderModel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import glassformer
from glassformer.core.inputs import Memory, TextInputs
from glassformer.core.masks import Mask
from glassformer.errors import GlassformerError
from tests.families import harness, values
from tests.families.cases import BERT, GPT2, ROBERTA

LOGITS, GRADIENTS = 2e-5, 2e-4
VOCABULARY = 61
SIZES = {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 37}
IMAGES = {"image_size": 12, "patch_size": 4, **SIZES}
WIDE = {**IMAGES, "image_size": [8, 13], "patch_size": [4, 3], "num_channels": 1}
SWIN = {
    "embed_dim": 12,
    "depths": [2, 1],
    "num_heads": [2, 3],
    "image_size": 27,
    "patch_size": 3,
    "window_size": 2,
}
TROCR = {"vocab_size": 61, "d_model": 24, "decoder_layers": 2, "decoder_attention_heads": 4}
TROCR |= {"decoder_ffn_dim": 37, "max_position_embeddings": 40, "pad_token_id": 60}
TIED, APART = GPT2[0][1], GPT2[1][1]
CASES: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("vit", IMAGES, "gpt2", {**TIED}),
    ("vit", WIDE, "gpt2", {**TIED, "n_embd": 35, "n_head": 5, "activation_function": "relu"}),
    ("deit", WIDE, "bert", {**BERT[0][1]}),
    ("swin", SWIN, "roberta", {**ROBERTA[0][1]}),
    ("vit", IMAGES, "trocr", {**TROCR, "d_model": 36, "cross_attention_hidden_size": 24}),
    ("deit", IMAGES, "trocr", {**TROCR, "scale_embedding": True, "activation_function": "relu"}),
    ("swinv2", SWIN, "gpt2", {**TIED, "n_layer": 1, "scale_attn_weights": False}),
    ("swin", {**SWIN, "image_size": [24, 15]}, "bert", {**BERT[1][1]}),
]


def reference_of(case: tuple[str, dict[str, Any], str, dict[str, Any]], seed: int = 0) -> Any:
    encoder, image, decoder, text = case
    role = {"is_decoder": True, "add_cross_attention": True}
    configs = {
        "encoder": {"model_type": encoder, **image},
        "decoder": {"model_type": decoder, **text, **role},
        "decoder_start_token_id": 3,
    }
    return harness.reference("VisionEncoderDecoderModel", configs, seed)


@pytest.fixture(
    scope="module", params=CASES, ids=[f"{n}-{case[0]}-{case[2]}" for n, case in enumerate(CASES)]
)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The reference, the bundle loaded from its folder, and the folder."""
    reference = reference_of(request.param, CASES.index(request.param))
    folder = harness.save_reference(reference, tmp_path_factory.mktemp("reference"))
    return reference, glassformer.load(folder), folder


def images_of(model: Any) -> Tensor:
    torch.manual_seed(3)
    return torch.randn(harness.BATCH, model.src_embed.channels, *model.src_embed.image_size)


def target_of(model: Any, side: str) -> tuple[Tensor, Tensor]:
    ids, real = harness.token_batch(VOCABULARY, {0, 1, 60}, side)
    pad = model.tgt_embed.pad_id
    return ids if pad is None else ids.masked_fill(~real, pad), real


def run_both(reference: Any, model: Any, side: str, kernel: str = "auto") -> tuple[Any, Any, Tensor]:
    images, (ids, real) = images_of(model), target_of(model, side)
    positions = (real.long().cumsum(-1) - 1).clamp(min=0)
    decoder = reference.config.decoder.model_type
    theirs: dict[str, Any] = {}
    if decoder in ("gpt2", "bert"):
        theirs["decoder_position_ids"] = positions
    elif decoder == "trocr" and side == "left":
        positions = torch.arange(ids.shape[1])[None]  # it counts padding
    target = TextInputs(ids, Mask(padding=real), positions=positions)
    ours = model(images, target, kernel=kernel)
    mask = real.long()
    result = reference(pixel_values=images, decoder_input_ids=ids, decoder_attention_mask=mask, **theirs)
    return ours, result, real


def gap(reference: Any, model: Any, side: str = "none", **options: Any) -> float:
    with torch.no_grad():
        return harness.worst(*run_both(reference, model, side, **options))


@pytest.mark.parametrize("side", ["none", "right", "left"])
def test_outputs_match_transformers(pair: Any, side: str) -> None:
    reference, bundle, _ = pair
    assert gap(reference, bundle.model, side) < LOGITS
    assert gap(reference, bundle.model, side, kernel="explicit") < LOGITS


def test_cached_steps_match_transformers(pair: Any) -> None:
    reference, bundle, _ = pair
    model = bundle.model
    with torch.no_grad():
        _, theirs, real = run_both(reference, model, "none")
        memory, (ids, _) = Memory.of(model.encode(images_of(model))), target_of(model, "none")
        for pieces in ([1] * harness.LENGTH, [4, 1, 3, 1]):
            cache = glassformer.KVCache.allocate(model.spec, harness.BATCH, harness.LENGTH)
            parts = [model.decode(part, memory, cache=cache) for part in ids.split(pieces, 1)]
            assert harness.worst(torch.cat(parts, 1), theirs, real) < LOGITS


def test_gradients_match_transformers(pair: Any, tmp_path: Path) -> None:
    reference, bundle, _ = pair
    reference.zero_grad()
    bundle.model.zero_grad()
    ours, theirs, real = run_both(reference, bundle.model, "right")
    ours[real].square().mean().backward()
    theirs.logits[real].square().mean().backward()
    mine, others = values.gradients(reference, bundle, tmp_path)
    assert {name for name in others if name not in mine} <= pooler_of(others)
    pad = reference.config.decoder.pad_token_id
    for name in mine:
        difference = (mine[name] - others[name]).abs()
        if pad is not None and name.endswith(("word_embeddings.weight", "embed_tokens.weight")):
            difference[pad] = 0  # the reference keeps this row from learning
        assert difference.max() < GRADIENTS, name


def pooler_of(names: Any) -> set[str]:
    """The pooler of the encoder, which nothing reads."""
    return {name for name in names if name.startswith("encoder.pooler.")}


@pytest.mark.parametrize("fresh", [False, True])
def test_transformers_reads_the_saved_folder(pair: Any, tmp_path: Path, fresh: bool) -> None:
    """With the published config, and with one that was made from the spec: the same tensors and outputs."""
    reference, bundle, folder = pair
    glassformer.save(glassformer.Pipeline(model=bundle.model) if fresh else bundle, tmp_path)
    again, info = type(reference).from_pretrained(tmp_path, output_loading_info=True)
    assert {*info["missing_keys"]} <= pooler_of(info["missing_keys"])
    assert not info["unexpected_keys"] and not info["mismatched_keys"]
    before, after = (load_file(path / "model.safetensors") for path in (folder, tmp_path))
    assert before.keys() - pooler_of(before) == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in after)
    loaded = glassformer.load(tmp_path)
    assert loaded.spec == bundle.spec
    assert gap(again.eval(), loaded.model, "right") < LOGITS


@pytest.mark.parametrize("options", [{}, {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.6}])
def test_generated_ids_match_transformers(pair: Any, options: dict[str, Any]) -> None:
    """All images of a batch, and each alone. The reference shifts the positions of pad tokens, here 1."""
    reference, bundle, _ = pair
    options = {**options, "suppress_tokens": [1]}
    images = images_of(bundle.model)
    limits = {"max_new_tokens": 7, "pad_token_id": 60, "eos_token_id": 5}
    with torch.no_grad():
        theirs = reference.generate(images, decoder_start_token_id=3, **limits, **options)
    expected = [row[: row.index(5)] if 5 in row else row for row in theirs[:, 1:].tolist()]
    expected = [[token for token in row if token != 60] for row in expected]
    ours = bundle.model.generate(images, max_new_tokens=7, eos_token_id=5, **options)
    alone = [
        ids
        for image in images
        for ids in bundle.model.generate(image[None], max_new_tokens=7, eos_token_id=5, **options)
    ]
    assert [[t for t in row if t != 60] for row in ours] == expected
    assert alone == ours


def test_wrong_variants_fail(tmp_path: Path) -> None:
    """Every part that is new in this family changes the outputs."""
    reference = reference_of(CASES[1])
    folder = harness.save_reference(reference, tmp_path)
    assert gap(reference, glassformer.load(folder).model) < LOGITS

    def without_connector_bias(model: Any) -> None:
        model.connector.bias.data.zero_()

    def swapped_keys_and_values(model: Any) -> None:
        attention = model.decoder.blocks[0].cross_attn
        attention.k_proj, attention.v_proj = attention.v_proj, attention.k_proj

    def without_final_norm_of_the_encoder(model: Any) -> None:
        model.encoder.final_norm = None

    def without_causal_mask(model: Any) -> None:
        model.decoder.causal = False

    def other_norm_before_cross_attention(model: Any) -> None:
        model.decoder.blocks[1].norm_cross = model.decoder.blocks[1].norm_ffn

    for change in (
        without_connector_bias,
        swapped_keys_and_values,
        without_final_norm_of_the_encoder,
        without_causal_mask,
        other_norm_before_cross_attention,
    ):
        model = glassformer.load(folder, mmap=False).model
        change(model)
        assert gap(reference, model) > 1e-3, change.__name__


def test_a_decoder_without_cross_attention_is_refused(tmp_path: Path) -> None:
    folder = harness.save_reference(reference_of(CASES[0]), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["decoder"]["add_cross_attention"] = False
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(GlassformerError, match="add_cross_attention"):
        glassformer.load(folder)
