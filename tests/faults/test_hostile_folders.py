"""Commands that write into a folder of the user's own files: every file there stays as it is."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import glassformer
from glassformer.cli.main import main
from tests.faults.scale import trials
from tests.tasks.tiny_models import reversal_model

TRIALS = trials(400)
# names that commands write, replace or delete, and names that look like them
NAMES = (
    *("config.json", "spec.json", "job.json", "published.json", "generation_config.json", "checksums.json"),
    *("model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json"),
    *("tokenizer.json", "tokenizer_target.json", "tokenizer_config.json", "vocab.txt", "spiece.model"),
    *("preprocessor_config.json", "adapter/adapter_config.json", "adapter", "CARD.md", "README.md"),
    *("recipe.yaml", "request.json", "prepared.json", "lock", "lock.json", "train.log", "metrics.jsonl"),
    *("data/pairs.tsv", "data/store.json", "tokenizer/mine.txt", "model/notes.txt", "best/notes.txt"),
    *("checkpoints/step-00000001/a", "averaged/step-00000001/a", ".model.part/a", ".model.old/a"),
    *("_batch.json", "part-000000.csv", "part-000001.jsonl", "part-9.csv", "part-notes.md", ".part-x/a"),
    *("_SUCCESS", "pairs.tsv", "notes.txt", "photos/1.png", ".save/a", ".save/checksums.json", ".save-x/a"),
    *("rows.parquet.part", "rows.csv.part", "rows.csv.gz.part", ".rows.parquet.part", ".new.part/a"),
    *(".new.old/a", "new.part", "dates/model/a", "dates/recipe.yaml", "dates.tsv", "translation.html"),
    *("1-2.png", "export.json", "model.onnx", "model.bin", ".cache/huggingface/a", "report.html"),
)
CONTENTS = (
    "mine\n",
    "",
    "{}",
    "[]",
    "[" * 5000,
    "text\nhello\n",
    '{"job": "lm", "data": {"train": ["other.txt"]}}',
    '{"pid": 1, "name": "mine"}',
    '{"parts": ["part-9.csv", "../a"], "blocks": [], "request": {}, "files": []}',
    json.dumps({"files": {"config.json": {"bytes": 1, "sha256": "0"}}, "sha256": "0"}),
)


def own_files(folder: Path, rng: random.Random) -> dict[Path, bytes]:
    """Write random files of a user, some of them links to another folder; return their contents."""
    elsewhere = folder.with_name(f"{folder.name}-elsewhere")
    elsewhere.mkdir()
    for number, name in enumerate(rng.sample(NAMES, rng.randint(1, 12))):
        path = folder / name
        if not any(parent.is_file() for parent in path.parents) and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            file = elsewhere / str(number) / "a" if rng.random() < 0.2 else path
            file.parent.mkdir(exist_ok=True)
            file.write_text(rng.choice(CONTENTS))
            if file != path:
                path.symlink_to(file.parent if rng.random() < 0.3 else file)
    return {
        path: path.read_bytes() for own in (folder, elsewhere) for path in own.rglob("*") if path.is_file()
    }


def train_command(data: Path, folder: Path) -> list[object]:
    quick = ("training.max_steps=1", "training.device=cpu", "model.d_model=16", "model.num_heads=2")
    options = [word for setting in quick for word in ("--set", setting)]
    return ["train", "translate", "--train", data / "pairs.tsv", "--valid", data / "pairs.tsv", *options]


def commands(data: Path, models: Sequence[Path], folder: Path) -> list[list[object]]:
    """All commands that write, with the user's folder as output, or with a new name inside of it."""
    first, second = models
    new, table, series = folder / "new", data / "rows.csv", data / "series.csv"
    translate = ["translate", reversal_model()]
    embed = ["batch", "embed", "pocket", "--input"]
    return [
        ["convert", first, folder],
        ["convert", second, folder, "--layout", "glassformer"],
        ["convert", first, new],
        ["tokenizer", "train", data / "pairs.tsv", "--vocab-size", 60, "--out", folder],
        ["tokenizer", "train", data / "pairs.tsv", "--vocab-size", 60, "--kind", "word", "--out", folder],
        [*train_command(data, folder), "--out", folder],
        ["export", first, "--format", "onnx", "--out", folder],
        ["export", first, "--format", "ctranslate2", "--out", folder],
        ["average", first, first, "--out", folder],
        ["average", first, first, "--out", new],
        [*embed, table, "--output", folder],
        [*embed, folder, "--output", folder],
        [*embed, folder / "part-9.csv", "--output", folder],
        [*embed, folder, "--output", new],
        ["demo", "--out", folder, "--steps", 1],
        ["download", "org/model", "--out", folder],
        ["recipes", "pocket", folder / "new.yaml"],
        *(
            [*translate, "--file", table, "--out", folder / f"rows.{end}"]
            for end in ("csv", "parquet", "csv.gz")
        ),
        [*translate, "red blue", "--tree", folder / "tree.json"],
        ["evaluate", reversal_model(), data / "pairs.tsv", "--out", folder / "outputs.txt"],
        ["forecast", "pocket-series", series, "--out", folder / "rows.csv", "--figure", folder / "new.png"],
        ["embed", reversal_model(), "red", "--out", folder / "rows.npy"],
        ["explore", "pocket-digits", "--export", folder / "page.html"],
        ["detect", "pocket-detector", data / "images", "--draw", folder],
        ["segment", "pocket-sam", data / "images" / "1.png", "--point", "5,5", "--masks", folder],
    ]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from PIL import Image

    folder = tmp_path_factory.mktemp("data")
    (folder / "pairs.tsv").write_text("red blue\tblue red\ngold\tgold\n" * 8)
    (folder / "rows.csv").write_text("text\nred blue\n")
    rows = "".join(f"2024-01-01 {n // 60:02}:{n % 60:02}:00,{n % 7}\n" for n in range(600))
    (folder / "series.csv").write_text("date,OT\n" + rows)
    (folder / "images").mkdir()
    Image.new("RGB", (32, 32), "red").save(folder / "images" / "1.png")
    return folder


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model on the Hub, whose files are written without asking."""
    hub = pytest.importorskip("huggingface_hub")
    names = ("config.json", "model.safetensors", "README.md", "adapter/adapter_config.json")
    siblings = [SimpleNamespace(rfilename=name) for name in names]

    def snapshot(repo: str, *, local_dir: Path, **_: object) -> None:
        for name in names:
            (local_dir / name).parent.mkdir(parents=True, exist_ok=True)
            (local_dir / name).write_text("downloaded")

    monkeypatch.setattr(hub.HfApi, "model_info", lambda *_, **__: SimpleNamespace(siblings=siblings))
    monkeypatch.setattr(hub, "snapshot_download", snapshot)


def exit_code(args: Sequence[object]) -> object:
    with pytest.raises(SystemExit) as stop:
        main([str(arg) for arg in args])
    return stop.value.code or 0


def test_no_command_changes_files_that_it_did_not_write(
    data: Path, hub: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [
        glassformer.save(glassformer.tiny("gpt2"), tmp_path / "first"),
        glassformer.save(glassformer.load("pocket-digits"), tmp_path / "second"),
    ]
    failures: list[str] = []
    for seed in range(TRIALS):
        rng, folder = random.Random(seed), tmp_path / f"user-{seed}"
        folder.mkdir()
        before = own_files(folder, rng)
        choices = commands(data, models, folder)
        args = choices[seed % len(choices)]
        options = [] if args[0] in ("train", "export", "average", "demo", "recipes") else ["--overwrite"]
        code = exit_code([*args, *options[: rng.randint(0, 3)]])
        changed = [
            path for path, content in before.items() if not path.is_file() or path.read_bytes() != content
        ]
        if changed or code not in (0, 2):
            failures.append(f"seed {seed}: {' '.join(map(str, args))} exit {code}, changed {changed[:3]}")
    capsys.readouterr()
    assert not failures, "\n".join(failures)


def train_in_python(folder: Path) -> None:
    examples = [torch.ones(1)] * 8
    options: Any = {"train_dataset": examples, "folder": folder, "max_steps": 1}
    glassformer.Trainer(nn.Linear(1, 1), loss=lambda model, x: model(x).square().mean(), **options).train()


def test_calls_in_python_keep_files_that_they_did_not_write(tmp_path: Path) -> None:
    failures, save = [], glassformer.save
    calls: tuple[Callable[[Path], object], ...] = (
        lambda folder: save(glassformer.tiny("gpt2"), folder),
        lambda folder: save(glassformer.tiny("bert"), folder, layout="glassformer"),
        lambda folder: save(glassformer.load("pocket-lm"), folder),
        train_in_python,
    )
    for seed in range(TRIALS):
        rng, folder = random.Random(seed), tmp_path / f"user-{seed}"
        folder.mkdir()
        before = own_files(folder, rng)
        try:
            calls[seed % len(calls)](folder)
        except glassformer.GlassformerError:
            if not before.keys() >= {path for path in folder.rglob("*") if path.is_file()}:
                failures.append(f"seed {seed}: a refused call left files")
        changed = [
            path for path, content in before.items() if not path.is_file() or path.read_bytes() != content
        ]
        if changed:
            failures.append(f"seed {seed}: changed {changed[:3]}")
    assert not failures, "\n".join(failures)


def test_refused_trainer_does_not_restore_a_folder_that_looks_like_its_own(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".model.old").mkdir()
    with pytest.raises(glassformer.GlassformerError):
        train_in_python(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".model.old", "notes.txt"]
