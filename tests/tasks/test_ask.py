"""Questions about images: answers equal to transformers, alone and together, and what is refused."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from fastapi.testclient import TestClient
from PIL import Image

import glassformer
from glassformer.cli.main import main
from glassformer.data.image_files import image_digest
from glassformer.errors import (
    EmptyInputError,
    FileMissingError,
    FileProblemError,
    GlassformerError,
    InputTooLongError,
    InvalidValueError,
    MissingValueError,
    UnsupportedError,
)
from glassformer.export.onnx import export_onnx
from glassformer.server.app import create_app
from glassformer.tasks import AnswerChat, AnswerClassifier, AnswerGenerator
from glassformer.tasks.base import Callbacks, RejectedInputError
from tests.tasks.folders import blip, vilt
from tests.tasks.test_chat_images import folder_of

QUESTIONS = ["where is the cat", "is the dog on the mat", "glass"]
SIZES = [(40, 30), (16, 16), (30, 90)]  # height, width


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command; return its exit code, stdout and stderr."""

    def call(*args: object) -> Any:
        with pytest.raises(SystemExit) as stop:
            main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return SimpleNamespace(code=stop.value.code, out=out, err=err)

    return call


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for n, (height, width) in enumerate(SIZES):
        Image.fromarray(rng.integers(0, 255, (height, width, 3), np.uint8)).save(folder / f"{n}.png")
    return sorted(folder.iterdir())


@pytest.fixture(scope="module", params=["vilt", "blip", "llava"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The reference, or None for the model with a chat template, and the pipeline."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "llava":
        return None, glassformer.load(folder_of("llava", folder))
    made = vilt(folder) if request.param == "vilt" else blip("BlipForQuestionAnswering", folder)
    return made[0], glassformer.load(folder)


def reference_answers(reference: Any, folder: Path, image: Path, question: str, top: int) -> list[Any]:
    """Answers and probabilities of transformers, for one image and one question."""
    kind = type(reference).__name__
    processor: Any = (transformers.ViltProcessor if "Vilt" in kind else transformers.BlipProcessor)(
        (
            transformers.ViltImageProcessorPil if "Vilt" in kind else transformers.BlipImageProcessorPil
        ).from_pretrained(folder),
        transformers.BertTokenizer.from_pretrained(folder),
    )
    inputs = processor(Image.open(image), question, return_tensors="pt")
    with torch.no_grad():
        if "Vilt" in kind:
            scores, ids = reference(**inputs).logits.sigmoid()[0].topk(top)
            return [(reference.config.id2label[int(n)], float(s)) for n, s in zip(ids, scores, strict=True)]
        inputs.pop("token_type_ids", None)
        output = reference.generate(
            **inputs, num_beams=top, num_return_sequences=top, max_new_tokens=6, length_penalty=1.0
        )
    return [(processor.decode(row, skip_special_tokens=True), None) for row in output]


def limits(pipeline: Any) -> dict[str, Any]:
    return {} if pipeline.spec.yields == "label" else {"max_new_tokens": 6, "do_sample": False}


@pytest.mark.parametrize("top", [1, 2])
def test_answers_match_transformers(model: Any, pictures: list[Path], top: int) -> None:
    reference, pipeline = model
    if reference is None:
        pytest.skip("compared in the tests of chats")
    for image in pictures:
        for question in QUESTIONS:
            found = pipeline.ask(image, question, top=top, **limits(pipeline))
            expected = reference_answers(reference, pipeline.folder, image, question, top)
            pairs = [(found.answer, found.score), *((one.answer, one.score) for one in found.alternatives)]
            assert [answer for answer, _ in pairs] == [answer for answer, _ in expected]
            for (_, mine), (_, theirs) in zip(pairs, expected, strict=True):
                assert 0 < mine < 1 and (theirs is None or mine == pytest.approx(theirs, abs=1e-5))


def test_rows_give_alone_what_they_give_together(model: Any, pictures: list[Path]) -> None:
    """Images of several sizes, questions of several lengths, in every combination and in one batch."""
    _, pipeline = model
    options = limits(pipeline)
    pairs = [(image, question) for image in pictures for question in QUESTIONS]
    together = pipeline.ask(*map(list, zip(*pairs, strict=True)), **options)
    fresh = [glassformer.load(pipeline.folder).ask(*pair, **options) for pair in pairs]
    assert [one.answer for one in together] == [one.answer for one in fresh]
    assert [one.score for one in together] == pytest.approx([one.score for one in fresh], rel=1e-4)


def test_one_image_or_question_belongs_to_all_others(model: Any, pictures: list[Path]) -> None:
    _, pipeline = model
    options = limits(pipeline)
    single = pipeline.ask(pictures[0], QUESTIONS[0], **options)
    about_one = pipeline.ask(pictures[0], QUESTIONS, **options)
    about_all = pipeline.ask(pictures, QUESTIONS[0], **options)
    folder = pipeline.ask(pictures[0].parent, QUESTIONS[0], **options)
    assert len(about_one) == len(about_all) == 3 and folder == about_all
    assert about_one[0].answer == about_all[0].answer == single.answer
    assert pipeline.ask(pictures[0], [], **options) == pipeline.ask([], QUESTIONS[0], **options) == []
    with pytest.raises(InvalidValueError, match="as many as images"):
        pipeline.ask(pictures, QUESTIONS[:2], **options)


def test_an_image_is_encoded_once(model: Any, pictures: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """By its content: however many questions, calls and forms of the same file there are."""
    _, loaded = model
    pipeline = glassformer.load(loaded.folder)
    spec, counts = pipeline.spec, {"decoded": 0, "encoded": 0}
    embed: Any = pipeline.model.get_submodule(next(iter(spec.embeddings())))

    def counted(owner: Any, name: str, key: str) -> None:
        original = getattr(owner, name)

        def call(argument: Any, *rest: Any, **options: Any) -> Any:
            counts[key] += len(argument) if key == "encoded" else 1
            return original(argument, *rest, **options)

        monkeypatch.setattr(owner, name, call)

    encodes = hasattr(embed, "encode_images")
    if encodes:
        counted(embed, "encode_images", "encoded")
    if spec.architecture != "decoder-only":
        counted(glassformer.processors.image, "load_image", "decoded")
    options = limits(pipeline)
    pipeline.ask(pictures[0], QUESTIONS, **options)
    pipeline.ask(pictures[0].read_bytes(), QUESTIONS[0], **options)
    pipeline.ask([pictures[0], pictures[1], pictures[0]], QUESTIONS, **options)
    assert counts["encoded"] == (2 if encodes else 0)
    assert counts["decoded"] == (2 if spec.architecture != "decoder-only" else 0)


def test_pillow_images_with_another_palette_are_other_images() -> None:
    image = Image.new("P", (8, 8))
    image.putpalette([255, 0, 0])
    other = image.copy()
    other.putpalette([0, 0, 255])
    assert image_digest(image) != image_digest(other) and image_digest(image) == image_digest(image.copy())


def strip(height: int, width: int, path: Path) -> Path:
    Image.new("RGB", (width, height), "red").save(path)
    return path


def test_unusable_inputs_are_refused(model: Any, pictures: list[Path], tmp_path: Path) -> None:
    _, pipeline = model
    (tmp_path / "text.png").write_text("no image")
    bomb = Image.new("L", (40_000, 2_000))
    bomb.save(tmp_path / "bomb.png")
    cases: list[tuple[Any, Any, type[GlassformerError], str]] = [
        (pictures[0], " ", EmptyInputError, "question"),
        ("", QUESTIONS[0], MissingValueError, "an image"),
        (None, QUESTIONS[0], MissingValueError, "an image"),
        (pictures[0], "cat " * 5000, InputTooLongError, "longer|exceed|most|limit"),
        (tmp_path / "none.png", QUESTIONS[0], FileMissingError, "none.png"),
        (tmp_path / "text.png", QUESTIONS[0], FileProblemError, "is not an image"),
        (strip(1, 5000, tmp_path / "strip.png"), QUESTIONS[0], FileProblemError, "aspect ratio"),
        (tmp_path / "bomb.png", QUESTIONS[0], FileProblemError, "80,000,000 pixels"),
        (b"GIF89a", QUESTIONS[0], FileProblemError, "is not an image|cannot be decoded"),
    ]
    rejected: list[int] = []
    for image, question, kind, text in cases:
        with pytest.raises((kind, RejectedInputError), match=text):
            pipeline.ask([image], [question])
    spec = glassformer.tasks.registry.find_task("ask")
    task = spec.make(pipeline, spec.read_options(limits(pipeline)))
    callbacks = Callbacks(on_reject=lambda number, reason: rejected.append(number), skip_blank=True)
    good = (pictures[0], QUESTIONS[0])
    rows = [good, *((image, question) for image, question, _, _ in cases), ("", ""), good]
    results = list(task.run(rows, callbacks))
    assert sorted(rejected) == list(range(2, len(cases) + 2))
    assert results[0].answer == results[-1].answer and not any(one.answer for one in results[1:-1])
    with pytest.raises(TypeError, match="questions"):
        pipeline.ask(pictures[0])
    with pytest.raises(InvalidValueError, match="top"):
        pipeline.ask(*good, top=0)


def test_narrow_images_are_refused_before_the_model(tmp_path: Path) -> None:
    """ViLT's processor would shrink them to less than one patch."""
    pipeline = glassformer.load(vilt(tmp_path / "model")[1])
    image = strip(10, 1500, tmp_path / "a.png")
    with pytest.raises(InvalidValueError, match="1,500 x 10 pixels"):
        pipeline.ask(image, QUESTIONS[0])


def test_what_a_model_cannot_do_is_refused(model: Any, pictures: list[Path], tmp_path: Path) -> None:
    _, pipeline = model
    spec = pipeline.spec
    if spec.yields == "label":
        with pytest.raises(UnsupportedError, match="num_beams"):
            pipeline.ask(pictures[0], QUESTIONS[0], num_beams=2)
    elif spec.architecture == "decoder-only":
        with pytest.raises(UnsupportedError, match="truncate"):
            pipeline.ask(pictures[0], QUESTIONS[0], truncate=True)
    kinds = {"encoder-only": AnswerClassifier, "encoder-decoder": AnswerGenerator, "decoder-only": AnswerChat}
    assert isinstance(
        glassformer.tasks.registry.find_task("ask").make(
            pipeline, glassformer.tasks.registry.find_task("ask").read_options({})
        ),
        kinds[spec.architecture],
    )
    names = [task.name for task in glassformer.tasks.registry.tasks_of(spec)]
    assert names == (["generate", "ask"] if spec.architecture == "decoder-only" else ["ask"])
    for other in ("embed", "similar", "translate", "caption"):
        arguments = (["a"],) if other == "similar" else ()
        with pytest.raises(UnsupportedError) as caught:
            getattr(pipeline, other)("the cat", *arguments)
        named = {"encoder-only": "embed", "encoder-decoder": "translate"}.get(spec.architecture)
        assert other != named or "use ask" in str(caught.value)
    with pytest.raises(UnsupportedError, match=r"text decoder|TokensAndPatches"):
        export_onnx(pipeline, tmp_path / "onnx")
    with pytest.raises(UnsupportedError, match="questions about images"):
        glassformer.load("pocket-digits").ask(pictures[0], QUESTIONS[0])


def test_command_asks_each_question_about_each_image(
    run: Any, model: Any, pictures: list[Path], tmp_path: Path
) -> None:
    _, pipeline = model
    flags = [] if pipeline.spec.yields == "label" else ["--max-new-tokens", "6"]
    ask = ["ask", pipeline.folder, *flags]
    expected = pipeline.ask(pictures[0], QUESTIONS, **limits(pipeline))
    done = run(*ask, pictures[0], QUESTIONS[0])
    assert done.code == 0, done.err
    answer, score = done.out.rstrip("\n").rsplit("\t", 1)
    assert answer == " ".join(expected[0].answer.split()) and float(score) == pytest.approx(
        expected[0].score, abs=1e-3
    )
    done = run(*ask, *pictures, *QUESTIONS[:2], "--out", tmp_path / "out.jsonl")
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(row["image"], row["question"]) for row in rows] == [
        (str(image), question) for image in pictures for question in QUESTIONS[:2]
    ]
    assert rows[0]["answer"] == expected[0].answer and rows[1]["answer"] == expected[1].answer
    done = run(*ask, pictures[0].parent, QUESTIONS[0], "--json")
    assert [json.loads(line)["image"] for line in done.out.splitlines()] == list(map(str, pictures))
    for arguments, text in (
        ((pictures[0],), "QUESTION"),
        ((QUESTIONS[0],), "IMAGE"),
        ((pictures[0], QUESTIONS[0], pictures[1]), "images come first"),
        ((tmp_path / "none.png", QUESTIONS[0]), "none.png"),
        ((pictures[0], " "), "question"),
    ):
        done = run(*ask, *arguments)
        assert done.code == 2 and text in done.err and "Traceback" not in done.err
    done = run(*ask, pictures[0], tmp_path / "none.png", QUESTIONS[0])  # one of several is skipped
    assert done.code == 2 and "question 2: " in done.err and len(done.out.splitlines()) == 2


def test_tables_have_the_columns_image_and_question(
    run: Any, model: Any, pictures: list[Path], tmp_path: Path
) -> None:
    """By default; a row without an image or a question is reported, and the others are answered."""
    _, pipeline = model
    flags = [] if pipeline.spec.yields == "label" else ["--max-new-tokens", "6"]
    rows = [("a", pictures[0], QUESTIONS[0]), ("b", "", QUESTIONS[0]), ("c", pictures[1], ""), ("d", "", "")]
    table = tmp_path / "in.csv"
    table.write_text("id,image,question\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows))
    done = run("ask", pipeline.folder, "--file", table, "--out", tmp_path / "out.csv", *flags)
    assert done.code == 1 or done.code == 2
    assert "row 2" in done.err and "row 3" in done.err and "row 4" not in done.err
    written = (tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()
    assert written[0] == "id,image,question,answer,score" and len(written) == 5
    assert written[2].endswith(",,") and written[4].endswith(",,")


def test_route_broadcasts_and_refuses(model: Any, pictures: list[Path]) -> None:
    """One image with several questions, and what a request may not leave out."""
    _, pipeline = model
    options = limits(pipeline)
    image = base64.b64encode(pictures[0].read_bytes()).decode()
    expected = pipeline.ask(pictures[0], QUESTIONS, **options)
    with TestClient(create_app({"model": pipeline}), base_url="http://localhost") as client:
        body = {"image": image, "questions": QUESTIONS, **options}
        answers = client.post("/ask", json=body).json()["answers"]
        assert [one["answer"] for one in answers] == [one.answer for one in expected]
        together = "glassformer_tokens_generated_total{" in client.get("/metrics").text
        assert together == (pipeline.spec.yields == "next tokens"), (
            "answers are generated in the shared batch"
        )
        url = f"data:image/png;base64,{image}"
        assert client.post("/ask", json={"images": [url], "question": QUESTIONS[0]}).status_code == 200
        text = base64.b64encode(b"no image").decode()
        for change, message in (
            ({"image": None}, "image or images"),
            ({"questions": None}, "question or questions"),
            ({"questions": [" "]}, "question"),
            ({"images": [image]}, "image and images"),
            ({"image": text}, "is not an image"),
            ({"image": "/etc/passwd"}, "base64"),
            ({"questions": ["cat " * 5000]}, "tokens|characters"),
            ({"image": None, "images": [image] * 2}, "as many as images"),
        ):
            response = client.post("/ask", json=body | change)
            assert 400 <= response.status_code < 500, change
            assert re.search(message, response.text), response.text


def test_unknown_words_are_a_warning() -> None:
    pipeline = glassformer.load("pocket-vqa")
    image = "examples/data/caption-scene.png"
    known, unknown = pipeline.ask([image] * 2, ["What color are the circles?", "What hue are the orbs?"])
    assert known.warnings == [] and unknown.warnings == ["unknown_words"]


def test_a_table_and_arguments_are_a_conflict(run: Any, tmp_path: Path) -> None:
    (tmp_path / "questions.csv").write_text("image,question\na.png,what?\n")
    done = run("ask", "pocket-vqa", "--file", tmp_path / "questions.csv", "b.png", "what?")
    assert done.code == 2 and "--file conflict" in done.err
