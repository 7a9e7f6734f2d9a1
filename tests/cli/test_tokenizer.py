"""`glassformer tokenizer train`: from files to a folder that loads."""

import gzip
import json
from typing import get_args

import pytest

from glassformer.cli import tokenizer as command
from glassformer.tokenization import TokenizerPlan, load_tokenizer, train, train_tokenizer

ENGLISH = ["The old captain sang to the sea.", "The sea sang back, and the captain was glad."] * 5
KOREAN = ["늙은 선장이 바다에 노래를 불렀다.", "바다가 대답했고 선장은 기뻤다."] * 5


@pytest.fixture
def files(tmp_path):
    (tmp_path / "en.txt").write_text("\n".join(ENGLISH) + "\n", encoding="utf-8")
    (tmp_path / "ko.txt.gz").write_bytes(gzip.compress("\n".join(KOREAN).encode() + b"\n"))
    rows = [f"{english}\t{korean}" for english, korean in zip(ENGLISH, KOREAN, strict=True)]
    (tmp_path / "pairs.tsv").write_text("\n".join(["english\tkorean", *rows]) + "\n", encoding="utf-8")
    return tmp_path


def test_choices_match_the_library():
    assert get_args(command.Kind) == get_args(train.Kind)
    assert get_args(command.Template) == get_args(train.Template)


@pytest.mark.parametrize("kind", get_args(train.Kind))
def test_tokenizer_matches_the_library(run, files, kind):
    out = files / "out"
    options = (
        "--kind",
        kind,
        "--vocab-size",
        "400",
        "--template",
        "bos_eos",
        "--tag",
        ">>ko<<",
        "--lowercase",
    )
    done = run("tokenizer", "train", files / "en.txt", files / "ko.txt.gz", "--out", out, *options, "--json")
    assert done.code == 0 and done.err == "", done.err
    plan = TokenizerPlan(kind=kind, vocab_size=400, template="bos_eos", tags=(">>ko<<",), lowercase=True)
    wanted = train_tokenizer([*ENGLISH, *KOREAN], plan)
    assert (out / "tokenizer.json").read_bytes() == wanted._files()["tokenizer.json"]

    (side,) = json.loads(done.out)["sides"]
    rows = [wanted.encode(text, special=False).ids for text in (*ENGLISH, *KOREAN)]
    assert (side["texts"], side["vocab_size"], side["unknown"]) == (20, wanted.vocab_size, 0)
    words = sum(len(text.split()) for text in (*ENGLISH, *KOREAN))
    assert side["tokens_per_word"] == pytest.approx(sum(map(len, rows)) / words)
    assert "".join(side["examples"]["Korean"]).strip() == KOREAN[0]


@pytest.mark.parametrize("given", [("--column", "1", "--column", "2"), ("--column", "english")])
def test_columns_of_a_table(run, files, given):
    done = run("tokenizer", "train", files / "pairs.tsv", "--out", files / "out", *given)
    assert done.code == 0, done.err
    made = load_tokenizer(files / "out")
    assert (made.unk_id in made.encode(KOREAN[0]).ids) == (len(given) == 2)


def test_separate_target_vocabulary_is_written_and_overwritten(run, files):
    out, pairs = files / "out", files / "pairs.tsv"
    given = ("--column", "english", "--target", pairs, "--target-column", "korean", "--out", out)
    assert run("tokenizer", "train", pairs, *given).code == 0
    made = load_tokenizer(out)
    assert made.vocab_size != made.target_vocab_size
    assert made.unk_id not in made.encode(KOREAN[1], side="target").ids
    assert made.unk_id in made.encode(KOREAN[1], side="source").ids

    again = ("tokenizer", "train", files / "en.txt", "--out", out)
    assert run(*again).code == 2
    assert run(*again, "--overwrite").code == 0
    made = load_tokenizer(out)
    assert made.vocab_size == made.target_vocab_size


def test_bad_rows_are_reported_and_skipped(run, files):
    path = files / "some.txt"
    good = b"\n".join(line.encode() for line in ENGLISH * 4)
    outputs = []
    for content in (good, good[:100].replace(b"\n", b" ") + b"\n" + good, good + b"\n\xff zzz qqq zzz qqq\n"):
        path.write_bytes(content)
        out = files / f"out{len(outputs)}"
        done = run("tokenizer", "train", path, "--out", out, "--json")
        assert done.code == 0
        (side,) = json.loads(done.out)["sides"]
        outputs.append((side["texts"], (out / "tokenizer.json").read_bytes()))
    assert f"{path.name} line 41" in done.err
    assert outputs[2] == outputs[0] != outputs[1]  # as without the bad line
