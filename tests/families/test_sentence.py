"""Sentence encoders: pooling, saved layout, and a published model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import glassformer
from glassformer.errors import GlassformerError
from tests.families import harness
from tests.families.cases import _BERT, _DISTILBERT


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def module(number: int, kind: str, path: str) -> dict[str, Any]:
    return {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}


def folder_of(reference: Any, folder: Path, pooling: dict[str, Any], *more: str) -> Path:
    """The reference's folder made a sentence encoder's."""
    harness.save_reference(reference, folder)
    modules = [module(0, "Transformer", ""), module(1, "Pooling", "1_Pooling")]
    modules += [module(n, kind, f"{n}_{kind}") for n, kind in enumerate(more, 2)]
    write(folder / "modules.json", modules)
    write(folder / "1_Pooling" / "config.json", pooling)
    write(folder / "sentence_bert_config.json", {"max_seq_length": 17, "do_lower_case": True})
    return folder


def by_definition(row: Tensor, pool: str) -> Tensor:
    """A text's real vectors (n, D) -> (D,)."""
    match pool:
        case "mean":
            return torch.stack([sum(column) / len(column) for column in row.T])
        case "first":
            return row[0]
        case "last":
            return row[-1]
        case "max":
            return torch.stack([max(column) for column in row.T])
        case _:
            return torch.stack([sum(column) / len(column) ** 0.5 for column in row.T])


_ODD = {**_BERT, "hidden_size": 35, "num_attention_heads": 5, "hidden_act": "relu"}
FOLDERS = [
    ("BertModel", _BERT, {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}, "mean"),
    ("BertModel", _ODD, {"pooling_mode": "cls", "embedding_dimension": 35}, "first"),
    ("RobertaModel", _BERT, {"pooling_mode_max_tokens": True, "word_embedding_dimension": 24}, "max"),
    ("XLMRobertaModel", _ODD, {"pooling_mode": ["lasttoken"], "include_prompt": True}, "last"),
    ("DistilBertModel", _DISTILBERT, {"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len"),
    ("RobertaForMaskedLM", _BERT, {"pooling_mode_mean_tokens": True}, "mean"),
]


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("name", "settings", "pooling", "pool"), FOLDERS, ids=lambda v: str(v)[:24])
def test_embeddings_match_the_definition_of_pooling(
    name: str, settings: dict[str, Any], pooling: dict[str, Any], pool: str, normalize: bool, tmp_path: Path
) -> None:
    reference = harness.reference(name, settings)
    more = ("Normalize",) if normalize else ()
    folder = folder_of(reference, tmp_path / "theirs", pooling, *more)
    bundle = glassformer.load(folder)
    assert bundle.family == "sentence"
    encoder = getattr(reference, "base_model", reference)
    for side in ("none", "right", "left"):
        ids, real = harness.token_batch(61, {0, 1}, side)
        vectors = bundle.model(ids, real)
        texts = zip(ids, real, strict=True)
        hidden = [encoder(input_ids=row[mask][None]).last_hidden_state[0] for row, mask in texts]
        expected = torch.stack([by_definition(row, pool) for row in hidden])
        expected = expected / expected.norm(dim=-1, keepdim=True) if normalize else expected
        assert (vectors - expected).abs().max() < 1e-5


@pytest.mark.parametrize(("name", "settings", "pooling", "pool"), FOLDERS, ids=lambda v: str(v)[:24])
def test_saved_folder_has_the_same_layout(
    name: str, settings: dict[str, Any], pooling: dict[str, Any], pool: str, tmp_path: Path
) -> None:
    reference = harness.reference(name, settings)
    folder = folder_of(reference, tmp_path / "theirs", pooling, "Normalize")
    bundle = glassformer.load(folder)
    stored = ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json")
    saved = glassformer.save(bundle, tmp_path / "ours")
    for file in stored:
        assert json.loads((saved / file).read_text()) == json.loads((folder / file).read_text())
    before, after = (load_file(f / "model.safetensors") for f in (folder, saved))
    prefix = "" if name.endswith("Model") else "roberta."
    assert after and all(torch.equal(before[prefix + key], tensor) for key, tensor in after.items())
    if name.endswith("Model"):
        assert before.keys() == after.keys()

    # without the files it came with, the spec alone gives a folder that means the same
    fresh = glassformer.save(bundle.model, tmp_path / "fresh")
    assert all((fresh / file).is_file() for file in stored)
    assert glassformer.load(fresh).spec == glassformer.load(saved).spec == bundle.spec


MEAN = {"pooling_mode": "mean"}
ESCAPE = [module(0, "Transformer", ""), module(1, "Pooling", "../1_Pooling")]
REMOTE = [module(0, "Transformer", ""), {"path": "1_Pooling", "type": "custom.Pooling"}]


@pytest.mark.parametrize(
    ("file", "content", "fact"),
    [
        ("1_Pooling/config.json", {"pooling_mode": ["mean", "max"]}, "pooling_mode"),
        ("1_Pooling/config.json", {"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        ("1_Pooling/config.json", MEAN | {"include_prompt": False}, "include_prompt"),
        ("1_Pooling/config.json", MEAN | {"embedding_dimension": 25}, "25"),
        ("modules.json", [], "modules"),
        ("modules.json", [module(0, "Transformer", ""), module(1, "Pooling", "2_Pooling")], "2_Pooling"),
        ("modules.json", ESCAPE, "1_Pooling"),
        ("modules.json", REMOTE, "custom.Pooling"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "transformer_task"),
    ],
)
def test_unsupported_config_is_rejected(file: str, content: Any, fact: str, tmp_path: Path) -> None:
    folder = folder_of(harness.reference("BertModel", _BERT), tmp_path, MEAN)
    write(folder / file, content)
    with pytest.raises(GlassformerError) as caught:
        glassformer.load(folder)
    assert fact in str(caught.value.fields)
