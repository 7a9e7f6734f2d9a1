"""Published folders, from text to outputs: config, shards, tokenizer files, generation settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors import safe_open

import glassformer
from glassformer.core.model import EncoderDecoder
from tests.families import cases, harness
from tests.tokenization.layouts import LAYOUTS

transformers.utils.logging.set_verbosity_error()
pytestmark = pytest.mark.filterwarnings("ignore:Recommended")

# the layout of the tokenizer files, and a model that is published with such
FOLDERS = [
    ("wordpiece", "BertForMaskedLM", cases._BERT),
    ("wordpiece-cased", "DistilBertForSequenceClassification", cases._DISTILBERT),
    ("wordpiece", "ElectraForSequenceClassification", cases._ELECTRA),
    ("byte-level", "GPT2LMHeadModel", cases._GPT2),
    ("byte-level-roberta", "RobertaForQuestionAnswering", cases._BERT),
    ("byte-level-roberta", "BartForConditionalGeneration", cases._TWO_STACKS),
    ("unigram", "T5ForConditionalGeneration", cases._T5),
    ("albert", "AlbertForMaskedLM", cases._ALBERT),
    ("deberta", "DebertaV2ForMaskedLM", cases._DEBERTA),
    ("byte-fallback", "LlamaForCausalLM", cases._LLAMA | {"num_key_value_heads": 2}),
    ("marian", "MarianMTModel", cases._MARIAN),
    ("marian-separate", "MarianMTModel", cases._MARIAN | cases._APART | {"decoder_vocab_size": 500}),
]
TEXT = "The old captain sang quietly... 바다가"
GENERATION = {"max_new_tokens": 17, "num_beams": 4, "no_repeat_ngram_size": 3, "temperature": 0.7}


def published(folder: Path, layout: str, name: str, settings: dict[str, Any]) -> Any:
    """The reference's own folder, its weights in shards, and its model."""
    room = {"vocab_size": 500, "max_position_embeddings": 90, "n_positions": 90}
    used = {key: value for key, value in room.items() if key in settings or key == "vocab_size"}
    model = harness.reference(name, settings | used)
    model.save_pretrained(folder, max_shard_size="20KB")
    assert not (folder / "model.safetensors").exists()
    LAYOUTS[layout](folder)
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    return model


def logits(model: Any, ids: torch.Tensor) -> Any:
    """Ours on a sequence, which is also the target where there is one."""
    with torch.no_grad():
        mask = torch.ones_like(ids, dtype=torch.bool)
        return model(ids, ids, mask, mask) if isinstance(model, EncoderDecoder) else model(ids, mask)


@pytest.mark.parametrize(("layout", "name", "settings"), FOLDERS, ids=[f"{f[0]}-{f[1]}" for f in FOLDERS])
def test_text_gives_the_outputs_of_transformers(
    layout: str, name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    reference = published(tmp_path / "theirs", layout, name, settings)
    bundle = glassformer.load(tmp_path / "theirs")
    again = glassformer.save(bundle, tmp_path / "ours")
    for folder, model in (
        (tmp_path / "theirs", reference),
        (again, type(reference).from_pretrained(again).eval()),
    ):
        actual = glassformer.load(folder)
        assert actual.tokenizer is not None and actual.generation == GENERATION
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        ids = tokenizer(TEXT, return_tensors="pt").input_ids
        assert actual.tokenizer.encode(TEXT).ids == ids[0].tolist() and ids.unique().numel() > 6
        more = {"decoder_input_ids": ids} if isinstance(actual.model, EncoderDecoder) else {}
        with torch.no_grad():
            theirs = model(input_ids=ids, **more)
        assert harness.worst(logits(actual.model, ids), theirs, None) < 1e-5
        assert actual.tokenizer.decode(ids[0]) == tokenizer.decode(ids[0], skip_special_tokens=True)
    read = transformers.GenerationConfig.from_pretrained(again)
    assert {key: getattr(read, key) for key in GENERATION} == GENERATION


def test_shards_are_memory_mapped(tmp_path: Path) -> None:
    """Every tensor of every shard arrives; a shard that is missing or not listed is named."""
    published(tmp_path, "byte-level", "GPT2LMHeadModel", cases._GPT2)
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 2
    state = glassformer.load(tmp_path).model.state_dict()
    with safe_open(shards[0], "pt") as held:
        assert torch.equal(state["embed.token.weight"], held.get_tensor("transformer.wte.weight"))
    shards[1].unlink()
    with pytest.raises(glassformer.GlassformerError, match=shards[1].name):
        glassformer.load(tmp_path)
