"""DDP and FSDP equal one process; checkpoints resume on any number of ranks."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

import glassformer
from glassformer.errors import ConflictError, InvalidValueError
from glassformer.training.checkpoint import fill, load_checkpoint
from glassformer.training.distributed import SingleProcess, parallel_from_environment
from glassformer.training.learner import enable_gradient_checkpointing
from glassformer.weights.store import open_weights
from tests.faults.scale import sample
from tests.training.launcher import Failed, Launcher, launching
from tests.training.ranks import SAVED, STEPS, Run, Tiny, batch, differing, train_own_module

ROOT = Path(__file__).parent.parent.parent
ALONE = SingleProcess(device=torch.device("cpu"))


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    with launching(tmp_path_factory.mktemp("launched")) as launcher:
        yield launcher


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, launch: Launcher) -> tuple[Path, dict[str, Any]]:
    """One process, then two by FSDP and by DDP, then three; what each said, and the checkpoints they left."""
    folder = tmp_path_factory.mktemp("runs")
    single = Run(ALONE)
    losses = single.steps(range(1, SAVED + 1))
    single.save(folder / "one", SAVED)
    losses += single.steps(range(SAVED + 1, STEPS + 1))
    single.module.eval()
    with torch.no_grad():
        quiet = float(single.module(**batch(9, 0)))
    single.module.train()
    results = {"one": losses, "quiet": quiet, "further": single.steps([STEPS + 1])}
    results |= launch(2, "everything", folder)
    results["three"] = launch(3, "more", folder)
    return folder, results


def close(ours: list[float], theirs: list[float]) -> bool:
    """To 1e-6 of what they are."""
    return ours == pytest.approx(theirs, rel=1e-6, abs=0)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_ranks_equal_one(kind: str, runs: tuple[Path, dict[str, Any]]) -> None:
    """Losses and gradient norms of five steps of three batches a rank: AdamW, clipping, dropout."""
    _, results = runs
    assert results[kind]["slices"] == ["DTensor" if kind == "fsdp" else "Parameter"]
    assert close(results[kind]["losses"], results["one"])
    assert close([results[kind]["alone"]], [results["quiet"]])
    assert close(results[kind]["further"], results["further"])
    assert results[kind]["kept"] == []
    assert results[kind]["agree"] == [True, False]
    assert results[kind]["settled"] == [0.5, 0.5]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_resume_is_bit_identical_on_the_same_number_of_ranks(
    kind: str, runs: tuple[Path, dict[str, Any]]
) -> None:
    """PackedBlocks recomputed where they were not before."""
    _, results = runs
    assert results[kind]["changed"] == []
    assert results[kind]["resumed"][kind] == results[kind]["losses"][2 * SAVED :]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells a process's threads by name")
def test_closed_ranks_have_no_threads_left(runs: tuple[Path, dict[str, Any]]) -> None:
    """Threads that still hear the others while a process ends can take it down."""
    _, results = runs
    assert results["threads"] and not [name for name in results["threads"] if "gloo" in name]


@pytest.mark.parametrize("shared", [True, False], ids=["torchrun's store", "its own store"])
def test_a_process_can_join_the_group_again(tmp_path: Path, shared: bool, launch: Launcher) -> None:
    """As where one script trains two models: what the first group left in the store is not the second's."""
    env = {} if shared else {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    assert launch(2, "twice", tmp_path, env=env) == [2, 2]


def test_resume_on_another_number_of_ranks(runs: tuple[Path, dict[str, Any]]) -> None:
    """1 -> 2, 2 -> 3, 1 -> 3, 2 -> 1, 3 -> 1: the tensors are the very same, the losses too to 1e-6."""
    folder, results = runs
    rest = results["one"][2 * SAVED :]
    assert close(results["ddp"]["resumed"]["one"], rest) and close(results["fsdp"]["resumed"]["one"], rest)
    assert close(results["three"]["fsdp"], rest) and close(results["three"]["one"], rest)
    for source in ("one", "ddp", "fsdp", "three-from-one", "three-from-fsdp"):
        origin = source.removeprefix("three-from-")
        expected = {g: dict(open_weights(folder / origin / f"step-{SAVED:08}/{g}")) for g in GROUPS}
        run = Run(ALONE, seed=1)
        checkpoint = run.resume(folder / source)
        assert checkpoint is not None and checkpoint.step == SAVED
        assert differing(run.full_state(), expected) == []
        assert close(run.steps(range(SAVED + 1, STEPS + 1)), rest)


GROUPS = ("model", "optimizer")


def test_a_checkpoint_of_another_model_is_an_error(runs: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = runs
    run = Run(ALONE)
    state = run.full_state()
    checkpoint = load_checkpoint(folder / "fsdp")
    assert checkpoint is not None
    for change, name in (
        ({**state["model"], "more": torch.zeros(2)}, "more"),
        (
            {n: t for n, t in state["model"].items() if n != "model.embed.token.weight"},
            "model.embed.token.weight",
        ),
        ({**state["model"], "model.embed.token.weight": torch.zeros(2)}, "model.embed.token.weight"),
    ):
        with pytest.raises(ConflictError) as caught:
            fill(change, checkpoint.tensors["model"])
        assert name in caught.value.reason


def test_a_killed_worker_ends_the_job_or_restarts_it(tmp_path: Path, launch: Launcher) -> None:
    """SIGKILL of one of two ranks after step 3: the job fails at once, or restarts from its checkpoint."""
    # by the one that was killed, or by the other that no longer hears it: whichever is seen first
    with pytest.raises(Failed, match=r"SIGKILL|[Cc]onnection (reset|closed)"):
        launch(2, "killed", tmp_path)
    assert time.time() - (tmp_path / "died").stat().st_mtime < 60
    checkpoint = load_checkpoint(tmp_path / "runs")
    assert checkpoint is not None and checkpoint.step == 3 and not checkpoint.damaged

    shutil.rmtree(tmp_path / "runs")
    results = launch(2, "killed", tmp_path, options=["--max-restarts=1"])
    assert results["first"] == 4
    assert close(results["losses"], Run(ALONE).steps(range(1, STEPS + 1))[6:])
    left = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert left == ["latest", "step-00000004", "step-00000005"]


def test_gradient_checkpointing_saves_memory_and_keeps_gradients() -> None:
    """Dropout on; names, keys and copies as before; a cache or no gradient: nothing is run twice."""

    def held(learner: Tiny) -> tuple[int, list[torch.Tensor]]:
        sizes: dict[int, int] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        torch.manual_seed(5)
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = learner(**batch(1, 2))
        loss.backward()
        return sum(sizes.values()), [p.grad for p in learner.parameters() if p.grad is not None]

    torch.manual_seed(0)
    plain = Tiny()
    recomputed = copy.deepcopy(plain)
    assert enable_gradient_checkpointing(recomputed) == 2
    assert [n for n, _ in recomputed.named_modules()] == [n for n, _ in plain.named_modules()]
    assert list(recomputed.state_dict()) == list(plain.state_dict())
    copied = copy.deepcopy(recomputed)
    (plain_memory, expected), (recomputed_memory, gradients) = held(plain), held(recomputed)
    assert len(gradients) == len(expected) == len(list(plain.parameters()))
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert recomputed_memory < 0.6 * plain_memory
    assert held(copied)[0] == recomputed_memory and copied.model.embed.token.weight.grad is not None


RESTARTING = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_MAX_RESTARTS": "3",
}


def test_parallelism_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert parallel_from_environment("auto", "cpu") == ALONE == parallel_from_environment("none", "cpu")
    with pytest.raises(InvalidValueError):
        parallel_from_environment("ddp", "cpu")
    fsdp = parallel_from_environment("fsdp", "cpu")
    try:
        alone = Run(ALONE).steps([1, 2])
        assert close(Run(fsdp).steps([1, 2]), alone)
    finally:
        fsdp.close()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InvalidValueError):
        parallel_from_environment("none", "cpu")
    for name, value in RESTARTING.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidValueError):
        parallel_from_environment("auto", "cpu")


def test_a_run_can_change_its_ranks(tmp_path: Path, launch: Launcher) -> None:
    """By FSDP on two ranks, by DDP on two, then alone: losses, averages and validation as of one process.

    The first of them by torchrun as a shell would run it.
    """
    known = "a dog runs by the old red house and sees nine small trees".split()
    pairs = [[known[(7 * n + k * k) % len(known)] for k in range(3 + n % 5)] for n in range(200)]
    table = "".join(f"{' '.join(row)}\t{' '.join(reversed(row))}\n" for row in pairs)
    (tmp_path / "pairs.tsv").write_text("source\ttarget\n" + table)
    recipe: dict[str, Any] = {
        "job": "translate",
        "data": {"train": str(tmp_path / "pairs.tsv"), "valid": 0.1},
        "tokenizer": {"kind": "word"},
        "model": {"preset": "original", "d_model": 32, "num_heads": 4, "d_ff": 64, "num_layers": 2},
        "training": {
            "batch_tokens": 200,
            "gradient_accumulation_steps": 2,
            "device": "cpu",
            "ema": 0.9,
            "lr": 0.003,
            "warmup_steps": 4,
            "lr_scheduler": "constant",
            "eval_steps": 4,
            "save_steps": 4,
            "logging_steps": 1,
            "epochs": 1000.0,
        },
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(recipe))  # YAML holds JSON

    def alone(folder: str) -> None:
        options = {**recipe["training"], "max_steps": 12, "parallel": "none"}
        glassformer.train({**recipe, "training": options}, tmp_path / folder)

    def options(steps: int, kind: str) -> list[str]:
        settings = [f"training.max_steps={steps}", f"training.parallel={kind}"]
        command = ["train", str(path), "--out", str(tmp_path / "changing")]
        return command + [word for setting in settings for word in ("--set", setting)]

    def torchrun(command: list[str]) -> None:
        program = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        program += ["-m", "glassformer", *command]
        done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=110)
        assert done.returncode == 0, done.stderr[-3000:]

    def logged(folder: str, kind: str) -> dict[int, dict[str, Any]]:
        lines = (tmp_path / folder / "metrics.jsonl").read_text().splitlines()
        return {line["step"]: line for line in map(json.loads, lines) if line["kind"] == kind}

    alone("one")
    torchrun(options(4, "fsdp"))
    launch(2, "command", *options(8, "ddp"))
    alone("changing")
    ours, theirs = logged("changing", "step"), logged("one", "step")
    assert ours.keys() == theirs.keys() == set(range(1, 13))
    for what in ("loss", "grad_norm"):
        assert close([ours[step][what] for step in ours], [theirs[step][what] for step in ours])
    valid, expected = logged("changing", "valid"), logged("one", "valid")
    assert [*valid] == [*expected] == [4, 8, 12]
    assert close(
        [v["metrics"]["loss"] for v in valid.values()], [v["metrics"]["loss"] for v in expected.values()]
    )


@pytest.mark.parametrize("parallel", sample(["ddp", "fsdp"], 1))
def test_own_module_on_two_ranks_equals_one_process(tmp_path: Path, launch: Launcher, parallel: str) -> None:
    assert train_own_module(tmp_path / "one", "none") == "finished"
    assert launch(2, "own module", tmp_path / "two", parallel) == "finished"
    one, two = open_weights(tmp_path / "one/model"), open_weights(tmp_path / "two/model")
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-5, atol=1e-6)
