"""What `explore` refuses at once: a model with nothing to show, and a page that is there already."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

import glassformer
from glassformer import baselines
from glassformer.bundle import Bundle
from glassformer.cli.main import app


def refused(*words: str) -> str:
    """The error message that a command ends with."""
    done = CliRunner().invoke(app(["explore", *words]), ["explore", *words])
    assert done.exit_code == 2, done.output
    return done.stderr.strip()


def test_a_baseline_is_told_before_anything_is_served(tmp_path: Path) -> None:
    spec = baselines.lstm_spec("LSTMLanguageModel", {"d_model": 8}, vocab_size=9)
    bundle = Bundle(model=baselines.build_baseline(spec))
    folder = glassformer.save(bundle, tmp_path / "lstm", layout="glassformer")
    told = refused(str(folder), "--port", "0", "--no-browser")
    assert "lstm" in told and "\n" not in told
    assert told == refused(str(folder), "--export", str(tmp_path / "page.html"))


def test_a_page_is_not_written_over_another_unless_asked(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("mine")
    assert "--overwrite" in refused("pocket-series", "--export", str(page))
    assert page.read_text() == "mine"
    words = ["explore", "pocket-series", "--export", str(page), "--overwrite"]
    assert CliRunner().invoke(app(words), words).exit_code == 0
    assert "<html" in page.read_text("utf-8")
