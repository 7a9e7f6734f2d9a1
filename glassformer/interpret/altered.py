"""A model at work under changes: an altered input, edits of the forward, and a model to run them.

That model shares all its weights with the one that others read with at the same time. B rows, T places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from glassformer.core.attention import MultiHeadAttention
from glassformer.core.block import Block
from glassformer.core.embeddings import ImageInput, TokenInput
from glassformer.core.masks import Mask
from glassformer.core.model import EncoderDecoder, EncoderOnly
from glassformer.core.positions import AlibiBias
from glassformer.core.reading import inferred, placed
from glassformer.core.series import SeriesInput
from glassformer.errors import GlassformerError
from glassformer.interpret.changes import (
    Change,
    HeadOff,
    LayerOff,
    MaskToken,
    Positions,
    Residual,
    Swap,
    parse_changes,
)
from glassformer.interpret.stretched import stretched

Edit = Callable[[Tensor], Tensor]


class Side(NamedTuple):
    """One sequence of a model: the input's word, the parts that read it, the words for mask and positions."""

    ids: str
    embed: str
    stack: str
    mask: str
    positions: str


def sides_of(model: nn.Module) -> dict[str, Side]:
    """The sequences of a model by name."""
    if isinstance(model, EncoderDecoder):
        return {
            "source": Side("src", "src_embed", "encoder", "src_mask", "src_positions"),
            "target": Side("tgt", "tgt_embed", "decoder", "tgt_mask", "tgt_positions"),
        }
    if isinstance(model, EncoderOnly):
        return {"input": Side("inputs", "embed", "encoder", "mask", "positions")}
    return {"input": Side("ids", "embed", "decoder", "mask", "positions")}


@dataclass(frozen=True, kw_only=True)
class Altered:
    """What `observe(model, inputs, edit=edit)` runs after the changes.

    orders: for each sequence in which tokens changed places, the token that now stands at each.
    """

    model: Any
    inputs: dict[str, Any]
    edit: dict[str, Edit]
    orders: dict[str, list[int]]


def altered(model: Any, inputs: Mapping[str, Any], changes: Iterable[Any]) -> Altered:
    """The model, its named inputs and the edits after these changes; model and inputs stay as they are."""
    maker = _Maker(model, inputs)
    for change in parse_changes(list(changes)):
        maker.change(change)
    return maker.made()


class _Maker:
    def __init__(self, model: Any, inputs: Mapping[str, Any]) -> None:
        self.model, self.inputs = model, dict(inputs)
        self.sides = sides_of(model)
        self.edits: dict[str, list[Edit]] = {}
        self.off: list[str] = []
        self.moved: set[str] = set()
        self.hidden: dict[str, set[int]] = {}
        self.orders: dict[str, list[int]] = {}
        self.lengths = {name: self._length(side) for name, side in self.sides.items()}

    def change(self, change: Change) -> None:
        match change:
            case HeadOff(attention=name, head=head):
                attention = self._part(name, MultiHeadAttention, "attention")
                if head >= attention.num_heads:
                    raise GlassformerError(
                        f"{name} has heads 0 to {attention.num_heads - 1}; there is no head {head}"
                    )
                self._edit(f"{name}.heads", _scaled(1, head, 0.0))
            case LayerOff(block=name):
                self._part(name, Block, "block")
                self.off.append(name)
            case MaskToken(sequence=name, position=position):
                self._check_place(name, position)
                self.hidden.setdefault(name, set()).add(position)
            case Swap(sequence=name, positions=places):
                for place in places:
                    self._check_place(name, place)
                order = self.orders.setdefault(name, list(range(self.lengths[name])))
                one, other = places
                order[one], order[other] = order[other], order[one]
            case Residual(name=name, position=position, scale=scale):
                stack = self._check_site(name)
                sequence = next(n for n, side in self.sides.items() if side.stack == stack)
                self._check_place(sequence, position)
                self._edit(name, _scaled(1, position, scale))
            case Positions(stack=name, stretch=stretch):
                found = next(((n, s) for n, s in self.sides.items() if s.stack == name), None)
                if name in self.moved:
                    raise GlassformerError(f"the positions of the {name} are stretched twice; once is enough")
                if found is None:
                    known = ", ".join(side.stack for side in self.sides.values())
                    raise GlassformerError(f"this model has no stack '{name:.60}'; it has {known}")
                sequence, side = found
                self.moved.add(name)
                self.model = stretched(
                    self.model,
                    stack=name,
                    embed=side.embed,
                    stretch=stretch,
                    length=self.lengths[sequence],
                )

    def made(self) -> Altered:
        for name, order in self.orders.items():
            self._swap(name, self.sides[name], order)
        for name, places in self.hidden.items():
            self._hide(self.sides[name], self.lengths[name], places, causal_start=name == "target")
        for name in self.off:  # what a layer is given is kept last, and what it hands on changed first
            kept: list[Tensor] = []
            self._edit(f"{name}.resid_in", _keeping(kept))
            self.edits.setdefault(f"{name}.resid_out", []).insert(0, lambda x, kept=kept: kept[-1])  # type: ignore[misc]
        edit = {name: _in_turn(edits) for name, edits in self.edits.items()}
        return Altered(model=self.model, inputs=self.inputs, edit=edit, orders=self.orders)

    def _edit(self, name: str, edit: Edit) -> None:
        self.edits.setdefault(name, []).append(edit)

    def _swap(self, name: str, side: Side, order: list[int]) -> None:
        embed = getattr(self.model, side.embed)
        if isinstance(embed, TokenInput):
            ids: Tensor = self.inputs[side.ids]
            self.inputs[side.ids] = ids[:, torch.tensor(order, device=ids.device)]
            return
        first = _prefix(embed)
        if order[:first] != list(range(first)):
            raise GlassformerError(f"the first {first} places of the {name} are no patches; swap later ones")
        patches = [place - first for place in order[first:]]
        self._edit(f"{side.embed}.patch", lambda x: x[:, torch.tensor(patches, device=x.device)])

    def _hide(self, side: Side, length: int, places: set[int], *, causal_start: bool) -> None:
        """Mask tokens as padding is masked, and say where the others stand: where they did."""
        embed, given = getattr(self.model, side.embed), self.inputs[side.ids]
        mask = inferred(embed, given, self.inputs.get(side.mask), side.mask)
        rows = given.shape[0] * (embed.channels if isinstance(embed, SeriesInput) else 1)
        padding = torch.ones(rows, length, dtype=torch.bool, device=given.device)
        if mask.padding is not None:
            padding = mask.padding.clone()
            if causal_start and self.inputs.get(side.mask) is None:
                padding[:, 0] = True  # as the model reads it: a target may start with the pad token
        if isinstance(embed, TokenInput) and self.inputs.get(side.positions) is None:
            own = placed(Mask(padding=padding, segments=mask.segments), 0, given, side.mask)
            self.inputs[side.positions] = own
        seen = padding.clone()
        seen[:, sorted(places)] = False
        position = getattr(self.model, side.stack).position
        if isinstance(position, AlibiBias) and position.rounding != "none":
            # such a bias counts the tokens that are not padding, so these are hidden in another way
            allowed = seen[:, None, None].expand(-1, -1, length, -1)
            allowed = allowed if mask.allowed is None else allowed & mask.allowed
            self.inputs[side.mask] = replace(mask, allowed=allowed)
        else:
            self.inputs[side.mask] = replace(mask, padding=seen)

    def _length(self, side: Side) -> int:
        embed, given = getattr(self.model, side.embed), self.inputs[side.ids]
        if isinstance(embed, ImageInput):
            return int(embed.position.shape[1])
        return int(embed.position.shape[0]) if isinstance(embed, SeriesInput) else int(given.shape[1])

    def _check_place(self, sequence: str, position: int) -> None:
        if sequence not in self.sides:
            raise GlassformerError(
                f"this model has no sequence '{sequence:.60}'; it has {', '.join(self.sides)}"
            )
        if position >= self.lengths[sequence]:
            raise GlassformerError(
                f"the {sequence} has places 0 to {self.lengths[sequence] - 1}; there is no place {position}"
            )

    def _check_site(self, name: str) -> str:
        """The stack of a residual's name."""
        block, _, site = name.rpartition(".")
        found = self._part(block, Block, "residual", name)
        sites = ["resid_in", "resid_out"]
        if not found.wiring.startswith("parallel"):
            sites.insert(1, "resid_self")
            if found.cross_attn is not None:
                sites.insert(2, "resid_cross")
        if site not in sites:
            raise GlassformerError(f"{block} has the residuals {', '.join(sites)}; there is no '{site:.60}'")
        return block.split(".")[0]

    def _part(self, path: str, kind: Any, what: str, asked: str | None = None) -> Any:
        try:
            part = self.model.get_submodule(path) if path else None
        except AttributeError:
            part = None
        if not isinstance(part, kind):
            raise GlassformerError(
                f"this model has no {what} '{(asked or path):.60}'; the trace lists those it has"
            )
        return part


def _prefix(embed: Any) -> int:
    return 0 if embed.prefix is None else int(embed.prefix.shape[1])


def _scaled(dim: int, index: int, scale: float) -> Edit:
    """Multiply one slice of a tensor (B, ...)."""

    def change(x: Tensor) -> Tensor:
        x = x.clone()
        one = x.select(dim, index)
        one.mul_(scale) if scale else one.zero_()
        return x

    return change


def _keeping(kept: list[Tensor]) -> Edit:
    def keep(x: Tensor) -> Tensor:
        kept[:] = [x]
        return x

    return keep


def _in_turn(edits: list[Edit]) -> Edit:
    def change(x: Tensor) -> Tensor:
        for edit in edits:
            x = edit(x)
        return x

    return change
