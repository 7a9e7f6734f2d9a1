"""Random inputs for a model: token ids, images or series, padded on either side or not at all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from glassformer.core import spec
from glassformer.core.inputs import TextInputs
from glassformer.core.kernels import Kernel
from glassformer.core.masks import Mask
from glassformer.core.model import AnyModel

Side = Literal["none", "right", "left"]

BATCH, LENGTH = 3, 17
PADDING = (0, 3, 7)  # padding of each row


@dataclass(frozen=True)
class RandomInputs:
    """The arguments of a forward pass: inputs, and masks (True: not padding) for those that are token ids."""

    inputs: tuple[Tensor, ...]
    masks: tuple[Tensor | None, ...]
    kernel: Kernel = "auto"

    def run(self, model: AnyModel, **options: Any) -> dict[str, Tensor]:
        """Run the model; return its outputs by name ("output" if there is only one)."""
        return named_outputs(model(*self.arguments(), kernel=self.kernel, **options))

    def arguments(self) -> tuple[Tensor | TextInputs, ...]:
        """Return the positional arguments of the forward pass."""
        pairs = zip(self.inputs, self.masks, strict=True)
        return tuple(x if mask is None else TextInputs(x, Mask(padding=mask)) for x, mask in pairs)

    def single_row(self, row: int) -> RandomInputs:
        """Return one row without its padding."""
        inputs = tuple(
            x[row : row + 1] if mask is None else x[row][mask[row]][None]
            for x, mask in zip(self.inputs, self.masks, strict=True)
        )
        masks = (None if mask is None else mask[row][mask[row]][None] for mask in self.masks)
        return replace(self, inputs=inputs, masks=tuple(masks))

    def double(self) -> RandomInputs:
        """Return the same inputs in float64; token ids stay as they are."""
        inputs = tuple(x.double() if x.is_floating_point() else x for x in self.inputs)
        return replace(self, inputs=inputs)

    def __len__(self) -> int:
        return len(self.inputs[0])


def named_outputs(result: Any) -> dict[str, Tensor]:
    """Return the tensors of a head's output by name; of several tensors, by name and number."""
    if isinstance(result, Tensor):
        return {"output": result}
    named: dict[str, Tensor] = {}
    for name, value in result._asdict().items():
        parts = {f"{name}.{n}": t for n, t in enumerate(value)} if isinstance(value, tuple) else {name: value}
        named |= {key: tensor for key, tensor in parts.items() if isinstance(tensor, Tensor)}
    return named


def is_per_token(head: spec.HeadSpec, name: str) -> bool:
    """Whether an output has one entry for every (target) token."""
    return name == "hidden" or (head.per_token and name != "pooled")


def pools_padding(head: spec.HeadSpec, name: str, side: Side) -> bool:
    """Whether an output is computed from the first or last column, which is padding on this side."""
    pool = getattr(head, "pool", None)
    if head.yields == "vector" and pool is not None:
        return name == "pooled" and (side, pool) in (("left", "first"), ("right", "last_position"))
    return side == "left" and (name == "pooled" or (head.yields == "label" and pool == "first"))


def drop_padding(model: AnyModel, sample: RandomInputs, outputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the outputs without the positions of padding."""
    mask = sample.masks[-1]
    if mask is None:
        return outputs
    return {n: t[mask] if is_per_token(model.spec.head, n) else t for n, t in outputs.items()}


def perturb_parameters(model: AnyModel, seed: int = 0) -> None:
    """Add noise to every parameter of a fresh model: norm weights of 1 and biases of 0 would hide errors.

    The noise has mean 0: a common offset would give the residual stream a large mean, which norms subtract
    again, and rounding errors would grow with it. For the same reason it is smaller in convolutions, whose
    outputs sum many inputs: their activations would grow with every layer.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            if isinstance(value, nn.Parameter) or name.endswith("running_mean"):
                std = 0.1 * value[0].numel() ** -0.5 if value.dim() > 2 else 0.1
                value.add_((torch.randn(value.shape, generator=generator) * std).to(value))
            elif name.endswith("running_var"):
                value.mul_((torch.rand(value.shape, generator=generator) + 0.5).to(value))  # stays above 0


def has_tokens(model: AnyModel) -> bool:
    """Whether the model reads token ids, which can be padded."""
    return model.spec.modalities == ("text",)


def random_inputs(
    model: AnyModel,
    side: Side = "none",
    *,
    batch: int | None = None,
    length: int | None = None,
    target_length: int | None = None,
    seed: int = 0,
) -> RandomInputs:
    """Create random inputs for the model: rows of unequal length padded on `side`, or all of full length.

    batch: number of rows; by default 3, or one large image with two prompts for a promptable segmenter, whose
    attention computes its windows and prompts as a batch.
    By default rows are longer than a small attention window and fit the position table. The target is shorter
    than the source, so that confusing the two gives wrong shapes.
    """
    prompted = model.spec.yields == "prompted masks"
    batch = batch or (1 if prompted else BATCH)
    generator = torch.Generator().manual_seed(seed)
    parameter = next(model.parameters())
    longest = length or fitting_length(model.spec)
    shorter = target_length or max(1, 2 * longest // 3)
    inputs: list[Tensor] = []
    masks: list[Tensor | None] = []
    # the targets of other heads are their sources, shifted
    towers = model.spec.children()
    head = towers["text"].head if towers else model.spec.head
    free = bool(towers) or head.yields in ("next tokens", "hidden states")
    for number, (input_spec, width) in enumerate(_input_specs(model.spec)):
        steps = shorter if number and free else longest
        if isinstance(input_spec, spec.TokensSpec):
            mask = _mask(batch, steps, side)
            if number and not free:
                start = getattr(model.spec, "start_id", None) or 0
                ids = torch.cat((torch.full((batch, 1), start), inputs[0][:, :-1]), 1)
            else:
                ids = _random_ids(input_spec, mask, getattr(head, "end_id", -1), generator)
            inputs.append(ids)
            masks.append(mask)
            continue
        masks.append(None)
        shape = (batch, *input_spec.example_shape(steps, width))
        if parameter.is_meta:  # only shapes are needed, however large
            inputs.append(torch.empty(shape, dtype=parameter.dtype, device="meta"))
        else:
            values = torch.randn(shape, generator=generator)
            values = values.cumsum(1) if input_spec.modality == "series" else values
            inputs.append(values.to(parameter.dtype))
    if prompted:  # two prompts of one point for each image
        points = torch.rand((batch, 2, 1, 2), generator=generator)
        points *= torch.tensor(inputs[0].shape[:1:-1])  # width, height
        inputs.append(points)
        masks.append(None)
    device = parameter.device
    return RandomInputs(
        tuple(x.to(device) for x in inputs),
        tuple(None if mask is None else mask.to(device) for mask in masks),
    )


def _input_specs(model: spec.ModelSpec) -> list[tuple[spec.InputSpec, int]]:
    """Return the spec of each input of the forward pass, with the width of its stack."""
    widths = [stack.d_model for stack in model.stacks().values()]
    return list(zip(model.inputs(), widths, strict=False))


def fitting_length(model: spec.ModelSpec, length: int = LENGTH) -> int:
    """Return `length`, increased to exceed an attention window but limited by the position table."""
    tables = [
        getattr(getattr(input_spec, "position", None), "max_len", None)
        for input_spec, _ in _input_specs(model)
    ]
    blocks = [block for stack in model.stacks().values() for block in getattr(stack, "blocks", ())]
    windows = [block.attention.window for block in blocks if block.attention.window]
    enough = max([length, *(w + 5 for w in windows if w <= 4 * length)])
    return min([enough, *(table for table in tables if isinstance(table, int))])


def _mask(batch: int, steps: int, side: Side) -> Tensor:
    mask = torch.ones(batch, steps, dtype=torch.bool)
    for row in range(batch):
        padding = min(PADDING[row % len(PADDING)], steps - 1)
        if side == "right":
            mask[row, steps - padding :] = False
        elif side == "left":
            mask[row, :padding] = False
    return mask


def _random_ids(tokens: spec.TokensSpec, mask: Tensor, end_id: int, generator: torch.Generator) -> Tensor:
    """Create random ids (B, T) without padding ids; each row ends with `end_id` if it is not negative."""
    usable = torch.tensor([n for n in range(tokens.vocab_size) if n not in (tokens.pad_id, end_id)] or [0])
    ids = usable[torch.randint(len(usable), mask.shape, generator=generator)]
    if end_id >= 0:
        last = torch.where(mask, torch.arange(mask.shape[1]), 0).amax(-1)
        ids[torch.arange(len(ids)), last] = end_id
    return ids.masked_fill(~mask, tokens.pad_id or 0)
