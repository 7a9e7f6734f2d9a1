"""The public trainer: own modules, losses, datasets, metrics and callbacks."""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset

import glassformer
from glassformer.core.precision import DTYPE_ALIASES, parse_dtype
from glassformer.errors import (
    ConflictError,
    InvalidValueError,
    MissingDependencyError,
    MissingValueError,
    UnknownNameError,
    UnsupportedError,
)
from glassformer.training.optimizer import LossScale
from glassformer.weights.store import open_weights

INPUTS = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
TARGETS = INPUTS @ torch.tensor([[1.0], [-2.0], [0.5]])


class Pairs(Dataset[tuple[Tensor, Tensor]]):
    """Examples with random noise from all three global generators."""

    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, n: int) -> tuple[Tensor, Tensor]:
        noise = torch.randn(1) + np.random.randn() + random.random()
        return INPUTS[n] + 0.01 * noise, TARGETS[n]


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """The examples in an order that depends on the epoch's random numbers."""

    def __init__(self) -> None:
        self.read = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for n in torch.randperm(len(INPUTS)).tolist():
            self.read += 1
            yield INPUTS[n], TARGETS[n]


class StatefulStream(Stream):
    """A stream in a fixed order that resumes from its own state."""

    position = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while self.position < len(INPUTS):
            self.position += 1
            self.read += 1
            yield INPUTS[self.position - 1], TARGETS[self.position - 1]
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class Regression(glassformer.TrainingTask):
    def loss(self, model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        return F.mse_loss(model(inputs), targets)


class StopAt(glassformer.TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, trainer: glassformer.Trainer, metrics: Any) -> None:
        trainer.should_stop = metrics.step == self.step


class CrashAt(StopAt):
    def on_step_end(self, trainer: glassformer.Trainer, metrics: Any) -> None:
        if metrics.step == self.step:
            raise KeyError("crash")


def network(dropout: float = 0.1) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(dropout), nn.Linear(8, 1))


def trainer_in(folder: Path, dataset: Any = None, **options: Any) -> glassformer.Trainer:
    defaults: dict[str, Any] = {"batch_size": 4, "max_steps": 14, "lr": 0.01, "ema": 0.9, "device": "cpu"}
    return glassformer.Trainer(
        options.pop("model", None) or network(),
        options.pop("task", Regression()),
        train_dataset=Pairs() if dataset is None else dataset,
        folder=folder,
        **{**defaults, **options},
    )


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("dataset", [Pairs, Stream, StatefulStream])
def test_resume_inside_an_epoch_is_bit_identical(tmp_path: Path, dataset: type[Any]) -> None:
    through = trainer_in(tmp_path / "through", dataset())
    assert through.train().outcome == "finished"
    stopped = trainer_in(tmp_path / "stopped", dataset(), callbacks=[StopAt(6)])
    assert (stopped.train().outcome, stopped.state.step) == ("stopped", 6)
    with pytest.raises(KeyError):  # resumes from the checkpoint of step 3
        trainer_in(tmp_path / "crashed", dataset(), save_steps=3, callbacks=[CrashAt(5)]).train()
    crashed = trainer_in(tmp_path / "crashed", dataset(), save_steps=3)
    assert crashed.train().outcome == "finished"
    data = dataset()
    resumed = trainer_in(tmp_path / "stopped", data)
    assert resumed.train().outcome == "finished"
    expected = parameters(through.model)
    for trainer in (resumed, crashed):
        assert expected.keys() == parameters(trainer.model).keys()
        for name, tensor in parameters(trainer.model).items():
            assert torch.equal(tensor, expected[name]), name
    if isinstance(data, Stream):  # 8 more steps; without a state the first 6 are read again
        assert data.read == (4 * 8 if isinstance(data, StatefulStream) else 4 * 14)
    saved = open_weights(tmp_path / "stopped" / "model")
    assert all(torch.equal(saved[name], tensor) for name, tensor in expected.items())


def test_worker_processes_load_the_same_batches(tmp_path: Path) -> None:
    one = trainer_in(tmp_path / "one", max_steps=6)
    two = trainer_in(tmp_path / "two", max_steps=6, num_workers=2)
    for trainer in (one, two):
        trainer.train()
    expected = parameters(one.model)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in parameters(two.model).items())


def test_equals_a_plain_torch_loop(tmp_path: Path) -> None:
    data = list(zip(INPUTS, TARGETS, strict=True))
    trainer = trainer_in(
        tmp_path,
        data,
        model=network(dropout=0.0),
        shuffle=False,
        max_steps=25,
        ema=0.0,
        lr_scheduler="constant",
        warmup_steps=0,
        max_grad_norm=0.0,
        weight_decay=0.1,
    )
    trainer.train()
    model = network(dropout=0.0)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.98), eps=1e-9)
    batches = itertools.cycle(DataLoader(data, batch_size=4))
    for inputs, targets in itertools.islice(batches, 25):
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    for name, tensor in parameters(model).items():
        torch.testing.assert_close(parameters(trainer.model)[name], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("returns_count", [False, True])
def test_accumulation_equals_one_big_batch(tmp_path: Path, returns_count: bool) -> None:
    class Weighted(glassformer.TrainingTask):
        def loss(self, model: Any, batch: tuple[Tensor, Tensor]) -> Any:
            inputs, targets = batch
            errors = (model(inputs) - targets).square()
            if not returns_count:
                return errors.mean()
            weights = (inputs[:, :1] > 0).float() + 0.5
            return (errors * weights).sum(), weights.sum()

    data = list(zip(INPUTS, TARGETS, strict=True))
    trained = []
    for name, batch, accumulation in (("big", 12, 1), ("small", 4, 3)):
        trainer = trainer_in(
            tmp_path / name,
            data,
            model=network(dropout=0.0),
            task=Weighted(),
            shuffle=False,
            max_steps=3,
            eps=1e-3,
            batch_size=batch,
            gradient_accumulation_steps=accumulation,
        )
        trainer.train()
        trained.append(parameters(trainer.model))
    big, small = trained
    for name in big:
        torch.testing.assert_close(small[name], big[name], rtol=1e-5, atol=1e-6)


def test_metrics_select_the_best_model_and_callbacks_see_everything(tmp_path: Path) -> None:
    scores = iter([0.2, 0.9, 0.3])
    events: list[str] = []

    class Recorder(glassformer.TrainerCallback):
        def on_train_begin(self, trainer: glassformer.Trainer) -> None:
            events.append(f"begin {trainer.state.step}")

        def on_evaluate(self, trainer: glassformer.Trainer, metrics: Any) -> None:
            events.append(f"evaluate {trainer.state.step} {sorted(metrics)}")
            self.at_best = (
                parameters(trainer.model) if metrics["score"] == 0.9 else self.__dict__.get("at_best")
            )

        def on_save(self, trainer: glassformer.Trainer, folder: Path) -> None:
            events.append(f"save {trainer.state.step}")

        def on_train_end(self, trainer: glassformer.Trainer) -> None:
            events.append("end")

    def compute_metrics(model: Any, batches: Any) -> dict[str, float]:
        assert not model.training and not torch.is_grad_enabled()
        assert [len(inputs) for inputs, _ in batches] == [4, 4, 2]
        return {"score": next(scores, 0.5)}

    recorder = Recorder()
    trainer = trainer_in(
        tmp_path,
        task=None,
        loss=lambda model, batch: F.mse_loss(model(batch[0]), batch[1]),
        compute_metrics=compute_metrics,
        eval_dataset=list(zip(INPUTS[:10], TARGETS[:10], strict=True)),
        metric_for_best_model="score",
        callbacks=[recorder],
        max_steps=6,
        eval_steps=2,
        ema=0.0,
    )
    result = trainer.train()
    assert (result.step, trainer.state.best_step, result.metrics["score"]) == (6, 4, 0.3)
    shown = "['loss', 'score']"
    rounds = [f"{event} {step}" for step in (2, 4, 6) for event in ("evaluate", "save")]
    assert [event.replace(f" {shown}", "") for event in events] == ["begin 0", *rounds, "end"]
    assert all(torch.equal(t, recorder.at_best[name]) for name, t in parameters(trainer.model).items())
    with torch.no_grad():
        loss = F.mse_loss(trainer.model.eval()(INPUTS[:10]), TARGETS[:10])
    assert trainer.evaluate()["loss"] == pytest.approx(float(loss), rel=1e-5)


def test_own_optimizer_with_several_learning_rates_follows_the_schedule(tmp_path: Path) -> None:
    class WithSgd(Regression):
        def optimizer(self, parameters: Any, options: Any) -> torch.optim.Optimizer:
            names = ("0.weight", "0.bias")
            first = [parameters[name] for name in names]
            rest = [tensor for name, tensor in parameters.items() if name not in names]
            return torch.optim.SGD([{"params": first, "lr": 0.0}, {"params": rest, "lr": 0.02}], momentum=0.9)

    before = parameters(network())
    trainer = trainer_in(tmp_path / "a", task=WithSgd(), max_steps=8)
    trainer.train()
    after = parameters(trainer.model)
    assert torch.equal(before["0.weight"], after["0.weight"])
    assert not torch.equal(before["2.weight"], after["2.weight"])
    stopped = trainer_in(tmp_path / "b", task=WithSgd(), max_steps=8, callbacks=[StopAt(3)])
    stopped.train()
    resumed = trainer_in(tmp_path / "b", task=WithSgd(), max_steps=8)
    resumed.train()
    assert all(torch.equal(t, after[name]) for name, t in parameters(resumed.model).items())


def test_library_models_are_saved_as_model_folders_and_own_heads_as_weights(tmp_path: Path) -> None:
    def loss(model: Any, ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    rows = list(torch.randint(0, 20, (16, 8), generator=torch.Generator().manual_seed(1)))
    model = glassformer.tiny("gpt2")
    trainer_in(tmp_path / "gpt2", rows, model=model, task=None, loss=loss, max_steps=3).train()
    loaded = glassformer.load(tmp_path / "gpt2" / "model").model
    assert all(torch.equal(t, loaded.state_dict()[name]) for name, t in model.state_dict().items())

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(model.spec.decoder.d_model, 2)

        def forward(self, x: Tensor, context: Any) -> Tensor:
            return self.linear(x)

    model.head = Head()  # type: ignore[assignment]
    with pytest.raises(UnsupportedError):
        glassformer.save(model, tmp_path / "refused")

    def own_loss(model: Any, ids: Tensor) -> Tensor:
        return F.cross_entropy(model.head(*model.hidden_states(ids))[:, -1], ids[:, 0] % 2)

    trainer_in(tmp_path / "own", rows, model=model, task=None, loss=own_loss, max_steps=3).train()
    saved = open_weights(tmp_path / "own" / "model")
    assert torch.equal(saved["head.linear.weight"], model.state_dict()["head.linear.weight"])


def test_time_limit_stops_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    limited = trainer_in(tmp_path, time_limit="0.0001s").train()
    assert (limited.outcome, limited.step) == ("time limit", 0)
    assert (tmp_path / "model" / "model.safetensors").is_file()
    assert trainer_in(tmp_path).train().outcome == "finished"


def test_float16_with_loss_scaling_trains(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, precision="float16", max_steps=40, ema=0.0, lr=0.02)
    trainer.train()
    assert trainer.loss_scale is not None and trainer.state.skipped == 0
    with torch.no_grad():
        assert float(F.mse_loss(trainer.model.eval()(INPUTS), TARGETS)) < float(TARGETS.var())


def test_mlflow_stores_the_metrics_of_a_resumed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    options: dict[str, Any] = {"report_to": ["mlflow"], "eval_dataset": Pairs(), "eval_steps": 2}
    trainer_in(tmp_path / "run", callbacks=[StopAt(2)], max_steps=4, **options).train()
    trainer_in(tmp_path / "run", max_steps=4, **options).train()
    (run,) = mlflow.search_runs(output_format="list")
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["metrics"]["loss"] for line in lines if line["kind"] == "valid"}
    stored = mlflow.MlflowClient().get_metric_history(run.info.run_id, "valid/loss")
    assert {metric.step: metric.value for metric in stored} == losses and set(losses) == {2, 4}
    assert run.data.params["lr"] == "0.01" and run.info.status == "FINISHED"


def test_wandb_writes_an_offline_run_that_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    options: dict[str, Any] = {"report_to": ["wandb"], "max_steps": 4}
    trainer_in(tmp_path, callbacks=[StopAt(2)], **options).train()
    trainer_in(tmp_path, **options).train()
    run_id = json.loads((tmp_path / "trackers.json").read_text())["wandb"]
    folders = list((tmp_path / "wandb").glob("offline-run-*"))
    assert len(folders) == 2 and all(folder.name.endswith(f"-{run_id}") for folder in folders)
    assert all(list(folder.glob(f"run-{run_id}.wandb")) for folder in folders)


class WithSgd(Regression):
    def optimizer(self, parameters: Any, options: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters.values(), lr=options.lr)


@pytest.mark.parametrize(
    ("task", "options"),
    [
        (WithSgd(), {"max_grad_norm": 0.0}),
        (WithSgd(), {"max_grad_norm": 0.5}),
        (Regression(), {"eps": 0.9, "weight_decay": 0.0}),  # a step that depends on the gradient's scale
    ],
)
def test_steps_in_float16_equal_those_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: Any, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(LossScale, "INITIAL", 256.0)  # no step overflows
    changes = []
    for precision in ("float32", "float16"):
        model = network(dropout=0.0)
        before = parameters(model)
        fixed: dict[str, Any] = {"max_steps": 3, "lr": 0.05, "lr_scheduler": "constant", "ema": 0.0}
        fixed |= {"warmup_steps": 0, "gradient_accumulation_steps": 2, "precision": precision}
        trainer_in(tmp_path / precision, model=model, task=task, **fixed, **options).train()
        changes.append(
            torch.cat([(value - before[name]).flatten() for name, value in parameters(model).items()])
        )
    exact, scaled = changes
    assert exact.norm() > 0.01
    assert (scaled - exact).norm() < 0.02 * exact.norm()


def test_gradients_below_the_maximum_norm_are_not_scaled(tmp_path: Path) -> None:
    weights = []
    for maximum in (0.0, 1000.0, 0.1):
        options: dict[str, Any] = {"max_grad_norm": maximum, "max_steps": 3, "lr": 0.05, "ema": 0.0}
        trainer = trainer_in(tmp_path / str(maximum), model=network(0.0), task=WithSgd(), **options)
        trainer.train()
        weights.append(torch.cat([value.flatten() for value in parameters(trainer.model).values()]))
    torch.testing.assert_close(weights[0], weights[1])
    assert (weights[2] - weights[0]).abs().max() > 1e-3


def test_trackers_receive_metrics_and_continue_a_resumed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, Any]] = []

    def record(name: str, result: Any = None) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            calls.append((name, {**options, "arguments": arguments}))
            return result

        return call

    wandb = SimpleNamespace(
        init=record("init", SimpleNamespace(id="w1")), log=record("log"), finish=record("finish")
    )
    run = SimpleNamespace(info=SimpleNamespace(run_id="m1"))
    names = ("log_params", "log_metrics", "end_run")
    mlflow = SimpleNamespace(start_run=record("start_run", run), **{name: record(name) for name in names})
    monkeypatch.setitem(sys.modules, "wandb", None)  # type: ignore[arg-type]
    with pytest.raises(MissingDependencyError):
        trainer_in(tmp_path, report_to=["wandb"])
    monkeypatch.setitem(sys.modules, "wandb", wandb)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)  # type: ignore[arg-type]
    both = {"report_to": ["wandb", "mlflow"], "eval_dataset": Pairs(), "max_steps": 4, "eval_steps": 2}
    trainer_in(tmp_path, callbacks=[StopAt(2)], **both).train()
    trainer_in(tmp_path, **both).train()
    assert not (tmp_path / "tensorboard").exists()
    assert [options["id"] for name, options in calls if name == "init"] == [None, "w1"]
    assert [options["run_id"] for name, options in calls if name == "start_run"] == [None, "m1"]
    logged = [options["arguments"][0] for name, options in calls if name == "log"]
    assert {"train/loss", "valid/loss"} <= {name for line in logged for name in line}
    assert [options["step"] for name, options in calls if name == "log_metrics"] == [1, 2, 2, 3, 4, 4]
    assert sum(name == "finish" for name, _ in calls) == sum(name == "end_run" for name, _ in calls) == 2
    (params,) = [options["arguments"][0] for name, options in calls if name == "log_params"]
    assert params["lr"] == 0.01


@pytest.mark.parametrize(
    "wrong",
    [lambda loss: {"loss": loss}, lambda loss: loss[None], lambda loss: (loss, 4, 0), float, Tensor.detach],
)
def test_loss_that_is_not_a_differentiable_scalar_is_an_error(tmp_path: Path, wrong: Any) -> None:
    def loss(model: Any, batch: tuple[Tensor, Tensor]) -> Any:
        return wrong(F.mse_loss(model(batch[0]), batch[1]))

    with pytest.raises(InvalidValueError) as error:
        trainer_in(tmp_path, task=None, loss=loss).train()
    assert error.value.name == "the loss"


def test_examples_of_different_shapes_need_a_collate_fn(tmp_path: Path) -> None:
    texts = [torch.ones(length) for length in (3, 5, 4, 6)]

    def loss(model: Any, batch: Tensor) -> Tensor:
        return model(batch.sum(1, keepdim=True).expand(-1, 3)).square().mean()  # type: ignore[no-any-return]

    for dataset in (texts, [(1, object())], [{"a": 1}, {"b": 1}]):
        with pytest.raises(UnsupportedError) as error:
            trainer_in(tmp_path, dataset, task=None, loss=loss, max_steps=1).train()
        assert error.value.subject == "the default collate_fn"
    padded = trainer_in(
        tmp_path, texts, task=None, loss=loss, max_steps=1, collate_fn=nn.utils.rnn.pad_sequence
    )
    assert padded.train().outcome == "finished"


def test_precision_has_the_spellings_of_dtype(tmp_path: Path) -> None:
    for alias, name in DTYPE_ALIASES.items():
        assert trainer_in(tmp_path, precision=alias).options.precision == name
        assert parse_dtype(alias) == parse_dtype(name)
    with pytest.raises(InvalidValueError):
        trainer_in(tmp_path, precision="fp8")


def test_wrong_arguments_and_changed_settings_are_errors(tmp_path: Path) -> None:
    with pytest.raises(MissingValueError) as no_folder:
        glassformer.Trainer(network(), Regression(), train_dataset=Pairs())
    assert no_folder.value.name == "folder"
    with pytest.raises(MissingValueError):
        trainer_in(tmp_path, task=None)
    with pytest.raises(ConflictError):
        trainer_in(tmp_path, loss=lambda model, batch: None)
    with pytest.raises(UnknownNameError) as unknown:
        trainer_in(tmp_path, learning_rate=0.1)
    assert unknown.value.name == "learning_rate"
    with pytest.raises(UnsupportedError):
        trainer_in(tmp_path, batch_tokens=100)
    with pytest.raises(UnsupportedError):
        trainer_in(tmp_path, DataLoader(Pairs()))
    with pytest.raises(InvalidValueError):
        trainer_in(tmp_path, iter([1]))
    with pytest.raises(MissingValueError) as missing:
        trainer_in(tmp_path, Stream(), max_steps=None)
    assert missing.value.name == "max_steps"
    trainer_in(tmp_path, max_steps=2).train()
    with pytest.raises(ConflictError) as conflict:
        trainer_in(tmp_path, max_steps=2, lr=0.5).train()
    assert conflict.value.names[0] == "training.lr"
    longer = trainer_in(tmp_path, max_steps=40)
    assert (longer.train().step, longer.options.warmup_steps) == (40, 1)  # the warmup stays as it was


def test_threads_are_recorded(tmp_path: Path) -> None:
    trainer_in(tmp_path, max_steps=2, callbacks=[StopAt(1)]).train()
    threads = torch.get_num_threads()
    assert (
        json.loads(next(tmp_path.glob("checkpoints/*/state.json")).read_text())["state"]["threads"] == threads
    )
    torch.set_num_threads(threads + 1)
    try:
        trainer_in(tmp_path, max_steps=2).train()
    finally:
        torch.set_num_threads(threads)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert any(f"resumes with {threads + 1}" in line.get("text", "") for line in lines)
    assert any(line.get("facts", {}).get("CPU threads") == threads for line in lines)
