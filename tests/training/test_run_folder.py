"""A run writes only into its own folder: other people's files are never replaced or removed."""

import pytest

from glassformer.errors import GlassformerError, UnsupportedError
from glassformer.pretrained import NotARunError
from glassformer.training.data_cache import no_log
from glassformer.training.recipe import parse_recipe
from glassformer.training.run import run

RECIPE = {
    "job": "translate",
    "tokenizer": {"kind": "char"},
    "model": {"d_model": 16, "num_heads": 2, "d_ff": 16, "num_layers": 1},
    "training": {"max_steps": 1, "device": "cpu"},
}
PAIRS = "".join(f"{n} cats\t{n} Katzen\n" for n in range(100, 160))


def train_in(folder, pairs):
    return run(parse_recipe({**RECIPE, "data": {"train": [str(pairs)], "valid": 0.2}}), folder, log=no_log)


@pytest.mark.parametrize(
    "name", ["data/pairs.tsv", "tokenizer/vocab.txt", "model/notes.md", "best/x", "recipe.yaml", ".hidden"]
)
def test_training_rejects_a_folder_with_other_files(tmp_path, name):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text(PAIRS)
    folder = tmp_path / "mine"
    file = folder / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(NotARunError) as caught:
        train_in(folder, pairs)
    assert caught.value.folder == folder
    assert [path for path in folder.rglob("*") if path.is_file()] == [file]
    assert file.read_text() == "mine"


@pytest.mark.parametrize("name", ["lock", "lock.json", "request.json", ".request.json"])
def test_training_keeps_files_that_look_like_those_of_a_run(tmp_path, name):
    (tmp_path / "pairs.tsv").write_text(PAIRS)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text('{"url": "mine"}')
    with pytest.raises(NotARunError):
        train_in(tmp_path / "run", tmp_path / "pairs.tsv")
    assert [path.read_text() for path in (tmp_path / "run").iterdir()] == ['{"url": "mine"}']


def test_training_keeps_a_training_file_in_the_run_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pairs = tmp_path / "data" / "pairs.tsv"
    pairs.parent.mkdir()
    pairs.write_text(PAIRS)
    with pytest.raises(NotARunError):
        train_in(".", "data/pairs.tsv")
    assert pairs.read_text() == PAIRS


@pytest.mark.parametrize("changes", [{"data": {"columns": ["a", "b"]}}, {"model": {"preset": "vit"}}, {}])
def test_a_rejected_run_leaves_no_folder(tmp_path, changes):
    """Also one that is rejected after its data were prepared; files of others stay."""
    pairs, folder = tmp_path / "pairs.tsv", tmp_path / "runs" / "new"
    pairs.write_text(PAIRS)
    recipe = {**RECIPE, "data": {"train": [str(pairs)], "valid": 0.2}}
    recipe = {
        name: {**value, **changes.get(name, {})} if isinstance(value, dict) else value
        for name, value in recipe.items()
    }

    def log(message):
        if not changes and "for training" in message:
            (folder / "notes.md").write_text("mine")
            assert (folder / "data").is_dir() and (folder / "tokenizer").is_dir()
            raise UnsupportedError("a model", "this job")

    with pytest.raises(GlassformerError):
        run(parse_recipe(recipe), folder, log=log)
    if changes:
        assert [path.name for path in tmp_path.iterdir()] == ["pairs.tsv"]
    else:
        assert [path.name for path in folder.iterdir()] == ["notes.md"]


def test_a_rejected_run_keeps_an_existing_folder(tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(GlassformerError):
        train_in(tmp_path / "run", tmp_path / "missing.tsv")
    assert (tmp_path / "run" / "request.json").is_file()


@pytest.mark.parametrize("left", [(), ("lock",), ("lock", "lock.json"), (".request.json.0a1b2c3d.tmp",)])
def test_training_starts_in_an_empty_folder_or_one_left_by_a_killed_start(tmp_path, left):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text(PAIRS)
    folder = tmp_path / "run"
    folder.mkdir()
    for name in left:
        (folder / name).write_text('{"pid": 1, "host": "a"}' if name == "lock.json" else "")
    assert train_in(folder, pairs).outcome == "finished"
    assert (folder / "model").is_dir()
