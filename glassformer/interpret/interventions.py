"""Run a model with interventions: heads or layers off, tokens masked or swapped, residuals scaled, ...

The intervened model shares all its weights with the original, which other threads may be running at the same
time. B rows, S source positions, T target positions, D d_model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from glassformer.core import spec as specs
from glassformer.core.attention import MultiHeadAttention
from glassformer.core.block import Block
from glassformer.core.embeddings import ImageInput, TokenInput
from glassformer.core.heads import Context
from glassformer.core.masks import Mask
from glassformer.core.model import EncoderDecoder, EncoderOnly
from glassformer.core.observe import Observer
from glassformer.core.positions import AlibiBias
from glassformer.core.reading import across, inferred, placed
from glassformer.core.series import SeriesInput
from glassformer.errors import (
    ConflictError,
    InvalidValueError,
    MissingValueError,
    NonFiniteError,
    UnknownNameError,
)
from glassformer.generation.decoder import PrefillResult
from glassformer.generation.inference_model import max_positions
from glassformer.interpret.schema import (
    MAX_SCALE,
    MAX_STRETCH,
    HeadOff,
    Intervention,
    LayerOff,
    MaskToken,
    ScaleResidual,
    StretchPositions,
    SwapTokens,
)
from glassformer.interpret.stretched_positions import replace_parts, stretch_positions

Edit = Callable[[Tensor], Tensor]


class InputNames(NamedTuple):
    """The forward arguments and modules of one sequence of a model."""

    ids: str
    embed: str
    stack: str
    mask: str
    positions: str


def input_names(model: nn.Module) -> dict[str, InputNames]:
    """The names for each sequence of the model."""
    if isinstance(model, EncoderDecoder):
        return {
            "source": InputNames("src", "src_embed", "encoder", "src_mask", "src_positions"),
            "target": InputNames("tgt", "tgt_embed", "decoder", "tgt_mask", "tgt_positions"),
        }
    if isinstance(model, EncoderOnly):
        return {"input": InputNames("inputs", "embed", "encoder", "mask", "positions")}
    return {"input": InputNames("ids", "embed", "decoder", "mask", "positions")}


def all_real_mask(name: str, ids: Tensor, read: specs.Input, *, first: int = 0) -> dict[str, Tensor]:
    """The argument `name` marking all ids (1, T) as real tokens, if one of them is the pad id; else nothing.

    Without a mask a model takes pad ids from position `first` on for padding; nothing here is padded.
    """
    pad = read.pad_id if isinstance(read, specs.Tokens) else None
    if pad is None or not bool(ids[:, first:].eq(pad).any()):
        return {}
    return {name: torch.ones_like(ids, dtype=torch.bool)}


@dataclass(frozen=True, kw_only=True)
class IntervenedForward:
    """Arguments of `observe(model, inputs, edit=edit)` that run the interventions.

    orders: for each sequence with swapped tokens, the original index of the token now at each position.
    """

    model: Any
    inputs: dict[str, Any]
    edit: dict[str, Edit]
    orders: dict[str, list[int]]


def apply_interventions(
    model: Any, inputs: Mapping[str, Any], interventions: Iterable[Intervention]
) -> IntervenedForward:
    """Prepare a forward with interventions; the given model and inputs are not modified."""
    builder = _ForwardBuilder(model, inputs)
    for intervention in interventions:
        builder.add(intervention)
    return builder.build()


class _ForwardBuilder:
    def __init__(self, model: Any, inputs: Mapping[str, Any]) -> None:
        self.model, self.inputs = model, dict(inputs)
        self.names = input_names(model)
        self.edits: dict[str, list[Edit]] = {}
        self.layers_off: list[str] = []
        self.stretched: set[str] = set()
        self.masked: dict[str, set[int]] = {}
        self.orders: dict[str, list[int]] = {}
        self.lengths = {name: self._length(names) for name, names in self.names.items()}

    def add(self, intervention: Intervention) -> None:
        match intervention:
            case HeadOff(attention=name, head=head):
                attention = self._submodule(name, MultiHeadAttention, "attention")
                if not 0 <= head < attention.num_heads:
                    raise InvalidValueError("head", head, f"0 to {attention.num_heads - 1}")
                self._edit(f"{name}.heads", _scale_slice(1, head, 0.0))
            case LayerOff(block=name):
                self._submodule(name, Block, "block")
                self.layers_off.append(name)
            case MaskToken(sequence=name, position=position):
                self._check_position(name, position)
                self.masked.setdefault(name, set()).add(position)
            case SwapTokens(sequence=name, positions=(one, other)):
                self._check_position(name, one)
                self._check_position(name, other)
                order = self.orders.setdefault(name, list(range(self.lengths[name])))
                order[one], order[other] = order[other], order[one]
            case ScaleResidual(name=name, position=position, scale=scale):
                if not abs(scale) <= MAX_SCALE:
                    raise InvalidValueError("scale", scale, f"{-MAX_SCALE:g} to {MAX_SCALE:g}")
                stack = self._check_residual_site(name)
                sequence = next(n for n, names in self.names.items() if names.stack == stack)
                self._check_position(sequence, position)
                self._edit(name, _scale_slice(1, position, scale))
            case StretchPositions(stack=name, stretch=stretch):
                self._stretch(name, stretch)

    def build(self) -> IntervenedForward:
        for name, order in self.orders.items():
            self._swap(name, self.names[name], order)
        for name, positions in self.masked.items():
            self._mask(self.names[name], self.lengths[name], positions, causal_start=name == "target")
        for (
            name
        ) in self.layers_off:  # remember the block's input after all other edits; return it before them
            stored: list[Tensor] = []
            self._edit(f"{name}.resid_in", _store(stored))
            self.edits.setdefault(f"{name}.resid_out", []).insert(0, lambda x, stored=stored: stored[-1])  # type: ignore[misc]
        edit = {name: _chain(edits) for name, edits in self.edits.items()}
        return IntervenedForward(model=self.model, inputs=self.inputs, edit=edit, orders=self.orders)

    def _edit(self, name: str, edit: Edit) -> None:
        self.edits.setdefault(name, []).append(edit)

    def _stretch(self, stack: str, stretch: float) -> None:
        found = next(((n, names) for n, names in self.names.items() if names.stack == stack), None)
        if found is None:
            raise UnknownNameError("stack", stack, [names.stack for names in self.names.values()])
        if not 0 < stretch <= MAX_STRETCH:
            raise InvalidValueError("stretch", stretch, f"above 0 and at most {MAX_STRETCH:g}")
        if stack in self.stretched:
            raise ConflictError(["stretch", "stretch"], f"the positions of the {stack} can be stretched once")
        sequence, names = found
        self.stretched.add(stack)
        self.model = stretch_positions(
            self.model, stack=stack, embed=names.embed, stretch=stretch, length=self.lengths[sequence]
        )

    def _swap(self, name: str, names: InputNames, order: list[int]) -> None:
        embed = getattr(self.model, names.embed)
        if isinstance(embed, TokenInput):
            ids: Tensor = self.inputs[names.ids]
            self.inputs[names.ids] = ids[:, torch.tensor(order, device=ids.device)]
            return
        first = 0 if embed.prefix is None else int(embed.prefix.shape[1])
        if order[:first] != list(range(first)):
            moved = next(n for n in range(first) if order[n] != n)
            raise InvalidValueError("position", moved, f"a patch of the {name}, from {first}")
        patches = [position - first for position in order[first:]]
        self._edit(f"{names.embed}.patch", lambda x: x[:, torch.tensor(patches, device=x.device)])

    def _mask(self, names: InputNames, length: int, positions: set[int], *, causal_start: bool) -> None:
        """Mask tokens like padding, but keep the position ids of all others."""
        embed, ids = getattr(self.model, names.embed), self.inputs[names.ids]
        mask = inferred(embed, ids, self.inputs.get(names.mask), names.mask)
        rows = ids.shape[0] * (embed.channels if isinstance(embed, SeriesInput) else 1)
        padding = torch.ones(rows, length, dtype=torch.bool, device=ids.device)
        if mask.padding is not None:
            padding = mask.padding.clone()
            if causal_start and self.inputs.get(names.mask) is None:
                padding[:, 0] = True  # as the model reads it: a target may start with the pad token
        if isinstance(embed, TokenInput) and self.inputs.get(names.positions) is None:
            own = placed(Mask(padding=padding, segments=mask.segments), 0, ids, names.mask)
            self.inputs[names.positions] = own
        visible = padding.clone()
        visible[:, sorted(positions)] = False
        position = getattr(self.model, names.stack).position
        if isinstance(position, AlibiBias) and position.rounding != "none":
            # such a bias counts the tokens that are not padding, so the token is masked pairwise instead
            allowed = visible[:, None, None].expand(-1, -1, length, -1)
            allowed = allowed if mask.allowed is None else allowed & mask.allowed
            self.inputs[names.mask] = replace(mask, allowed=allowed)
        else:
            self.inputs[names.mask] = replace(mask, padding=visible)

    def _length(self, names: InputNames) -> int:
        embed, ids = getattr(self.model, names.embed), self.inputs[names.ids]
        if isinstance(embed, ImageInput):
            return int(embed.position.shape[1])
        return int(embed.position.shape[0]) if isinstance(embed, SeriesInput) else int(ids.shape[1])

    def _check_position(self, sequence: str, position: int) -> None:
        if sequence not in self.names:
            raise UnknownNameError("sequence", sequence, self.names)
        if not 0 <= position < self.lengths[sequence]:
            raise InvalidValueError(f"{sequence} position", position, f"0 to {self.lengths[sequence] - 1}")

    def _check_residual_site(self, name: str) -> str:
        """The stack of a residual site."""
        path, _, site = name.rpartition(".")
        block = self._submodule(path, Block, "block")
        sites = ["resid_in", "resid_out"]
        if not block.wiring.startswith("parallel"):
            sites.insert(1, "resid_self")
            if block.cross_attn is not None:
                sites.insert(2, "resid_cross")
        if site not in sites:
            raise UnknownNameError(f"residual of {path}", site, sites)
        return path.split(".")[0]

    def _submodule(self, path: str, kind: Any, what: str) -> Any:
        try:
            module = self.model.get_submodule(path) if path else None
        except AttributeError:
            module = None
        if not isinstance(module, kind):
            known = [name for name, one in self.model.named_modules() if isinstance(one, kind)]
            raise UnknownNameError(what, path, known)
        return module


def _scale_slice(dim: int, index: int, scale: float) -> Edit:
    """Multiply one slice of a tensor (B, ...)."""

    def edit(x: Tensor) -> Tensor:
        x = x.clone()
        one = x.select(dim, index)
        one.mul_(scale) if scale else one.zero_()
        return x

    return edit


def _store(stored: list[Tensor]) -> Edit:
    def edit(x: Tensor) -> Tensor:
        stored[:] = [x]
        return x

    return edit


def _chain(edits: list[Edit]) -> Edit:
    def edit(x: Tensor) -> Tensor:
        for one in edits:
            x = one(x)
        return x

    return edit


class IntervenedModel(nn.Module):
    """An encoder-decoder with interventions, for generation; see `SupportsPrefill`.

    Every step reads the whole target again, since an intervention may concern any earlier position; the
    source is read once. Interventions name positions of one source, so it takes one at a time, unpadded.
    """

    def __init__(self, model: EncoderDecoder, interventions: Sequence[Intervention]) -> None:
        super().__init__()
        self.model = replace_parts(model, head=_LastPositionHead(model.head))
        self.interventions = tuple(interventions)

    @property
    def spec(self) -> specs.EncoderDecoder:
        return self.model.spec

    def prefill(
        self, inputs: Tensor, mask: Tensor, *, start_ids: Sequence[int], capacity: int
    ) -> PrefillResult:
        """Read a source (1, S)."""
        if not start_ids:
            raise MissingValueError("start_ids", "to start the target")
        assert bool(mask.all())
        steps = _IntervenedDecoder(self, inputs, inputs.new_tensor(start_ids).expand(len(inputs), -1))
        table = max_positions(self.model.tgt_embed)
        # the last token is never read again, so it needs no position
        most = None if table is None else max(0, table + 1 - len(start_ids))
        return PrefillResult(steps, steps.logits(), most)

    def intervened(self, src: Tensor, tgt: Tensor) -> IntervenedForward:
        """The forward of src (B, S) and tgt (B, T), with the interventions whose positions exist so far."""
        inputs = {
            **{"src": src, **all_real_mask("src_mask", src, self.spec.source)},
            **{"tgt": tgt, **all_real_mask("tgt_mask", tgt, self.spec.target, first=1)},
        }
        applicable = [one for one in self.interventions if _target_length(one) <= tgt.shape[1]]
        return apply_interventions(self.model, inputs, applicable)


class _LastPositionHead(nn.Module):
    """A head that reads the last position only: (B, T, D) -> (B, 1, V)."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, x: Tensor, context: Context, *, obs: Observer | None = None) -> Any:
        return self.head(x[:, -1:], Context(ids=context.ids), obs=obs)


class _IntervenedDecoder:
    """The decode steps of an intervened model; see `Decoder`."""

    def __init__(self, model: IntervenedModel, src: Tensor, tgt: Tensor) -> None:
        self.model, self.src, self.tgt = model, src, tgt
        forward = model.intervened(src, tgt)
        inputs = forward.inputs
        self.memory: Tensor = forward.model.encode(  # (B, S, D)
            inputs["src"],
            inputs.get("src_mask"),
            positions=inputs.get("src_positions"),
            obs=Observer((), forward.edit),
        )

    def step(self, ids: Tensor) -> Tensor:
        self.tgt = torch.cat((self.tgt, ids[:, None]), 1)
        return self.logits()

    def logits(self) -> Tensor:
        """The logits (B, V) of the next token."""
        forward = self.model.intervened(self.src, self.tgt)
        inputs = forward.inputs
        source_mask = inferred(forward.model.src_embed, inputs["src"], inputs.get("src_mask"), "src_mask")
        logits: Tensor = forward.model.decode(  # (B, 1, V)
            inputs["tgt"],
            self.memory,
            inputs.get("tgt_mask"),
            across(source_mask, inputs.get("tgt_mask")),
            positions=inputs.get("tgt_positions"),
            obs=Observer((), forward.edit),
        )
        last = logits[:, -1].float()
        if not bool(last.amax(-1).isfinite().all()):
            raise NonFiniteError("the output of the intervened model", hint="use smaller interventions")
        return last

    def select(self, rows: Tensor) -> None:
        self.src, self.tgt, self.memory = (x.index_select(0, rows) for x in (self.src, self.tgt, self.memory))


def _target_length(intervention: Intervention) -> int:
    """The length a target must have for the intervention to apply."""
    match intervention:
        case MaskToken(sequence="target", position=position):
            return position + 1
        case SwapTokens(sequence="target", positions=positions):
            return max(positions) + 1
        case ScaleResidual(name=name, position=position) if name.startswith("decoder."):
            return position + 1
    return 0
