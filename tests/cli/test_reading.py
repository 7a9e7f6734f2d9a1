"""Verbs that read, from the command line: a line in, a line out, in order; what cannot be is a sentence."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import glassformer
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
    return {verb: bert(name, tmp_path_factory.mktemp(verb))[1] for verb, name in HEADS.items()}


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Any:
    def give(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content), isatty=lambda: False))

    return give


def rows(out: str) -> list[Any]:
    return [json.loads(line) for line in out.splitlines()]


def test_arguments_file_and_stdin_say_the_same(run: Any, folders: Any, stdin: Any, tmp_path: Path) -> None:
    """Each is what Python says, a line for every text; the empty one is not asked."""
    model, lines = folders["classify"], "".join(f"{text}\n" for text in TEXTS)
    (tmp_path / "texts").write_text(lines)
    said = iter(glassformer.load(model).classify([text for text in TEXTS if text]))
    wanted = [next(said) if text else [] for text in TEXTS]
    plain = "".join(f"{one[0].label}\t{one[0].score:.4f}\n" if one else "\n" for one in wanted)
    stdin(lines.encode())
    piped = run("classify", model)
    filed = run("classify", model, "--file", tmp_path / "texts", "--batch-tokens", 40, "--threads", 1)
    assert run("classify", model, *TEXTS) == (0, plain, "")
    assert piped == (0, plain, "") and (filed.code, filed.out) == (0, plain)
    assert run("classify", model, *TEXTS, "--dtype", "int8").out.count("\n") == len(TEXTS)
    told = rows(run("classify", model, *TEXTS, "--json").out)
    assert [[one["label"] for one in row["labels"]] for row in told] == [
        [one.label for one in labels] for labels in wanted
    ]


def test_embed_writes_numbers_that_come_back(run: Any, folders: Any, tmp_path: Path) -> None:
    model = folders["embed"]
    asked = [n for n, text in enumerate(TEXTS) if text]
    wanted = np.full((len(TEXTS), 24), np.nan, np.float32)
    wanted[asked] = glassformer.load(model).embed([TEXTS[n] for n in asked]).numpy()
    done = run("embed", model, *TEXTS)
    assert np.array_equal(np.loadtxt(io.StringIO(done.out), dtype=np.float32), wanted[asked])
    (tmp_path / "texts").write_text("".join(f"{text}\n" for text in TEXTS))
    done = run("embed", model, "--file", tmp_path / "texts", "--out", tmp_path / "v.npy")
    assert done.code == 0 and np.array_equal(np.load(tmp_path / "v.npy"), wanted, equal_nan=True)
    assert "note: 1 line is empty; such a row is NaN\n" in done.err
    (tmp_path / "bad").write_bytes(b"a cat\n\n\xff\n \na\x00\n\xfe\n")
    done = run("embed", model, "--file", tmp_path / "bad", "--out", tmp_path / "v.npy", "--overwrite")
    assert np.isnan(np.load(tmp_path / "v.npy")).all(1).tolist() == [False] + [True] * 5
    assert "note: 2 lines are empty and 3 could not be answered; such a row is NaN\n" in done.err
    assert not list(tmp_path.glob("*.part"))


def test_similar_finds_the_line_itself(run: Any, folders: Any, tmp_path: Path) -> None:
    (tmp_path / "pool").write_text("".join(f"{text}\n" for text in TEXTS))
    done = run("similar", folders["similar"], TEXTS[4], TEXTS[0], "--in", tmp_path / "pool", "--json")
    assert [row["nearest"][0]["line"] for row in rows(done.out)] == [5, 1]
    assert all(abs(row["nearest"][0]["score"] - 1) < 1e-5 for row in rows(done.out))


def test_fill_and_answer(run: Any, folders: Any, stdin: Any, tmp_path: Path) -> None:
    stdin(b"the [MASK] sat\n\n[MASK] dog [MASK]\n")
    done = run("fill", folders["fill"])
    assert done.code == 0 and len(done.out.split("\n")) == 4 and "[MASK]" not in done.out
    assert done.out.split("\n")[1] == ""
    guesses = rows(run("fill", folders["fill"], "a [MASK]", "--json", "--top", 3).out)[0]["masks"]
    assert [len(mask) for mask in guesses] == [3]

    context = TEXTS[3]
    (tmp_path / "about").write_text(context)
    wanted = glassformer.load(folders["answer"]).answer("where?", context)
    stdin(f"where?\t{context}\n\n".encode())
    piped = run("answer", folders["answer"])
    assert piped.out == f"{wanted.text}\t{wanted.score:.4f}\n\n"
    told = rows(run("answer", folders["answer"], "where?", "--context", tmp_path / "about", "--json").out)[0]
    assert (told["start"], told["end"], told["text"]) == (wanted.start, wanted.end, wanted.text)


def test_json_tells_how_long_each_took(run: Any, folders: Any, tmp_path: Path) -> None:
    """More than nothing, and less than the clock that ran meanwhile."""
    (tmp_path / "pool").write_text("a cat\na dog\n")
    asked = {
        "classify": ["a cat", "a dog"],
        "embed": ["a cat", "a dog"],
        "similar": ["a cat", "a dog", "--in", tmp_path / "pool"],
        "fill": ["a [MASK]", "[MASK]"],
        "answer": ["where?\tthe cat sat on the mat", "who?\tthe dog"],
    }
    for verb, words in asked.items():
        began = perf_counter()
        told = rows(run(verb, folders[verb], *words, "--json").out)
        passed = perf_counter() - began
        assert len(told) == 2 and all(0 < row["seconds"] < passed for row in told), verb


@pytest.mark.parametrize("verb", ["classify", "embed", "similar", "fill"])
def test_what_is_told_on_the_way_counts_every_line_that_is_read(
    verb: str, run: Any, folders: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that wait for the first, which is read last, for the longest lines are read first."""
    monkeypatch.setattr("glassformer.cli.taken.TOLD_EVERY", 0.0)
    lines = ["a [MASK]", *["a cat [MASK] " * n for n in range(1, 8)]]
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "pool").write_text("a cat\na dog\n")
    words = ["--in", tmp_path / "pool"] if verb == "similar" else []
    done = run(verb, folders[verb], "--file", tmp_path / "in.txt", "--batch-tokens", 40, *words)
    assert done.code == 0, done.err
    told = [int(line.split(" of ")[0]) for line in done.err.splitlines() if " lines in " in line]
    assert told == sorted(told) and len(set(told)) > 3  # batch by batch
    assert told[-len(lines) :] == [len(lines)] * len(lines)  # all are read, and then taken


LONG = b"a " * 100
BAD = {  # found by the model before what is no text, which is found when it is read
    "classify": (LONG, b"a cat\x00", b"a \xff dog", b"a " * (1 << 19) + b"a", LONG),
    "embed": (LONG, b"a cat\x00"),
    "similar": (LONG, b"\xff"),
    "fill": (b"[MASK] " * 100, b"a cat", b"\xff"),
    "answer": (b"where?", LONG + b"\ta cat", b"\xff\ta cat", b"where?\t"),
}
WHY = ("it holds a NUL byte", "it is not UTF-8 (byte 0xff at byte", "it is longer than 1,048,576 bytes",
       "it has 102 tokens and the model", "it hides no word; put [MASK]", "it has no tab with its context",
       "the question has", "the context is empty")  # fmt: skip
SOUND = {"fill": b"a [MASK]", "answer": b"where?\tthe cat sat on the mat"}


@pytest.mark.parametrize("verb", BAD)
def test_a_line_that_cannot_be_answered_is_left_empty(
    verb: str, run: Any, folders: Any, stdin: Any, tmp_path: Path
) -> None:
    (tmp_path / "pool").write_text("a cat\na dog\n")
    words = [verb, folders[verb], *(["--in", tmp_path / "pool"] if verb == "similar" else [])]
    sound = SOUND.get(verb, b"a cat")
    alone = run(*words, sound.decode()).out
    lines = [sound, *BAD[verb], sound]
    (tmp_path / "in.txt").write_bytes(b"".join(line + b"\n" for line in lines))
    stdin((tmp_path / "in.txt").read_bytes())
    for done in (run(*words, "--file", tmp_path / "in.txt"), run(*words)):
        assert done.out == alone + "\n" * len(BAD[verb]) + alone
        *notes, error = [line for line in done.err.splitlines() if " lines in " not in line]
        assert [int(note.split()[2]) for note in notes] == list(range(2, len(lines)))  # in their order
        assert all(any(why in note for why in WHY) for note in notes)
        assert done.code == 2 and error.startswith(f"error: {len(BAD[verb])} lines were left empty")
    told = rows(run(*words, "--file", tmp_path / "in.txt", "--json").out)
    assert ["error" in (row or ()) for row in told] == [False, *[True] * len(BAD[verb]), False]


@pytest.mark.parametrize("verb", BAD)
def test_an_empty_line_is_not_asked_and_stays_empty(
    verb: str, run: Any, folders: Any, stdin: Any, tmp_path: Path
) -> None:
    """As in the verbs that write; the answers around it are those of the lines alone."""
    (tmp_path / "pool").write_text("\na cat\n \na dog\n")
    words = [verb, folders[verb], *(["--in", tmp_path / "pool", "--top", 9] if verb == "similar" else [])]
    sound = SOUND.get(verb, b"a cat")
    alone = run(*words, sound.decode())
    stdin(b"\n".join((sound, b"", b" \t\xe3\x80\x80", sound)))
    assert run(*words) == (0, f"{alone.out}\n\n{alone.out}", "")
    if verb == "similar":
        assert alone.out.count("\t") == 3  # two candidates, each with its score
    stdin(b"\n" + sound)
    nothing, something = rows(run(*words, "--json").out)
    assert nothing.keys() == something.keys() and not any(
        value for name, value in nothing.items() if name != "seconds"
    )


def test_a_line_to_look_in_that_cannot_be_read_is_left_out(run: Any, folders: Any, tmp_path: Path) -> None:
    """The others are looked in as if it were not there, under their own numbers; so of pictures."""
    (tmp_path / "pool").write_bytes(b"a cat\n" + LONG + b"\nbad \xff\n\na dog\n")
    (tmp_path / "sound").write_text("a cat\na dog\n")
    words = ["similar", folders["similar"], "a dog", "--top", 9, "--json", "--in"]
    (found,), (wanted,) = (rows(run(*words, tmp_path / name).out) for name in ("pool", "sound"))
    assert [one["line"] for one in found["nearest"]] == [5, 1]
    assert [(one["text"], one["score"]) for one in found["nearest"]] == [
        (one["text"], one["score"]) for one in wanted["nearest"]
    ]
    done = run(*words, tmp_path / "pool")
    *notes, error = done.err.splitlines()
    assert [note.split(" is left out: it ")[0] for note in notes] == [
        f"note: line {number} of '{tmp_path / 'pool'}'" for number in (2, 3)
    ]
    assert done.code == 2 and error == f"error: 2 lines of '{tmp_path / 'pool'}' were left out"
    (tmp_path / "none").write_bytes(LONG + b"\n")
    done = run(*words, tmp_path / "none")
    assert done.code == 2 and "note: line 1 of " in done.err and "none of the candidates" in done.err

    Image.fromarray(np.zeros((28, 28), np.uint8)).save(tmp_path / "black.png")
    (tmp_path / "pictures").write_text(f"nowhere.png\n{tmp_path / 'black.png'}\n")
    done = run("similar", "pocket-digits", tmp_path / "black.png", "--in", tmp_path / "pictures")
    assert (done.code, done.out) == (2, f"{tmp_path / 'black.png'}\t1.0000\n")


def test_a_line_of_a_context_that_cannot_be_read_is_left_empty(
    run: Any, folders: Any, stdin: Any, tmp_path: Path
) -> None:
    """The questions are answered by the other lines, in their places."""
    for name, line in (("about", b"the \xff cat"), ("sound", b"")):
        (tmp_path / name).write_bytes(b"the cat sat on the mat\n" + line + b"\na dog ran\n")
    found = []
    for name in ("about", "sound"):
        stdin(b"where?\n\xff\nwho?\n")
        found.append(run("answer", folders["answer"], "--context", tmp_path / name, "--json"))
    for one, other in zip(*(rows(done.out) for done in found), strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    about = tmp_path / "about"
    assert found[0].code == 2 and found[0].err == (
        f"note: line 2 of '{about}' is left empty: it is not UTF-8 (byte 0xff at byte 5)\n"
        "note: line 2 is left empty: it is not UTF-8 (byte 0xff at byte 1)\n"
        f"error: 1 line was left empty, for want of an answer; 1 line of '{about}' was left empty\n"
    )
    about.write_bytes(b"\xff\n")
    done = run("answer", folders["answer"], "where?", "--context", about)
    assert done.code == 2 and done.err.endswith(
        f"error: '{about}' holds no text to find answers in; give some\n"
    )


def test_a_picture_that_cannot_be_read_is_left_empty(run: Any, tmp_path: Path) -> None:
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(tmp_path / "black.png")
    (tmp_path / "none.png").write_text("no picture")
    names = [tmp_path / name for name in ("black.png", "nowhere.png", "none.png", "black.png")]
    (tmp_path / "in.txt").write_text("".join(f"{name}\n" for name in names) + "\n")
    for verb in ("classify", "embed"):
        alone = run(verb, "pocket-digits", names[0]).out
        done = run(verb, "pocket-digits", "--file", tmp_path / "in.txt")
        assert done.code == 2 and done.out == f"{alone}\n\n{alone}\n"
        assert "note: line 2 is left empty: there is no picture" in done.err
        assert "note: line 3 is left empty: '" in done.err and "is not an image" in done.err
    done = run("embed", "pocket-digits", "--file", tmp_path / "in.txt", "--out", tmp_path / "v.npy")
    assert done.code == 2 and np.isnan(np.load(tmp_path / "v.npy")).all(1).tolist() == [
        False,
        True,
        True,
        False,
        True,
    ]


def test_a_line_of_almost_1_mb_can_be_cut(run: Any, folders: Any, stdin: Any) -> None:
    stdin(b"a " * ((1 << 19) - 1) + b"\n")
    done = run("classify", folders["classify"], "--truncate")
    assert done.code == 0 and done.out.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["classify", "embed", "a"], "tells no labels apart"),
        (["fill", "classify", "a [MASK]"], "guesses no hidden words"),
        (["fill", "fill", "a cat"], "text 1 hides no word"),
        (["answer", "fill", "a\tb"], "answers no questions"),
        (["answer", "answer", "where?"], "no tab"),
        (["classify", "classify", "a", "--device", "tpu9"], "there is no device 'tpu9'"),
        (["classify", "classify", "a", "--dtype", "int3"], "int3"),
        (["classify", "classify", "a", "--file", "nowhere"], "give one of them"),
        (["classify", "classify", "--file", "nowhere"], "'nowhere' does not exist"),
        (["embed", "embed", "a", "--out", "v.txt"], ".npy"),
        (["similar", "similar", "a", "--in", "nowhere"], "'nowhere' does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_done_is_a_sentence(args: list[str], said: str, run: Any, folders: Any) -> None:
    verb, model, *rest = args
    done = run(verb, folders[model], *rest)
    assert done.code == 2 and said in done.err and len(done.err.splitlines()) == 1 and not done.out


def test_a_model_of_pictures_wants_pictures(run: Any, tmp_path: Path) -> None:
    glassformer.save(glassformer.tiny("vit"), tmp_path)
    assert "preprocessor_config.json" in run("classify", tmp_path, "a cat").err
    (tmp_path / "preprocessor_config.json").write_text("{}")
    (tmp_path / "checksums.json").unlink()
    done = run("embed", tmp_path, "a cat")
    assert done.code == 2 and "there is no picture 'a cat'" in done.err
    done = run("embed", tmp_path, tmp_path / "config.json")
    assert done.code == 2 and "is not an image" in done.err
