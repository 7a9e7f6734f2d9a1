"""Read and write LoRA adapters in PEFT's layout: adapter_config.json and adapter_model.safetensors.

Tensors have the published names: `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight` is (r, in),
`...lora_B.weight` is (out, r). Layers that are trained in full, e.g. a new head, keep their own names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor, nn

from glassformer.core.lora import LoRALinear, lora_layers
from glassformer.errors import FileMissingError, FileProblemError, UnsupportedError
from glassformer.families.sidecars import read_config
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Op

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
_LORA = re.compile(r"(.+)\.lora_([AB])\.weight")
# options of PEFT that change the result, with the only value that is supported
_PLAIN = {
    "use_dora": False,
    "bias": "none",
    "lora_bias": False,
    "layer_replication": None,
    "megatron_config": None,
}
_TASK_TYPES = {
    "ForCausalLM": "CAUSAL_LM",
    "LMHeadModel": "CAUSAL_LM",
    "ForConditionalGeneration": "SEQ_2_SEQ_LM",
    "MTModel": "SEQ_2_SEQ_LM",
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
}


@dataclass(frozen=True)
class Adapter:
    """An adapter folder. base: folder of the base model. updates: A and B of each layer, by published path.

    full: tensors that replace those of the base model. alphas: of layers that the config does not name.
    """

    base: Path
    updates: Mapping[str, tuple[Tensor, Tensor]]
    full: Mapping[str, Tensor]
    config: Mapping[str, Any] = field(repr=False)
    alphas: Mapping[str, float] = field(default_factory=dict)

    def scaling(self, path: str, r: int) -> float:
        """Return the factor of B A for a layer: alpha / r, or alpha / sqrt(r) with rank-stabilized LoRA."""
        alpha = float(self.config.get("lora_alpha", 8))
        for pattern, value in (self.config.get("alpha_pattern") or {}).items():
            if re.fullmatch(rf"(.*\.)?{pattern}", path):
                alpha = float(value)
        alpha = self.alphas.get(path, alpha)
        return alpha / (math.sqrt(r) if self.config.get("use_rslora") else r)

    def merge(self, name: str, weight: Tensor) -> Tensor:
        """Return a published weight with its update added, computed in float32."""
        path = name.removesuffix(".weight")
        a, b = (tensor.float().flatten(1) for tensor in self.updates[path])
        transposed = bool(self.config.get("fan_in_fan_out"))
        target = weight.T if transposed else weight
        if (len(b), a.shape[1]) != (len(target), target[0].numel()):  # before they are multiplied
            raise UnsupportedError(f"the adapter of {name}", f"a weight of shape {tuple(weight.shape)}")
        update = (self.scaling(path, len(a)) * (b @ a)).view(target.shape)
        return (weight.float() + (update.T if transposed else update)).to(weight.dtype)


class AdaptedWeights(Mapping[str, Tensor]):
    """The published tensors of a base model with an adapter merged; each is computed when it is read.

    Prefixes may differ: a base saved without a head has `encoder.layer.0`, its classifier's adapter has
    `bert.encoder.layer.0`. All names get the first prefix of the table.
    """

    def __init__(self, weights: Mapping[str, Tensor], adapter: Adapter, table: WeightTable) -> None:
        self._weights, self._adapter = weights, adapter
        known = {
            name for row in table.rows(table.base[0]) for name in row.theirs
        }  # not a head that is replaced
        sources = {new: name for name, new in _first_prefix(weights, table).items()}
        self._sources = {new: name for new, name in sources.items() if new in known}
        names = [f"{path}.weight" for path in adapter.updates]
        self._updates = {new: name for name, new in _first_prefix(names, table).items()}
        self._full = {new: name for name, new in _first_prefix(adapter.full, table).items()}
        for name in self._updates:
            if name not in self._sources:
                raise UnsupportedError(
                    "the base model of the adapter", f"an update of {name}, which it lacks"
                )

    def __getitem__(self, name: str) -> Tensor:
        if name in self._full:
            return self._adapter.full[self._full[name]]
        weight = self._weights[self._sources[name]]
        return self._adapter.merge(self._updates[name], weight) if name in self._updates else weight

    def __iter__(self) -> Iterator[str]:
        return iter({**self._sources, **self._full})

    def __len__(self) -> int:
        return len(self._sources | self._full)


def _first_prefix(names: Iterable[str], table: WeightTable) -> dict[str, str]:
    """Map published names to those with the first prefix of the table."""
    names = list(names)
    rows = zip(table.fit(names), table.rows(table.base[0]), strict=True)
    renamed = {old: new for row, first in rows for old, new in zip(row.theirs, first.theirs, strict=True)}
    return {name: renamed.get(name, name) for name in names}


def read_adapter(folder: Path) -> Adapter:
    """Read an adapter folder and find its base model."""
    config = read_config(folder / ADAPTER_CONFIG)
    if "peft_type" not in config:
        raise FileProblemError(
            folder / ADAPTER_CONFIG, "has no peft_type", hint="only LoRA adapters are supported"
        )
    if config["peft_type"] != "LORA":
        raise UnsupportedError(f"{folder / ADAPTER_CONFIG}", f"the adapter type {config['peft_type']!r}")
    check_peft_options(config, folder / ADAPTER_CONFIG)
    weights = folder / ADAPTER_WEIGHTS
    if not weights.is_file():
        raise FileMissingError(weights, "adapter weights")
    try:
        with safetensors.safe_open(weights, framework="pt") as file:
            tensors = {name.removeprefix(PREFIX): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, safetensors.SafetensorError) as error:
        raise FileProblemError(weights, f"is damaged or not a safetensors file ({error!s:.80})") from error
    halves: dict[str, dict[str, Tensor]] = {}
    full = {}
    for name, tensor in tensors.items():
        if match := _LORA.fullmatch(name):
            halves.setdefault(match[1], {})[match[2]] = tensor
        elif ".lora_" in name:
            raise UnsupportedError(str(weights), f"the tensor {name}")
        else:
            full[name.replace(".modules_to_save.default.", ".").replace(".base_layer.", ".")] = tensor
    for path, pair in halves.items():
        if set(pair) != {"A", "B"} or pair["A"].dim() != 2 or pair["B"].shape[1:] != pair["A"].shape[:1]:
            raise FileProblemError(weights, f"has no matching lora_A and lora_B for {path}")
    updates = {path: (pair["A"], pair["B"]) for path, pair in halves.items()}
    return Adapter(_base_folder(folder, config), updates, full, config)


def check_peft_options(config: Mapping[str, Any], path: Path) -> None:
    """Raise for an option of PEFT that would change the result."""
    for name, plain in _PLAIN.items():
        if config.get(name, plain) not in (plain, None):
            raise UnsupportedError(str(path), f"{name}: {config[name]!r}")


def _base_folder(folder: Path, config: Mapping[str, Any]) -> Path:
    name = str(config.get("base_model_name_or_path") or "")
    for path in (Path(name), folder / name):
        if name and path.is_dir():
            return path
    hint = (
        f"download the base model, and set base_model_name_or_path in {folder / ADAPTER_CONFIG} to its folder"
    )
    raise FileMissingError(name or ADAPTER_CONFIG, "base model of the adapter", hint)


@torch.no_grad()
def adapter_files(
    model: nn.Module, table: WeightTable, base: Path, *, architecture: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the config and the tensors of the adapter of a model, by their names in the files.

    table: the weight table of the family. base: folder of the base model. architecture: the published class,
    which determines PEFT's task type. Published layers that fuse several
    of ours get one adapter whose rank is the sum of theirs.
    """
    layers = {f"{path}.weight": layer for path, layer in lora_layers(model)}
    tensors, ranks, alphas, transposed = dict[str, Tensor](), dict[str, int](), dict[str, float](), False
    for op in _single_rows(table):
        adapted = [layers[name] for name in op.ours if name in layers]
        if not adapted:
            continue
        a = torch.cat([layer.lora_A.weight for layer in adapted])  # (sum of ranks, in)
        swapped, blocks = _published_blocks(op, layers, model, len(a))
        transposed |= swapped
        for name, b in blocks.items():
            path = name.removesuffix(".weight")
            tensors[f"{PREFIX}{path}.lora_A.weight"] = a.contiguous().cpu()
            tensors[f"{PREFIX}{path}.lora_B.weight"] = b.contiguous().cpu()
            ranks[path], alphas[path] = len(a), adapted[0].lora_scaling * len(a)
    trained = {
        name: parameter.cpu() for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    full = {
        name: tensor
        for op in table.rows(table.base[0])
        if op.ours and set(op.ours) <= set(trained)
        for name, tensor in zip(op.theirs, op.save([trained[name] for name in op.ours]), strict=True)
        if name in op.saved_names
    }
    tensors |= {f"{PREFIX}{name}": tensor.contiguous() for name, tensor in full.items()}
    r, alpha = next(iter(ranks.values())), next(iter(alphas.values()))
    config = {
        "peft_type": "LORA",
        "task_type": next((kind for end, kind in _TASK_TYPES.items() if architecture.endswith(end)), None),
        "base_model_name_or_path": str(base.absolute()),
        "r": r,
        "lora_alpha": alpha,
        "rank_pattern": {path: rank for path, rank in ranks.items() if rank != r},
        "alpha_pattern": {path: value for path, value in alphas.items() if value != alpha},
        "lora_dropout": next(iter(layers.values())).lora_dropout.p,
        "target_modules": sorted(ranks),
        "modules_to_save": sorted({name.rpartition(".")[0] for name in full}) or None,
        "fan_in_fan_out": transposed,
        "bias": "none",
        "inference_mode": True,
    }
    return config, tensors


def _single_rows(table: WeightTable) -> Iterator[Op]:
    """Yield the rows of the table, those that convert several tensors one by one as a row per tensor."""
    for op in table.rows(table.base[0]):
        if len(op.theirs) == len(op.ours):
            yield from (
                replace(op, theirs=name, ours=own) for name, own in zip(op.theirs, op.ours, strict=True)
            )
        else:
            yield op


def _published_blocks(
    op: Op, layers: Mapping[str, LoRALinear], model: nn.Module, rank: int
) -> tuple[bool, dict[str, Tensor]]:
    """Return whether the published weight is (in, out), and B (out, rank) of each published weight of `op`.

    B of each of our layers is zero outside its own columns.
    """
    ours, start = [], 0
    for name in op.ours:
        weight = model.get_parameter(name)
        block = weight.new_zeros(len(weight), rank)
        if name in layers:
            b = layers[name].lora_B.weight
            block[:, start : start + b.shape[1]] = b
            start += b.shape[1]
        ours.append(block)
    marked = op.their_shapes([(len(block), 0) for block in ours])[0]  # 0 marks the input dimension
    swapped = marked[0] == 0
    return swapped, {name: b.T if swapped else b for name, b in zip(op.theirs, op.save(ours), strict=True)}
