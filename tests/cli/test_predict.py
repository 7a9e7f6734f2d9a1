"""Commands that read texts or images: one line out per line in, in order."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

import glassformer
from glassformer.interpret.examples import example_input
from tests.tasks.folders import TEXTS, bert

HEADS = {
    "classify": "BertForSequenceClassification",
    "embed": "BertModel",
    "similar": "BertModel",
    "fill": "BertForMaskedLM",
    "answer": "BertForQuestionAnswering",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {command: bert(name, tmp_path_factory.mktemp(command))[1] for command, name in HEADS.items()}


def rows(out: str) -> list[Any]:
    return [json.loads(line) for line in out.splitlines()]


def bad_lines(err: str) -> list[int]:
    return [int(number) for number in re.findall(r"^warning: line (\d+)", err, re.MULTILINE)]


def test_arguments_file_and_stdin_are_equivalent(run, folders, stdin, tmp_path):
    model, lines = folders["classify"], "".join(f"{text}\n" for text in TEXTS)
    (tmp_path / "texts").write_text(lines)
    labels = iter(glassformer.load(model).classify([text for text in TEXTS if text]))
    expected = [next(labels) if text else [] for text in TEXTS]  # an empty line is not classified
    plain = "".join(f"{one[0].label}\t{one[0].score:.4f}\n" if one else "\n" for one in expected)
    stdin(lines.encode())
    piped = run("classify", model)
    filed = run("classify", model, "--file", tmp_path / "texts", "--batch-tokens", 40, "--threads", 1)
    assert run("classify", model, *TEXTS) == piped == (0, plain, "") and filed.out == plain
    stdin(lines.encode(), terminal=True)
    assert run("classify", model).out == plain
    assert run("classify", model, *TEXTS, "--dtype", "int8").out.count("\n") == len(TEXTS)
    found = rows(run("classify", model, *TEXTS, "--json").out)
    assert [[label["label"] for label in row["labels"]] for row in found] == [
        [label.label for label in labels] for labels in expected
    ]


def test_embed_prints_and_saves_vectors(run, folders, tmp_path):
    model = folders["embed"]
    filled = [n for n, text in enumerate(TEXTS) if text]
    expected = np.full((len(TEXTS), 24), np.nan, np.float32)
    expected[filled] = glassformer.load(model).embed([TEXTS[n] for n in filled]).numpy()
    done = run("embed", model, *TEXTS)
    assert np.array_equal(np.loadtxt(io.StringIO(done.out), dtype=np.float32), expected[filled])
    (tmp_path / "texts").write_text("".join(f"{text}\n" for text in TEXTS))
    done = run("embed", model, "--file", tmp_path / "texts", "--out", tmp_path / "v.npy")
    assert done.code == 0 and np.array_equal(np.load(tmp_path / "v.npy"), expected, equal_nan=True)
    (tmp_path / "bad").write_bytes(b"a cat\n\n\xff\n \n\xfe\n")
    done = run("embed", model, "--file", tmp_path / "bad", "--out", tmp_path / "v.npy", "--overwrite")
    assert np.isnan(np.load(tmp_path / "v.npy")).all(1).tolist() == [False] + [True] * 4
    assert done.code == 2 and "note: 4 rows are NaN" in done.err and not list(tmp_path.glob("*.part"))
    (tmp_path / "none").touch()
    assert run("embed", model, "--file", tmp_path / "none", "--out", tmp_path / "none.npy").code == 0
    assert np.load(tmp_path / "none.npy").shape == (0, 24)


def test_similar_finds_the_line_itself(run, folders, tmp_path):
    (tmp_path / "pool").write_text("".join(f"{text}\n" for text in TEXTS))
    done = run("similar", folders["similar"], TEXTS[4], TEXTS[0], "--in", tmp_path / "pool", "--json")
    assert [row["nearest"][0]["line"] for row in rows(done.out)] == [5, 1]
    assert all(abs(row["nearest"][0]["score"] - 1) < 1e-5 for row in rows(done.out))


def test_fill_and_answer(run, folders, stdin, tmp_path):
    stdin(b"the [MASK] sat\n\n[MASK] dog [MASK]\n")
    done = run("fill", folders["fill"])
    assert (
        done.code == 0
        and "[MASK]" not in done.out
        and [not line for line in done.out.split("\n")]
        == [
            False,
            True,
            False,
            True,
        ]
    )
    masks = rows(run("fill", folders["fill"], "a [MASK]", "--json", "--top", 3).out)[0]["masks"]
    assert [len(mask) for mask in masks] == [3]

    context = TEXTS[3]
    (tmp_path / "about").write_text(context)
    expected = glassformer.load(folders["answer"]).answer("where?", context)
    stdin(f"where?\t{context}\n\n".encode())
    assert run("answer", folders["answer"]).out == f"{expected.text}\t{expected.score:.4f}\n\n"
    (found,) = rows(run("answer", folders["answer"], "where?", "--context", tmp_path / "about", "--json").out)
    assert (found["start"], found["end"], found["text"]) == (expected.start, expected.end, expected.text)


LONG = b"a " * 100
BAD = {
    "classify": (LONG, b"a \xff dog", b"a " * (1 << 19) + b"a", LONG),
    "embed": (LONG, b"\xff"),
    "similar": (LONG, b"\xff"),
    "fill": (b"[MASK] " * 100, b"a cat", b"\xff"),
    "answer": (b"where?", LONG + b"\ta cat", b"\xff\ta cat", b"where?\t"),
}
GOOD = {"fill": b"a [MASK]", "answer": b"where?\tthe cat sat on the mat"}


@pytest.mark.parametrize("command", BAD)
def test_bad_and_empty_lines_do_not_affect_the_others(command, run, folders, stdin, tmp_path):
    (tmp_path / "pool").write_text("\na cat\n \na dog\n")
    args = [command, folders[command], *(["--in", tmp_path / "pool"] if command == "similar" else [])]
    good = GOOD.get(command, b"a cat")
    alone = run(*args, good.decode()).out
    lines = [good, *BAD[command], b"", b" \t\xe3\x80\x80", good]
    (tmp_path / "in.txt").write_bytes(b"".join(line + b"\n" for line in lines))
    stdin((tmp_path / "in.txt").read_bytes())
    for done in (run(*args, "--file", tmp_path / "in.txt"), run(*args)):
        assert done.out == alone + "\n" * (len(BAD[command]) + 2) + alone
        assert bad_lines(done.err) == list(range(2, len(BAD[command]) + 2))
        assert done.code == 2 and done.err.splitlines()[-1].startswith(f"error: {len(BAD[command])} lines")
    found = rows(run(*args, "--file", tmp_path / "in.txt", "--json").out)
    assert ["error" in row for row in found] == [False, *[True] * len(BAD[command]), False, False, False]
    assert found[-2].keys() == found[-1].keys()
    assert not any(value for name, value in found[-2].items() if name != "seconds")


def test_bad_candidates_are_skipped(run, folders, tmp_path):
    (tmp_path / "pool").write_bytes(b"a cat\n" + LONG + b"\nbad \xff\n\na dog\n")
    (tmp_path / "good").write_text("a cat\na dog\n")
    args = ["similar", folders["similar"], "a dog", "--top", 9, "--json", "--in"]
    (found,), (expected,) = (rows(run(*args, tmp_path / name).out) for name in ("pool", "good"))
    assert [match["line"] for match in found["nearest"]] == [5, 1]
    assert [match["score"] for match in found["nearest"]] == [match["score"] for match in expected["nearest"]]
    done = run(*args, tmp_path / "pool")
    assert done.code == 2 and bad_lines(done.err) == [2, 3] and str(tmp_path / "pool") in done.err
    (tmp_path / "none").write_bytes(LONG + b"\n")
    assert run(*args, tmp_path / "none").code == 2


@pytest.mark.parametrize(
    "args",
    [
        ["classify", "embed", "a"],
        ["fill", "classify", "a [MASK]"],
        ["fill", "fill", "a cat"],
        ["answer", "fill", "a\tb"],
        ["answer", "answer", "no context"],
        ["embed", "embed", "a", "--out", "vectors.txt"],
        ["embed", "embed", "a", "--prompt", "query"],
        ["similar", "similar", "a", "--in", "nowhere"],
        ["classify", "classify", "a " * 100],
        ["classify", "classify", "--file", "nowhere"],
    ],
    ids=" ".join,
)
def test_invalid_use_is_an_error_of_one_line(run, folders, tmp_path, monkeypatch, args):
    monkeypatch.chdir(tmp_path)
    command, model, *rest = args
    run(command, folders[model], *rest).error()


def photograph() -> Image.Image:
    """Colours, about as bright as digits, 900 x 600."""
    y, x = np.mgrid[0:600, 0:900]
    return Image.fromarray(np.stack([y // 5, x // 12, np.zeros_like(y)], -1).astype(np.uint8))


def test_images_unlike_the_training_data_are_noted(run, tmp_path):
    example = example_input(glassformer.load("pocket-digits")).image
    assert example is not None
    seven = Image.open(io.BytesIO(base64.b64decode(example.partition(",")[2]))).convert("L")
    images = {
        "seven": (seven, 0),
        "large": (seven.resize((300, 300)).convert("RGB"), 0),
        "inverted": (ImageOps.invert(seven), 1),
        "black": (Image.new("L", (28, 28)), 1),
        "pixel": (Image.new("RGB", (1, 1), "white"), 1),
        "photo": (photograph(), 2),  # in colour, and large
    }
    for name, (image, notes) in images.items():
        image.save(tmp_path / f"{name}.png")
        done = run("classify", "pocket-digits", tmp_path / f"{name}.png")
        assert done.code == 0 and done.out and done.err.count("note: 1 ") == notes, (name, done.err)
    inverted = tmp_path / "inverted.png"
    assert run("classify", "pocket-digits", inverted, inverted).err.startswith("note: 2 ")
