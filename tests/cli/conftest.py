"""Run the command line in this process, as its console script does."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

import glassformer
from glassformer.cli.main import main
from glassformer.tokenization import TokenizerPlan, train_tokenizer
from tests.families import harness
from tests.families.cases import _SERIES
from tests.recipes.synthetic_data import text_files
from tests.tasks.folders import bert
from tests.tasks.tiny_models import reversal_model, save_language_model

HEADS = {
    "classify": "BertForSequenceClassification",
    "embed": "BertModel",
    "similar": "BertModel",
    "fill": "BertForMaskedLM",
    "answer": "BertForQuestionAnswering",
    "ner": "BertForTokenClassification",
}
QUICK = {"training.max_steps": 2, "training.device": "cpu", "tokenizer.vocab_size": 60, "model.d_model": 16}
QUICK |= {"model.num_heads": 2, "model.d_ff": 16, "model.num_layers": 1}


def quick(*changes: str) -> list[str]:
    """Options for a training run of two steps, with changes."""
    settings = [f"{name}={value}" for name, value in QUICK.items()]
    return [word for change in (*settings, *changes) for word in ("--set", change)]


class Done(NamedTuple):
    code: int
    out: str
    err: str

    def error(self) -> str:
        """The error message of a command that failed with exit code 2 and printed nothing else."""
        assert self.code == 2 and not self.out, self
        assert self.err.startswith("error: ") and self.err.count("\n") == 1, self.err
        return self.err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    monkeypatch.setattr("glassformer.cli.console.PROGRESS_DELAY", 3600.0)  # else stderr depends on the speed

    def call(*args: object) -> Done:
        with pytest.raises(SystemExit) as stop:
            main([str(arg) for arg in args])
        code = stop.value.code
        return Done(code if isinstance(code, int) else 0, *capsys.readouterr())

    return call


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put bytes on stdin."""

    def put(content: bytes, *, terminal: bool = False) -> None:
        stream = SimpleNamespace(buffer=io.BytesIO(content), isatty=lambda: terminal)
        monkeypatch.setattr(sys, "stdin", stream)

    return put


def restorer(folder: Path) -> Path:
    """A random model with the job restore."""
    plan = TokenizerPlan(kind="bpe", vocab_size=200, template="eos", tags=("<gap>",))
    tokenizer = train_tokenizer(["the old captain sang to the sea"] * 3, plan)
    torch.manual_seed(0)
    model = glassformer.tiny("original", src_vocab_size=tokenizer.vocab_size, max_len=600, start_id=1)
    job = glassformer.JobInfo(name="restore", gap="<gap>", before=" ")
    return glassformer.save(glassformer.Bundle(model=model, tokenizer=tokenizer, job=job), folder)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model for each command."""
    root = tmp_path_factory.mktemp("models")
    found = {command: bert(name, root / command)[1] for command, name in HEADS.items()}
    found |= {
        "translate": reversal_model(),
        "summarize": reversal_model(),
        "restore": restorer(root / "restore"),
    }
    series = harness.reference("PatchTSTForPrediction", {**_SERIES, "loss": "nll"})
    found["forecast"] = harness.save_reference(series, root / "forecast")
    return found | {"generate": save_language_model(root / "generate", max_len=64)}


@pytest.fixture
def quiet(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()  # building and training the models prints


def train(folder: Path, *args: object) -> Path:
    """Train a small translator of the files of `text_files`."""
    text_files(folder)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.chdir(folder)
        main(["train", "translate", *map(str, args), "--out", "run"])
    assert not stop.value.code
    return folder / "run"


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that keeps its last two weights, whose model is that of its last step."""
    settings = quick("training.max_steps=4", "training.eval_steps=2", "training.average_checkpoints=2")
    files = ("--train", "pairs.tsv", "--valid", "test.tsv")
    return train(tmp_path_factory.mktemp("finished"), *files, *settings)


@pytest.fixture
def tiny_folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    return glassformer.save(glassformer.tiny("gpt2"), tmp_path / "model")
