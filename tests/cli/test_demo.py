"""The demo translates, shows how, lets a model learn, and ends by itself where nobody sits before it."""

import importlib
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import glassformer
from glassformer.cli import dates
from glassformer.cli.main import main

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "glassformer.cli.main", "demo"]
# The same with the dates of a few years: there the learning is not what is looked at.
SHORT = """
import sys
from datetime import date
from glassformer.cli import dates
from glassformer.cli.main import main
dates.FIRST = date(2095, 1, 1)
main(sys.argv[1:])
"""


def test_no_date_is_both_learnt_and_tested() -> None:
    learn, held_out = dates.split()
    assert not set(learn) & set(held_out)
    assert len({*learn, *held_out}) == 73049  # every day of 1900 to 2099


def test_without_a_terminal_it_asks_nothing_and_ends(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    done = subprocess.run(
        [*COMMAND, "--out", str(out), "--steps", "12"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout and "yours (Enter" not in done.stdout
    for said in ("ein neues Auto gekauft.", "une nouvelle voiture", "차를 샀"):
        assert said in done.stdout
    page = (out / "translation.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and len(page) > 500_000
    assert glassformer.load(out / "dates" / "model").tokenizer is not None
    assert len(list((out / "dates" / "snapshots").iterdir())) > 3  # how it learned can be looked at
    assert "train translate --train pairs.tsv --out runs/mine" in done.stdout


def test_on_a_terminal_it_takes_a_sentence_and_opens_the_explorer(tmp_path: Path) -> None:
    main_end, far_end = pty.openpty()
    env = {**os.environ, "BROWSER": "true", "COLUMNS": "100", "TERM": "dumb"}  # no window in a test
    child = subprocess.Popen(
        [sys.executable, "-c", SHORT, "demo", "--out", str(tmp_path / "demo"), "--steps", "2", "--port", "0"],
        cwd=ROOT,
        stdin=far_end,
        stdout=far_end,
        stderr=far_end,
        env=env,
        start_new_session=True,
    )
    os.close(far_end)
    try:
        _until(main_end, "goes on)")
        os.write(main_end, "오늘 날씨가 좋네요.\n".encode())
        assert "weather" in _until(main_end, "goes on)")
        os.write(main_end, b"\n")
        assert "/#/pocket/model?" in _until(main_end, "Ctrl-C ends it")
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 0
    finally:
        child.kill()
        os.close(main_end)


def _until(terminal: int, text: str, seconds: float = 180.0) -> str:
    """What a terminal shows until a text appears in it."""
    seen, end = b"", time.monotonic() + seconds
    while text.encode() not in seen:
        ready, _, _ = select.select([terminal], [], [], max(0.0, end - time.monotonic()))
        assert ready, f"'{text}' did not appear after: {seen.decode(errors='replace')}"
        seen += os.read(terminal, 65536)
    return seen.decode(errors="replace")


def test_ctrl_c_says_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    # by its module: the package has a function of the same name
    monkeypatch.setattr(importlib.import_module("glassformer.training.run"), "train", interrupted)
    with pytest.raises(SystemExit) as end:
        main(["demo", "--out", str(tmp_path / "demo")])
    assert end.value.code == 130
    assert (
        "translation.html was written; the same command goes on with the training" in capsys.readouterr().out
    )


@pytest.mark.parametrize(("place", "told"), [("taken", "is a file"), ("taken/demo", "cannot be written to")])
def test_a_place_that_will_not_do_is_told_first(
    place: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(SystemExit) as end:
        main(["demo", "--out", str(tmp_path / place)])
    assert end.value.code == 2
    printed = capsys.readouterr()
    assert told in printed.err and "Translation" not in printed.out
    assert (tmp_path / "taken").read_text() == "mine"
