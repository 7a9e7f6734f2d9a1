"""A training job defined in one file is trained, resumed, evaluated and run like the others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import glassformer
from docs.reference import describe_keys
from glassformer.bundle import Bundle
from glassformer.data.examples import LabeledExamples
from glassformer.data.sources import Source, texts
from glassformer.data.store import Ragged, Store
from glassformer.errors import InvalidValueError, UnknownNameError
from glassformer.recipes import names
from glassformer.schema import setting
from glassformer.tokenization import Tokenizer
from glassformer.training import jobs, sections
from glassformer.training.encoder_job import EncoderJob
from glassformer.training.job_spec import JobSpec
from glassformer.training.jobs import job_names, register
from glassformer.training.learner import LabelLearner, count_examples
from glassformer.training.recipe import parse_recipe, read_recipe
from glassformer.training.sections import Paths, TableSection
from glassformer.training.task import ValidationResult, evaluation_batches
from glassformer.training.text_job import Encoded, Row
from tests.cli.conftest import run

__all__ = ["run"]

CLASSES = ("short", "long")


@dataclass(frozen=True, kw_only=True)
class LineData(TableSection):
    """Lines of text."""

    train: Paths = sections.train_files("a text file")
    valid: Paths | float = sections.valid_split(0.2)
    max_len: int | None = sections.maximum_length("a line", default=32)
    words: int = setting(3, "number of words from which a line is long", interval="[1, inf)", unit="words")


class LineLengthJob(EncoderJob[LineData]):
    """Train a model that tells long lines from short ones."""

    head_task = "ForSequenceClassification"
    fields = ("text", "label")
    row, unit, count = "line", "lines", staticmethod(count_examples)
    default_max_len = 32

    def open_files(self, files: Sequence[str]) -> Source:
        return texts(files, sample_by="line", **self.data.table_options)

    def encode(self, tokenizer: Tokenizer, rows: list[Row]) -> Encoded:
        ids = Ragged.of(tokenizer.encode_ids([line for (line,) in rows])).truncate(self.max_len)
        return (ids, Ragged.of([[int(len(line.split()) >= self.data.words)] for (line,) in rows])), {}

    def examples(self, store: Store, *, augment: bool = False) -> LabeledExamples:
        return LabeledExamples(store, pad_id=self.corpus.pad_id)

    def build(self) -> Bundle:
        return self.build_labeled(CLASSES)[0]

    def learner(self, model: Any) -> LabelLearner:
        return LabelLearner(model)

    def validate(self, learner: Any, valid: LabeledExamples, device: torch.device) -> ValidationResult:
        correct = 0
        for _, _, tensors in evaluation_batches(valid, device, self.recipe.training.batch_limits()):
            correct += int((learner.logits(tensors["inputs"]).argmax(-1) == tensors["labels"]).sum())
        return ValidationResult(metrics={"right": correct / len(valid)})


JOB = JobSpec(
    name="line-length",
    summary="Train a model that tells long lines from short ones.",
    factory=LineLengthJob,
    data=LineData,
    metrics=("right",),
    metric="right",
    preset="bert",
    defaults={"label_smoothing": 0.05},
)


@pytest.fixture(autouse=True)
def toy_job(monkeypatch):
    monkeypatch.setattr(jobs, "_registered", {})
    register(JOB)


@pytest.fixture
def lines(tmp_path):
    words, rng = ("the", "old", "dog", "sings", "by", "sea"), np.random.default_rng(0)
    file = tmp_path / "lines.txt"
    file.write_text("".join(" ".join(rng.choice(words, n)) + "\n" for n in rng.integers(1, 7, 120)))
    return file


SETTINGS = ["model.d_model=32", "model.num_layers=1", "model.num_heads=2", "model.d_ff=64"]
SETTINGS += [
    "tokenizer.vocab_size=80",
    "training.eval_steps=20",
    "training.batch_size=24",
    "training.lr=0.01",
]
SETTINGS += ["training.lr_scheduler=constant", "training.warmup_steps=1", "training.device=cpu"]


def train(run, lines, out, steps):
    flags = [word for change in [*SETTINGS, f"training.max_steps={steps}"] for word in ("--set", change)]
    done = run("train", "line-length", "--train", lines, "--out", out, *flags)
    assert done.code == 0, done.err


def test_a_job_in_one_file_is_trained_resumed_evaluated_and_run(run, lines, tmp_path):
    train(run, lines, tmp_path / "whole", 40)
    for steps in (20, 40):
        train(run, lines, tmp_path / "parts", steps)
    assert "resuming from step 20 of 40" in (tmp_path / "parts/train.log").read_text()
    weights = [(tmp_path / name / "model/model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert weights[0] == weights[1]
    recipe = read_recipe(tmp_path / "whole/recipe.yaml")
    assert recipe.training.label_smoothing == 0.05 and recipe.data.max_len == 32  # type: ignore[attr-defined]

    done = run("evaluate", tmp_path / "whole/model", lines, "--json")
    assert done.code == 0, done.err
    report = yaml.safe_load(done.out)
    assert report["job"] == "line-length" and report["metrics"]["right"] > 0.9
    model = glassformer.load(tmp_path / "whole")
    assert [best.label for best, *_ in model.classify(["sea", "the old dog sings by the sea"])] == [*CLASSES]


def test_recipes_and_reference_know_a_registered_job(lines):
    assert "line-length" in job_names() and "line-length" not in names()
    described = [key.key for key in describe_keys() if key.job is JOB]
    assert described == ["train", "encoding", "delimiter", "decimal", "valid", "max_len", "words"]
    request = {"job": "line-length", "data": {"train": [str(lines)], "words": 0}}
    with pytest.raises(InvalidValueError) as invalid:
        parse_recipe(request)
    assert invalid.value.name == "data.words"
    request = {**request, "data": {"train": [str(lines)]}, "training": {"metric_for_best_model": "bleu"}}
    with pytest.raises(UnknownNameError) as unknown:
        parse_recipe(request)
    assert unknown.value.name == "bleu"
