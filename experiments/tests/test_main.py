"""The command line of the experiments."""

import pytest

from experiments.__main__ import main, read
from experiments.paths import FIGURES
from experiments.rows import ROWS


@pytest.mark.parametrize(
    "command",
    [
        "nothing",
        "mnist --only 9",
        "mnist --seconds 5",
        "enwik8 --seconds 0",
        "mnist --only 1",
        "ett --only etth1/96/repeat",
        "mnist --set bogus",
        "mnist --device bogus",
        "enwik8 --only nanogpt/1",
        "recall --figures {here}/file",
    ],
)
def test_bad_input_is_an_error_of_one_line(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path / "nowhere"))
    monkeypatch.delenv("NANOGPT_MODEL", raising=False)
    (tmp_path / "file").touch()
    places = ("--work", str(tmp_path / "work"), "--figures", str(tmp_path / "figures"))
    with pytest.raises(SystemExit) as stop:
        main([*places, *command.format(here=tmp_path).split()])
    message = capsys.readouterr()
    assert stop.value.code == 2 and message.out == ""
    assert message.err.startswith("error: ") and message.err.count("\n") == 1
    outputs = [one for folder in ("work", "figures") for one in (tmp_path / folder).glob("*")]
    assert outputs == [], "a row that made nothing leaves nothing"


def test_all_rows_are_listed(capsys):
    main([])
    assert len(capsys.readouterr().out.splitlines()) == len(ROWS)


@pytest.mark.parametrize("command", ["--only 1", "--data nowhere", "--set seed=2", "--concurrent-runs 1"])
def test_an_option_without_a_row_is_an_error(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main(command.split())
    message = capsys.readouterr()
    assert stop.value.code == 2 and message.out == ""
    assert message.err.startswith("error: ")


def test_a_changed_run_does_not_overwrite_the_recorded_figures(tmp_path):
    default_paths, _ = read(["mnist", "--work", str(tmp_path)])
    tried, _ = read(["mnist", "--work", str(tmp_path), "--set", "training.max_steps=2"])
    assert (default_paths.figures, tried.figures) == (FIGURES, tmp_path / "figures")


def test_a_failed_process_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path / "nowhere"))
    command = ("mnist", "ett", "--only", "1", "etth1/96/repeat", "--processes", "2", "--work", str(tmp_path))
    with pytest.raises(SystemExit) as stop:
        main([*command, "--figures", str(tmp_path / "figures")])
    message = capsys.readouterr()
    assert stop.value.code == 2
    assert message.err == "error: 2 of 2 runs failed: mnist 1, ett etth1/96/repeat\n"
    logs = sorted(tmp_path.rglob("*.log"))
    assert [log.stem for log in logs] == ["repeat", "1"]
    assert all("does not exist" in log.read_text() and str(log) in message.out for log in logs)
