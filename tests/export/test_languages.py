"""A translator of several languages keeps them elsewhere: its export says how each is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import glassformer
from glassformer.api import JOB
from glassformer.export.ctranslate2 import export_ctranslate2
from glassformer.export.folder import Exported
from glassformer.export.onnx import export_onnx
from glassformer.text import Tokenizer, TokenizerPlan, load_tokenizer, train_tokenizer
from glassformer.text.train import Marks
from tests.cli.conftest import run  # noqa: F401 (a fixture)
from tests.export.test_ctranslate2 import theirs
from tests.export.test_onnx import Stepping

LANGUAGES = ("de", "en", "ko")
TEXT = "red blue gold"
MOST = 12
SEED = 13  # of one whose languages differ


@pytest.fixture(params=["end", "around"])
def bundle(request: pytest.FixtureRequest) -> glassformer.Bundle:
    """A translator whose sources begin with their words, or behind a mark; it has learnt nothing."""
    marks: Marks = request.param
    tags = tuple(f">>{one}<<" for one in LANGUAGES)
    cut = train_tokenizer(
        [TEXT, "green"] * 9, TokenizerPlan(kind="char", vocab_size=60, marks=marks, tags=tags)
    )
    size = cut.vocab_size
    torch.manual_seed(SEED)
    model = glassformer.tiny("original", src_vocab_size=size, tgt_vocab_size=size, num_layers=1, start_id=2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # so that the languages differ
    made = glassformer.Bundle(model=model.eval(), tokenizer=cut)
    made.files[JOB] = {"job": "translate", "languages": list(LANGUAGES)}
    return made


def source(folder: Path, to: str) -> tuple[Tokenizer, list[int]]:
    """The ids of the text with its language, by what lies in the folder alone."""
    tokenizer = load_tokenizer(folder)
    assert tokenizer is not None
    told = json.loads((folder / "export.json").read_text())["languages"]
    ids = tokenizer.encode(TEXT).ids
    ids.insert(told["place"], told["ids"][to])
    return tokenizer, ids


def with_onnx(folder: Path, to: str) -> str:
    tokenizer, ids = source(folder, to)
    told = json.loads((folder / "export.json").read_text())
    step = Stepping(folder, torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.bool))
    written = list(told["starts"])
    while len(written) <= MOST and written[-1] not in told["ends"]:
        mask = torch.ones(1, len(written), dtype=torch.bool)
        written.append(int(step(torch.tensor([written[-1:]]), mask)[0, -1].argmax()))
    return tokenizer.decode(written[1:])


def with_ctranslate2(folder: Path, to: str) -> str:
    tokenizer, ids = source(folder, to)
    ((tokens, _),) = theirs(folder, [tokenizer.tokens(ids)], MOST)
    return tokenizer.decode([tokenizer.token_id(token, side="target") or 0 for token in tokens])


@pytest.mark.parametrize(
    ("export", "write"), [(export_onnx, with_onnx), (export_ctranslate2, with_ctranslate2)]
)
def test_each_language_is_told_by_what_the_folder_says(export, write, bundle, tmp_path: Path) -> None:
    made: Exported = export(bundle, tmp_path / "out")
    assert "several languages (de, en, ko)" in made.notes[-1]
    found = {to: write(made.folder, to).strip() for to in LANGUAGES}
    assert found == {
        to: bundle.translate(TEXT, to=to, num_beams=1, max_new_tokens=MOST)[0] for to in LANGUAGES
    }
    assert len(set(found.values())) == len(LANGUAGES)


def test_a_full_folder_and_a_file_are_told_apart(tmp_path: Path, run) -> None:  # noqa: F811
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    for out, said in (("full", "is not empty"), ("full/mine", "is a file")):
        done = run("export", "tiny:gpt2", "--to", "onnx", "--out", tmp_path / out)
        assert done.code == 2 and f"{said}; export into a new or empty folder" in done.err
