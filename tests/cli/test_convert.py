"""`glassformer convert`: the folder it writes gives the results of the one it read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import glassformer
from glassformer.core.build import unique_state_dict
from glassformer.tasks.text_generation import published_generation_config, special_tokens, task_prefix
from tests.cli.conftest import Done
from tests.families import harness
from tests.families.cases import _BERT, _LLAMA, _T5
from tests.tasks.folders import TEXTS, bert, write_tokenizer

Run = Callable[..., Done]
MOODS = {0: "bad", 1: "fair", 2: "good"}
KINDS: dict[str, dict[str, Any]] = {
    "one of all": {"id2label": MOODS, "label2id": {name: n for n, name in MOODS.items()}},
    "each or not": {"id2label": MOODS, "problem_type": "multi_label_classification"},
    "a number": {"id2label": {0: "stars"}, "problem_type": "regression"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [None, "int8"])
def test_labels_survive_the_glassformer_layout(
    kind: str, dtype: str | None, run: Run, tmp_path: Path
) -> None:
    model, folder = bert("BertForSequenceClassification", tmp_path / "theirs", **KINDS[kind])
    ours, back = tmp_path / "ours", tmp_path / "back"
    rounded = ["--dtype", dtype] if dtype else []
    assert run("convert", folder, ours, "--layout", "glassformer", *rounded).code == 0
    assert (ours / "spec.json").is_file() and not (ours / "config.json").exists()
    wanted, found = (glassformer.load(path).classify(TEXTS) for path in (folder, ours))
    for one, other in zip(wanted, found, strict=True):
        told, expected = ({label.label: label.score for label in labels} for labels in (other, one))
        assert told == pytest.approx(expected, abs=0.1 if dtype else 1e-6)
    if dtype is None:
        assert run("classify", ours, TEXTS[0]).out.startswith(wanted[0][0].label)

    assert run("convert", ours, back, "--layout", "hf").code == 0
    theirs = transformers.BertForSequenceClassification.from_pretrained(back)
    assert theirs.config.id2label == model.config.id2label
    assert theirs.config.label2id == model.config.label2id
    assert theirs.config.problem_type == model.config.problem_type
    if dtype is None:
        assert all(torch.equal(a, b) for a, b in zip(theirs.parameters(), model.parameters(), strict=True))


def test_token_and_image_classifiers_keep_their_labels(run: Run, tmp_path: Path) -> None:
    """A tagger's tags; and digits, whose names only job.json has."""
    _, folder = bert("BertForTokenClassification", tmp_path / "tagger", id2label={0: "O", 1: "B", 2: "I"})
    run("convert", folder, tmp_path / "ours", "--layout", "glassformer")
    run("convert", tmp_path / "ours", tmp_path / "back", "--layout", "hf")
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert config["id2label"] == {"0": "O", "1": "B", "2": "I"}

    run("convert", "pocket-digits", tmp_path / "digits", "--layout", "hf")
    config = json.loads((tmp_path / "digits" / "config.json").read_text())
    classes = glassformer.load("pocket-digits").job.classes
    assert config["id2label"] == {str(n): name for n, name in enumerate(classes)}
    assert config["label2id"] == {name: n for n, name in enumerate(classes)}


def test_generation_settings_survive_the_glassformer_layout(run: Run, tmp_path: Path) -> None:
    """What older folders say among the rest of config.json."""
    said = {"task_specific_params": {"summarization": {"prefix": "the cat "}}, "num_beams": 3}
    model = harness.reference("T5ForConditionalGeneration", {**_T5, **ENDS})
    folder = harness.save_reference(model, tmp_path / "theirs")
    write_tokenizer(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | said))
    (folder / "generation_config.json").unlink(missing_ok=True)
    assert run("convert", folder, tmp_path / "ours", "--layout", "glassformer").code == 0
    for bundle in (glassformer.load(folder), glassformer.load(tmp_path / "ours")):
        assert special_tokens(bundle) == ((5,), (7,), 3)
        assert published_generation_config(bundle)["num_beams"] == 3
        assert task_prefix(bundle, "summarization".__eq__) == "the cat "


ENDS = {"decoder_start_token_id": 5, "eos_token_id": 7, "pad_token_id": 3}
THEIRS: dict[str, dict[str, Any]] = {"BertModel": _BERT, "RobertaModel": _BERT, "T5Model": _T5}
THEIRS["MistralForCausalLM"] = {**_LLAMA, "num_key_value_heads": 3, "sliding_window": None}


@pytest.mark.parametrize("name", [*THEIRS, "tiny:sentence"])
def test_round_trip_gives_the_same_folder(name: str, run: Run, tmp_path: Path) -> None:
    """Every file of the published layout, by way of ours."""
    source, first, ours, back = (tmp_path / part for part in ("source", "first", "ours", "back"))
    if name in THEIRS:
        harness.save_reference(harness.reference(name, THEIRS[name]), source)
    for one, other, layout in (
        (source if name in THEIRS else name, first, "hf"),
        (first, ours, "glassformer"),
        (ours, back, "hf"),
    ):
        assert run("convert", one, other, "--layout", layout).code == 0
    files = [
        {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (first, back)
    ]
    assert files[0] == files[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_convert_casts_without_computing(run, tiny_folder, tmp_path, dtype, monkeypatch):
    """Even where this CPU cannot multiply in it; and a second conversion keeps it as stored."""
    monkeypatch.setattr("glassformer.core.precision.cpu_supports", lambda _: False)
    name = str(dtype).removeprefix("torch.")
    assert run("convert", tiny_folder, tmp_path / "half", "--dtype", name).code == 0
    assert run("convert", tmp_path / "half", tmp_path / "again", "--layout", "glassformer").code == 0
    before = unique_state_dict(glassformer.load(tiny_folder).model)
    after = unique_state_dict(glassformer.load(tmp_path / "again", dtype="stored").model)
    assert all(after[key].dtype == dtype for key in before)
    assert all(torch.equal(after[key], before[key].to(dtype)) for key in before)


def test_convert_leaves_other_files(run, tiny_folder, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("kept")
    assert run("convert", tiny_folder, tmp_path / "full", "--overwrite").code == 0
    assert (tmp_path / "full/mine.txt").read_text() == "kept"
