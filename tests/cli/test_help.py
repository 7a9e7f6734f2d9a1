"""Help comes at once and imports nothing heavy; what goes wrong ends in the right exit code."""

import json
import re
import resource
import subprocess
import sys

import pytest
import typer

import glassformer
from glassformer.cli import main as cli
from glassformer.pretrained import located

LIMIT = 0.4
HELPS = [["--help"], *([verb, "--help"] for verb in cli.VERBS)]


HELP = """
import sys
from glassformer.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as stop:
    print("torch" in sys.modules, stop.code or 0, file=sys.stderr)
"""


@pytest.mark.parametrize("args", HELPS, ids=" ".join)
def test_help_is_quick_and_imports_no_torch(args):
    """By the processor time of the child: on a busy machine a quick program may wait long for its turn."""
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", HELP, *args], capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert done.stderr == "False 0\n" and "Usage: glassformer" in done.stdout, done.stderr
        if min(times) < LIMIT:
            return
    raise AssertionError(f"glassformer {' '.join(args)} took {min(times):.2f} s at best")


def test_help_lists_every_verb(run):
    done = run("--help")
    assert done.code == 0 and all(verb in done.out for verb in cli.VERBS)


@pytest.mark.parametrize("verb", cli.VERBS)
def test_help_shows_what_stands_in_brackets(run, verb):
    """`pip install 'glassformer[serve]'` is to be read, not taken for a colour."""
    command = typer.main.get_command(cli.app([verb])).commands[verb]
    told = " ".join([command.help, *(one.help or "" for one in command.params)])
    # a backslash before a bracket says that it is meant
    bracketed = set(re.findall(r"\[[a-z]\w*\]", told.replace("\\[", "[")))
    shown = run(verb, "--help").out
    assert bracketed <= set(re.findall(r"\[[a-z]\w*\]", shown)) and "\\[" not in shown


JOBS = {"translate": "translate", "lm": "generate", "images": "classify", "forecast": "forecast"}
READING = {"embed", "similar"}  # by whatever reads texts
OTHERS = {"summarize", "restore", "fill", "answer"}  # nothing that comes along does these


@pytest.mark.parametrize("verb", sorted({*JOBS.values(), *READING, *OTHERS}))
def test_help_names_a_model_that_can_be_tried_with_the_verb(verb):
    command = typer.main.get_command(cli.app([verb])).commands[verb]
    told = next(one.help for one in command.params if one.name == "model")
    named = re.search(r"comes along: ([\w-]+)\.$", told)
    assert (named is None) == (verb in OTHERS)
    if named is not None:
        job = json.loads((located(named[1]) / "job.json").read_text())["job"]
        assert verb in READING or JOBS[job] == verb


def test_version_needs_no_verb(run):
    assert run("--version") == (0, f"glassformer {glassformer.__version__}\n", "")


@pytest.mark.parametrize(
    "args",
    [
        ["inspekt"],
        ["verify"],
        ["env", "--nonsense"],
        ["inspect", "gpt2", "--batch", "0"],
        ["demo", "--seed", "99999999999999999999"],
    ],
    ids=" ".join,
)
def test_wrong_command_line_exits_2(run, args):
    done = run(*args)
    assert done.code == 2 and not done.out and "Traceback" not in done.err


def test_interrupt_is_quiet(run, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupted)
    assert run("env") == (130, "", "")


def test_interrupt_inside_a_verb_is_quiet(run, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("glassformer.cli.env.facts", interrupted)
    assert run("env") == (130, "", "")


def test_a_bug_keeps_its_traceback(run, monkeypatch):
    def broken():
        return {}["missing"]

    monkeypatch.setattr("glassformer.cli.env.facts", broken)
    done = run("env")
    assert done.code == 1 and "KeyError: 'missing'" in done.err and "This is a bug" in done.err


def test_a_broken_pipe_is_quiet():
    """The reader goes away before a line is written."""
    program = f"{sys.executable} -m glassformer env | true"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True)
    assert done.stderr == ""
