"""--tree: how one text was found, as a picture or as numbers, from every way of writing."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

import glassformer
from glassformer.tasks import writing
from tests.tasks.reversing import reverser, speaker


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    return speaker(tmp_path_factory.mktemp("speaker") / "model", max_len=64)


def test_a_tree_is_drawn_and_the_answer_is_as_without_it(run, tmp_path):
    folder, text = reverser(), "gold green red"
    plain = run("translate", folder, text, "--num-beams", 3)
    for kind in ("svg", "png", "json"):
        done = run("translate", folder, text, "--num-beams", 3, "--tree", tmp_path / f"new/tree.{kind}")
        assert (done.code, done.out, done.err) == (0, plain.out, "")
    assert ElementTree.parse(tmp_path / "new/tree.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "new/tree.png").read_bytes().startswith(b"\x89PNG")
    (passage,) = writing.translate(glassformer.load(folder), text, num_beams=3, tree=True)
    told = json.loads((tmp_path / "new/tree.json").read_text())
    assert told["num_beams"] == 3
    assert [node["token"] for node in told["nodes"]] == [node.token for node in passage.trees[0].nodes]
    best = next(node for node in told["nodes"] if node["place"] == 0)
    assert best["score"] / best["length_term"] == pytest.approx(passage.score, abs=1e-5)
    words = []
    while best["parent"] is not None:
        best = told["nodes"][best["parent"]]
        words.append(best["piece"].strip())
    assert " ".join(reversed(words)) == passage.text


def test_json_carries_the_tree(run, talker, tmp_path):
    """Greedy text shows what else was likely; the numbers on the line are those of the file."""
    file = tmp_path / "tree.json"
    done = run("generate", talker, "the old", "--max-new-tokens", 4, "--json", "--tree", file)
    (line,) = done.out.splitlines()
    told = json.loads(line)
    assert told["tree"] == json.loads(file.read_text())
    chosen = [node for node in told["tree"]["nodes"] if node["state"] != "pruned"]
    assert [node["rank"] for node in chosen] == [0] * len(chosen)
    assert told["score"] == pytest.approx(sum(node["logprob"] for node in chosen), abs=1e-4)
    assert len(told["tree"]["nodes"]) == 6 * len(chosen)
    without = run("generate", talker, "the old", "--max-new-tokens", 4, "--json")
    assert "tree" not in json.loads(without.out)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["red", "--tree", "tree.pdf"], "'tree.pdf' has none of these endings"),
        (["red", "blue", "--tree", "tree.svg"], "one text"),
        (["--file", "lines.txt", "--tree", "tree.svg"], "one text"),
        (["red\nblue", "--tree", "tree.svg"], "read in 2 pieces"),
        ([" ", "--tree", "tree.svg"], "holds nothing to read"),
        (["red", "--tree", "taken/tree.svg"], "cannot be written"),
    ],
)
def test_what_has_no_tree_is_refused_with_a_sentence(run, tmp_path, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.txt").write_text("red\n")
    (tmp_path / "taken").write_text("a file, no folder")
    done = run("translate", reverser(), *words)
    assert done.code == 2 and sentence in done.err and len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "tree.svg").exists()
