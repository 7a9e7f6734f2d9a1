"""Commands that generate text: one line out per line in, in order."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

import glassformer
from glassformer.tasks import Translator
from glassformer.tokenization import TokenizerPlan, train_tokenizer
from tests.tasks.reversing import ROWS, reverser, speaker

COMMANDS = ("translate", "summarize", "restore", "generate")
SHORT = ("--num-beams", 1, "--max-new-tokens", 3)


def restorer(folder):
    """A random model with the job restore."""
    plan = TokenizerPlan(kind="bpe", vocab_size=200, marks="end", tags=("<gap>",))
    tokenizer = train_tokenizer(["the old captain sang to the sea"] * 3, plan)
    torch.manual_seed(0)
    model = glassformer.tiny("original", src_vocab_size=tokenizer.vocab_size, max_len=600, start_id=1)
    job = glassformer.JobInfo(name="restore", gap="<gap>", before=" ")
    return glassformer.save(glassformer.Bundle(model=model, tokenizer=tokenizer, job=job), folder)


@pytest.fixture(scope="module")
def folder():
    return reverser()


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    return speaker(tmp_path_factory.mktemp("speaker") / "model", max_len=64)


@pytest.fixture(scope="module")
def folders(folder, talker, tmp_path_factory):
    restore = restorer(tmp_path_factory.mktemp("restorer") / "model")
    return {"translate": folder, "summarize": folder, "restore": restore, "generate": talker}


@pytest.fixture(autouse=True)
def quiet(folder, capsys):
    capsys.readouterr()  # the training of the model prints progress


# ---- inputs -----------------------------------------------------------------------------------------


def test_arguments_file_and_stdin_are_equivalent(run, stdin, folder, tmp_path):
    texts = ["red blue", "", "gold green red", "   ", "한국어 🌊"]
    expected = glassformer.load(folder).translate(texts)
    content = "\n".join(texts).encode() + b"\n"
    (tmp_path / "in.txt").write_bytes(b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"))
    stdin(content)
    for done in (
        run("translate", folder, *texts),
        run("translate", folder, "--file", tmp_path / "in.txt"),
        run("translate", folder, "--threads", 1, "--device", "cpu", "--dtype", "float32"),
    ):
        assert done.code == 0, done.err
        assert done.out.split("\n") == [*expected, ""]
    assert expected[1] == expected[3] == ""


def test_terminal_input_is_processed_line_by_line(run, stdin, folder):
    stdin(b"red blue\n\ngold green\n", terminal=True)
    assert run("translate", folder).out == "blue red\n\ngreen gold\n"


# content of a line -> whether its output is any text, empty, or an error
ODD_LINES = {
    b"": "empty",
    b" \t \xe3\x80\x80": "empty",
    b"x" * 1_100_000: "error",  # too long for a line
    b"red \xff": "error",
    b"red \xed\xa0\x80": "error",  # a surrogate
    b"red \x00": "any",
    b"\x01\x07red\x1b[31m\x08\x7f\x0b\x0c\x1c\x1d\xc2\x85": "any",
    "red\u2028blue\u2029".encode(): "any",
    "\u202e\ufeffred\u200b".encode(): "any",
    b"</s> <pad> <s> <gap> <unk> <|endoftext|>": "any",
    "바다 ☃ zzz 🌊".encode(): "any",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_odd_lines_do_not_affect_the_others(run, stdin, folders, command):
    lines = [b"red", *(line for odd in ODD_LINES for line in (odd, b"blue"))]
    red, blue = run(command, folders[command], "red", "blue", *SHORT).out.splitlines()
    stdin(b"".join(line + b"\n" for line in lines))
    done = run(command, folders[command], *SHORT)
    first, *rest = done.out.removesuffix("\n").split("\n")
    assert first == red and rest[1::2] == [blue] * len(ODD_LINES)
    for output, (line, outcome) in zip(rest[::2], ODD_LINES.items(), strict=True):
        assert outcome == "any" or output == "", line
    bad = [2 * n + 2 for n, outcome in enumerate(ODD_LINES.values()) if outcome == "error"]
    assert [int(n) for n in re.findall(r"^warning: line (\d+):", done.err, re.MULTILINE)] == bad
    assert done.code == 2 and done.err.splitlines()[-1].startswith(f"error: {len(bad)} lines")


def test_line_that_the_model_cannot_read_stays_empty(run, folder, tmp_path):
    lines = [ROWS[0].encode(), b"x" * 20_000, ROWS[1].encode(), b"blue \xff", ROWS[2].encode()]
    (tmp_path / "in.txt").write_bytes(b"".join(line + b"\n" for line in lines))
    sound = run("translate", folder, *ROWS[:3]).out.splitlines()
    expected = [sound[0], "", sound[1], "", sound[2]]
    printed = run("translate", folder, "--file", tmp_path / "in.txt")
    written = run("translate", folder, "--file", tmp_path / "in.txt", "--out", tmp_path / "out.txt")
    assert printed.code == written.code == 2
    assert printed.out.splitlines() == expected == (tmp_path / "out.txt").read_text().splitlines()
    assert re.findall(r"^warning: line (\d+):", printed.err, re.MULTILINE) == ["2", "4"]
    values = run("translate", folder, "--json", "--file", tmp_path / "in.txt").out.splitlines()
    assert ["error" in json.loads(line) for line in values] == [False, True, False, True, False]
    (tmp_path / "many.txt").write_bytes(b"\xff\n" * 12)
    done = run("translate", folder, "--file", tmp_path / "many.txt")
    assert done.out == "\n" * 12 and done.err.count("warning: ") == 10


@pytest.mark.parametrize("command", [["translate", "pocket", "--to", "de"], ["classify", "pocket-digits"]])
def test_empty_input_is_noted_and_succeeds(run, stdin, command, tmp_path):
    stdin(b"")
    done = run(*command)
    assert (done.code, done.out) == (0, "") and done.err.startswith("warning: ")
    for content in (b"", b"\xef\xbb\xbf"):
        (tmp_path / "in.txt").write_bytes(content)
        assert run(*command, "--file", tmp_path / "in.txt") == done


def test_empty_argument_is_a_prompt_but_an_empty_line_is_not(run, tmp_path):
    (tmp_path / "in.txt").write_text("The sea\n\n  \nThe sea\n")
    args = ["generate", "pocket-lm", "--max-new-tokens", 3, "--no-do-sample", "--num-beams", 2]
    sea, blank = (run(*args, text).out for text in ("The sea", ""))
    assert sea.strip() and blank.strip()
    assert run(*args, "--file", tmp_path / "in.txt").out == f"{sea}\n\n{sea}"
    assert run(*args, "--echo", "--file", tmp_path / "in.txt").out == f"The sea{sea}\n\nThe sea{sea}"


# ---- results ----------------------------------------------------------------------------------------


def test_json_has_scores_and_alternatives(run, folder):
    done = run("translate", folder, *ROWS[:3], "--json", "--num-beams", 4, "--num-return-sequences", 2)
    results = Translator(glassformer.load(folder), num_beams=4, num_return_sequences=2)(ROWS[:3])
    for values, result in zip(map(json.loads, done.out.splitlines()), results, strict=True):
        assert (values["text"], values["num_tokens"]) == (result.text, result.num_tokens)
        assert values["score"] == pytest.approx(result.score, abs=1e-5) and values["seconds"] > 0
        assert [other["text"] for other in values["alternatives"]] == [
            other.text for other in result.alternatives
        ]


def test_generate_streams_one_prompt(run, talker, stdin):
    expected = glassformer.load(talker).generate(["the old", "바다"], max_new_tokens=9)
    streamed = run("generate", talker, "the old", "--max-new-tokens", 9)
    assert (streamed.code, streamed.out) == (0, f"{expected[0]}\n")
    assert "--max-new-tokens" in streamed.err  # the limit was reached
    assert (
        run("generate", talker, "the old", "--echo", "--max-new-tokens", 9).out == f"the old{expected[0]}\n"
    )
    stdin("the old\n바다\n".encode())
    lines = run("generate", talker, "--max-new-tokens", 9, "--json").out.splitlines()
    assert [json.loads(line)["text"] for line in lines] == expected


def test_ctrl_c_ends_a_stream_quietly(tmp_path):
    folder = speaker(tmp_path / "model", "llama")
    args = ["generate", str(folder), "the", "--max-new-tokens", "90000", "--min-new-tokens", "90000"]
    child = subprocess.Popen(
        [sys.executable, "-m", "glassformer", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None and child.stdout.read(20)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (130, b"")


def test_doubtful_inputs_are_noted_once_with_a_count(run):
    args = ["translate", "pocket", "--to", "de", "--num-beams", 1]
    done = run(*args, "--json", "Привет, how are you?", "Where is the library?", "Ελλάδα is nice.")
    assert [json.loads(line)["warnings"] for line in done.out.splitlines()] == [
        ["unknown_characters"],
        [],
        ["unknown_characters"],
    ]
    assert done.code == 0 and done.err.startswith("note: 2 texts ") and done.err.count("\n") == 1
    long = "I have two cats and a dog. " * 20
    assert run(*args, "--split", "never", long).err.startswith("note: 1 text ")
    assert run(*args, long).err == ""


def test_progress_counts_lines_as_they_are_generated(run, folder, tmp_path, monkeypatch):
    """Also those that wait for the first line, which comes last, because long lines are batched first."""
    monkeypatch.setattr("glassformer.cli.lines.PROGRESS_SECONDS", 0.0)
    lines = ["red", "", *["red blue gold green " * n for n in range(1, 12)]]
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    args = ("--file", tmp_path / "in.txt", "--out", tmp_path / "out.txt", "--batch-tokens", 400)
    done = run("translate", folder, *args, "--split", "never")
    assert done.code == 0, done.err
    counts = [int(n) for n in re.findall(r"^(\d+) of 13 lines in ", done.err, re.MULTILINE)]
    assert counts == sorted(counts) and len(set(counts)) > 4 and counts[-1] == len(lines)


# ---- search trees -----------------------------------------------------------------------------------


def test_search_tree_is_written_and_the_output_unchanged(run, folder, tmp_path):
    text = "gold green red"
    plain = run("translate", folder, text, "--num-beams", 3)
    for kind in ("svg", "png", "json"):
        done = run("translate", folder, text, "--num-beams", 3, "--tree", tmp_path / f"new/tree.{kind}")
        assert (done.code, done.out, done.err) == (0, plain.out, "")
    assert ElementTree.parse(tmp_path / "new/tree.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "new/tree.png").read_bytes().startswith(b"\x89PNG")
    result = Translator(glassformer.load(folder), num_beams=3, return_tree=True)(text)
    values = json.loads((tmp_path / "new/tree.json").read_text())
    assert [node["token"] for node in values["nodes"]] == [node.token for node in result.trees[0].nodes]
    best = next(node for node in values["nodes"] if node["place"] == 0)
    assert best["score"] / best["length_term"] == pytest.approx(result.score, abs=1e-5)
    pieces = []
    while best["parent"] is not None:
        best = values["nodes"][best["parent"]]
        pieces.append(best["piece"].strip())
    assert " ".join(reversed(pieces)) == result.text


@pytest.mark.parametrize(
    "args",
    [
        ["red", "--tree", "tree.pdf"],
        ["red", "blue", "--tree", "tree.svg"],
        ["--file", "lines.txt", "--tree", "tree.svg"],
        ["red\nblue", "--tree", "tree.svg"],
        [" ", "--tree", "tree.svg"],
        ["red", "--out", "tree.json", "--tree", "./tree.json"],
    ],
)
def test_search_tree_of_other_than_one_search_is_refused(run, folder, tmp_path, monkeypatch, args):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.txt").write_text("red\n")
    run("translate", folder, *args).error()
    assert not list(tmp_path.glob("tree.*"))


# ---- options ----------------------------------------------------------------------------------------

SAMPLED = {"do_sample": True}
INVALID: tuple[dict[str, Any], ...] = (
    {"num_beams": 0},
    {**SAMPLED, "temperature": math.nan},
    {"max_new_tokens": 2, "min_new_tokens": 9},
    {"early_stopping": "maybe"},
)


@pytest.mark.parametrize("options", INVALID, ids=str)
@pytest.mark.parametrize("command", ["translate", "generate"])
def test_invalid_generation_options_are_named(run, folders, command, options):
    args = []
    for name, value in options.items():
        flag = "--stop" if name == "stop_strings" else f"--{name.replace('_', '-')}"
        args += [flag] if value is True else [flag, value]
    assert flag in run(command, folders[command], "red the", *args).error()


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--num-return-sequences", "2"], "--json"),
        (["--to", "xx"], "xx"),
        (["--resume"], "--out"),
        (["--resume", "--overwrite", "--out", "x"], "--resume and --overwrite"),
        (["--device", "moon"], "moon"),
        (["--dtype", "int3"], "int3"),
        (["--out", "/no/such/place"], "/no/such/place"),
        (["--file", "/no/such/file"], "--file"),
    ],
    ids=str,
)
def test_options_that_do_not_work_are_named(run, folder, args, named):
    assert named in run("translate", folder, "red", *args).error()
