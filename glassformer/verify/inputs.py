"""Random inputs for a model: token ids, images, series or latents, padded on either side or not at all."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from glassformer.core import spec
from glassformer.core.inputs import ImageTextInputs, LatentInputs, ModelInputs, TextInputs
from glassformer.core.kernels import Kernel
from glassformer.core.masks import Mask
from glassformer.core.model import AnyModel

Side = Literal["none", "right", "left"]

BATCH, LENGTH = 3, 17
PADDING = (0, 3, 7)  # padding of each row


@dataclass(frozen=True)
class RandomInputs:
    """The arguments of a forward pass: inputs, and masks (True: not padding) for those that are token ids.

    images: of the texts that are the first input, one for each.
    conditions: of the latents that are the first input: the other fields of `LatentInputs`.
    """

    inputs: tuple[Tensor, ...]
    masks: tuple[Tensor | None, ...]
    kernel: Kernel = "auto"
    images: Tensor | None = None
    conditions: dict[str, Tensor] = field(default_factory=dict)

    def run(self, model: AnyModel, **options: Any) -> dict[str, Tensor]:
        """Run the model; return its outputs by name ("output" if there is only one)."""
        return named_outputs(model(*self.arguments(), kernel=self.kernel, **options))

    def arguments(self) -> tuple[ModelInputs, ...]:
        """Return the positional arguments of the forward pass."""
        if self.conditions:
            return (LatentInputs(self.inputs[0], **self.conditions),)
        pairs = zip(self.inputs, self.masks, strict=True)
        first, *others = (x if mask is None else TextInputs(x, Mask(padding=mask)) for x, mask in pairs)
        if self.images is not None and isinstance(first, TextInputs):
            first = ImageTextInputs(first.ids, first.mask, images=self.images)
        return first, *others

    def single_row(self, row: int) -> RandomInputs:
        """Return one row without its padding."""
        inputs = tuple(
            x[row : row + 1] if mask is None else x[row][mask[row]][None]
            for x, mask in zip(self.inputs, self.masks, strict=True)
        )
        masks = (None if mask is None else mask[row][mask[row]][None] for mask in self.masks)
        images = None if self.images is None else self.images[row : row + 1]
        conditions = {name: x[row : row + 1] for name, x in self.conditions.items()}
        if (mask := conditions.pop("text_mask", None)) is not None:
            conditions["text"] = conditions["text"][mask][None]
        return replace(self, inputs=inputs, masks=tuple(masks), images=images, conditions=conditions)

    def without_images(self, model: spec.ModelSpec) -> RandomInputs:
        """Return the same texts with other tokens in place of those of an image."""
        image_id = getattr(model.inputs()[0], "image_id", None)
        if self.images is None or image_id is None:
            return self
        ids = self.inputs[0]
        others = torch.where(ids == image_id, (ids + 1) % model.inputs()[0].vocab_size, ids)  # type: ignore[attr-defined]
        return replace(self, inputs=(others, *self.inputs[1:]), images=None)

    def double(self) -> RandomInputs:
        """Return the same inputs in float64; token ids stay as they are."""
        inputs = tuple(x.double() if x.is_floating_point() else x for x in self.inputs)
        images = None if self.images is None else self.images.double()
        conditions = {n: x.double() if n == "text" else x for n, x in self.conditions.items()}
        return replace(self, inputs=inputs, images=images, conditions=conditions)

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
    """Whether the model reads token ids, which can be padded, or an encoder-decoder's target is."""
    targets = model.spec.architecture == "encoder-decoder" and model.spec.yields == "next tokens"
    return model.spec.modalities[:1] == ("text",) or targets


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
    images = image_of_text(model.spec)
    prompted = model.spec.yields == "prompted masks"
    batch = batch or (1 if prompted else BATCH)
    generator = torch.Generator().manual_seed(seed)
    parameter = next(model.parameters())
    longest = length or fitting_length(model.spec)

    def random_values(input_spec: spec.InputSpec, steps: int, width: int) -> Tensor:
        shape = (batch, *input_spec.example_shape(steps, width))
        if parameter.is_meta:  # only shapes are needed, however large
            return torch.empty(shape, dtype=parameter.dtype, device="meta")
        values = torch.randn(shape, generator=generator)
        values = values.cumsum(1) if input_spec.modality == "series" else values
        return values.to(parameter)

    shorter = target_length or max(1, 2 * longest // 3)
    inputs: list[Tensor] = []
    masks: list[Tensor | None] = []
    # the targets of other heads are their sources, shifted
    text_tower = model.spec.children().get("text")
    head = model.spec.head if text_tower is None else text_tower.head
    free = text_tower is not None or head.yields in ("next tokens", "hidden states")
    for number, (input_spec, width) in enumerate(_input_specs(model.spec)):
        steps = shorter if number and free else longest
        if isinstance(input_spec, spec.TokensSpec):
            mask = _mask(batch, steps, side)
            if number and not free:
                start = getattr(model.spec, "start_id", None) or 0
                ids = torch.cat((torch.full((batch, 1), start), inputs[0][:, :-1]), 1)
            else:
                ids = _random_ids(input_spec, mask, getattr(head, "end_id", -1), generator)
                if not _place_image(input_spec, images, ids, mask):
                    images = None  # the rows are too short
            inputs.append(ids)
            masks.append(mask)
            continue
        masks.append(None)
        inputs.append(random_values(input_spec, steps, width))
    if prompted:  # two prompts of one point for each image
        points = torch.rand((batch, 2, 1, 2), generator=generator)
        points *= torch.tensor(inputs[0].shape[:1:-1])  # width, height
        inputs.append(points)
        masks.append(None)
    device = parameter.device
    return RandomInputs(
        tuple(x.to(device) for x in inputs),
        tuple(None if mask is None else mask.to(device) for mask in masks),
        images=None if images is None else random_values(images, 0, 0),
        conditions={
            name: x.to(device)
            for name, x in _random_conditions(model.spec, batch, generator, parameter).items()
        },
    )


def _random_conditions(
    model: spec.ModelSpec, batch: int, generator: torch.Generator, like: Tensor
) -> dict[str, Tensor]:
    """Return what noisy latents come with; texts are padded on the right, and the last label is empty."""
    source = model.inputs()[0]
    if not isinstance(source, spec.ConditionedLatentsSpec):
        return {}
    conditions = {"timesteps": torch.randint(1000, (batch,), generator=generator)}
    if source.num_classes is not None:
        conditions["labels"] = (torch.arange(batch) + source.num_classes - 1) % (source.num_classes + 1)
    if source.text_dim is not None:
        text = torch.randn((batch, LENGTH, source.text_dim), generator=generator)
        conditions |= {"text": text.to(like), "text_mask": _mask(batch, LENGTH, "right")}
    return conditions


def image_of_text(model: spec.ModelSpec) -> spec.InputSpec | None:
    """Return the spec of the images that texts come with, if they do."""
    parts = model.inputs() if model.modalities == ("text", "image") else ()
    return next((part for part in parts if part.modality == "image"), None)


def _num_image_tokens(tokens: spec.InputSpec, image: spec.InputSpec | None) -> int:
    """Return how many tokens of a text stand for its image."""
    if not isinstance(tokens, spec.ImageTokensSpec) or image is None:
        return 0
    return tokens.num_image_tokens(image.example_shape(0, 0)[1:])


def _place_image(tokens: spec.TokensSpec, image: spec.InputSpec | None, ids: Tensor, mask: Tensor) -> bool:
    """Put the placeholders of an image at the start of each row; return whether they fit."""
    count = _num_image_tokens(tokens, image)
    if count > int(mask.sum(1).min()):
        return False
    for row, start in enumerate(mask.long().argmax(1).tolist()):
        ids[row, start : start + count] = getattr(tokens, "image_id", 0)
    return True


def _input_specs(model: spec.ModelSpec) -> list[tuple[spec.InputSpec, int]]:
    """Return the spec of each input of the forward pass, with the width of its stack."""
    widths = [stack.d_model for stack in model.stacks().values()] or [0]  # convolutions have none
    images = image_of_text(model)
    return list(zip((part for part in model.inputs() if part is not images), widths, strict=False))


def fitting_length(model: spec.ModelSpec, length: int = LENGTH) -> int:
    """Return `length`, increased to exceed an attention window but limited by the position table."""
    tables = [
        getattr(getattr(input_spec, "position", None), "max_len", None)
        for input_spec, _ in _input_specs(model)
    ]
    blocks = [block for stack in model.stacks().values() for block in getattr(stack, "blocks", ())]
    windows = [block.attention.window for block in blocks if block.attention.window]
    enough = max([length, *(w + 5 for w in windows if w <= 4 * length)])
    image = image_of_text(model)
    enough += sum(_num_image_tokens(tokens, image) for tokens, _ in _input_specs(model))
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
    unusable = (tokens.pad_id, end_id, getattr(tokens, "image_id", None))
    usable = torch.tensor([n for n in range(tokens.vocab_size) if n not in unusable] or [0])
    ids = usable[torch.randint(len(usable), mask.shape, generator=generator)]
    if end_id >= 0:
        last = torch.where(mask, torch.arange(mask.shape[1]), 0).amax(-1)
        ids[torch.arange(len(ids)), last] = end_id
    return ids.masked_fill(~mask, tokens.pad_id or 0)
