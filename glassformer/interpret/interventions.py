"""Causal interventions: ablate heads or layers, mask or swap tokens, scale residuals, stretch positions.

Each intervention replaces activations while the forward runs, as activation patching does: see `edit` of
`core.observe.Observer`, which accepts any function of a recorded tensor.

The intervened model shares all weights with the original, which other threads may run at the same time.
B rows, S source positions, T target positions, D d_model, V vocabulary.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from glassformer.core import spec as specs
from glassformer.core.attention import MultiHeadAttention
from glassformer.core.block import Block
from glassformer.core.embeddings import TokenInput
from glassformer.core.heads import HeadContext
from glassformer.core.image_text import TokensAndPatchesInput
from glassformer.core.inputs import (
    ImageInputs,
    Memory,
    TextInputs,
    cross_mask,
    infer_mask,
    position_ids,
    tensor_of,
)
from glassformer.core.masks import Mask
from glassformer.core.model import EncoderDecoder
from glassformer.core.observe import Observer
from glassformer.core.positions import (
    AlibiBias,
    DisentangledPositions,
    LearnedPositions,
    PositionTerms,
    RelativeBias,
    RotaryPositions,
    SinusoidalPositions,
    sinusoids,
)
from glassformer.core.series.patches import SeriesInput
from glassformer.core.vision.embeddings import ImageInput
from glassformer.errors import (
    InvalidValueError,
    MissingValueError,
    NonFiniteError,
    UnknownNameError,
    UnsupportedError,
)
from glassformer.generation.inference_model import max_positions
from glassformer.generation.step_decoder import PrefillResult
from glassformer.interpret import schema
from glassformer.interpret.outline import InputNames, find_submodule, input_names, stack_names

Edit = Callable[[Tensor], Tensor]
Part = TypeVar("Part", bound=nn.Module)


def unpadded(ids: Tensor, read: specs.InputSpec, *, first: int = 0) -> TextInputs:
    """Return ids (1, T) as inputs without padding.

    If one is the pad id, a mask shows all to every query: without it, a model treats pad ids from position
    `first` on as padding.
    """
    pad = getattr(read, "pad_id", None)
    if pad is None or not bool(ids[:, first:].eq(pad).any()):
        return TextInputs(ids)
    return TextInputs(ids, mask=torch.ones_like(ids, dtype=torch.bool)[:, None])  # (1, 1, T)


@dataclass(frozen=True)
class Replacement:
    """An edit that replaces a tensor, or one of its heads, by that of another forward at some positions.

    pairs: positions here and there. head: of a tensor (B, H, T, ...); None: all heads, or a tensor (B, T, D).
    values: of the other forward (1, ...). Positions that this forward has not reached yet are left out.

    >>> edit = Replacement("blocks.0.resid_out", None, ((1, 0),), torch.ones(1, 1, 2))
    >>> edit(torch.zeros(1, 3, 2))[0].tolist()
    [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
    """

    name: str
    head: int | None
    pairs: tuple[tuple[int, int], ...]
    values: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        x = x.clone()
        target, values = x, self.values.to(x)
        if x.dim() == 4:  # (B, H, T, K or S)
            heads = slice(None) if self.head is None else self.head
            target, values = x[:, heads], values[:, heads]
        length = x.shape[2 if x.dim() == 4 else 1]
        for here, there in self.pairs:
            if here < length and there < values.shape[-2]:
                row = values[..., there, : x.shape[-1]]  # weights have as many keys as were generated
                target[..., here, : row.shape[-1]] = row
        return x


class IntervenedForward:
    """A forward pass with interventions: run it with `observe(model, inputs, edit=edit)`.

    The given model and inputs are not modified. orders: for each sequence with swapped tokens, the original
    index of the token now at each position.
    """

    def __init__(
        self,
        model: Any,
        inputs: Mapping[str, Any],
        interventions: Iterable[schema.Intervention | Replacement],
    ) -> None:
        """inputs: `ModelInputs` by the names of the forward's arguments."""
        self.model, self.inputs = model, dict(inputs)
        self.names, self._reads = input_names(model), model.spec.embeddings()
        self.lengths = {name: self._length(names) for name, names in self.names.items()}
        self._add_stage_lengths()
        self.orders: dict[str, list[int]] = {}
        self._edits: dict[str, list[Edit]] = {}
        self._skipped_blocks: list[str] = []
        self._masked: dict[str, set[int]] = {}
        for intervention in interventions:
            self._add(intervention)
        for name, order in self.orders.items():
            self._swap(name, order)
        for name, positions in self._masked.items():
            visible = torch.ones(1, self.lengths[name], dtype=torch.bool)
            visible[:, sorted(positions)] = False
            self.mask(name, visible)
        for name in self._skipped_blocks:  # the block's input after all other edits is its output before them
            stored: dict[str, Tensor] = {}
            self._edit(f"{name}.resid_in", partial(stored.setdefault, "x"))
            self._edits.setdefault(f"{name}.resid_out", []).insert(0, partial(_pop_input, stored))
        self.edit = {name: _chain(edits) for name, edits in self._edits.items()}

    def _add(self, intervention: schema.Intervention | Replacement) -> None:
        tokens = isinstance(intervention, schema.MaskToken | schema.SwapTokens | schema.ScalePositions)
        if tokens and self.model.spec.yields == "boxes":
            raise UnsupportedError("a model with object queries", "changes of tokens and positions")
        match intervention:
            case schema.AblateHead(attention=name, head=head):
                self._check_head(name, head)
                self._edit(f"{name}.heads", _scale_slice(head, 0.0))
            case Replacement(name=name, head=head):
                owner, _, tail = name.rpartition(".")
                if tail in ("heads", "weights"):
                    self._check_head(owner, head or 0)
                else:
                    self._check_residual_site(name)
                self._edit(name, intervention)
            case schema.SkipLayer(block=name):
                self._submodule(name, Block, "block")
                self._skipped_blocks.append(name)
            case schema.MaskToken(sequence=name, position=position):
                self._check_position(name, position)
                self._masked.setdefault(name, set()).add(position)
            case schema.SwapTokens(sequence=name, positions=(first, second)):
                self._check_position(name, first)
                self._check_position(name, second)
                order = self.orders.setdefault(name, list(range(self.lengths[name])))
                order[first], order[second] = order[second], order[first]
            case schema.ScaleResidual(name=name, position=position, scale=scale):
                self._check_range(self._check_residual_site(name), position)
                self._edit(name, _scale_slice(position, scale))
            case schema.ScalePositions(stack=stack, scale=scale):
                if not scale > 0:
                    raise InvalidValueError("scale", scale, "above 0")
                sequence = self._sequence_of(stack)
                embed, length = self.names[sequence].embed, self.lengths[sequence]
                self.model = stretch_positions(self.model, stack, embed, scale, length)
            case _:
                raise UnsupportedError(f"a model of {self.model.spec.yields}", intervention.kind)

    def _check_head(self, name: str, head: int) -> None:
        attention = self._submodule(name, MultiHeadAttention, "attention")
        if not 0 <= head < attention.num_heads:
            raise InvalidValueError("head", head, f"0 to {attention.num_heads - 1}")

    def _edit(self, name: str, edit: Edit) -> None:
        self._edits.setdefault(name, []).append(edit)

    def _sequence_of(self, stack: str) -> str:
        sequences = {names.stack: sequence for sequence, names in self.names.items()}
        if stack not in sequences:
            raise UnknownNameError("stack", stack, sequences)
        return sequences[stack]

    def _swap(self, name: str, order: list[int]) -> None:
        names = self.names[name]
        path, embed = names.embed, self.model.get_submodule(names.embed)
        if isinstance(embed, TokensAndPatchesInput):
            path, embed = f"{path}.image", embed.image
            order = self._swap_words(f"{names.embed}.text.token", order, self._text(names).ids.shape[1])
        elif self._reads[names.embed].modality == "text":
            text = self._text(names)
            ids = text.ids[:, torch.tensor(order, device=text.ids.device)]
            self.inputs[names.argument] = replace(text, ids=ids)
            return
        first = 0 if embed.prefix is None else int(embed.prefix.shape[1])
        if order[:first] != list(range(first)):
            moved = next(n for n in range(first) if order[n] != n)
            raise InvalidValueError("position", moved, f"a patch of the {name}, from {first}")
        patches = [position - first for position in order[first:]]
        self._edit(f"{path}.patch", _reorder(patches))

    def _swap_words(self, name: str, order: list[int], words: int) -> list[int]:
        """Swap the token embeddings of the words before the patches; return the order of the patches."""
        if sorted(order[:words]) != list(range(words)):
            moved = next(n for n in order[:words] if n >= words)
            raise InvalidValueError("position", moved, f"a word like the other, below {words}")
        self._edit(name, _reorder(order[:words]))
        return [position - words for position in order[words:]]

    def mask(self, name: str, visible: Tensor) -> None:
        """Mask all tokens but the visible ones (1|B, T) like padding, but keep the position ids of all."""
        names = self.names[name]
        embed: Any = self.model.get_submodule(names.embed)
        windows = any(getattr(part, "spatial_window", None) for part in self.model.modules())
        if windows or self.model.spec.architecture == "two towers":
            raise UnsupportedError("a model with two towers or window attention", "masked tokens")
        modality = self._reads[names.embed].modality
        if not isinstance(embed, TokenInput):  # nothing of an image or a series is padding
            x = tensor_of(self.inputs[names.argument])
            rows = x.shape[0] * (x.shape[2] if modality == "series" else 1)
            visible = visible.to(x.device).repeat_interleave(rows // len(visible), 0)
            if modality == "image":
                self.inputs[names.argument] = ImageInputs(x, mask=Mask(padding=visible))
            else:
                self.inputs["mask"] = Mask(padding=visible)
            return
        text = self._text(names)
        mask = infer_mask(embed, text.ids, text.mask, "tgt_mask" if name == "target" else "mask")
        padding = torch.ones_like(text.ids, dtype=torch.bool)
        if mask.padding is not None:
            padding = mask.padding.clone()
            if name == "target" and text.mask is None:
                padding[:, 0] = True  # as the model reads it: a target may start with the pad token
        if text.positions is None:
            own = position_ids(Mask(padding=padding, segments=mask.segments), 0, text.ids)
            text = replace(text, positions=own)
        visible = padding & visible.to(padding.device)
        position = getattr(self.model, names.stack).position
        if getattr(position, "rounding", "none") != "none":
            # this bias depends on which tokens are padding, so the token is masked without being padding
            allowed = visible[:, None, None]  # (B, 1, 1, S)
            allowed = allowed if mask.allowed is None else allowed & mask.allowed
            mask = replace(mask, allowed=allowed)
        else:
            mask = replace(mask, padding=visible)
        self.inputs[names.argument] = replace(text, mask=mask)

    def _text(self, names: InputNames) -> TextInputs:
        text = self.inputs[names.argument]
        return text if isinstance(text, TextInputs) else TextInputs(text)

    def _length(self, names: InputNames) -> int:
        read: specs.InputSpec = self._reads[names.embed]
        if read.trained:
            return read.num_tokens(())
        inputs = self.inputs[names.argument]
        images = getattr(inputs, "images", None)
        tensors = [tensor_of(inputs), *([] if images is None else [tensor_of(images)])]
        return sum(part.num_tokens(x.shape) for part, x in zip(read.parts(), tensors, strict=False))

    def _add_stage_lengths(self) -> None:
        """Add the numbers of patches of later stages, each of which halves the grid of the one before."""
        for names in stack_names(self.model):
            if names.sequence in self.lengths:
                embed: Any = self.model.get_submodule(names.embed)
                if isinstance(embed, ImageInput):
                    sizes = tensor_of(self.inputs[self.names[names.sequence].argument]).shape[2:]
                    grid = [-(-size // side) for size, side in zip(sizes, embed.patch_size, strict=True)]
            else:
                grid = [-(-side // 2) for side in grid]
                self.lengths[names.sequence] = math.prod(grid)

    def _check_position(self, sequence: str, position: int) -> None:
        if sequence not in self.names:
            raise UnknownNameError("sequence", sequence, self.names)
        self._check_range(sequence, position)

    def _check_range(self, sequence: str, position: int) -> None:
        if not 0 <= position < self.lengths[sequence]:
            raise InvalidValueError(f"{sequence} position", position, f"0 to {self.lengths[sequence] - 1}")

    def _check_residual_site(self, name: str) -> str:
        path, _, site = name.rpartition(".")
        block = self._submodule(path, Block, "block")
        parallel = block.wiring.startswith("parallel")
        sites = ["resid_in", "resid_out", *([] if parallel else ["resid_self"])]
        sites += ["resid_cross"] if block.cross_attn is not None else []
        if site not in sites:
            raise UnknownNameError("residual", site, sites, where=path)
        stack = path.partition(".blocks.")[0]
        return next(names.sequence for names in stack_names(self.model) if names.path == stack)

    def _submodule(self, path: str, kind: type[nn.Module], what: str) -> Any:
        module = find_submodule(self.model, path, (kind,))
        if module is None:
            known = [name for name, module in self.model.named_modules() if isinstance(module, kind)]
            raise UnknownNameError(what, path, known)
        return module


def _pop_input(stored: dict[str, Tensor], _: Tensor) -> Tensor:
    return stored.pop("x")


def _scale_slice(index: int, scale: float) -> Edit:
    def edit(x: Tensor) -> Tensor:
        x = x.clone()
        x[:, index] = x[:, index] * scale if scale else 0
        return x

    return edit


def _reorder(order: list[int]) -> Edit:
    return lambda x: x[:, torch.tensor(order, device=x.device)]


def _chain(edits: list[Edit]) -> Edit:
    def edit(x: Tensor) -> Tensor:
        for apply in edits:
            x = apply(x)
        return x

    return edit


class IntervenedModel(nn.Module):
    """An encoder-decoder with interventions, for generation; see `SupportsPrefill`.

    Every step processes the full target again, because an intervention may affect any earlier position; the
    source is encoded once. Interventions refer to positions of one source, so it takes a single source.
    """

    def __init__(
        self, model: EncoderDecoder, interventions: Sequence[schema.Intervention | Replacement]
    ) -> None:
        super().__init__()
        self.model = replace_parts(model, head=_LastPositionHead(model.head))
        self.interventions = tuple(interventions)

    @property
    def spec(self) -> specs.EncoderDecoderSpec:
        return self.model.spec

    def prefill(
        self, inputs: Tensor, mask: Tensor | None, *, start_ids: Sequence[int], capacity: int
    ) -> PrefillResult:
        if not start_ids:
            raise MissingValueError("start_ids", "to start the decoder")
        assert mask is None or bool(mask.all())
        starts = torch.tensor(start_ids, device=inputs.device).expand(len(inputs), -1)
        steps = _IntervenedDecoder(self, inputs, starts)
        table = max_positions(self.model.tgt_embed)
        # the last token is never read again, so it needs no position
        most = None if table is None else max(0, table + 1 - len(start_ids))
        return PrefillResult(steps, steps.logits(), most)

    def intervened(self, src: Tensor, tgt: Tensor) -> IntervenedForward:
        """Build the forward of src (ids or images) and tgt (B, T) with the changes that already apply."""
        source = src if src.is_floating_point() else unpadded(src, self.spec.source)
        inputs = {"src": source, "tgt": unpadded(tgt, self.spec.target, first=1)}
        length = tgt.shape[1]
        applicable = [change for change in self.interventions if _target_length(change) <= length]
        return IntervenedForward(self.model, inputs, applicable)


class _LastPositionHead(nn.Module):
    """A head that is applied to the last position only: (B, T, D) -> (B, 1, V)."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, x: Tensor, context: HeadContext, *, obs: Observer | None = None) -> Any:
        return self.head(x[:, -1:], HeadContext(ids=context.ids), obs=obs)


class _IntervenedDecoder:
    """The decode steps of an intervened model; see `StepDecoder`."""

    def __init__(self, model: IntervenedModel, src: Tensor, tgt: Tensor) -> None:
        self.model, self.src, self.tgt = model, src, tgt
        forward = model.intervened(src, tgt)
        observer = Observer((), forward.edit)
        self.memory: Tensor = forward.model.encode(forward.inputs["src"], obs=observer)  # (B, S, D)

    def step(self, ids: Tensor) -> Tensor:
        self.tgt = torch.cat((self.tgt, ids[:, None]), 1)
        return self.logits()

    def logits(self) -> Tensor:
        """Compute the logits (B, V) of the next token."""
        forward = self.model.intervened(self.src, self.tgt)
        src, tgt = forward.inputs["src"], forward.inputs["tgt"]
        own = getattr(src, "mask", None)
        source_mask = infer_mask(forward.model.src_embed, tensor_of(src), own, "src_mask")
        memory = Memory.of(self.memory, cross_mask(source_mask, tgt.mask))
        logits: Tensor = forward.model.decode(tgt, memory, obs=Observer((), forward.edit))  # (B, 1, V)
        last = logits[:, -1].float()
        if not bool(last.amax(-1).isfinite().all()):
            raise NonFiniteError("the output of the intervened model", hint="use smaller interventions")
        return last

    def select(self, rows: Tensor) -> None:
        self.src, self.tgt, self.memory = (x.index_select(0, rows) for x in (self.src, self.tgt, self.memory))


def _target_length(intervention: schema.Intervention | Replacement) -> int:
    """Return the minimum target length for the intervention to apply."""
    match intervention:
        case schema.MaskToken(sequence="target", position=position):
            return position + 1
        case schema.SwapTokens(sequence="target", positions=positions):
            return max(positions) + 1
        case schema.ScaleResidual(name=name, position=position) if name.startswith("decoder."):
            return position + 1
    return 0


# Stretched positions: only the modules on the path to the positions are copied; all weights are shared. A
# sinusoidal table is recomputed, a learned one is interpolated, rotary frequencies and ALiBi slopes are
# scaled, and relative distances are rounded.


def stretch_positions(model: Part, stack: str, embed: str, stretch: float, length: int) -> Part:
    """Copy the model, with stretched positions in one stack and its embedding, for `length` tokens."""
    source, blocks = getattr(model, embed), getattr(model, stack)
    parts: dict[str, nn.Module] = {}
    if (stretched := _stretch_embedding(source, stretch, length)) is not None:
        parts[embed] = stretched
    if getattr(blocks, "position", None) is not None:
        parts[stack] = replace_parts(blocks, position=_stretch_attention_positions(blocks.position, stretch))
    if not parts:
        raise UnsupportedError(f"the {stack}", "stretched positions: it has none")
    return replace_parts(model, **parts)


def replace_parts(module: Part, **parts: Any) -> Part:
    """Return a shallow copy of a module with some submodules, parameters, buffers or attributes replaced."""
    result = copy.copy(module)
    result._modules, result._parameters = dict(module._modules), dict(module._parameters)
    result._buffers = dict(module._buffers)
    for name, part in parts.items():
        if name in result._parameters:
            result._parameters[name] = nn.Parameter(part, requires_grad=False)
        elif name in result._buffers:
            result._buffers[name] = part
        elif isinstance(part, nn.Module):
            result._modules[name] = part
        else:
            setattr(result, name, part)
    return result


def _stretch_embedding(embed: nn.Module, stretch: float, length: int) -> nn.Module | None:
    """Copy the embedding with stretched position embeddings; None if it has none."""
    position: Any = getattr(embed, "position", None)
    if type(embed) in _STRETCHED:
        return replace_parts(embed, position=_STRETCHED[type(embed)](embed, stretch))
    if type(position) in _STRETCHED:
        parts = _STRETCHED[type(position)](position, stretch, length)
        return replace_parts(embed, position=replace_parts(position, **parts, max_len=length))
    return None


def _stretch_patches(embed: ImageInput, stretch: float) -> Tensor:
    position: Any = embed.position
    rows, columns = (i // p for i, p in zip(embed.image_size, embed.patch_size, strict=True))
    first = position.shape[1] - rows * columns
    grid = position[0, first:].unflatten(0, (rows, columns))  # (rows, columns, D)
    grid = _interpolate(grid, stretch, rows)
    grid = _interpolate(grid.transpose(0, 1), stretch, columns).transpose(0, 1)
    return torch.cat((position[:, :first], grid.flatten(0, 1)[None]), 1)


def _stretch_series(embed: SeriesInput, stretch: float) -> Tensor:
    position, first = embed.position, 0 if embed.prefix is None else embed.prefix.shape[1]
    return torch.cat((position[:first], _interpolate(position[first:], stretch, len(position) - first)))


def _stretch_sinusoids(position: SinusoidalPositions, stretch: float, length: int) -> dict[str, Tensor]:
    positions = torch.arange(length, dtype=torch.float64) * stretch
    table = sinusoids(positions, position.d_model, position.layout, position.base)
    return {"table": table.to(position.table)}


def _stretch_learned(position: LearnedPositions, stretch: float, length: int) -> dict[str, Tensor]:
    first = position.offset
    moved = _interpolate(position.weight[first:], stretch, length)
    return {"weight": torch.cat((position.weight[:first], moved))}


# of embeddings: their stretched positions; of position embeddings: their stretched parts
_STRETCHED: dict[type, Callable[..., Any]] = {
    ImageInput: _stretch_patches,
    SeriesInput: _stretch_series,
    SinusoidalPositions: _stretch_sinusoids,
    LearnedPositions: _stretch_learned,
}


def _interpolate(table: Tensor, stretch: float, length: int) -> Tensor:
    """Interpolate a table (N, ...) linearly at 0, stretch, 2 * stretch, ...: (length, ...)."""
    at = torch.arange(length, dtype=torch.float64, device=table.device) * stretch
    if length and float(at[-1]) > len(table) - 1:
        limit = (len(table) - 1) / max(length - 1, 1)
        raise InvalidValueError(
            "scale", stretch, f"at most {limit:.3g}: the model has {len(table)} learned positions"
        )
    low = at.floor().long()
    share = (at - low).to(table.dtype).view(-1, *[1] * (table.dim() - 1))
    with torch.no_grad():
        return torch.lerp(table[low], table[(low + 1).clamp(max=len(table) - 1)], share)


def _stretch_attention_positions(position: nn.Module, stretch: float) -> nn.Module:
    stretched: dict[type, Callable[[Any, float], nn.Module]] = {
        RotaryPositions: lambda own, stretch: replace_parts(own, freq=own.freq * stretch),
        AlibiBias: lambda own, stretch: replace_parts(own, slopes=own.slopes * stretch),
        DisentangledPositions: _StretchedDisentangledPositions,
        RelativeBias: _StretchedRelativeBias,
    }
    return stretched[type(position)](position, stretch)


class _StretchedDisentangledPositions(DisentangledPositions):
    """Embeddings of relative positions, shared with another module, with every distance multiplied."""

    def __init__(self, other: DisentangledPositions, stretch: float) -> None:
        nn.Module.__init__(self)
        self.max_distance, self.buckets = other.max_distance, other.buckets
        self.kinds, self.dropout = other.kinds, other.dropout
        self.weight, self.norm, self.stretch = other.weight, other.norm, stretch

    def rows(self, distance: Tensor) -> Tensor:
        return super().rows((distance * self.stretch).round().long())


class _StretchedRelativeBias(RelativeBias):
    """A relative bias with shared weights that multiplies every distance by `stretch`."""

    def __init__(self, other: RelativeBias, stretch: float) -> None:
        nn.Module.__init__(self)
        self.buckets, self.max_distance, self.bidirectional = (
            other.buckets,
            other.max_distance,
            other.bidirectional,
        )
        self.weight, self.stretch = other.weight, stretch

    def bias_at(self, distance: Tensor) -> PositionTerms:
        return super().bias_at((distance * self.stretch).round().long())
