"""The export of a multilingual translator describes how to choose the target language."""

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
from glassformer.export.folder import ExportResult
from glassformer.export.onnx import export_onnx
from glassformer.families.sidecars import JobInfo
from glassformer.tokenization import Tokenizer, TokenizerPlan, load_tokenizer, train_tokenizer
from glassformer.tokenization.train import Template
from tests.export.test_onnx import OnnxDecoder

LANGUAGES = ("de", "en", "ko")
CODES = ("de_DE", "en_XX", "ko_KR")
TEXT = "red blue gold"
MAX_NEW_TOKENS = 12
SEED = 13  # gives a different translation for each language


@pytest.fixture
def bundle(template: Template) -> glassformer.Bundle:
    """An untrained translator with a tag per language, with or without a BOS token."""
    tags = tuple(f">>{language}<<" for language in LANGUAGES)
    tokenizer = train_tokenizer(
        [TEXT, "green"] * 9, TokenizerPlan(kind="char", vocab_size=60, template=template, tags=tags)
    )
    size = tokenizer.vocab_size
    torch.manual_seed(SEED)
    model = glassformer.tiny("original", src_vocab_size=size, tgt_vocab_size=size, num_layers=1, start_id=2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # so that the languages differ
    bundle = glassformer.Pipeline(model=model.eval(), tokenizer=tokenizer)
    bundle.job = JobInfo(name="translate", languages=tuple(LANGUAGES))
    return bundle


@pytest.fixture
def published(tmp_path: Path) -> glassformer.Bundle:
    """A published translator, without job.json, whose targets start with a language code."""
    tokens = ("<s>", "<pad>", "</s>", "<unk>", *TEXT.split(), *string.ascii_letters, *CODES)
    vocabulary = {token: n for n, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[(token, vocabulary[token]) for token in ("<s>", "</s>")]
    )
    backend.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", *CODES])
    backend.save(str(tmp_path / "tokenizer.json"))
    torch.manual_seed(72)  # gives a different translation for each language
    model = glassformer.tiny("bart", vocab_size=len(vocabulary), num_layers=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    generation = {"eos_token_id": 2, "forced_bos_token_id": vocabulary["de_DE"]}
    return glassformer.Pipeline(model=model.eval(), tokenizer=load_tokenizer(tmp_path), generation=generation)


def encode_for(folder: Path, to: str) -> tuple[Tokenizer, list[int], list[int]]:
    """The ids of the source and of the start of the target, using only the exported folder."""
    tokenizer = load_tokenizer(folder)
    assert tokenizer is not None
    metadata = json.loads((folder / "export.json").read_text())
    config = json.loads((folder / "config.json").read_text()) if "starts" not in metadata else {}
    start = config.get("decoder_start_token")
    starts = [tokenizer.token_id(start, side="target")] if start else list(metadata["starts"])
    ids = {"source": tokenizer.encode(TEXT).ids, "target": starts}
    languages = metadata["languages"]
    ids[languages["in"]].insert(languages["position"], languages["ids"][to])
    return tokenizer, ids["source"], ids["target"]


def with_onnx(folder: Path, to: str) -> str:
    tokenizer, ids, target = encode_for(folder, to)
    metadata = json.loads((folder / "export.json").read_text())
    step, fed = OnnxDecoder(folder, torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.bool)), 0
    while len(target) <= MAX_NEW_TOKENS and target[-1] not in metadata["ends"]:
        mask = torch.ones(1, len(target), dtype=torch.bool)
        scores, fed = step(torch.tensor([target[fed:]]), mask), len(target)
        target.append(int(scores[0, -1].argmax()))
    return tokenizer.decode(target[1:])


def with_ctranslate2(folder: Path, to: str) -> str:
    tokenizer, ids, target = encode_for(folder, to)
    runtime = ctranslate2.Translator(str(folder), device="cpu", compute_type="float32", intra_threads=1)
    (result,) = runtime.translate_batch(
        [tokenizer.tokens(ids)],
        target_prefix=[tokenizer.tokens(target[1:], side="target")],
        beam_size=1,
        max_decoding_length=MAX_NEW_TOKENS,
        min_decoding_length=0,
    )
    return tokenizer.decode([tokenizer.token_id(token, side="target") or 0 for token in result.hypotheses[0]])


# the metadata does not depend on the runtime, so the slower export runs once
@pytest.mark.parametrize(
    ("export", "translate", "template"),
    [
        (export_onnx, with_onnx, "cls_sep"),
        (export_ctranslate2, with_ctranslate2, "cls_sep"),
        (export_ctranslate2, with_ctranslate2, "eos"),
    ],
)
def test_metadata_selects_the_target_language(export, translate, bundle, tmp_path: Path) -> None:
    exported: ExportResult = export(bundle, tmp_path / "out")
    assert "several languages (de, en, ko)" in exported.notes[-1]
    translations = {to: translate(exported.folder, to).strip() for to in LANGUAGES}
    assert translations == {
        to: bundle.translate(TEXT, to=to, num_beams=1, max_new_tokens=MAX_NEW_TOKENS) for to in LANGUAGES
    }
    assert len(set(translations.values())) == len(LANGUAGES)


def test_language_may_be_the_first_target_token(published, tmp_path: Path) -> None:
    """The folder's forced BOS token is then not reported as the start of every target."""
    exported: ExportResult = export_ctranslate2(published, tmp_path / "out")
    (note,) = exported.notes
    assert "several languages (de_DE, en_XX, ko_KR), chosen by the first token of the target" in note
    translations = {to: with_ctranslate2(exported.folder, to).strip() for to in CODES}
    assert translations == {
        to: published.translate(TEXT, to=to, num_beams=1, max_new_tokens=MAX_NEW_TOKENS) for to in CODES
    }
    assert len(set(translations.values())) == len(CODES)
