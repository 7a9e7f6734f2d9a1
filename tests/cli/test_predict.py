"""Commands that read texts or images: their results are those of the library."""

from __future__ import annotations

import base64
import io
from dataclasses import asdict

import numpy as np
import pytest
from PIL import Image, ImageOps

import glassformer
from glassformer.interpret.examples import example_input
from tests.cli.test_lines import LONG, bad_lines, rows
from tests.tasks.folders import TEXTS

pytestmark = pytest.mark.usefixtures("quiet")


def test_classify_prints_the_labels_of_the_library(run, folders):
    model = folders["classify"]
    labels = iter(glassformer.load(model).classify([text for text in TEXTS if text]))
    expected = [next(labels) if text else [] for text in TEXTS]  # an empty line is not classified
    plain = "".join(f"{one[0].label}\t{one[0].score:.4f}\n" if one else "\n" for one in expected)
    assert run("classify", model, *TEXTS) == (0, plain, "")
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
    assert done.code == 2 and not list(tmp_path.glob("*.part"))
    (tmp_path / "none").touch()
    assert run("embed", model, "--file", tmp_path / "none", "--out", tmp_path / "none.npy").code == 0
    assert np.load(tmp_path / "none.npy").shape == (0, 24)


def test_fill_and_answer(run, folders, stdin, tmp_path):
    stdin(b"the [MASK] sat\n\n[MASK] dog [MASK]\n")
    done = run("fill", folders["fill"])
    assert done.code == 0 and "[MASK]" not in done.out
    assert [bool(line) for line in done.out.split("\n")] == [True, False, True, False]
    masks = rows(run("fill", folders["fill"], "a [MASK]", "--json", "--top", 3).out)[0]["masks"]
    assert [len(mask) for mask in masks] == [3]

    context = TEXTS[3]
    (tmp_path / "about").write_text(context)
    expected = glassformer.load(folders["answer"]).answer("where?", context)
    stdin(f"where?\t{context}\n\n".encode())
    assert run("answer", folders["answer"]).out == f"{expected.text}\t{expected.score:.4f}\n\n"
    (found,) = rows(run("answer", folders["answer"], "where?", "--context", tmp_path / "about", "--json").out)
    assert (found["start"], found["end"], found["text"]) == (expected.start, expected.end, expected.text)


def test_invalid_corpus_lines_are_skipped(run, folders, tmp_path):
    (tmp_path / "pool").write_bytes(b"a cat\n" + LONG + b"\nbad \xff\n\na dog\n")
    (tmp_path / "good").write_text("a cat\na dog\n")
    args = ["similar", folders["similar"], "a dog", "--top", 9, "--json", "--corpus"]
    (found,), (expected,) = (rows(run(*args, tmp_path / name).out) for name in ("pool", "good"))
    assert [match["line"] for match in found["nearest"]] == [5, 1]  # the line itself first
    assert found["nearest"][0]["score"] == pytest.approx(1, abs=1e-5)
    assert [match["score"] for match in found["nearest"]] == [match["score"] for match in expected["nearest"]]
    done = run(*args, tmp_path / "pool")
    assert done.code == 2 and bad_lines(done.err) == [2, 3] and str(tmp_path / "pool") in done.err
    (tmp_path / "none").write_bytes(LONG + b"\n")
    assert run(*args, tmp_path / "none").code == 2


def test_images_that_differ_from_the_training_data_cause_a_note(run, tmp_path):
    example = example_input(glassformer.load("pocket-digits")).image
    assert example is not None
    seven = Image.open(io.BytesIO(base64.b64decode(example.partition(",")[2]))).convert("L")
    y, x = np.mgrid[0:600, 0:900]
    colors = np.stack([y // 5, x // 12, np.zeros_like(y)], -1).astype(np.uint8)  # about as bright as digits
    images = {
        "seven": (seven, 0),
        "large": (seven.resize((300, 300)).convert("RGB"), 0),
        "inverted": (ImageOps.invert(seven), 1),
        "black": (Image.new("L", (28, 28)), 1),
        "pixel": (Image.new("RGB", (1, 1), "white"), 1),
        "photo": (Image.fromarray(colors), 2),  # in colour, and large
    }
    for name, (image, notes) in images.items():
        image.save(tmp_path / f"{name}.png")
        done = run("classify", "pocket-digits", tmp_path / f"{name}.png")
        assert done.code == 0 and done.out and done.err.count("note: 1 ") == notes, (name, done.err)
    inverted = tmp_path / "inverted.png"
    assert run("classify", "pocket-digits", inverted, inverted).err.startswith("note: 2 ")


def test_ner_prints_entities(run, folders):
    texts, model = TEXTS[:2], glassformer.load(folders["ner"])
    expected = model.ner(texts, aggregation_strategy="none")
    done = run("ner", folders["ner"], *texts, "--aggregation-strategy", "none", "--json")
    assert [row["entities"] for row in rows(done.out)] == [[asdict(e) for e in found] for found in expected]
    lines = run("ner", folders["ner"], *texts, "--aggregation-strategy", "none").out.splitlines()
    assert lines == ["\t".join(f"{e.text}\t{e.label}\t{e.score:.4f}" for e in found) for found in expected]
    run("ner", folders["classify"], "a").error()


def test_classify_reads_pairs(run, folders):
    (best, *_) = glassformer.load(folders["classify"]).classify("a cat", "the mat")
    done = run("classify", folders["classify"], "a cat\tthe mat", "--pairs")
    assert done.out == f"{best.label}\t{best.score:.4f}\n"
    run("classify", folders["classify"], "a cat", "--pairs").error()


def test_a_bad_image_among_several_is_skipped(run, tmp_path):
    good, bad = tmp_path / "good.png", tmp_path / "bad.png"
    Image.new("L", (28, 28)).save(good)
    bad.write_text("no image")
    alone = run("classify", "pocket-digits", good)
    done = run("classify", "pocket-digits", good, bad, good)
    assert done.code == 2 and done.out == f"{alone.out}\n{alone.out}"
    assert f"warning: image 2: {bad}: is not an image" in done.err
    assert "note: 2 images" in done.err and done.err.endswith("error: 1 image could not be processed\n")
    assert run("classify", "pocket-digits", bad).error() == f"error: {bad}: is not an image\n"
    table = tmp_path / "out.csv"
    assert run("classify", "pocket-digits", good, bad, "--out", table).code == 2
    assert [line.partition(",")[0] for line in table.read_text().splitlines()] == [
        "image",
        str(good),
        str(bad),
    ]
