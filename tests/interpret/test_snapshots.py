"""Run folders: curves, samples and traces with snapshots, during training and afterwards."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer
from glassformer.core.observe import observe
from glassformer.errors import FileProblemError
from glassformer.interpret import runs
from glassformer.interpret.catalog import Catalog
from glassformer.interpret.runs import (
    EXAMPLE_RUN,
    Snapshot,
    SnapshotViewer,
    describe_run,
    list_snapshots,
    load_snapshot,
)
from glassformer.interpret.schema import RunSnapshots, SampleInfo
from glassformer.interpret.trace import TraceStore
from glassformer.tasks.translation import Translator
from glassformer.training.lock import RunLock
from tests.interpret.models import trace_of

ROWS = [" ".join(row) for n in (1, 2, 3) for row in itertools.product(("red", "blue", "gold"), repeat=n)]
RECIPE: dict[str, Any] = {
    "job": "translate",
    "tokenizer": {"kind": "word"},
    "model": {"d_model": 16, "num_heads": 2, "d_ff": 32, "num_layers": 1, "dropout": 0.0},
    "training": {
        **{
            "max_steps": 24,
            "batch_tokens": 256,
            "lr": 5e-3,
            "warmup_steps": 4,
            "eval_steps": 8,
            "save_steps": 8,
        },
        **{
            "save_total_limit": 2,
            "snapshots": 4,
            "logging_steps": 2,
            "max_generate_samples": 4,
            "device": "cpu",
        },
    },
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 24 steps with checkpoints of 16 and 24, and snapshots of 0, 1, 5 and 24."""
    place = tmp_path_factory.mktemp("snapshots")
    lines = [f"{row}\t{' '.join(reversed(row.split()))}\n" for row in ROWS * 6]
    (place / "pairs.tsv").write_text("".join(lines))
    recipe = {**RECIPE, "data": {"train": str(place / "pairs.tsv")}}
    glassformer.train(recipe, place / "run", log=lambda message: None)
    return place / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_run_info_has_curves_samples_and_checkpoints(trained: Path) -> None:
    info = describe_run(trained, id="one")
    assert (info.id, info.name, info.job, info.running) == ("one", "run", "translate", False)
    assert (info.step, info.total_steps) == (24, 24)
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    curve = info.curves["train.loss"]
    assert curve.step == tuple(line["step"] for line in steps)
    assert curve.value == tuple(line["loss"] for line in steps)
    valid = {line["step"]: line for line in lines if line["kind"] == "valid"}
    assert info.curves["valid.loss"].step == (8, 16, 24)
    assert [one.step for one in info.samples] == [8, 16, 24]
    first = valid[8]["samples"][0]
    expected = SampleInfo(source=first["source"], reference=first["expected"], prediction=first["got"])
    assert info.samples[0].samples[0] == expected
    assert [one.step for one in info.checkpoints] == [0, 1, 5, 16, 24]
    losses = {one.step: one.loss for one in info.checkpoints}
    assert losses[16] == valid[16]["metrics"]["loss"] and losses[0] is None
    assert losses[5] == next(line["loss"] for line in steps if line["step"] == 4)
    assert not any(one.path.startswith("/") for one in info.checkpoints)
    short = describe_run(trained, id="one", curves=False)
    assert short.curves == {} and short.samples == () and short.step == 24


def test_checkpoint_weights_equal_the_snapshot_of_the_same_step(trained: Path) -> None:
    snapshot = next(one for one in list_snapshots(trained) if one.step == 24)
    assert not snapshot.checkpoint and snapshot.path.parent.name == "snapshots"
    saved = Snapshot(step=24, path=trained / "checkpoints" / "step-00000024", checkpoint=True)
    rows = {"src": torch.tensor([[5, 6, 3]]), "tgt": torch.tensor([[2, 5]])}
    outputs = [observe(load_snapshot(trained, one).model, rows).output for one in (snapshot, saved)]
    assert torch.equal(*outputs)
    older = Snapshot(step=16, path=trained / "checkpoints" / "step-00000016", checkpoint=True)
    assert not torch.equal(outputs[0], observe(load_snapshot(trained, older).model, rows).output)


def test_frames_trace_one_input_with_the_weights_of_every_step(trained: Path) -> None:
    store = TraceStore()
    viewer = SnapshotViewer(store)
    info = viewer.view(trained, id="one")
    assert [frame.step for frame in info.snapshots] == [0, 1, 5, 16, 24]
    sample = describe_run(trained, id="one").samples[0].samples[0]
    assert info.text == sample.source
    for frame in info.snapshots:
        trace = store.get(frame.trace_id)
        assert trace.sequence("source").text == sample.source
        assert trace.sequence("target").text == sample.reference  # all frames have the same places
        names = [one.name for one in frame.heads.attentions]
        assert names == [one.name for one in trace.attentions()]
        shot = next(one for one in list_snapshots(trained) if one.step == frame.step)
        own = Translator(load_snapshot(trained, shot))(sample.source).text
        assert frame.prediction == own
    ids = [frame.trace_id for frame in info.snapshots]
    assert len(set(ids)) == 5
    weights = sum(shot.stamp_and_size()[1] for shot in list_snapshots(trained))
    assert store.bytes == weights + sum(store.get(id).bytes for id in ids)  # each frame has its own weights
    assert [frame.trace_id for frame in viewer.view(trained, id="one").snapshots] == ids
    frames_of_text = viewer.view(trained, id="one", text="red gold", limit=2)
    assert [frame.step for frame in frames_of_text.snapshots] == [0, 24] and frames_of_text.text == "red gold"
    assert (
        store.get(frames_of_text.snapshots[0].trace_id).sequence("target").text
        == frames_of_text.snapshots[-1].prediction
    )


def test_frames_are_cached_and_recomputed_when_dropped(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, traced_models = TraceStore(), list[str]()
    trace_model = runs.trace_model

    def counted(bundle: Any, inputs: Any, changes: Any = (), *, model: str = "model") -> Any:
        traced_models.append(model)
        return trace_model(bundle, inputs, changes, model=model)

    loaded = list[int]()

    def counted_too(folder: Any, shot: Any) -> Any:
        loaded.append(shot.step)
        return load_snapshot(folder, shot)

    monkeypatch.setattr(runs, "trace_model", counted)
    monkeypatch.setattr(runs, "load_snapshot", counted_too)
    viewer = SnapshotViewer(store)
    first = viewer.view(trained, id="one", text="red", target="red", limit=2)
    before, opens = len(traced_models), len(loaded)
    assert viewer.view(trained, id="one", text="red", target="red", limit=2) == first
    assert len(traced_models) == before and len(loaded) == opens
    other = trace_of(load_snapshot(trained, list_snapshots(trained)[0]), {"text": "gold", "target": "gold"})
    for n in range(60):
        store.put(replace(other, id=str(n)))
    assert viewer.view(trained, id="one", text="red", target="red", limit=2) == first
    assert len(traced_models) > before and all(store.find(frame.trace_id) for frame in first.snapshots)


def test_unreadable_snapshots_are_skipped(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = runs.list_snapshots

    def listed_then_gone(folder: Any) -> Any:
        snapshots = real(folder)
        shutil.rmtree(run / "checkpoints" / "step-00000016", ignore_errors=True)
        return snapshots

    monkeypatch.setattr(runs, "list_snapshots", listed_then_gone)
    (run / "snapshots" / "step-00000005" / "model.safetensors").write_bytes(b"broken")
    info = SnapshotViewer(TraceStore()).view(run, id="one")
    assert [frame.step for frame in info.snapshots] == [0, 1, 24]


def test_a_run_without_weights_has_no_frames(run: Path) -> None:
    for name in ("best", "model", "snapshots"):
        shutil.rmtree(run / name)
    assert SnapshotViewer(TraceStore()).view(run, id="one") == RunSnapshots(snapshots=())
    (run / "metrics.jsonl").unlink()
    with pytest.raises(FileProblemError):
        describe_run(run, id="one")


def test_the_model_of_a_run_opens_on_a_validation_sample(trained: Path) -> None:
    (info,) = Catalog({"mine": glassformer.load(trained)}, {"mine": trained}).models()
    sources = [sample.source for sample in describe_run(trained, id="mine").samples[0].samples]
    assert [example.text for example in info.examples][: len(sources)] == sources
    assert info.example.text == sources[0]


def test_the_example_run_ships_with_snapshots_that_learn_dates() -> None:
    catalog = Catalog({})
    (info,) = catalog.runs()
    assert info.example and not info.running
    assert sum(path.stat().st_size for path in EXAMPLE_RUN.rglob("*")) < 700_000
    frames = SnapshotViewer(catalog.store).view(EXAMPLE_RUN, id=info.id).snapshots
    assert len(frames) == 6 and frames[0].step == 0
    wanted = describe_run(EXAMPLE_RUN, id=info.id).samples[-1].samples[0].reference
    assert frames[-1].prediction == wanted != frames[0].prediction


def test_a_run_is_running_while_its_folder_is_locked(run: Path) -> None:
    assert not describe_run(run, id="one").running
    with RunLock(run):
        assert describe_run(run, id="one", curves=False).running
    assert not describe_run(run, id="one").running


def test_large_models_have_fewer_frames_and_long_curves_fewer_points(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "MAX_WEIGHT_BYTES", 1)
    assert len(SnapshotViewer(TraceStore()).view(trained, id="one").snapshots) == 2
    monkeypatch.setattr(runs, "MAX_POINTS", 5)
    curve = describe_run(trained, id="one").curves["train.loss"]
    assert len(curve.step) == 5 and (curve.step[0], curve.step[-1]) == (2, 24)
    assert all(math.isfinite(value) for value in curve.value)
