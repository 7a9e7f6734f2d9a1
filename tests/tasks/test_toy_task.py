"""A task that only this file declares is a method, command, route, batch task, explorer kind and docs row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import glassformer
from docs import reference, task_stubs
from glassformer.batch.plan import BatchRequest, open_plan
from glassformer.batch.storage import Location
from glassformer.batch.worker import BatchWorker
from glassformer.bundle import Bundle
from glassformer.cli.main import main
from glassformer.core.observe import Record
from glassformer.core.spec import TokensSpec
from glassformer.errors import InvalidValueError, UnknownNameError
from glassformer.interpret import views
from glassformer.interpret.prepared_input import PreparedInput
from glassformer.interpret.schema import TextOutcome
from glassformer.interpret.views.generated_text import GenerateView
from glassformer.processors.text import require_tokenizer
from glassformer.server.app import create_app
from glassformer.tasks import registry
from glassformer.tasks.base import NO_CALLBACKS, Callbacks, Task
from glassformer.tasks.methods import TaskMethods, attach
from glassformer.tasks.registry import TEXT, TaskOptions, TaskResult, TaskSpec, setting
from tests.tasks.tiny_models import save_language_model

TEXTS = ["the old captain", "", "the sea"]


@dataclass(frozen=True, kw_only=True)
class LongestOptions(TaskOptions):
    shortest: int = setting(1, "Minimum number of characters of a token.", interval="[1, 99]")
    reverse: bool = setting(False, "Sort the shortest token first.")


@dataclass(frozen=True)
class LongTokens(TaskResult):
    """The tokens of a text, longest first."""

    tokens: list[str]


class TokenSorter(Task[str, LongTokens]):
    """Sort the tokens of texts by their length."""

    def __init__(self, bundle: Bundle, *, shortest: int, reverse: bool) -> None:
        self.bundle, self.shortest, self.reverse = bundle, shortest, reverse
        self.tokenizer = require_tokenizer(bundle)

    def run(self, inputs: Iterable[str], callbacks: Callbacks = NO_CALLBACKS) -> Iterator[LongTokens]:
        for text in inputs:
            pieces = [text[a:b].strip() for a, b in self.tokenizer.encode(text).offsets]
            pieces = [piece for piece in pieces if len(piece) >= self.shortest]
            yield LongTokens(sorted(pieces, key=len, reverse=not self.reverse))
            callbacks.on_done(1)


def accepts(spec: Any) -> bool:
    return isinstance(getattr(spec, "input", None), TokensSpec)


def make(bundle: Bundle, options: LongestOptions) -> TokenSorter:
    return TokenSorter(bundle, **options.kwargs())


def value(output: LongTokens) -> list[str]:
    return output.tokens


TASK = TaskSpec(
    name="longest",
    summary="Find the longest tokens of texts.",
    lines="the tokens",
    inputs=TEXT,
    argument="texts",
    options=LongestOptions,
    result=LongTokens,
    accepts=accepts,
    make=make,
    value=value,
    returns="list[str]",
    view=lambda spec: True,
    examples=("the old captain",),
)


class LongestView(GenerateView):
    """The prompt, and its longest tokens as the outcome."""

    kind: Any = TASK.name

    def outcome(self, prepared: PreparedInput, record: Record) -> Any:
        (found,) = TokenSorter(self.bundle, shortest=1, reverse=False).run([prepared.input.text or ""])
        text = " ".join(found.tokens)
        return TextOutcome(kind=self.kind, text=text, num_tokens=len(found.tokens), finish_reason=None), {}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.REGISTERED, TASK.name, TASK)
    monkeypatch.setattr(TaskMethods, TASK.name, None, raising=False)
    attach(TaskMethods, TASK)
    monkeypatch.setitem(views.REGISTERED, TASK.name, LongestView)
    for name in ("generate", "embed"):  # the first task with a view decides
        monkeypatch.setitem(
            registry.REGISTERED, name, replace(registry.tasks()[name], view=lambda spec: False)
        )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_language_model(tmp_path / "model")


@pytest.fixture
def expected(folder: Path) -> list[list[str]]:
    """The tokens of at least two characters of each text."""
    return [one.tokens for one in TokenSorter(glassformer.load(folder), shortest=2, reverse=False).run(TEXTS)]


def test_method(folder: Path, expected: list[list[str]]) -> None:
    pipeline: Any = glassformer.load(folder)
    assert pipeline.longest(TEXTS, shortest=2) == expected
    assert pipeline.longest(TEXTS[0], shortest=2) == expected[0] != []
    assert pipeline.longest(TEXTS, shortest=None) == pipeline.longest(TEXTS)  # None: the default
    with pytest.raises(InvalidValueError) as invalid:
        pipeline.longest(TEXTS, shortest=0)
    assert invalid.value.name == "shortest"
    with pytest.raises(UnknownNameError) as unknown:
        pipeline.longest(TEXTS, shortes=2)
    assert unknown.value.name == "shortes"
    assert "Minimum number of characters" in pipeline.longest.__doc__


def test_stub() -> None:
    text = task_stubs.generate()
    assert "def longest(" in text and "shortest: int = 1" in text and "-> list[list[str]]" in text


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[Any, str, str]:
    with pytest.raises(SystemExit) as stop:
        main([str(arg) for arg in args])
    return (stop.value.code, *capsys.readouterr())


def test_command(
    folder: Path, expected: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert "longest" in run(capsys, "--help")[1]
    code, out, _ = run(capsys, "longest", "--help")
    assert code == 0 and "--shortest" in out and "--reverse" in out
    code, out, _ = run(capsys, "longest", folder, TEXTS[0], "--shortest", 2)
    assert (code, out) == (0, f"{json.dumps(expected[0])}\n")
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    _, out, _ = run(capsys, "longest", folder, "--file", tmp_path / "in.txt", "--shortest", 2, "--json")
    assert [json.loads(line)["tokens"] for line in out.splitlines()] == expected
    table = tmp_path / "out.jsonl"
    run(capsys, "longest", folder, "--file", tmp_path / "in.txt", "--shortest", 2, "--out", table)
    assert [json.loads(json.loads(line)["tokens"]) for line in table.open()] == expected
    code, _, error = run(capsys, "longest", folder, "a", "--shortest", 0)
    assert code == 2 and "--shortest" in error


def test_route(folder: Path, expected: list[list[str]]) -> None:
    with TestClient(create_app({"model": glassformer.load(folder)}), base_url="http://localhost") as client:
        found = client.post("/longest", json={"texts": TEXTS, "shortest": 2}).json()
        assert found == {"model": "model", "results": expected}
        assert client.post("/longest", json={"texts": TEXTS, "shortest": 0}).status_code == 422
        wrong = client.post("/longest", json={"texts": TEXTS, "shortes": 2}).json()["error"]
        assert "did you mean shortest?" in wrong["message"]
        document = client.get("/openapi.json").json()
        limits = document["components"]["schemas"]["LongestRequest"]["properties"]["shortest"]
        assert (limits["minimum"], limits["maximum"], limits["default"]) == (1, 99, 1)


def test_batch(folder: Path, expected: list[list[str]], tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in TEXTS))
    request = BatchRequest(
        task="longest",
        model=str(folder),
        inputs=(Location(tmp_path / "in.jsonl").uri,),
        format="jsonl",
        options={"shortest": 2},
    )
    out = Location(tmp_path / "out")
    plan = open_plan(request, out, workers=1, batch_size=3, overwrite=False)
    assert BatchWorker(plan, out.uri, device="cpu")({"number": [0]}) == {"rows": [3], "errors": [0]}
    (part,) = (tmp_path / "out").glob("part-*")
    assert [json.loads(json.loads(line)["tokens"]) for line in part.open()] == expected


def test_explorer(folder: Path) -> None:
    with TestClient(create_app({"m": glassformer.load(folder)}), base_url="http://localhost") as client:
        assert [model["kind"] for model in client.get("/models").json()["models"]] == ["longest"]
        trace = client.post("/trace", json={"model": "m", "text": TEXTS[0]}).json()
        assert (trace["kind"], trace["outcome"]["text"]) == ("longest", "captain the old")
        assert trace["attentions"] and trace["tensors"]


def test_docs_and_inspect(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "`longest`" in reference.tasks_page() and "glassformer longest" in reference.cli_page()
    assert "/longest" in reference.http_page()
    _, out, _ = run(capsys, "inspect", folder, "--json")
    assert "longest" in json.loads(out)["tasks"]
