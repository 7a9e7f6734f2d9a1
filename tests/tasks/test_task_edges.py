"""Every task on every edge: method, command, route, batch run and docs give the same results."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from fastapi.testclient import TestClient
from PIL import Image, ImageSequence

import glassformer
from docs import reference, task_stubs
from glassformer.batch.plan import BatchRequest, open_plan
from glassformer.batch.storage import Location
from glassformer.batch.worker import BatchWorker
from glassformer.cli.main import app, commands, main
from glassformer.generation.config import GenerationConfig, GenerationOptions
from glassformer.server.app import create_app
from glassformer.tasks.registry import find_task, tasks, tasks_of
from tests.cli.conftest import restorer
from tests.server.harness import make_models
from tests.tasks.drawing_models import save_drawing_model, video_bundle
from tests.tasks.folders import bert, captioner, vilt
from tests.tasks.test_image_text import save_clip

TEXTS = ["the cat sat on the mat", "a dog ran"]
SHORT = {"max_new_tokens": 3, "num_beams": 1}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A task with a model. inputs: in Python. request: of the route. columns: of a table for batch."""

    task: str
    model: str
    inputs: tuple[Any, ...]
    request: dict[str, Any]
    columns: dict[str, list[Any]]
    options: dict[str, Any] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()  # of the command; the inputs are those of a table


def cases(pictures: list[Path]) -> list[Case]:
    files = [str(path) for path in pictures]
    encoded = [base64.b64encode(path.read_bytes()).decode() for path in pictures]
    text = {"inputs": (TEXTS,), "request": {"texts": TEXTS}, "columns": {"text": TEXTS}}
    image = {"inputs": (pictures,), "request": {"images": encoded}, "columns": {"image": files}}
    masked = ["the [MASK] sat", "[MASK]"]
    series = [math.sin(n) for n in range(40)]
    waves = [[math.sin(n * k) for n in range(32)] for k in (1, 2)]
    return [
        *(
            Case(task=name, model=name, options=SHORT, **text)
            for name in ("translate", "summarize", "restore")
        ),
        Case(
            task="generate",
            model="generate",
            inputs=(TEXTS,),
            request={"prompts": TEXTS},
            columns={"text": TEXTS},
            options=SHORT,
        ),
        *(Case(task=name, model=name, **text) for name in ("classify", "ner", "embed")),
        Case(
            task="similar",
            model="embed",
            inputs=(TEXTS,),
            request={"texts": TEXTS, "candidate_texts": TEXTS[::-1]},
            columns={"text": TEXTS},
            options={"candidates": TEXTS[::-1]},
            arguments=("--corpus", "corpus.txt"),
        ),
        Case(
            task="fill", model="fill", inputs=(masked,), request={"texts": masked}, columns={"text": masked}
        ),
        Case(
            task="answer",
            model="answer",
            inputs=(["who?", "what?"], TEXTS),
            request={"questions": ["who?", "what?"], "contexts": TEXTS},
            columns={"question": ["who?", "what?"], "context": TEXTS},
        ),
        Case(task="classify", model="pictures", **image),
        Case(task="embed", model="pictures", **image),
        Case(
            task="classify",
            model="clip",
            inputs=(pictures,),
            request={"images": encoded, "labels": ["cat", "dog"]},
            columns={"image": files},
            options={"labels": ["cat", "dog"]},
            arguments=("--labels", "cat,dog"),
        ),
        Case(task="caption", model="captioner", options=SHORT, **image),
        Case(
            task="ask",
            model="asker",
            inputs=(pictures, ["where is the cat?", "who ran"]),
            request={"images": encoded, "questions": ["where is the cat?", "who ran"]},
            columns={"image": files, "question": ["where is the cat?", "who ran"]},
            options={"top": 2},
        ),
        Case(
            task="draw",
            model="painter",
            inputs=(TEXTS,),
            request={"prompt": TEXTS[0]},
            columns={"text": TEXTS},
            options={"num_inference_steps": 2},
        ),
        Case(
            task="animate",
            model="animator",
            inputs=(TEXTS,),
            request={"prompt": TEXTS[0]},
            columns={"text": TEXTS},
            options={"num_inference_steps": 2, "num_frames": 3},
        ),
        Case(task="detect", model="detector", options={"threshold": 0.0}, **image),
        Case(
            task="segment",
            model="segmenter",
            inputs=(pictures,),
            request={"image": encoded[0] if encoded else ""},
            columns={"image": files},
            options={"threshold": 0.0},
        ),
        Case(
            task="classify",
            model="waves",
            inputs=([np.array(one) for one in waves],),
            request={"series": waves},
            columns={"values": waves},
        ),
        Case(
            task="forecast",
            model="series",
            inputs=({"ds": list(range(40)), "a": series, "b": series},),
            request={"series": {"columns": {"a": series, "b": series}}},
            columns={"series": [json.dumps({"a": series, "b": series})]},
            options={},
        ),
    ]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for name, size in (("a.png", (40, 30)), ("b.png", (16, 16))):
        Image.fromarray(rng.integers(0, 255, (*size, 3), np.uint8)).save(folder / name)
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny model for each task."""
    root = tmp_path_factory.mktemp("models")
    made = make_models(root / "served")
    heads = {
        "classify": "BertForSequenceClassification",
        "embed": "BertModel",
        "fill": "BertForMaskedLM",
        "answer": "BertForQuestionAnswering",
        "ner": "BertForTokenClassification",
    }
    found = {task: bert(name, root / task)[1] for task, name in heads.items()}
    save_clip(root / "clip")
    waves = glassformer.tiny("patchtst", context_length=32, channels=1, num_labels=3)
    found["waves"] = glassformer.save(glassformer.Pipeline(model=waves.eval()), root / "waves")
    found["captioner"] = captioner(root / "captioner")[1]
    found["asker"] = vilt(root / "asker")[1]
    found["painter"] = save_drawing_model(root / "painter")
    found["animator"] = glassformer.save(video_bundle(), root / "animator")
    found |= {"translate": made["translator"], "summarize": made["translator"], "generate": made["writer"]}
    found |= {name: made[name] for name in ("pictures", "detector", "segmenter", "series")}
    return found | {"restore": restorer(root / "restore"), "clip": root / "clip"}


CASES = [(case.task, case.model) for case in cases([])]


@pytest.fixture(params=CASES, ids="-".join)
def case(request: pytest.FixtureRequest, pictures: list[Path]) -> Case:
    return next(case for case in cases(pictures) if (case.task, case.model) == request.param)


def test_there_is_a_case_for_every_task() -> None:
    assert {task for task, _ in CASES} == set(tasks())


def numbers(value: Any) -> Any:
    """JSON values with rounded numbers, for comparing results of different batches."""
    if isinstance(value, dict):
        return {name: numbers(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [numbers(one) for one in value]
    return pytest.approx(value, abs=1e-3) if isinstance(value, float) else value


def results_of(case: Case, pipeline: glassformer.Pipeline) -> list[Any]:
    """The results of the task object, which all edges give."""
    spec, items = find_task(case.task), case.inputs
    task = spec.make(pipeline, spec.read_options(case.options))
    rows = list(zip(*items, strict=True)) if len(items) > 1 else items[0]
    return [spec.result.of(output) for output in task.run([rows] if isinstance(rows, dict) else rows)]


def test_route_gives_the_results_of_the_task(case: Case, models: dict[str, Path]) -> None:
    pipeline, spec = glassformer.load(models[case.model]), find_task(case.task)
    expected = results_of(case, pipeline)
    options = {name: one for name, one in case.options.items() if name != "candidates"}
    app = create_app({"other": glassformer.load("pocket-digits"), "model": pipeline})
    with TestClient(app, base_url="http://localhost") as client:
        response = client.post(f"/{case.task}", json={**case.request, **options, "model": "model"})
        assert response.status_code == 200, response.text
        found = response.json()
        assert found.pop("model") == "model"
        if case.model != "pictures":
            chosen = client.post(f"/{case.task}", json={**case.request, **options}).json()
            assert chosen["model"] == "model"
    if case.task in ("draw", "animate"):
        assert found == vars(expected[0])
        return
    if spec.results not in found:  # of a single input
        assert numbers(found["values"]) == expected[0].values
        return
    field = spec.result_field
    if isinstance(case.request.get("image"), str):
        assert len(found[spec.results]) == len(expected[0].objects) > 0
        return
    assert len(found[spec.results]) == len(expected)
    for one, other in zip(found[spec.results], expected, strict=True):
        wanted = json.loads(json.dumps(other, default=vars))
        assert numbers(wanted[field] if field else wanted) == one


def test_method_gives_the_results_of_the_task(case: Case, models: dict[str, Path]) -> None:
    pipeline, spec = glassformer.load(models[case.model]), find_task(case.task)
    found = getattr(pipeline, case.task)(*case.inputs, **case.options)
    task = spec.make(pipeline, spec.read_options(case.options))
    items = list(zip(*case.inputs, strict=True)) if len(case.inputs) > 1 else case.inputs[0]
    if isinstance(items, dict):
        assert np.array_equal(found.values, task(items).values)
        return
    expected = spec.collect(pipeline, [spec.value(output) for output in task.run(items)])
    assert len(found) == len(expected) == len(items)
    if case.task == "embed":
        assert (found == expected).all()
    elif (
        "image" not in spec.inputs.modalities or case.task == "classify"
    ):  # annotations are compared by identity
        assert found == expected


def call(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[Any, str, str]:
    with pytest.raises(SystemExit) as stop:
        main([str(arg) for arg in args])
    return (stop.value.code, *capsys.readouterr())


def test_command_and_batch_add_the_same_columns(
    case: Case,
    models: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    Path("corpus.txt").write_text("".join(f"{text}\n" for text in TEXTS[::-1]))
    rows = [dict(zip(case.columns, row, strict=True)) for row in zip(*case.columns.values(), strict=True)]
    Path("in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    request = BatchRequest(
        task=case.task,
        model=str(models[case.model]),
        inputs=(Location(tmp_path / "in.jsonl").uri,),
        columns=tuple(case.columns),
        format="jsonl",
        options=case.options,
    )
    out = Location(tmp_path / "out")
    plan = open_plan(request, out, workers=1, batch_size=9, overwrite=False)
    assert BatchWorker(plan, out.uri, device="cpu")({"number": [0]}) == {"rows": [len(rows)], "errors": [0]}
    (part,) = (tmp_path / "out").glob("part-*.jsonl")
    written = [json.loads(line) for line in part.open(encoding="utf-8")]
    assert all(len(row) > len(case.columns) + 1 for row in written)
    if case.task == "draw":  # its command writes images only
        images = [Image.open(tmp_path / "out" / row["image"]) for row in written]
        expected = glassformer.load(models[case.model]).draw(TEXTS, **case.options)
        assert all(np.array_equal(*pair) for pair in zip(images, expected, strict=True))
        return
    if case.task == "animate":
        files = [Image.open(tmp_path / "out" / row["video"]) for row in written]
        videos = [np.stack([*map(np.asarray, ImageSequence.all_frames(file))]) for file in files]
        drawn = glassformer.load(models[case.model]).animate(TEXTS, **case.options)
        assert videos[0].shape == (3, 8, 8) and np.array_equal(videos, np.array([*map(np.stack, drawn)]))
        return
    if case.task == "forecast":  # its command reads a file of one series
        values = results_of(case, glassformer.load(models[case.model]))[0].values
        assert json.loads(written[0]["forecast"]) == numbers(values)
        return
    flags = [word for column in case.columns for word in ("--column", column)]
    options = [
        word
        for name, value in case.options.items()
        if name not in ("labels", "candidates")
        for word in (f"--{name.replace('_', '-')}", value)
    ]
    args = ["--file", "in.jsonl", "--out", "found.jsonl", *flags, *options, *case.arguments]
    code, _, errors = call(capsys, case.task, models[case.model], *args)
    assert code == 0, errors
    found = list(map(json.loads, Path("found.jsonl").read_text(encoding="utf-8").splitlines()))
    assert [row.pop("error") for row in written] == [None] * len(rows)
    assert found == numbers(written)


def test_images_are_found_next_to_their_table(
    models: dict[str, Path],
    pictures: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As in training: paths in a table may be relative to its folder, from any working directory."""
    monkeypatch.chdir(tmp_path)
    table = pictures[0].parent / "table.csv"
    table.write_text("image,question\n" + "".join(f"{path.name},where is the cat?\n" for path in pictures))
    code, out, errors = call(capsys, "ask", models["asker"], "--file", table)
    assert code == 0, errors
    source = Location(table).uri
    request = BatchRequest(
        task="ask", model=str(models["asker"]), inputs=(source,), format="jsonl", options={}
    )
    folder = Location(tmp_path / "out")
    plan = open_plan(request, folder, workers=1, batch_size=9, overwrite=False)
    assert BatchWorker(plan, folder.uri, device="cpu")({"number": [0]}) == {"rows": [2], "errors": [0]}
    (part,) = (tmp_path / "out").glob("part-*.jsonl")
    answers = [json.loads(line)["answer"] for line in part.open(encoding="utf-8")]
    assert [line.partition("\t")[0] for line in out.splitlines()] == answers
    table.unlink()


def test_every_task_is_listed_everywhere() -> None:
    page, stub, listed = reference.tasks_page(), task_stubs.generate(), commands()
    routes = create_app({}).openapi()["paths"]
    for name in tasks():
        assert f"`{name}`" in page and f"def {name}(" in stub and name in listed and f"/{name}" in routes
        assert callable(getattr(glassformer.Pipeline, name))


def test_names_that_users_typed_still_exist() -> None:
    """The flags of commands and the fields of requests before tasks were declared."""
    released = json.loads(Path(__file__).with_name("released_names.json").read_text(encoding="utf-8"))
    for name, flags in released["flags"].items():
        command = typer.main.get_command(app([name])).commands[name]  # type: ignore[attr-defined]
        known = {flag for one in command.params for flag in (*one.opts, *one.secondary_opts)}
        assert set(flags.split()) <= known, name
    document = create_app({}).openapi()["components"]["schemas"]
    for path, names in released["fields"].items():
        body = document[f"{path.strip('/').title()}Request"]
        assert set(names.split()) <= set(body["properties"]), path


def test_stub_is_current() -> None:
    assert task_stubs.generate() == task_stubs.TARGET.read_text(encoding="utf-8"), "run make stubs"


def test_models_accept_the_tasks_that_they_can_do(models: dict[str, Path]) -> None:
    for task, model in CASES:
        accepted = [spec.name for spec in tasks_of(glassformer.load(models[model]).spec)]
        assert task in accepted
    assert [spec.name for spec in tasks_of(glassformer.tiny("detr").spec)] == ["detect"]


def test_generation_options_are_declared_once() -> None:
    """The keyword arguments, commands and requests have the fields of the config."""
    assert GenerationOptions.__optional_keys__ == {one.name for one in fields(GenerationConfig)}
