"""The demo learns its task, shows it, leaves a model that loads, and stops politely."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import glassformer
from glassformer.cli import dates
from glassformer.cli.main import main

ROOT = Path(__file__).parents[2]


def test_no_date_is_both_learnt_and_tested() -> None:
    learn, held_out = dates.split()
    assert not set(learn) & set(held_out)
    assert len({*learn, *held_out}) == 73049  # every day of 1900 to 2099
    assert held_out[0] == ("2024-03-17", "17 march 2024")


def test_demo_translates_dates_it_has_never_seen(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    command = [sys.executable, "-m", "glassformer.cli.main", "demo", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout and max(map(len, done.stdout.split("Written")[0].splitlines())) <= 80
    right, tested = map(int, re.findall(r"(\d+) of (\d+) exactly right", done.stdout)[0])
    assert tested == 1000 and right > 990
    assert (out / "attention.png").is_file() and (out / "heads.png").is_file()
    for verb in ("inspect", "verify"):
        assert f"glassformer {verb} {out / 'model'}" in done.stdout

    bundle = glassformer.load(out / "model")
    assert dates.translate(bundle, ["2024-03-17", "1999-12-05"]) == ["17 march 2024", "5 december 1999"]
    # most copied digits (17 and 2024) are written while looking at themselves more than at anything else
    looked = dates.look(bundle).heads.mean(0).argmax(-1).tolist()
    copied = {0: 8, 1: 9, 9: 0, 10: 1, 11: 2, 12: 3}
    assert sum(looked[written] == read for written, read in copied.items()) >= 4


def test_ctrl_c_says_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(bundle, pairs, *, steps, report) -> None:
        report(3, 1.0)
        raise KeyboardInterrupt

    monkeypatch.setattr(dates, "train", interrupted)
    with pytest.raises(SystemExit) as end:
        main(["demo", "--out", str(tmp_path / "demo")])
    assert end.value.code == 130
    assert "3 of 400 training steps were done and nothing was written" in capsys.readouterr().out
    assert not (tmp_path / "demo").exists()


def test_a_file_is_no_place_for_the_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    with pytest.raises(SystemExit) as end:
        main(["demo", "--out", str(taken)])
    assert end.value.code == 2
    assert "is a file" in capsys.readouterr().err
    assert taken.read_text() == "mine"


def test_a_place_that_cannot_be_written_is_told_before_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dates, "train", lambda *_, **__: pytest.fail("it was trained for nothing"))
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(SystemExit) as end:
        main(["demo", "--out", str(tmp_path / "taken" / "demo")])
    assert end.value.code == 2
    assert "cannot be written to; give another folder with --out" in capsys.readouterr().err
