"""A folder whose JSON is wrong at any one place is refused in a sentence, or answers with numbers."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import glassformer
from glassformer import Bundle, GlassformerError
from glassformer.bundle import Layout
from glassformer.families import beside
from glassformer.families.sidecars import JobInfo
from glassformer.tasks import TextGenerator, Translator
from glassformer.training.recipe import DATA_SECTIONS
from tests.tasks import folders

SPOILT = [-1, 0, 10**9, 10**30, math.nan, "x", [1], {"x": 1}, None, True]
SENTENCES = {
    "sentence_bert_config.json": {"max_seq_length": 20, "do_lower_case": True},
    "config_sentence_transformers.json": {"prompts": {"query": "the "}, "default_prompt_name": "query"},
}
Place = tuple[str | int, ...]
Ask = Callable[[Bundle], Any]


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Every place of a JSON document but its top; of a list, the first stands for all."""
    if at:
        yield at
    parts = value.items() if isinstance(value, dict) else ()
    parts = enumerate(value[:1]) if isinstance(value, list) else parts
    for key, part in parts:
        yield from places(part, (*at, key))


def with_put(document: Any, at: Place, value: Any) -> str:
    """The document with another value at a place."""
    whole = json.loads(json.dumps(document))
    part = whole
    for key in at[:-1]:
        part = part[key]
    part[at[-1]] = value
    return json.dumps(whole)


def numbers(answer: Any) -> Iterator[float]:
    """Every number of an answer."""
    if isinstance(answer, float):
        yield answer
    elif isinstance(answer, np.ndarray | torch.Tensor):
        yield from answer.ravel().tolist()
    elif isinstance(answer, list | tuple):
        for part in answer:
            yield from numbers(part)
    elif is_dataclass(answer):
        for field in fields(answer):
            yield from numbers(getattr(answer, field.name))


def pictures(folder: Path) -> tuple[Bundle, Ask]:
    """A classifier of pictures, and what is asked of it."""
    model = glassformer.tiny("vit")
    each = {"mean": [0.5, 0.4, 0.5], "std": [0.2, 0.3, 0.2]}
    ready = {
        "size": {"height": 16, "width": 16},
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": each["mean"],
        "image_std": each["std"],
    }
    job = {"job": "images", "classes": [*"abcdefghij"], **each}
    shown = folder.parent / "shown.png"
    Image.fromarray(np.arange(40 * 40 * 3, dtype=np.uint8).reshape(40, 40, 3)).save(shown)
    bundle = Bundle(model=model, job=JobInfo.from_dict(job), files={"preprocessor_config.json": ready})
    return bundle, lambda found: (found.classify([shown]), found.embed([shown]))


def series(_: Path) -> tuple[Bundle, Ask]:
    """A forecaster, and what is asked of it."""
    job = {"job": "forecast", "columns": ["a", "b"], "mean": [0.0, 1.0], "std": [1.0, 2.0], "context": 24}
    steps = np.arange(40)
    table = {"ds": [f"2024-01-01 {n // 4:02}:{n % 4 * 15:02}:00" for n in steps], "a": steps, "b": steps % 7}
    bundle = Bundle(model=glassformer.tiny("patchtst"), job=JobInfo.from_dict(job))
    return bundle, lambda found: found.forecast(table).values


def continuing(_: Path) -> tuple[Bundle, Ask]:
    """A language model, and what is asked of it."""
    tokenizer = glassformer.load("pocket-lm").tokenizer
    assert tokenizer is not None
    model = glassformer.tiny("gpt2", vocab_size=tokenizer.vocab_size, pad_id=0)
    generation = {"eos_token_id": 3, "pad_token_id": 0, "do_sample": True, "temperature": 0.7, "top_k": 5}
    bundle = Bundle(model=model, tokenizer=tokenizer, generation=generation, job=JobInfo(name="lm"))
    return bundle, lambda found: TextGenerator(found, max_new_tokens=2)(["Once upon", "A"])


def translating(_: Path) -> tuple[Bundle, Ask]:
    """A translator whose table of positions is a formula, and what is asked of it."""
    tokenizer = glassformer.load("pocket-lm").tokenizer
    assert tokenizer is not None
    size = tokenizer.vocab_size
    model = glassformer.tiny("original", src_vocab_size=size, tgt_vocab_size=size, pad_id=0, start_id=3)
    generation = {"decoder_start_token_id": 3, "eos_token_id": 3, "pad_token_id": 0}
    job = {"job": "translate", "unit": "sentence", "usual_len": 9}
    bundle = Bundle(model=model, tokenizer=tokenizer, generation=generation, job=JobInfo.from_dict(job))
    return bundle, lambda found: Translator(found, max_new_tokens=2)(["Good day.", "A"])


def meaning(_: Path) -> tuple[Bundle, Ask]:
    """A sentence encoder, and what is asked of it."""
    bundle = Bundle(model=glassformer.tiny("sentence", vocab_size=len(folders.VOCABULARY)))
    return bundle, lambda found: found.embed(["the cat"], truncate=True)


@pytest.mark.parametrize(
    ("kind", "layout"),
    [(k, lay) for k in (pictures, series, continuing) for lay in ("hf", "glassformer")]
    + [(translating, "glassformer"), (meaning, "hf")],
)
def test_a_wrong_value_anywhere_is_a_sentence_or_does_no_harm(
    kind: Callable[[Path], tuple[Bundle, Ask]], layout: Layout, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    folder = tmp_path / "model"
    bundle, ask = kind(folder)
    glassformer.save(bundle, folder, layout=layout)
    (folder / "checksums.json").unlink()
    if kind is meaning:
        folders.words(folder)
        for name, about in SENTENCES.items():
            (folder / name).write_text(json.dumps(about))
    assert all(map(math.isfinite, numbers(ask(glassformer.load(folder)))))
    wrong, refused = [], 0
    for path in (path for path in sorted(folder.rglob("*.json")) if "tokenizer" not in path.name):
        whole = path.read_text()
        for at in places(json.loads(whole)):
            for value in SPOILT:
                path.write_text(with_put(json.loads(whole), at, value))
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("error")
                        answer = ask(glassformer.load(folder))
                    if not all(map(math.isfinite, numbers(answer))):
                        wrong.append((path.name, at, value, "answers with what is no number"))
                except GlassformerError as error:
                    refused += 1
                    if "\n" in str(error):
                        wrong.append((path.name, at, value, str(error)))
                except Exception as error:
                    wrong.append((path.name, at, value, repr(error)[:200]))
        path.write_text(whole)
    assert not wrong
    assert refused > 100


def test_a_size_is_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    """The table of positions is in no file, and channels are in no weight: nothing else bounds them."""
    own = glassformer.save(glassformer.tiny("original"), tmp_path / "own", layout="glassformer")
    published = glassformer.save(glassformer.tiny("patchtst"), tmp_path / "hf")
    for path, at, told in (
        (own / "spec.json", ("source", "position", "max_len"), "table of positions would hold"),
        (published / "config.json", ("num_input_channels",), "channels is 1000000000; it must be"),
    ):
        (path.parent / "checksums.json").unlink()
        path.write_text(with_put(json.loads(path.read_text()), at, 10**9))
        with pytest.raises(GlassformerError, match=told) as error:
            glassformer.load(path.parent)
        assert str(path.parent) in str(error.value)


def test_an_answer_that_is_no_number_is_refused(tmp_path: Path) -> None:
    """Damaged weights, whatever is asked of them."""
    asked = [kind(tmp_path / "model") for kind in (pictures, series, continuing, translating)]
    for name, ask in (
        ("BertForMaskedLM", lambda found: found.fill(["the [MASK] sat"])),
        (
            "BertForQuestionAnswering",
            lambda found: found.answer("where is the cat?", "the cat sat on the mat"),
        ),
        ("BertForSequenceClassification", lambda found: found.classify(["the cat"])),
        ("BertModel", lambda found: found.similar(["the cat"], ["a dog"])),
    ):
        asked.append((glassformer.load(folders.bert(name, tmp_path / name)[1]), ask))
    for bundle, ask in asked:
        with torch.no_grad():
            next(bundle.model.parameters()).fill_(math.nan)
        with pytest.raises(GlassformerError, match="no number"):
            ask(bundle)


def test_the_jobs_that_a_folder_may_name_are_those_trained_for() -> None:
    assert set(beside.JOBS) == set(DATA_SECTIONS)
