"""A translator of several languages keeps them elsewhere: its export says how each is told."""

from __future__ import annotations

import json
import string
from pathlib import Path

import ctranslate2
import pytest
import tokenizers
import torch

import glassformer
from glassformer.export.ctranslate2 import export_ctranslate2
from glassformer.export.folder import Exported
from glassformer.export.onnx import export_onnx
from glassformer.families.sidecars import JobInfo
from glassformer.tokenization import Tokenizer, TokenizerPlan, load_tokenizer, train_tokenizer
from glassformer.tokenization.train import Template
from tests.export.test_onnx import Stepping

LANGUAGES = ("de", "en", "ko")
CODES = ("de_DE", "en_XX", "ko_KR")
TEXT = "red blue gold"
MOST = 12
SEED = 13  # of one whose languages differ


@pytest.fixture
def bundle(template: Template) -> glassformer.Bundle:
    """A translator whose sources begin with their words, or behind a mark; it has learnt nothing."""
    tags = tuple(f">>{one}<<" for one in LANGUAGES)
    cut = train_tokenizer(
        [TEXT, "green"] * 9, TokenizerPlan(kind="char", vocab_size=60, template=template, tags=tags)
    )
    size = cut.vocab_size
    torch.manual_seed(SEED)
    model = glassformer.tiny("original", src_vocab_size=size, tgt_vocab_size=size, num_layers=1, start_id=2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # so that the languages differ
    made = glassformer.Pipeline(model=model.eval(), tokenizer=cut)
    made.job = JobInfo(name="translate", languages=tuple(LANGUAGES))
    return made


@pytest.fixture
def published(tmp_path: Path) -> glassformer.Bundle:
    """One whose targets begin with the language, a special token; as published, without a word on its job."""
    spelt = ("<s>", "<pad>", "</s>", "<unk>", *TEXT.split(), *string.ascii_letters, *CODES)
    words = {word: n for n, word in enumerate(spelt)}
    cut = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    cut.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    cut.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[(mark, words[mark]) for mark in ("<s>", "</s>")]
    )
    cut.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", *CODES])
    cut.save(str(tmp_path / "tokenizer.json"))
    torch.manual_seed(72)  # of one whose languages differ
    model = glassformer.tiny("bart", vocab_size=len(words), num_layers=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    chosen = {"eos_token_id": 2, "forced_bos_token_id": words["de_DE"]}
    return glassformer.Pipeline(model=model.eval(), tokenizer=load_tokenizer(tmp_path), generation=chosen)


def asked(folder: Path, to: str) -> tuple[Tokenizer, list[int], list[int]]:
    """The ids of the text, and those that begin its target, by what lies in the folder alone."""
    tokenizer = load_tokenizer(folder)
    assert tokenizer is not None
    told = json.loads((folder / "export.json").read_text())
    config = json.loads((folder / "config.json").read_text()) if "starts" not in told else {}
    start = config.get("decoder_start_token")
    starts = [tokenizer.token_id(start, side="target")] if start else list(told["starts"])
    ids = {"source": tokenizer.encode(TEXT).ids, "target": starts}
    languages = told["languages"]
    ids[languages["in"]].insert(languages["place"], languages["ids"][to])
    return tokenizer, ids["source"], ids["target"]


def with_onnx(folder: Path, to: str) -> str:
    tokenizer, ids, written = asked(folder, to)
    told = json.loads((folder / "export.json").read_text())
    step, fed = Stepping(folder, torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.bool)), 0
    while len(written) <= MOST and written[-1] not in told["ends"]:
        mask = torch.ones(1, len(written), dtype=torch.bool)
        scores, fed = step(torch.tensor([written[fed:]]), mask), len(written)
        written.append(int(scores[0, -1].argmax()))
    return tokenizer.decode(written[1:])


def with_ctranslate2(folder: Path, to: str) -> str:
    tokenizer, ids, begun = asked(folder, to)
    runtime = ctranslate2.Translator(str(folder), device="cpu", compute_type="float32", intra_threads=1)
    (found,) = runtime.translate_batch(
        [tokenizer.tokens(ids)],
        target_prefix=[tokenizer.tokens(begun[1:], side="target")],
        beam_size=1,
        max_decoding_length=MOST,
        min_decoding_length=0,
    )
    return tokenizer.decode([tokenizer.token_id(token, side="target") or 0 for token in found.hypotheses[0]])


# What the folder says does not depend on the runtime, so the slower of the exports is made once.
@pytest.mark.parametrize(
    ("export", "write", "template"),
    [
        (export_onnx, with_onnx, "cls_sep"),
        (export_ctranslate2, with_ctranslate2, "cls_sep"),
        (export_ctranslate2, with_ctranslate2, "eos"),
    ],
)
def test_each_language_is_told_by_what_the_folder_says(export, write, bundle, tmp_path: Path) -> None:
    made: Exported = export(bundle, tmp_path / "out")
    assert "several languages (de, en, ko)" in made.notes[-1]
    found = {to: write(made.folder, to).strip() for to in LANGUAGES}
    assert found == {to: bundle.translate(TEXT, to=to, num_beams=1, max_new_tokens=MOST) for to in LANGUAGES}
    assert len(set(found.values())) == len(LANGUAGES)


def test_a_language_may_be_the_first_token_written(published, tmp_path: Path) -> None:
    """And then no other token is said to begin every target, though one is the folder's own choice."""
    made: Exported = export_ctranslate2(published, tmp_path / "out")
    (note,) = made.notes
    assert "several languages (de_DE, en_XX, ko_KR), chosen by the first token of the target" in note
    found = {to: with_ctranslate2(made.folder, to).strip() for to in CODES}
    assert found == {to: published.translate(TEXT, to=to, num_beams=1, max_new_tokens=MOST) for to in CODES}
    assert len(set(found.values())) == len(CODES)
