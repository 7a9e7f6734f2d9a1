"""Published encoder-decoder folders: tied copies, extra tensors, old and new keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import glassformer
from glassformer.core.positions import sinusoids
from glassformer.errors import ConflictError
from glassformer.weights.convert import WeightsMismatchError
from tests.families import harness
from tests.families.cases import BART, MARIAN, T5

WRITERS = {"t5": T5[0], "bart": BART[0], "marian": MARIAN[0]}
COPIES = {
    "t5": ("shared", "encoder.embed_tokens", "decoder.embed_tokens", "lm_head"),
    "bart": ("model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"),
    "marian": ("model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"),
}


def rewrite(folder: Path, weights: Callable[[dict[str, Tensor]], None], **config: Any) -> None:
    """Change a folder's tensors and config keys; a key given as None is left out."""
    tensors = load_file(folder / "model.safetensors")
    weights(tensors)
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / "model.safetensors")
    values = {**json.loads((folder / "config.json").read_text()), **config}
    values = {key: value for key, value in values.items() if key not in config or value is not None}
    (folder / "config.json").write_text(json.dumps(values))


def nothing(tensors: dict[str, Tensor]) -> None:
    """Leave the tensors as they are."""


def logits(model: Any) -> Tensor:
    src, real, tgt = harness.two_batches(model, "right")
    with torch.no_grad():
        return model(src, tgt, real)


@pytest.mark.parametrize("family", WRITERS)
@pytest.mark.parametrize("copies", [(1,), (2, 3), (0, 1, 2, 3)], ids=str)
def test_any_tied_copy_of_the_token_matrix_is_read(
    family: str, copies: tuple[int, ...], tmp_path: Path
) -> None:
    folder = harness.save_reference(harness.reference(*WRITERS[family]), tmp_path / "theirs")
    before = load_file(folder / "model.safetensors")
    expected = logits(glassformer.load(folder).model)
    names = [f"{name}.weight" for name in COPIES[family]]

    def copy(tensors: dict[str, Tensor]) -> None:
        token = tensors.pop(names[0])
        tensors.update({names[n]: token for n in copies})

    rewrite(folder, copy)
    bundle = glassformer.load(folder)
    assert torch.equal(logits(bundle.model), expected)
    after = load_file(glassformer.save(bundle, tmp_path / "ours") / "model.safetensors")
    assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)


@pytest.mark.parametrize("family", WRITERS)
def test_unequal_tied_copies_are_rejected(family: str, tmp_path: Path) -> None:
    folder = harness.save_reference(harness.reference(*WRITERS[family]), tmp_path)
    first, _, third, _ = (f"{name}.weight" for name in COPIES[family])
    rewrite(folder, lambda tensors: tensors.update({third: tensors[first] + 1}))
    with pytest.raises(ConflictError):
        glassformer.load(folder)


LEFTOVERS = {
    "t5": {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": torch.ones(32, 4)},
    "bart": {"model.encoder.version": torch.ones(1), "model.decoder.version": torch.ones(1)},
    "marian": {
        f"model.{side}.embed_positions.weight": sinusoids(19, 24, "halves") for side in ("encoder", "decoder")
    },
}


@pytest.mark.parametrize("family", WRITERS)
def test_known_extra_tensors_are_ignored_and_others_rejected(family: str, tmp_path: Path) -> None:
    folder = harness.save_reference(harness.reference(*WRITERS[family]), tmp_path)
    expected = logits(glassformer.load(folder).model)
    rewrite(folder, lambda tensors: tensors.update(LEFTOVERS[family]))
    assert torch.equal(logits(glassformer.load(folder).model), expected)
    rewrite(folder, lambda tensors: tensors.update({"encoder.block.9.extra": torch.ones(1)}))
    with pytest.raises(WeightsMismatchError):
        glassformer.load(folder)


@pytest.mark.parametrize("family", ["bart", "marian"])
def test_missing_logits_bias_means_no_bias(family: str, tmp_path: Path) -> None:
    reference = harness.reference(*WRITERS[family])
    folder = harness.save_reference(reference, tmp_path / "theirs")
    rewrite(folder, lambda tensors: tensors.pop("final_logits_bias"))
    bundle = glassformer.load(folder)
    src, real, tgt = harness.two_batches(bundle.model, "right")
    reference.final_logits_bias.zero_()
    with torch.no_grad():
        theirs = reference(input_ids=src, attention_mask=real.long(), decoder_input_ids=tgt)
    assert harness.worst(logits(bundle.model), theirs, None) < 1e-5
    again = glassformer.load(glassformer.save(bundle, tmp_path / "ours"))
    assert again.spec == bundle.spec and torch.equal(logits(again.model), logits(bundle.model))


@pytest.mark.parametrize(
    "config",
    [
        {},  # as written today: it calls itself tied
        {
            "tie_word_embeddings": False,
            "scale_decoder_outputs": None,
            "dense_act_fn": None,
            "is_gated_act": None,
        },
    ],
    ids=["new", "old"],
)
def test_t5_with_an_untied_head(config: dict[str, Any], tmp_path: Path) -> None:
    """Version 1.1: unscaled vectors, and scores by a matrix that is not the token matrix."""
    reference: Any = harness.reference(*T5[1])
    reference.lm_head.weight = torch.nn.Parameter(torch.randn(61, 24))
    folder = harness.save_reference(reference, tmp_path / "theirs")
    rewrite(folder, nothing, **config)
    bundle = glassformer.load(folder)
    src, real, tgt = harness.two_batches(bundle.model, "right")
    for fresh in (False, True):
        what = glassformer.Pipeline(model=bundle.model) if fresh else bundle
        ours = glassformer.save(what, tmp_path / f"ours-{fresh}")
        before, after = (load_file(f / "model.safetensors") for f in (folder, ours))
        assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)
        assert glassformer.load(ours).spec == bundle.spec
        again = type(reference).from_pretrained(ours).eval()
        for model in (reference, again):
            with torch.no_grad():
                theirs = model(input_ids=src, attention_mask=real.long(), decoder_input_ids=tgt)
            assert harness.worst(logits(bundle.model), theirs, None) < 1e-5


def test_t5_encoder_is_read_from_a_full_checkpoint(tmp_path: Path) -> None:
    reference: Any = harness.reference(*T5[0])
    folder = harness.save_reference(reference, tmp_path)
    rewrite(folder, nothing, architectures=["T5EncoderModel"])
    ids, real = harness.token_batch(61, {0}, "none")
    with torch.no_grad():
        theirs = reference.get_encoder()(input_ids=ids, attention_mask=real.long())
        assert harness.worst(glassformer.load(folder).model(ids, real), theirs, real) < 1e-5
