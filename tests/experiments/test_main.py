"""What cannot be run is told in one sentence, with exit code 2 and no traceback."""

import pytest

from experiments.__main__ import main, read
from experiments.place import FIGURES
from experiments.rows import ROWS


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("nothing", "there is no row 'nothing'"),
        ("mnist --only 9", "mnist has no run '9'; it has 1, 2, 3"),
        ("mnist --seconds 5", "mnist takes no --seconds; it is for wikitext2, enwik8"),
        ("pocket wikitext2 --most 5", "wikitext2 takes no --most; it is for pocket"),
        ("enwik8 --seconds 0", "--seconds is 0.0"),
        ("pocket --most many", "argument --most: invalid int value: 'many'"),
        ("mnist --only 1", "train-images-idx3-ubyte.gz' does not exist; name the folder of data sets"),
        ("multi30k --only en-de/1", "train.en.gz' does not exist; name the folder of data sets"),
        ("ett --only etth1/96/repeat", "ETTh1.csv.gz' does not exist; name the folder of data sets"),
        ("ett --only etth1/96/1", "ETTh1.csv.gz' does not exist; name the folder of data sets"),
        ("pocket-series", "national_illness.csv.gz' does not exist; name the folder of data sets"),
        ("mnist --set bogus", "the change 'bogus' is not of the form section.key=value"),
        ("mnist --device bogus", "--device is 'bogus', which is not there"),
        ("enwik8 --only nanogpt/1", "needs nanoGPT's model.py, and NANOGPT_MODEL is not set"),
        ("recall --figures {here}/file", "{here}/file': File exists"),
    ],
)
def test_bad_input_is_told_in_a_sentence(words, told, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path / "nowhere"))
    monkeypatch.delenv("NANOGPT_MODEL", raising=False)
    (tmp_path / "file").touch()
    places = ("--work", str(tmp_path / "work"), "--figures", str(tmp_path / "figures"))
    with pytest.raises(SystemExit) as stop:
        main([*places, *words.format(here=tmp_path).split()])
    said = capsys.readouterr()
    assert stop.value.code == 2 and said.out == ""
    assert said.err.startswith("error: ") and said.err.count("\n") == 1
    assert told.format(here=tmp_path) in said.err
    made = [one for folder in ("work", "figures") for one in (tmp_path / folder).glob("*")]
    assert made == [], "a row that made nothing leaves nothing"


def test_without_a_row_all_are_listed(capsys):
    main([])
    assert len(capsys.readouterr().out.splitlines()) == len(ROWS)


@pytest.mark.parametrize("words", ["--only 1", "--data nowhere", "--set seed=2", "--beside 1"])
def test_an_option_without_a_row_is_refused(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words.split())
    said = capsys.readouterr()
    assert stop.value.code == 2 and said.out == ""
    assert said.err.startswith(f"error: {words.split()[0]} is for a row; name one of multi30k, ett")


def test_a_quick_try_leaves_the_noted_figures_alone(tmp_path):
    whole, _ = read(["mnist", "--work", str(tmp_path)])
    tried, _ = read(["mnist", "--work", str(tmp_path), "--set", "training.steps=2"])
    assert (whole.figures, tried.figures) == (FIGURES, tmp_path / "figures")
