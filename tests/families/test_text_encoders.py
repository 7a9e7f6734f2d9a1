"""Published text encoders: tensors that today's transformers does not write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import glassformer
from glassformer.core import spec
from tests.families import harness
from tests.families.cases import _BERT, _DEBERTA, _DISTILBERT


def rewrite(folder: Path, change: Any) -> None:
    """Change a folder's tensors (name -> tensor) in place."""
    path = folder / "model.safetensors"
    tensors = change({name: tensor.clone() for name, tensor in load_file(path).items()})
    save_file(tensors, path, metadata={"format": "pt"})


def both(reference: nn.Module, folder: Path) -> tuple[Any, Any]:
    ids, real = harness.token_batch(61, {0, 1}, "right")
    with torch.no_grad():
        theirs = reference(input_ids=ids, attention_mask=real.long())
        return glassformer.load(folder).model(ids, real), theirs


def test_old_file_with_unused_head_tensors_is_read(tmp_path: Path) -> None:
    """gamma and beta, position ids, a pooler, the sentence pair's head, the bias twice: as once published."""
    reference = harness.reference("BertForMaskedLM", _BERT)
    harness.save_reference(reference, tmp_path)

    def older(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        for new, name in old.items():
            tensors = {key.replace(new, name): value for key, value in tensors.items()}
        return tensors | {
            "bert.embeddings.position_ids": torch.arange(40)[None],
            "bert.pooler.dense.weight": torch.randn(24, 24),
            "bert.pooler.dense.bias": torch.randn(24),
            "cls.seq_relationship.weight": torch.randn(2, 24),
            "cls.seq_relationship.bias": torch.randn(2),
            "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"].clone(),
            "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].clone(),
        }

    rewrite(tmp_path, older)
    ours, theirs = both(reference, tmp_path)
    assert (ours - theirs.logits)[0].abs().max() < 1e-5


@pytest.mark.parametrize(
    "name", ["BertForMaskedLM", "RobertaForMaskedLM", "AlbertForMaskedLM", "DebertaV2ForMaskedLM"]
)
def test_untied_head_uses_the_right_bias(name: str, tmp_path: Path) -> None:
    """Untied, the reference holds two biases and adds the decoder's; what we save reads the same there."""
    reference = harness.reference(
        name, {**(_DEBERTA if "Deberta" in name else _BERT), "tie_word_embeddings": False}
    )
    folder = harness.save_reference(reference, tmp_path / "theirs")
    biases = [t for key, t in load_file(folder / "model.safetensors").items() if t.shape == (61,)]
    assert len(biases) == 2 and not torch.equal(*biases)
    ours, theirs = both(reference, folder)
    assert (ours - theirs.logits)[0].abs().max() < 1e-5

    glassformer.save(glassformer.load(folder), tmp_path / "ours")
    again, info = type(reference).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    ours, theirs = both(again.eval(), tmp_path / "ours")
    assert (ours - theirs.logits)[0].abs().max() < 1e-5


def test_newer_deberta_head_is_read_and_saved_under_the_older_names(tmp_path: Path) -> None:
    reference = harness.reference("DebertaV2ForMaskedLM", {**_DEBERTA, "legacy": False})
    folder = harness.save_reference(reference, tmp_path / "theirs")
    assert any(name.startswith("lm_predictions.") for name in load_file(folder / "model.safetensors"))
    ours, theirs = both(reference, folder)
    assert (ours - theirs.logits)[0].abs().max() < 1e-5

    glassformer.save(glassformer.load(folder), tmp_path / "ours")
    again, info = type(reference).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    ours, theirs = both(again.eval(), folder)
    assert (ours - theirs.logits)[0].abs().max() < 1e-5


def test_deberta_folder_without_architectures_is_the_bare_encoder(tmp_path: Path) -> None:
    """The published files name no class, and hold the heads of pretraining."""
    reference = harness.reference("DebertaV2ForMaskedLM", {**_DEBERTA, "legacy": False})
    folder = harness.save_reference(reference, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    del config["architectures"]
    (folder / "config.json").write_text(json.dumps(config))
    rewrite(folder, lambda tensors: tensors | {"mask_predictions.dense.weight": torch.randn(24, 24)})
    ours, theirs = both(reference.deberta, folder)
    assert (ours - theirs.last_hidden_state)[0].abs().max() < 1e-5


def test_bare_encoder_without_pooler_is_read(tmp_path: Path) -> None:
    """The pooler is left out of the model where the file has none, and stays out when saved either way."""
    config = transformers.BertConfig(**_BERT)
    reference = transformers.BertModel(config, add_pooling_layer=False).eval()
    folder = harness.save_reference(reference, tmp_path / "theirs")
    bundle = glassformer.load(folder)
    assert bundle.spec.head == spec.FeaturesSpec(pooler=False)
    ours, theirs = both(reference, folder)
    assert (ours - theirs.last_hidden_state)[0].abs().max() < 1e-5
    for what in (bundle, bundle.model):
        glassformer.save(what, tmp_path / "ours")
        assert glassformer.load(tmp_path / "ours").spec == bundle.spec
        assert load_file(tmp_path / "ours/model.safetensors").keys() == reference.state_dict().keys()


CLASSIFIERS = [
    ("BertForSequenceClassification", _BERT | {"hidden_dropout_prob": 0.0, "classifier_dropout": 0.5}),
    ("RobertaForSequenceClassification", _BERT | {"hidden_dropout_prob": 0.0, "classifier_dropout": 0.5}),
    ("DistilBertForSequenceClassification", _DISTILBERT | {"dropout": 0.0, "seq_classif_dropout": 0.5}),
]


@pytest.mark.parametrize(("name", "settings"), CLASSIFIERS, ids=lambda v: v if isinstance(v, str) else "")
def test_classifier_dropout_matches_transformers(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    reference = harness.reference(name, settings)
    model = glassformer.load(harness.save_reference(reference, tmp_path)).model
    head = model.head
    assert isinstance(head.dense, nn.Linear) and isinstance(head.out, nn.Linear)
    hidden = next(
        reference.get_submodule(path)
        for path in ("pre_classifier", "classifier.dense", "bert.pooler.dense")
        if path in dict(reference.named_modules())
    )
    out = getattr(reference.classifier, "out_proj", reference.classifier)
    dropped: dict[nn.Module, bool] = {}
    for module in (head.dense, head.out, hidden, out):
        module.register_forward_pre_hook(
            lambda module, args: dropped.__setitem__(module, args[0].eq(0).float().mean().item() > 0.2)
        )
    ids, _ = harness.token_batch(61, {0, 1}, "none")
    model.train()(ids), reference.train()(input_ids=ids)
    assert dropped[head.dense] == dropped[hidden]
    assert dropped[head.out] == dropped[out] is True
