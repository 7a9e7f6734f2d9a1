"""Help, exit codes and the output encoding."""

import io
import json
import os
import re
import resource
import subprocess
import sys

import numpy as np
import pytest
import torch

import glassformer
from glassformer.cli import main as cli
from glassformer.cli.options import flags_of
from glassformer.errors import UnsupportedError
from glassformer.server import check_key_variables

ALL_HELP = """
import sys
from glassformer.cli.main import commands, main
for name in commands():
    try:
        main([name, "--help"])
    except SystemExit as stop:
        assert not stop.code, name
    assert "torch" not in sys.modules, name
"""


def test_help_is_fast_and_imports_no_torch():
    """Measured in CPU time of the child, because the machine may be busy."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-m", "glassformer", "--help"], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0
    assert all(name in done.stdout for name in cli.commands())
    done = subprocess.run([sys.executable, "-c", ALL_HELP], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("Usage: glassformer") == len(cli.commands()), (
        done.stderr
    )


@pytest.mark.parametrize("columns", ["80", "60"])
def test_help_never_cuts_an_option(run, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    for name, command in cli.commands().items():
        out = run(name, "--help").out
        assert "…" not in out.replace("...", ""), name
        function = command.load(name)
        missing = [flag for flag in flags_of(function).values() if not re.search(rf"{flag}(?![\w-])", out)]
        assert not missing, name


def test_version_needs_no_command(run):
    assert run("--version") == (0, f"glassformer {glassformer.__version__}\n", "")


@pytest.mark.parametrize(
    "args",
    [["inspekt"], ["verify"], ["env", "--nonsense"], ["inspect", "gpt2", "--batch-size", "0"]],
    ids=" ".join,
)
def test_wrong_command_line_exits_2(run, args):
    done = run(*args)
    assert done.code == 2 and not done.out and "Traceback" not in done.err


def test_flags_of_version_0_2_warn_and_work(run, folders, tmp_path, monkeypatch):
    done = run("inspect", folders["translate"], "--batch=3", "--json")
    assert done.code == 0 and "--batch-size" in done.err and json.loads(done.out)
    done = run("convert", folders["translate"], tmp_path / "new", "--to", "glassformer")
    assert done.code == 0 and "--layout" in done.err and (tmp_path / "new").is_dir()
    monkeypatch.setenv("GLASSFORMER_TOKEN", "secret")
    assert "GLASSFORMER_API_KEY" in run("serve", folders["translate"]).error()
    with pytest.raises(UnsupportedError):
        check_key_variables()  # Ray Serve has the same check


def test_flags_of_version_0_2_after_two_dashes_are_values(capsys):
    args = ["similar", "a", "--in=b", "--", "--in"]
    assert cli.current_flags(args) == ["similar", "a", "--corpus=b", "--", "--in"]
    assert capsys.readouterr().err.count("--in is now") == 1


def test_interrupt_prints_nothing(run, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("glassformer.cli.env.environment", interrupt)
    assert run("env") == (130, "", "")
    monkeypatch.setattr(cli, "app", interrupt)
    assert run("env") == (130, "", "")


def test_bug_prints_traceback(run, monkeypatch):
    monkeypatch.setattr("glassformer.cli.env.environment", lambda: {}["missing"])
    done = run("env")
    assert done.code == 1 and "KeyError: 'missing'" in done.err


@pytest.mark.parametrize("allocate", [torch.empty, np.empty, bytearray])
def test_out_of_memory_is_a_one_line_error(run, monkeypatch, allocate):
    monkeypatch.setattr("glassformer.cli.env.environment", lambda: allocate(10**17))
    assert "out of memory" in run("env").error()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_closed_pipe_is_silent_and_a_full_disk_is_an_error():
    models = f"{sys.executable} -m glassformer models --json"
    for command, code, errors in (("| true; exit ${PIPESTATUS[0]}", 141, 0), ("> /dev/full", 2, 1)):
        done = subprocess.run(["bash", "-c", f"{models} {command}"], capture_output=True, text=True)
        assert done.returncode == code and done.stderr.count("\n") == done.stderr.count("error: ") == errors


TEXT = "é안녕 😀"


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "cp1252"])
def test_characters_that_the_encoding_lacks_are_escaped_as_in_json(encoding, capsys):
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding=encoding)
    cli.escape_unencodable(stream)
    for _ in range(2):
        print(json.dumps({"text": TEXT}, ensure_ascii=False), file=stream, flush=True)
    lines = buffer.getvalue().decode(encoding).splitlines()
    assert [json.loads(line)["text"] for line in lines] == [TEXT] * 2
    (note,) = capsys.readouterr().err.splitlines()  # once
    assert encoding in note


def test_drawing_in_the_c_locale():
    locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "glassformer", "inspect", "pocket-digits"],
        env={**os.environ, **locale},
        capture_output=True,
    )
    assert done.returncode == 0 and rb"\u2192" in done.stdout and done.stderr.count(b"note: ") == 1
