"""The demo translates, shows attention, trains, and exits by itself without a terminal."""

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
from glassformer.cli.main import main

ROOT = Path(__file__).parents[2]
# with the dates of a few years
SHORT = """
import sys
from datetime import date
from glassformer.cli import demo
from glassformer.cli.main import main
demo.FIRST_DATE = date(2095, 1, 1)
demo.RECIPE["training.max_generate_samples"] = 4
main(sys.argv[1:])
"""


def test_exits_without_a_terminal(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, "-c", SHORT, "demo", "--out", str(out), "--steps", "12"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout and "(Enter to continue)" not in done.stdout
    for said in ("ein neues Auto gekauft.", "une nouvelle voiture", "차를 샀"):
        assert said in done.stdout
    page = (out / "translation.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and len(page) > 500_000
    assert glassformer.load(out / "dates" / "model").tokenizer is not None
    assert len(list((out / "dates" / "snapshots").iterdir())) > 3  # how it learned can be looked at
    assert "train translate --train pairs.tsv --out runs/mine" in done.stdout


def test_terminal_session_ends_in_the_explorer(tmp_path: Path) -> None:
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
        _until(main_end, "(Enter to continue)")
        os.write(main_end, "오늘 날씨가 좋네요.\n".encode())
        assert "weather" in _until(main_end, "(Enter to continue)")
        os.write(main_end, b"\n")
        assert "/#/pocket/model?" in _until(main_end, "Ctrl-C to stop")
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


def test_ctrl_c_reports_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    # by its module: the package has a function of the same name
    monkeypatch.setattr(importlib.import_module("glassformer.training.run"), "train", interrupted)
    with pytest.raises(SystemExit) as end:
        main(["demo", "--out", str(tmp_path / "demo")])
    assert end.value.code == 130
    assert "translation.html was written" in capsys.readouterr().out
