"""Inputs made from a model's spec: seeded ids, images or series, padded on either side or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from glassformer.core import spec
from glassformer.core.model import AnyModel

Side = Literal["none", "right", "left"]

BATCH, LENGTH = 3, 17
SHORTER_BY = (0, 3, 7)  # how much padding each row gets
# heads that answer for every token; the others answer once a sequence
PER_TOKEN = (
    spec.FeaturesSpec,
    spec.LanguageModelSpec,
    spec.MaskedLanguageModelSpec,
    spec.TokenClassifySpec,
    spec.AnswerSpec,
)


@dataclass(frozen=True)
class RandomInputs:
    """What a forward takes: inputs, and for token ids which are real (None for images and series)."""

    inputs: tuple[Tensor, ...]
    real: tuple[Tensor | None, ...]

    def run(self, model: AnyModel, **options: Any) -> dict[str, Tensor]:
        """The model's outputs by name; "output" where there is one."""
        return outputs(model(*self.inputs, *self.real, **options))

    def alone(self, row: int) -> RandomInputs:
        """One row by itself, without its padding."""
        inputs = tuple(
            x[row : row + 1] if real is None else x[row][real[row]][None]
            for x, real in zip(self.inputs, self.real, strict=True)
        )
        masks = (None if real is None else real[row][real[row]][None] for real in self.real)
        return RandomInputs(inputs, tuple(masks))

    def __len__(self) -> int:
        return len(self.inputs[0])


def outputs(result: Any) -> dict[str, Tensor]:
    """A head's output as tensors by name."""
    if isinstance(result, Tensor):
        return {"output": result}
    return {name: value for name, value in result._asdict().items() if isinstance(value, Tensor)}


def per_token(head: spec.HeadSpec, name: str) -> bool:
    """Whether an output has one entry for every (target) token."""
    return isinstance(head, PER_TOKEN) and name != "pooled"


def reads_first_column(head: spec.HeadSpec, name: str) -> bool:
    """Whether an output is read off column 0, which padding on the left takes the first token's place in."""
    return name == "pooled" or (isinstance(head, spec.ClassifySpec) and head.pool == "first")


def at_real(model: AnyModel, sample: RandomInputs, found: dict[str, Tensor]) -> dict[str, Tensor]:
    """The outputs where tokens are real: what stands at padding means nothing."""
    real = sample.real[-1]
    if real is None:
        return found
    return {n: t[real] if per_token(model.spec.head, n) else t for n, t in found.items()}


def stir(model: AnyModel, seed: int = 0) -> None:
    """Move every number of a fresh model a little: norms at 1 and biases at 0 would hide a mix-up.

    The moves have mean 0: a common push would give the stream a large mean, which norms subtract again,
    and rounding would grow with it.
    """
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            if isinstance(value, nn.Parameter) or name.endswith("running_mean"):
                value.add_((torch.randn(value.shape, generator=draw) * 0.1).to(value))
            elif name.endswith("running_var"):
                value.mul_((torch.rand(value.shape, generator=draw) + 0.5).to(value))  # stays above 0


def has_tokens(model: AnyModel) -> bool:
    """Whether the model reads token ids, which can be padded."""
    return all(isinstance(what, spec.TokensSpec) for what, _ in _inputs_of(model.spec))


def random_inputs(
    model: AnyModel,
    side: Side = "none",
    *,
    batch: int = BATCH,
    length: int | None = None,
    target_length: int | None = None,
    seed: int = 0,
) -> RandomInputs:
    """Seeded inputs that fit the model: rows of unequal lengths, padded on `side`, or all full.

    Without `length` they are long enough to reach past a small window, and fit the position table; a
    target is then shorter than its source, so that the two cannot be mistaken for each other.
    """
    draw = torch.Generator().manual_seed(seed)
    parameter = next(model.parameters())
    longest = length or fitting_length(model.spec)
    shorter = target_length or max(1, 2 * longest // 3)
    inputs: list[Tensor] = []
    masks: list[Tensor | None] = []
    free = isinstance(
        model.spec.head, spec.LanguageModelSpec | spec.FeaturesSpec
    )  # others read the source, shifted
    for number, (what, width) in enumerate(_inputs_of(model.spec)):
        steps = shorter if number and free else longest
        if isinstance(what, spec.TokensSpec):
            real = _real(batch, steps, side)
            if number and not free:
                start = getattr(model.spec, "start_id", None) or 0
                ids = torch.cat((torch.full((batch, 1), start), inputs[0][:, :-1]), 1)
            else:
                ids = _ids(what, real, getattr(model.spec.head, "end_id", -1), draw)
            inputs.append(ids)
            masks.append(real)
            continue
        masks.append(None)
        shape: tuple[int, ...] = (batch, steps, width)
        if isinstance(what, spec.ImagePatchesSpec):
            shape = (batch, what.channels, *what.image_size)
        elif isinstance(what, spec.SeriesPatchesSpec):
            shape = (batch, what.context_length, what.channels)
        if parameter.is_meta:  # only shapes are needed, however large
            inputs.append(torch.empty(shape, dtype=parameter.dtype, device="meta"))
        else:
            drawn = torch.randn(shape, generator=draw)
            series = isinstance(what, spec.SeriesPatchesSpec)
            inputs.append((drawn.cumsum(1) if series else drawn).to(parameter.dtype))
    on = parameter.device
    return RandomInputs(
        tuple(x.to(on) for x in inputs), tuple(None if real is None else real.to(on) for real in masks)
    )


def _inputs_of(model: spec.ModelSpec) -> list[tuple[spec.InputSpec, int]]:
    """Each input of the forward with its stack's width."""
    if isinstance(model, spec.EncoderDecoderSpec):
        return [(model.source, model.encoder.d_model), (model.target, model.decoder.d_model)]
    stack = model.decoder if isinstance(model, spec.DecoderOnlySpec) else model.encoder
    return [(model.input, stack.d_model)]


def fitting_length(model: spec.ModelSpec, wanted: int = LENGTH) -> int:
    """`wanted`, or more to reach past a small window, but no more than the position table has."""
    tables = [getattr(getattr(what, "position", None), "max_len", None) for what, _ in _inputs_of(model)]
    stacks = [getattr(model, name) for name in ("encoder", "decoder") if hasattr(model, name)]
    windows = [b.attention.window for s in stacks for b in s.blocks if b.attention.window]
    enough = max([wanted, *(w + 5 for w in windows if w <= 4 * wanted)])
    return min([enough, *(table for table in tables if isinstance(table, int))])


def _real(batch: int, steps: int, side: Side) -> Tensor:
    real = torch.ones(batch, steps, dtype=torch.bool)
    for row in range(batch):
        short = min(SHORTER_BY[row % len(SHORTER_BY)], steps - 1)
        if side == "right":
            real[row, steps - short :] = False
        elif side == "left":
            real[row, :short] = False
    return real


def _ids(what: spec.TokensSpec, real: Tensor, end_id: int, draw: torch.Generator) -> Tensor:
    """Random ids (B, T), none of them padding; the end mark stands last where the head looks for it."""
    usable = torch.tensor([n for n in range(what.vocab_size) if n not in (what.pad_id, end_id)] or [0])
    ids = usable[torch.randint(len(usable), real.shape, generator=draw)]
    if end_id >= 0:
        last = torch.where(real, torch.arange(real.shape[1]), 0).amax(-1)
        ids[torch.arange(len(ids)), last] = end_id
    return ids.masked_fill(~real, what.pad_id or 0)
