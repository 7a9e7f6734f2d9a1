"""Output files: resumed, never lost, bounded memory."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

import pytest

from glassformer.cli.main import main
from tests.faults.scale import WHOLE, trials
from tests.forked import Forked, command
from tests.tasks.tiny_models import ROWS, reversal_model


@pytest.fixture(scope="module")
def folder():
    return reversal_model()


@pytest.fixture(scope="module")
def uninterrupted(folder, tmp_path_factory):
    """The arguments of a run, and what it writes."""
    source, out = (tmp_path_factory.mktemp("run") / name for name in ("in.txt", "out.txt"))
    source.write_text("".join(f"{line}\n" for line in islice(cycle([*ROWS, ""]), 2000)))
    args = ["translate", str(folder), "--file", str(source), "--num-beams", "1", "--batch-tokens", "256"]
    with pytest.raises(SystemExit):
        main([*args, "--out", str(out)])
    assert out.read_text().count("\n") == 2000
    return args, out.read_text()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_run_is_resumed(run, uninterrupted, tmp_path, how):
    out, (args, expected) = tmp_path / "out.txt", uninterrupted
    child = Forked(command(*args, "--out", out, "--resume"), tmp_path / "child")
    child.until(lambda: out.exists() and out.stat().st_size)
    child.send_signal(how)
    assert child.wait() == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[how]
    assert "Traceback" not in child.err and ("--resume" in child.err) == (how is not signal.SIGKILL)
    partial = out.read_text()
    assert partial.endswith("\n") and expected.startswith(partial) and len(partial) < len(expected)
    assert run(*args, "--out", out).code == 2 and out.read_text() == partial
    with out.open("ab") as file:
        file.write("half a lin€".encode()[:-1])  # a torn line
    assert run(*args, "--out", out, "--resume").code == 0
    assert out.read_text() == expected
    again = run(*args, "--out", out, "--resume")
    assert again.code == 0 and out.read_text() == expected
    assert [path.name for path in tmp_path.glob("out*")] == ["out.txt"]


def test_resume_numbers_lines_as_in_the_input(run, folder, tmp_path):
    (tmp_path / "in.txt").write_bytes(b"red\nblue\n\xff\nred blue\n")
    (tmp_path / "out.txt").write_text("red\n")
    args = ["translate", folder, "--file", tmp_path / "in.txt", "--out", tmp_path / "out.txt"]
    done = run(*args, "--resume")
    assert done.code == 2 and "warning: line 3:" in done.err
    assert (tmp_path / "out.txt").read_text() == "red\nblue\n\nblue red\n"
    (tmp_path / "in.txt").write_text("red\n")
    run(*args, "--resume").error()  # the output has more lines than the input
    assert run(*args, "--overwrite").code == 0 and (tmp_path / "out.txt").read_text() == "red\n"


MINE = "existing content\n"
SERIES = "date,OT\n" + "".join(f"2024-01-01 {n // 60:02}:{n % 60:02}:00,{n % 7}\n" for n in range(600))
# a command, its output option, and the files it writes
COMMANDS = {
    "translate": (["translate", "MODEL", "red", "--out"], ["a.txt"]),
    "evaluate": (["evaluate", "MODEL", "pairs.tsv", "--out"], ["a.txt"]),
    "forecast": (["forecast", "pocket-series", "series.csv", "--out"], ["a.csv", "a.png"]),
    "figure": (["forecast", "pocket-series", "series.csv", "--figure"], ["a.png"]),
    "embed": (["embed", "MODEL", "red", "--out"], ["a.npy"]),
    "tree": (["translate", "MODEL", "red", "--tree"], ["a.svg"]),
    "page": (["explore", "pocket-digits", "--export"], ["a.html"]),
}


@pytest.fixture
def cwd(folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    capsys.readouterr()  # of the training
    monkeypatch.chdir(tmp_path)
    Path("pairs.tsv").write_text("red blue\tblue red\ngold\tgold\n")
    Path("series.csv").write_text(SERIES)
    return tmp_path


@pytest.mark.parametrize("case", COMMANDS)
def test_existing_file_is_overwritten_only_with_overwrite(run, cwd, case):
    args, files = COMMANDS[case]
    args = [str(reversal_model()) if arg == "MODEL" else arg for arg in args]
    for name in files:
        Path(name).write_text(MINE)
        error = run(*args, files[0]).error()
        assert name in error and "--overwrite" in error and Path(name).read_text() == MINE
        assert run(*args, files[0], "--overwrite").code == 0
        for file in files:
            assert MINE.encode() not in Path(file).read_bytes()
            Path(file).unlink()


@pytest.fixture
def small_disk() -> Iterator[None]:
    """No file can grow to the size of a page or a model."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_keeps_what_was_there(run, cwd, small_disk):
    Path("a.html").write_text(MINE)
    Path("there").mkdir()
    Path("there/notes.txt").write_text(MINE)
    for args in (
        ["explore", "pocket-digits", "--export", "a.html", "--overwrite"],
        ["convert", "pocket-digits", "new"],
        ["convert", "pocket-digits", "there", "--overwrite"],
    ):
        run(*args).error()
    assert Path("a.html").read_text() == Path("there/notes.txt").read_text() == MINE
    assert not Path("new").exists()


MEASURED = """
import sys
from glassformer.cli.main import main
try:
    main(sys.argv[1:])
finally:
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print("peak", peak.split()[1], file=sys.stderr)
"""
LINES, FEW = trials(50_000), 500
# until about 10,000 lines the allocator keeps more for tensors of new shapes
BASE, GROWTH = (LINES // 10, 24 << 10) if WHOLE else (FEW, 64 << 10)  # lines; KiB


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_does_not_grow_with_the_number_of_lines(folder, tmp_path):
    def measure(source: Path, out: Path, *more: str) -> int:
        """Peak memory in KiB."""
        args = ["translate", str(folder), "--file", str(source), "--out", str(out), *more, "--num-beams", "2"]
        args += ["--batch-tokens", "2048", "--threads", "1"]
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, *args], capture_output=True, text=True, timeout=1800
        )
        assert done.returncode == 0, done.stderr
        return int(next(line for line in done.stderr.splitlines() if line.startswith("peak")).split()[1])

    rows, peaks = cycle([*ROWS, "", "red blue " * 20]), {}
    for count in dict.fromkeys((FEW, BASE, LINES)):
        source = tmp_path / f"{count}.txt"
        source.write_text("".join(f"{row}\n" for row in islice(rows, count)))
        began = time.monotonic()
        peaks[count] = measure(source, tmp_path / f"{count}.out")
        print(f"{count} lines: {peaks[count]} KiB, {time.monotonic() - began:.0f} s")
    assert max(peaks.values()) - peaks[BASE] < GROWTH, peaks
    whole = (tmp_path / f"{LINES}.out").read_bytes()
    (tmp_path / "resumed.out").write_bytes(whole[: len(whole) // 2])
    peak = measure(tmp_path / f"{LINES}.txt", tmp_path / "resumed.out", "--resume")
    assert peak - peaks[BASE] < GROWTH and (tmp_path / "resumed.out").read_bytes() == whole
