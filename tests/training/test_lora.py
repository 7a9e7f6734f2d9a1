"""LoRA adapters: PEFT reads and writes the same files, and a run trains only what it should."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import glassformer
from glassformer.core.lora import add_lora, lora_layers
from glassformer.errors import (
    ConflictError,
    FileMissingError,
    MissingValueError,
    UnknownNameError,
    UnsupportedError,
)
from glassformer.training.data_cache import no_log
from glassformer.training.recipe import parse_recipe
from glassformer.training.run import run
from tests.training.test_jobs_classification import ENCODER, reviews

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
CLASSES = {
    "gpt2": "AutoModelForCausalLM",  # fused and transposed projections
    "falcon": "AutoModelForCausalLM",  # fused by group
    "llama": "AutoModelForCausalLM",
    "t5": "AutoModelForSeq2SeqLM",
    "bert": "AutoModelForMaskedLM",
}


def inputs(family: str, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (ids, ids) if family == "t5" else (ids,)


def published_logits(model: Any, family: str, ids: torch.Tensor) -> torch.Tensor:
    more = {"decoder_input_ids": ids} if family == "t5" else {}
    with torch.no_grad():
        logits: torch.Tensor = model.eval()(input_ids=ids, **more).logits
    return logits


@pytest.mark.parametrize("family", CLASSES)
def test_saved_adapter_matches_peft(tmp_path: Path, family: str) -> None:
    torch.manual_seed(0)
    base = glassformer.save(glassformer.tiny(family), tmp_path / "base")
    pipeline = glassformer.load(base)
    adapted = add_lora(
        pipeline.model, r=3, lora_alpha=7, lora_dropout=0.0, target_modules=["q_proj", "v_proj", "down"]
    )
    for _, layer in lora_layers(pipeline.model):
        torch.nn.init.normal_(layer.lora_B.weight, std=0.3)
    ids = torch.randint(5, 90, (2, 7))
    expected = pipeline.model(*inputs(family, ids))
    assert (expected - glassformer.load(base).model(*inputs(family, ids))).abs().max() > 0.01 and adapted
    folder = glassformer.save(pipeline, tmp_path / "adapted")
    for saved in (folder, folder / "adapter"):  # merged, and base model with adapter
        torch.testing.assert_close(
            glassformer.load(saved).model(*inputs(family, ids)), expected, atol=1e-5, rtol=0
        )
    reference = getattr(transformers, CLASSES[family]).from_pretrained(base)
    reference = peft.PeftModel.from_pretrained(reference, folder / "adapter")
    torch.testing.assert_close(published_logits(reference, family, ids), expected.detach(), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("family", "targets", "options"),
    [
        ("llama", ["q_proj", "down_proj"], {"use_rslora": True, "alpha_pattern": {"down_proj": 5}}),
        ("gpt2", ["c_attn", "c_fc"], {"fan_in_fan_out": True, "rank_pattern": {"c_fc": 2}}),
    ],
)
def test_adapter_of_peft_loads(
    tmp_path: Path, family: str, targets: list[str], options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    base = glassformer.save(glassformer.tiny(family), tmp_path / "base")
    reference = transformers.AutoModelForCausalLM.from_pretrained(base)
    config = peft.LoraConfig(
        r=4, lora_alpha=3, target_modules=targets, init_lora_weights=False, task_type="CAUSAL_LM", **options
    )
    reference = peft.get_peft_model(reference, config)
    reference.save_pretrained(tmp_path / "adapter")
    ids = torch.randint(5, 90, (2, 7))
    logits = glassformer.load(tmp_path / "adapter").model(ids)
    torch.testing.assert_close(logits, published_logits(reference, family, ids), atol=1e-5, rtol=0)


def test_bad_adapters_are_refused(tmp_path: Path) -> None:
    base = glassformer.save(glassformer.tiny("llama"), tmp_path / "base")
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"])).save_pretrained(
        tmp_path / "adapter"
    )
    path = tmp_path / "adapter" / "adapter_config.json"
    config = json.loads(path.read_text())
    changes: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"use_dora": True}, UnsupportedError),
        ({"peft_type": "IA3"}, UnsupportedError),
        ({"base_model_name_or_path": "org/name"}, FileMissingError),
    ]
    for change, error in changes:
        path.write_text(json.dumps({**config, **change}))
        with pytest.raises(error):
            glassformer.load(tmp_path / "adapter")


def recipe(file: Path, base: Path, **training: Any) -> Any:
    options = {"max_steps": 8, "lr": 0.003, "lr_scheduler": "constant", "warmup_steps": 1, "device": "cpu"}
    options |= {"batch_tokens": 512, "eval_steps": 4, "save_steps": 4}
    return parse_recipe(
        {
            "job": "classify",
            "data": {"train": [str(file)], "valid": 0.2, "max_len": 16},
            "model": {"folder": str(base)},
            "training": {**options, **training},
        }
    )


def test_lora_run_trains_adapters_and_head_and_resumes_bit_identically(tmp_path: Path) -> None:
    file = reviews(tmp_path / "reviews.tsv", 200)
    first = {
        "job": "classify",
        "data": {"train": [str(file)], "valid": 0.2, "max_len": 16},
        "tokenizer": {"kind": "word"},
        "model": ENCODER,
        "training": {"max_steps": 2, "lr": 0.003, "batch_tokens": 512, "device": "cpu"},
    }
    run(parse_recipe(first), tmp_path / "base", log=no_log)
    base = tmp_path / "base" / "model"
    lora = {"lora_r": 4, "lora_target_modules": ["q_proj", "up"]}
    run(recipe(file, base, **lora), tmp_path / "whole", log=no_log)
    run(recipe(file, base, **{**lora, "max_steps": 4}), tmp_path / "parts", log=no_log)
    run(recipe(file, base, **lora), tmp_path / "parts", log=no_log)
    whole, parts = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "parts"))
    old = load_file(base / "model.safetensors")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    changed = {name for name in old if not torch.equal(whole[name], old[name])}
    adapted = {name for name in old if name.endswith(("query.weight", "intermediate.dense.weight"))}
    head = {f"{layer}.{name}" for layer in ("bert.pooler.dense", "classifier") for name in ("weight", "bias")}
    assert changed == adapted | head
    adapter = load_file(tmp_path / "whole" / "model" / "adapter" / "adapter_model.safetensors")
    assert len(adapter) == 2 * 2 + len(head)  # A and B of two layers
    texts = ["a superb film", "the dull plot"]
    folders = (tmp_path / "whole", tmp_path / "whole" / "model" / "adapter")
    results = [glassformer.load(folder).classify(texts) for folder in folders]
    reference = transformers.AutoModelForSequenceClassification.from_pretrained(base)
    reference = peft.PeftModel.from_pretrained(reference, folders[1]).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    for text, *predictions in zip(texts, *results, strict=True):
        with torch.no_grad():
            probabilities = reference(**tokenizer(text, return_tensors="pt")).logits[0].softmax(-1)
        expected = {reference.config.id2label[n]: float(p) for n, p in enumerate(probabilities)}
        for label in (label for labels in predictions for label in labels):
            assert label.score == pytest.approx(expected[label.label], abs=1e-5)

    run(recipe(file, base, freeze=["embed", "encoder.blocks.0"]), tmp_path / "frozen", log=no_log)
    frozen = load_file(tmp_path / "frozen" / "model" / "model.safetensors")
    assert {name for name in old if not torch.equal(frozen[name], old[name])} <= {
        name for name in old if "embeddings" not in name and "encoder.layer.0" not in name
    }
    with pytest.raises(UnknownNameError):
        run(recipe(file, base, freeze=["nothing"]), tmp_path / "unknown", log=no_log)
    with pytest.raises(ConflictError):
        recipe(file, base, lora_r=4, average_checkpoints=2)
    with pytest.raises(MissingValueError):
        parse_recipe({**first, "training": {"lora_r": 4}})
