"""Commands that generate text: their results, streams, notes and search trees."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from xml.etree import ElementTree

import pytest

import glassformer
from glassformer.tasks import Translator
from tests.tasks.tiny_models import ROWS, save_language_model

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def folder(folders):
    return folders["translate"]


@pytest.fixture
def language_model(folders):
    return folders["generate"]


def test_empty_argument_is_a_prompt_but_an_empty_line_is_not(run, tmp_path):
    (tmp_path / "in.txt").write_text("The sea\n\n  \nThe sea\n")
    args = ["generate", "pocket-lm", "--max-new-tokens", 3, "--no-do-sample", "--num-beams", 2]
    sea, blank = (run(*args, text).out for text in ("The sea", ""))
    assert sea.strip() and blank.strip()
    assert run(*args, "--file", tmp_path / "in.txt").out == f"{sea}\n\n{sea}"
    assert run(*args, "--echo", "--file", tmp_path / "in.txt").out == f"The sea{sea}\n\nThe sea{sea}"


def test_json_has_scores_and_alternatives(run, folder):
    done = run("translate", folder, *ROWS[:3], "--json", "--num-beams", 4, "--num-return-sequences", 2)
    results = Translator(glassformer.load(folder), num_beams=4, num_return_sequences=2)(ROWS[:3])
    for values, result in zip(map(json.loads, done.out.splitlines()), results, strict=True):
        assert (values["text"], values["num_tokens"]) == (result.text, result.num_tokens)
        assert values["score"] == pytest.approx(result.score, abs=1e-5) and values["seconds"] > 0
        assert [other["text"] for other in values["alternatives"]] == [
            other.text for other in result.alternatives
        ]


def test_generate_streams_one_prompt(run, language_model, stdin):
    expected = glassformer.load(language_model).generate(["the old", "바다"], max_new_tokens=9)
    streamed = run("generate", language_model, "the old", "--max-new-tokens", 9)
    assert (streamed.code, streamed.out) == (0, f"{expected[0]}\n")
    assert "--max-new-tokens" in streamed.err  # the limit was reached
    assert (
        run("generate", language_model, "the old", "--echo", "--max-new-tokens", 9).out
        == f"the old{expected[0]}\n"
    )
    stdin("the old\n바다\n".encode())
    lines = run("generate", language_model, "--max-new-tokens", 9, "--json").out.splitlines()
    assert [json.loads(line)["text"] for line in lines] == expected


def test_ctrl_c_ends_a_stream_quietly(tmp_path):
    folder = save_language_model(tmp_path / "model", "llama")
    args = ["generate", str(folder), "the", "--max-new-tokens", "90000", "--min-new-tokens", "90000"]
    child = subprocess.Popen(
        [sys.executable, "-m", "glassformer", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None and child.stdout.read(20)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (130, b"")


def test_input_warnings_are_printed_once_with_a_count(run):
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
    best = next(node for node in values["nodes"] if node["result_rank"] == 0)
    assert best["score"] / best["length_term"] == pytest.approx(result.score, abs=1e-5)
    pieces = []
    while best["parent"] is not None:
        best = values["nodes"][best["parent"]]
        pieces.append(best["piece"].strip())
    assert " ".join(reversed(pieces)) == result.text
