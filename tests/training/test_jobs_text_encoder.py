"""Named entities, question answering, several labels, numbers and text pairs, from files to saved folders."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glassformer
from glassformer.core.inputs import TextInputs
from glassformer.errors import FileProblemError, GlassformerError, InvalidValueError, UnknownNameError
from glassformer.processors.text import truncate_longest_first
from glassformer.tokenization.train import TokenizerPlan, train_tokenizer
from glassformer.training.data_cache import no_log
from glassformer.training.evaluation import evaluate_files
from glassformer.training.logging.history import read_history
from glassformer.training.recipe import parse_recipe
from glassformer.training.run import prepare_job, run

SMALL = {"d_model": 32, "num_heads": 4, "d_ff": 64, "num_layers": 1, "dropout": 0.0}
LONGER = {"max_steps": 150, "lr": 0.004, "batch_tokens": 1024, "eval_steps": 150}
PEOPLE = "Anna Boris Clara David Elena".split()
CITIES = "Paris Rome Oslo Cairo Lima".split()
PLAIN = "the old house stands near a quiet river and we saw it again".split()


def train(out: Path, job: str, data: dict[str, Any], **sections: Any) -> dict[str, float]:
    """Train a small model; return the metrics of the last validation."""
    recipe: dict[str, Any] = {
        "job": job,
        "data": {"valid": 0.2, "max_len": 24, **data},
        "tokenizer": {"kind": "word"},
        "model": SMALL,
        "training": {"max_steps": 60, "lr": 0.005, "batch_tokens": 1024, "eval_steps": 30},
    }
    run(parse_recipe({**recipe, **sections}), out, log=no_log)
    metrics: dict[str, float] = read_history(out).validations[-1]["metrics"]
    return metrics


def table(path: Path, header: str, rows: list[str]) -> str:
    path.write_text("\n".join([header, *rows]) + "\n")
    return str(path)


# ---- named entities


def tagged_sentence(draw: random.Random) -> list[tuple[str, str]]:
    words = [(word, "O") for word in draw.choices(PLAIN, k=draw.randint(3, 6))]
    person = [(draw.choice(PEOPLE), "B-PER"), (draw.choice(PEOPLE) + "son", "I-PER")]
    city = [(draw.choice(CITIES), "B-LOC")]
    at = draw.randint(0, len(words))
    return [*words[:at], *draw.choice([person, city, person + city]), *words[at:]]


def conll(path: Path, count: int) -> str:
    draw = random.Random(count)
    sentences = [tagged_sentence(draw) for _ in range(count)]
    path.write_text("\n\n".join("\n".join(f"{w}\t{t}" for w, t in s) for s in sentences) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ner")
    data = {"train": conll(folder / "train.txt", 300)}
    metrics = train(folder / "run", "ner", data, tokenizer={"kind": "bpe", "vocab_size": 150})
    assert metrics["f1"] > 0.95 and metrics["accuracy"] > 0.95
    return folder / "run"


@pytest.mark.parametrize("strategy", ["none", "simple", "first"])
def test_ner_matches_the_pipeline_of_transformers(tagger: Path, strategy: str) -> None:
    transformers = pytest.importorskip("transformers")
    ours = glassformer.load(tagger)
    model = transformers.AutoModelForTokenClassification.from_pretrained(tagger / "model")
    assert type(model).__name__ == "BertForTokenClassification"
    assert model.config.id2label == dict(enumerate(["O", "B-LOC", "B-PER", "I-PER"]))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tagger / "model")
    pipeline = transformers.pipeline(
        "token-classification", model=model, tokenizer=tokenizer, aggregation_strategy=strategy
    )
    draw = random.Random(7)
    texts = [" ".join(word for word, _ in tagged_sentence(draw)) for _ in range(20)]
    for text in texts:
        theirs = pipeline(text)
        found = ours.ner(text, aggregation_strategy=strategy)
        key = "entity" if strategy == "none" else "entity_group"
        expected = [(e[key], text[e["start"] : e["end"]].strip()) for e in theirs]
        assert [(e.label, e.text) for e in found] == expected
        assert np.allclose([e.score for e in found], [e["score"] for e in theirs], atol=1e-5)
        assert all(text[e.start : e.end] == e.text for e in found)


def test_words_keep_the_tag_of_their_first_token(tagger: Path) -> None:
    (person,) = glassformer.load(tagger).ner("we saw Elena Davidson again")
    assert (person.label, person.text, person.start) == ("PER", "Elena Davidson", 7)


def test_ner_reads_json_lines_and_evaluates(tagger: Path, tmp_path: Path) -> None:
    draw = random.Random(5)
    rows = [tuple(zip(*tagged_sentence(draw), strict=True)) for _ in range(50)]
    lines = [json.dumps({"tokens": words, "ner_tags": tags}) for words, tags in rows]
    (tmp_path / "test.jsonl").write_text("\n".join(lines))
    result = evaluate_files(tagger / "model", [str(tmp_path / "test.jsonl")], log=no_log)
    assert result.job == "ner" and result.validation.metrics["f1"] > 0.95
    assert {row["name"] for row in result.validation.tables["classes"]} == {"LOC", "PER"}
    (tmp_path / "odd.txt").write_text("Anna\tB-ORG\nsaw\tO\n")
    with pytest.raises(UnknownNameError):
        evaluate_files(tagger / "model", [str(tmp_path / "odd.txt")], log=no_log)


# ---- question answering


def squad(path: Path, count: int, *, unanswerable: bool = False) -> str:
    draw = random.Random(count)
    paragraphs = []
    for n in range(count):
        words = draw.choices(PLAIN, k=draw.randint(5, 40))
        answer, impossible = draw.choice(PEOPLE), unanswerable and n % 2 == 0
        words.insert(draw.randint(0, len(words)), "nothing" if impossible else answer)
        context = " ".join(words)
        answers = [] if impossible else [{"text": answer, "answer_start": context.index(answer)}]
        qa = {"id": str(n), "question": "who is it ?", "answers": answers, "is_impossible": impossible}
        paragraphs.append({"context": context, "qas": [qa]})
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}, indent=1))
    return str(path)


def test_question_answering_learns_windows_and_loads_in_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    file = squad(tmp_path / "train.json", 400)
    metrics = train(tmp_path / "run", "answer", {"train": file, "stride": 4})
    assert metrics["exact_match"] > 90 and metrics["f1"] >= metrics["exact_match"]
    pipeline = glassformer.load(tmp_path / "run")
    context = f"{'we saw the old house ' * 8} and Clara again near the river"
    assert pipeline.answer("who is it ?", context).text == "Clara"
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "run/model").eval()
    assert type(theirs).__name__ == "BertForQuestionAnswering" and pipeline.tokenizer is not None
    encoded = pipeline.tokenizer.encode("who is it ?", "we saw Anna near Rome")
    ids, types = torch.tensor([encoded.ids]), torch.tensor([encoded.type_ids])
    with torch.no_grad():
        ours, other = pipeline.model(TextInputs(ids, types=types)), theirs(ids, token_type_ids=types)
    assert torch.allclose(ours.start, other.start_logits, atol=1e-5)
    assert torch.allclose(ours.end, other.end_logits, atol=1e-5)


def test_unanswerable_questions_get_an_empty_answer(tmp_path: Path) -> None:
    file = squad(tmp_path / "train.json", 500, unanswerable=True)
    data = {"train": file, "max_len": 60}
    metrics = train(tmp_path / "run", "answer", data)
    assert metrics["exact_match"] > 90
    pipeline = glassformer.load(tmp_path / "run")
    for name, expected in (("Anna", "Anna"), ("nothing", "")):
        context = f"we saw {name} again near the quiet river"
        answer = pipeline.answer("who is it ?", context, handle_impossible_answer=True)
        assert answer.text == expected and (answer.no_answer > 0.5) == (not expected)
    assert pipeline.answer("who is it ?", context).text  # by default a span


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ('{"version": 1}', FileProblemError),
        ('{"data": [{"paragraphs": [{"context": "a b"}]}]}', FileProblemError),
        (
            '{"data": [{"paragraphs": [{"context": "a b", "qas": [{"question": "q", "answers": '
            '[{"text": "b", "answer_start": 0}]}]}]}]}',
            GlassformerError,  # the answer is not at its offset
        ),
    ],
)
def test_invalid_questions_are_errors(content: str, error: type[GlassformerError], tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(content)
    with pytest.raises(error):
        train(tmp_path / "run", "answer", {"train": str(tmp_path / "train.json")})


# ---- several labels, numbers and pairs


def test_multi_label_classifier(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    draw, rows = random.Random(1), []
    for _ in range(300):
        labels = [name for name in ("city", "person") if draw.random() < 0.5]
        words = draw.choices(PLAIN, k=5)
        words += [draw.choice(CITIES)] * ("city" in labels) + [draw.choice(PEOPLE)] * ("person" in labels)
        draw.shuffle(words)
        rows.append(f"{' '.join(words)}\t{'|'.join(labels)}")
    file = table(tmp_path / "a.tsv", "text\tlabel", rows)
    metrics = train(tmp_path / "run", "classify", {"train": file}, training=LONGER)
    assert metrics["f1"] > 0.9 and metrics["micro_f1"] > 0.9 and metrics["accuracy"] > 0.85
    pipeline = glassformer.load(tmp_path / "run")
    scores = {label.label: label.score for label in pipeline.classify("we saw Anna near Rome again the")}
    assert scores["city"] > 0.5 and scores["person"] > 0.5
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "run/model").eval()
    assert theirs.config.problem_type == "multi_label_classification" and pipeline.tokenizer is not None
    ids = torch.tensor([pipeline.tokenizer.encode("we saw Anna near Rome again the").ids])
    with torch.no_grad():
        expected = theirs(ids).logits.sigmoid()[0].tolist()
    assert np.allclose([scores[theirs.config.id2label[n]] for n in (0, 1)], expected, atol=1e-5)


def test_regression_on_pairs(tmp_path: Path) -> None:
    """The target is large, so the head must start at its mean; whether two words agree decides it."""
    transformers = pytest.importorskip("transformers")
    draw, rows = random.Random(2), []
    for _ in range(500):
        first, second = draw.choice(CITIES), draw.choice(CITIES)
        value = 900.5 if first == second == "Paris" else 300.5 if "Paris" in (first, second) else 100.5
        rows.append(f"{' '.join(draw.choices(PLAIN, k=3))} saw {first}\tthey saw {second}\t{value}")
    file = table(tmp_path / "a.tsv", "sentence1\tsentence2\tscore", rows)
    metrics = train(tmp_path / "run", "classify", {"train": file}, training=LONGER)
    assert metrics["spearman"] > 0.6 and metrics["pearson"] > 0.9 and metrics["mae"] < 100
    pipeline = glassformer.load(tmp_path / "run")
    assert pipeline.job.text_pair and pipeline.job.problem_type == "regression"
    ((both,), (neither,)) = pipeline.classify(
        ["the old house saw Paris", "the old house saw Rome"], ["they saw Paris", "they saw Oslo"]
    )
    assert both.label == "score" and both.score > 600 > 200 > neither.score
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "run/model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run/model")
    with torch.no_grad():
        expected = theirs(
            **tokenizer("the old house saw Paris", "they saw Paris", return_tensors="pt")
        ).logits
    assert both.score == pytest.approx(float(expected), rel=1e-4)
    result = evaluate_files(tmp_path / "run/model", [file], log=no_log)
    assert result.validation.metrics["pearson"] > 0.9


def test_pairs_are_truncated_longest_first(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = train_tokenizer([" ".join(PLAIN)] * 3, TokenizerPlan(kind="word", template="cls_sep"))
    tokenizer.save(tmp_path)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for first, second in ((2, 9), (9, 2), (8, 9), (9, 8), (12, 1), (3, 3)):
        texts = " ".join(PLAIN[:first]), " ".join(PLAIN[:second])
        for limit in (6, 9, 10):
            ours = truncate_longest_first(tokenizer.encode(*texts), limit).ids
            assert ours == reference(*texts, truncation=True, max_length=limit)["input_ids"]


# ---- skewed labels


def skewed(path: Path, count: int) -> str:
    draw, rows = random.Random(count), []
    for n in range(count):
        rare = n % 20 == 0
        words = [*draw.choices(PLAIN, k=6), draw.choice(CITIES if rare else PEOPLE)]
        draw.shuffle(words)
        rows.append(f"{' '.join(words)}\t{'rare' if rare else 'common'}")
    return table(path, "text\tlabel", rows)


def test_skewed_labels_are_weighted_and_selected_by_macro_f1(tmp_path: Path) -> None:
    file = skewed(tmp_path / "a.tsv", 600)
    metrics = train(tmp_path / "run", "classify", {"train": file})
    assert metrics["f1"] > 0.9
    history = read_history(tmp_path / "run")
    assert sum(history.facts()["label counts"].values()) == history.facts()["training texts"]
    assert "class_weights: balanced" in (tmp_path / "run/recipe.yaml").read_text()
    labels = [glassformer.load(tmp_path / "run").classify(text)[0].label for text in ("we saw Rome", "Anna")]
    assert labels == ["rare", "common"]


def test_class_weights_scale_the_loss_of_a_class(tmp_path: Path) -> None:
    """`balanced` equals scikit-learn's weights; a mapping and a list are equal, and wrong ones are errors."""
    compute = pytest.importorskip("sklearn.utils.class_weight").compute_class_weight
    file = skewed(tmp_path / "a.tsv", 200)

    def weights(option: Any) -> list[float] | None:
        recipe = {
            "job": "classify",
            "data": {"train": file, "valid": file},
            "tokenizer": {"kind": "word"},
            "model": SMALL,
            "training": {"class_weights": option, "max_steps": 1},
        }
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        job: Any = prepare_job(parse_recipe(recipe), folder, torch.device("cpu"), no_log)
        found: list[float] | None = job.class_weights()
        return found

    labels = ["rare"] * 10 + ["common"] * 190
    expected = compute("balanced", classes=np.array(["common", "rare"]), y=labels)
    assert np.allclose(weights("balanced") or (), expected)
    assert weights({"rare": 3.0}) == weights([1.0, 3.0]) and weights("none") is None
    for wrong, error in (([1.0], InvalidValueError), ({"odd": 2.0}, UnknownNameError)):
        with pytest.raises(error):
            weights(wrong)
