"""LoRA with `glassformer.Trainer`: adapters of this library's models and, as in PEFT, of any module."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

import glassformer
from glassformer.core.lora import add_lora, lora_layers
from glassformer.errors import InvalidValueError, UnknownNameError
from tests.training.test_custom_training import StopAt

peft = pytest.importorskip("peft")

INPUTS = torch.randn(24, 5, 8, generator=torch.Generator().manual_seed(0))
EXAMPLES = list(zip(INPUTS, INPUTS.flip(1) @ torch.ones(8, 1), strict=True))
OPTIONS: dict[str, Any] = {"max_steps": 6, "lr": 0.02, "batch_size": 4, "device": "cpu", "lora_dropout": 0.1}


class Encoder(nn.Module):
    """torch's encoder layer, whose fused kernel reads weights directly; its attribute is named `model`."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.1)
        self.out = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.model(x))  # type: ignore[no-any-return]


class LastAdapters(glassformer.TrainerCallback):
    """Keep the adapters of the last step."""

    def on_step_end(self, trainer: glassformer.Trainer, metrics: Any) -> None:
        layers = lora_layers(trainer.model)
        self.updates = {
            path: (layer.lora_B.weight.detach() @ layer.lora_A.weight.detach()).clone()
            for path, layer in layers
        }


def mse(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


def next_token(model: Any, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def encoder() -> Encoder:
    torch.manual_seed(1)
    return Encoder()


def trainer_of(model: Any, folder: Path, **options: Any) -> glassformer.Trainer:
    defaults = {"loss": mse, "train_dataset": EXAMPLES, "lora_r": 2, "lora_target_modules": "all-linear"}
    return glassformer.Trainer(model, folder=folder, **{**defaults, **OPTIONS, **options})


@pytest.mark.parametrize("alpha", [3.0, 16.0])
def test_adapters_of_any_module_equal_peft(alpha: float) -> None:
    model = encoder().eval()
    reference = peft.get_peft_model(
        copy.deepcopy(model),
        peft.LoraConfig(r=2, lora_alpha=alpha, target_modules=["linear1", "out"], lora_dropout=0.0),
    )
    paths = add_lora(model, r=2, lora_alpha=alpha, lora_dropout=0.0, target_modules=["model.linear1", "out"])
    assert paths == ["model.linear1", "out"]
    theirs = reference.base_model.model
    for path, layer in lora_layers(model):
        nn.init.normal_(layer.lora_B.weight)
        other = theirs.get_submodule(path)
        for ours, target in ((layer.lora_A, other.lora_A), (layer.lora_B, other.lora_B)):
            target["default"].weight.data.copy_(ours.weight.data)
    torch.backends.mha.set_fastpath_enabled(False)  # it reads weights without calling PEFT's layers
    try:
        expected = reference.eval()(INPUTS)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    with torch.no_grad():
        torch.testing.assert_close(model(INPUTS), expected, atol=1e-5, rtol=0)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {f"{path}.lora_{half}.weight" for path in paths for half in "AB"}


def test_dropout_acts_on_the_input_of_the_adapter_in_training_mode() -> None:
    layer = nn.Linear(8, 3)
    add_lora(layer, r=2, lora_alpha=2.0, lora_dropout=0.5, target_modules=["all-linear"])
    ((_, adapted),) = lora_layers(layer)
    nn.init.normal_(adapted.lora_B.weight)
    base = F.linear(INPUTS, layer.weight, layer.bias)
    torch.manual_seed(0)
    output = layer(INPUTS)
    torch.manual_seed(0)
    dropped = adapted.lora_dropout(INPUTS)
    assert (dropped == 0).any() and (dropped != 0).any()
    torch.testing.assert_close(output, base + adapted.lora_B(adapted.lora_A(dropped)))
    torch.testing.assert_close(layer.eval()(INPUTS), base + adapted.lora_B(adapted.lora_A(INPUTS)))


def test_module_is_trained_saved_and_merged(tmp_path: Path) -> None:
    model, before, adapters = encoder(), encoder().state_dict(), LastAdapters()
    result = trainer_of(model, tmp_path, lora_alpha=3.0, callbacks=[adapters]).train()
    assert result.outcome == "finished"
    saved = load_file(tmp_path / "model" / "model.safetensors")
    assert saved.keys() == before.keys() and set(adapters.updates) == {
        "model.linear1",
        "model.linear2",
        "out",
    }
    for name, weight in before.items():
        update = adapters.updates.get(name.removesuffix(".weight"))
        expected = weight if update is None or name.endswith("bias") else weight + 3.0 / 2 * update
        torch.testing.assert_close(saved[name], expected)
        assert torch.equal(model.state_dict()[name], saved[name])
        assert torch.equal(saved[name], weight) == (update is None or name.endswith("bias"))
    assert type(model.out) is nn.Linear and not model.out._forward_hooks
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_resumed_adapters_are_bit_identical(tmp_path: Path) -> None:
    options: dict[str, Any] = {"eval_dataset": EXAMPLES[:5], "eval_steps": 2, "ema": 0.5}
    trainer_of(encoder(), tmp_path / "whole", **options).train()
    model = encoder()
    torch.manual_seed(7)  # the adapters depend on the seed of the run, not on the state of the generator
    trainer_of(model, tmp_path / "parts", **options, callbacks=[StopAt(3)]).train()
    resumed = trainer_of(encoder(), tmp_path / "parts", **options)
    assert resumed.train().step == OPTIONS["max_steps"]
    whole, parts = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    again = resumed.train()  # a finished run is merged again, from its checkpoint
    assert again.outcome == "finished"
    assert all(torch.equal(resumed.model.state_dict()[name], whole[name]) for name in whole)


def test_trainer_continues_after_an_error(tmp_path: Path) -> None:
    """The adapters that the failed call added are replaced by those of the checkpoint."""

    class CrashOnce(glassformer.TrainerCallback):
        def on_step_end(self, trainer: glassformer.Trainer, metrics: Any) -> None:
            if metrics.step == 3 and not crashed:
                crashed.append(True)
                raise KeyError("crash")

    crashed: list[bool] = []
    trainer_of(encoder(), tmp_path / "whole").train()
    trainer = trainer_of(encoder(), tmp_path / "parts", save_steps=2, callbacks=[CrashOnce()])
    with pytest.raises(KeyError):
        trainer.train()
    trainer.train()
    whole, parts = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "parts"))
    assert crashed and whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.parametrize("whole", [False, True])
def test_model_of_the_library_is_saved_as_a_folder(tmp_path: Path, whole: bool) -> None:
    base = glassformer.save(glassformer.tiny("llama"), tmp_path / "base")
    pipeline = glassformer.load(base)
    rows = list(torch.randint(1, 90, (16, 9)))
    trainer = trainer_of(
        pipeline if whole else pipeline.model,
        tmp_path / "run",
        loss=next_token,
        train_dataset=rows,
        eval_dataset=rows[:4],
        eval_steps=3,
        lora_target_modules=["q_proj", "v_proj"],
    )
    trainer.train()
    ids = torch.stack(rows)
    folder = tmp_path / "run" / "model"
    expected = trainer.model.eval()(ids)
    assert (expected - glassformer.load(base).model(ids)).abs().max() > 1e-3
    for path in (folder, folder / "adapter") if whole else (folder,):
        torch.testing.assert_close(glassformer.load(path).model(ids), expected, atol=1e-5, rtol=0)
    assert (folder / "adapter").is_dir() == whole


def test_layers_that_cannot_be_adapted_are_refused(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.up, self.out = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9, bias=False)
            self.out.weight = self.embed.weight

    with pytest.raises(UnknownNameError) as tied:  # the update could not be merged into the shared weight
        add_lora(Tied(), r=1, lora_alpha=1, lora_dropout=0, target_modules=["out"])
    with pytest.raises(UnknownNameError) as bypassed:  # torch reads the weight without calling the layer
        add_lora(encoder(), r=1, lora_alpha=1, lora_dropout=0, target_modules=["out_proj"])
    assert (tied.value.name, bypassed.value.name) == ("out", "out_proj")
    run = tmp_path / "run"
    with pytest.raises(UnknownNameError):
        trainer_of(encoder(), run, lora_target_modules=["q_proj"]).train()
    assert (
        trainer_of(encoder(), run).train().outcome == "finished"
    )  # the corrected program may use the folder


def test_training_no_parameters_is_an_error(tmp_path: Path) -> None:
    frozen = encoder().requires_grad_(False)
    with pytest.raises(InvalidValueError) as error:
        trainer_of(frozen, tmp_path / "frozen", lora_r=None).train()
    assert error.value.value == 0 and "requires_grad" in error.value.hint
    with pytest.raises(InvalidValueError):
        trainer_of(encoder(), tmp_path / "options", lora_r=None, freeze=["model", "out"]).train()
    with pytest.raises(InvalidValueError):
        trainer_of(nn.Identity(), tmp_path / "empty", lora_r=None).train()
