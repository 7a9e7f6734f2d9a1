"""LoRA adapters of diffusion models in one safetensors file, in the spellings of PEFT, diffusers and Kohya.

A pair of matrices belongs to a published layer of a part of the model:

    unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.lora_A.weight          PEFT
    unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.lora.down.weight       diffusers
    unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.processor.to_q_lora.down.weight
    lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q.lora_down.weight  Kohya

The matrices are (r, in) and (out, r), or convolutions of these channels. An `alpha` next to them, or in the
metadata of the file, scales their product by alpha / r.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor, nn

from glassformer.errors import FileProblemError
from glassformer.families.adapter import Adapter, check_peft_options
from glassformer.json_text import parse_json
from glassformer.weights.convert import WeightTable

KOHYA = {"unet": "lora_unet_", "transformer": "lora_transformer_", "text_encoder": "lora_te_"}
METADATA_KEY = "lora_adapter_metadata"
_HALVES = {
    **{"A": "lora_A.weight,lora.down.weight,lora_down.weight,lora_linear_layer.down.weight"},
    **{"B": "lora_B.weight,lora.up.weight,lora_up.weight,lora_linear_layer.up.weight", "alpha": "alpha"},
}
SUFFIXES = {suffix: half for half, names in _HALVES.items() for suffix in names.split(",")}
_PROCESSOR = re.compile(r"\.processor\.(to_\w+?)_lora\.")


@dataclass(frozen=True)
class AdaptedPart:
    """A part of a model. folder: its published folder. table: its weight table.

    other_names: names of layers in other files, by their published names
    """

    folder: str
    model: nn.Module
    table: WeightTable
    other_names: Mapping[str, str]

    def layers(self) -> dict[str, str]:
        """Return the published layers by all names that an adapter file may have for them."""
        rows = [row for base in self.table.base for row in self.table.rows(base)]
        first = [row for _ in self.table.base for row in self.table.rows(self.table.base[0])]
        found: dict[str, str] = {}
        for row, own in zip(rows, first, strict=True):
            for name, layer in zip(row.theirs, own.theirs, strict=True):
                path = name.removesuffix(".weight")
                names = [f"{self.folder}.{path}", KOHYA[self.folder] + path.replace(".", "_")]
                if other := self.other_names.get(layer):
                    names.append(KOHYA[self.folder] + other.removesuffix(".weight").replace(".", "_"))
                found |= dict.fromkeys(names, layer.removesuffix(".weight"))
        return found


def merge_lora_file(path: Path, parts: Iterable[AdaptedPart]) -> None:
    """Add the adapter of a file to the weights of the parts of a model; every tensor must be used."""
    tensors, configs = _read(path)
    pairs: dict[str, dict[str, Tensor]] = {}
    unread = []
    for name, tensor in tensors.items():
        diffusers_name = _PROCESSOR.sub(r".\1.lora.", name).replace(".to_out.lora.", ".to_out.0.lora.")
        suffix = next((suffix for suffix in SUFFIXES if diffusers_name.endswith(f".{suffix}")), None)
        if suffix is None:
            unread.append(name)
        else:
            pairs.setdefault(diffusers_name.removesuffix(f".{suffix}"), {})[SUFFIXES[suffix]] = tensor
    updates: list[tuple[AdaptedPart, Adapter]] = []
    for part in parts:
        layers = part.layers()
        own = {layers[name]: pairs.pop(name) for name in [*pairs] if name in layers}
        if own:
            updates.append((part, _adapter(path, own, configs.get(part.folder, {}))))
    if unread := [*unread, *pairs]:
        problem = f"updates layers that the model lacks, or in another way: {', '.join(unread)}"
        raise FileProblemError(path, problem, hint="only LoRA adapters of this model can be merged")
    if not updates:
        raise FileProblemError(path, "has no LoRA adapter")
    for part, adapter in updates:
        _merge(part, adapter)


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, dict[str, Any]]]:
    """Return the tensors of a file, and the settings in its metadata by the folder of a part."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = parse_json((file.metadata() or {}).get(METADATA_KEY, "{}"))
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise FileProblemError(path, f"is damaged or not a safetensors file ({error!s:.80})") from error
    configs: dict[str, dict[str, Any]] = {}
    for name, value in metadata.items() if isinstance(metadata, dict) else ():
        folder, _, key = name.partition(".")
        configs.setdefault(folder, {})[key] = value
    return tensors, configs


def _adapter(path: Path, pairs: Mapping[str, dict[str, Tensor]], config: dict[str, Any]) -> Adapter:
    """Return an adapter of published layers. config: PEFT's settings; {}: the file has its alphas."""
    check_peft_options(config, path)
    alphas: dict[str, float] = {}
    for layer, pair in pairs.items():
        a, b = pair.get("A"), pair.get("B")
        if a is None or b is None or a.dim() not in (2, 4) or b.flatten(1).shape[1:] != a.shape[:1]:
            raise FileProblemError(path, f"has no two matching matrices for {layer}")
        if "alpha" in pair or not config:
            alphas[layer] = float(pair["alpha"]) if "alpha" in pair else len(a)
    return Adapter(path, {layer: (p["A"], p["B"]) for layer, p in pairs.items()}, {}, config, alphas)


@torch.no_grad()
def _merge(part: AdaptedPart, adapter: Adapter) -> None:
    """Add the updates of published layers to our weights; the rows of a table are linear."""
    for op in part.table.rows(part.table.base[0]):
        updates = {name: name.removesuffix(".weight") for name in op.theirs}
        if adapter.updates.keys().isdisjoint(updates.values()):
            continue
        weights = [part.model.get_parameter(name) for name in op.ours]
        published = op.save([weight.float() for weight in weights])
        merged = [
            adapter.merge(name, weight) if updates[name] in adapter.updates else weight
            for name, weight in zip(op.theirs, published, strict=True)
        ]
        for weight, value in zip(weights, op.load(merged), strict=True):
            weight.data = value.to(weight).contiguous()
