"""What the verb summarize takes and refuses, from the command line."""

from __future__ import annotations

import json

import glassformer
from glassformer.families.sidecars import JobInfo
from tests.pretrained.made import make
from tests.tasks.reversing import reverser


def test_a_translator_of_several_languages_is_refused(run, tmp_path):
    """As `restore` refuses it, and before anything is written."""
    folder, out = make(tmp_path) / "pocket", tmp_path / "out.txt"
    done = run("summarize", folder, "the cat sat", "--out", out)
    assert done.code == 2 and not done.out and not out.exists()
    assert done.err.endswith("was trained to translate, not to summarize\n")
    assert done.err == run("restore", folder, "the cat sat").err.replace("to restore", "to summarize")


def test_a_model_of_pairs_and_one_that_says_nothing_are_not(run, tmp_path):
    """Summaries are learnt with the job translate, and folders of others have no job.json."""
    pairs = reverser()
    assert json.loads((pairs / "job.json").read_text())["job"] == "translate"
    bundle = glassformer.load(pairs)
    bundle.job = JobInfo()
    for folder in (pairs, glassformer.save(bundle, tmp_path / "silent")):
        assert run("summarize", folder, "red blue").out == "blue red\n"
