"""What a person may change about a model at work: heads and layers off, tokens hidden or swapped, and more.

A change is JSON's words for it (`{"kind": "head_off", "attention": ..., "head": 2}`), read strictly. Together
they become an altered input, edits of the forward, and a model that shares all its weights with the one that
others read with at the same time. B rows, T places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from glassformer.core.attention import MultiHeadAttention
from glassformer.core.block import Block
from glassformer.core.embeddings import ImageInput, TokenInput
from glassformer.core.errors import GlassformerError
from glassformer.core.masks import Mask
from glassformer.core.model import EncoderDecoder, EncoderOnly
from glassformer.core.positions import AlibiBias
from glassformer.core.reading import inferred, placed
from glassformer.core.series import SeriesInput
from glassformer.trace.stretched import stretched

MOST: Final = 256  # changes at once
LARGEST: Final = 1000.0  # a residual is multiplied by at most this
FARTHEST: Final = 64.0  # and a position

Edit = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class HeadOff:
    """One head's output is nothing."""

    attention: str
    head: int


@dataclass(frozen=True, kw_only=True)
class LayerOff:
    """A block hands on what it was given: `encoder.blocks.3`."""

    block: str


@dataclass(frozen=True, kw_only=True)
class MaskToken:
    """No one may attend to a token; all others stay where they stand."""

    sequence: str
    position: int


@dataclass(frozen=True, kw_only=True)
class Swap:
    """Two tokens, or patches, change places."""

    sequence: str
    positions: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Residual:
    """The residual at one place (`decoder.blocks.2.resid_out`) is multiplied at one token."""

    name: str
    position: int
    scale: float


@dataclass(frozen=True, kw_only=True)
class Positions:
    """Every token stands `stretch` times as far along."""

    stack: str
    stretch: float


Change = HeadOff | LayerOff | MaskToken | Swap | Residual | Positions
KINDS: Final[dict[str, type[Change]]] = {
    "head_off": HeadOff,
    "layer_off": LayerOff,
    "mask_token": MaskToken,
    "swap": Swap,
    "residual": Residual,
    "positions": Positions,
}
_NUMBERS: Final = {"scale": (-LARGEST, LARGEST), "stretch": (0.0, FARTHEST)}


def parse_changes(given: Any) -> tuple[Change, ...]:
    """JSON's words for changes, each checked; what depends on the model is checked by `altered`."""
    if not isinstance(given, list | tuple):
        raise GlassformerError(f"changes must be a list, not {type(given).__name__}")
    if len(given) > MOST:
        raise GlassformerError(f"{len(given):,} changes are too many at once; make at most {MOST}")
    return tuple(_parsed(one) for one in given)


def _parsed(words: Any) -> Change:
    if isinstance(words, Change):
        return words
    kind = words.get("kind") if isinstance(words, Mapping) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise GlassformerError(f"a change has one of the kinds {', '.join(KINDS)}; got {kind!r:.60}")
    wanted = {field.name for field in fields(KINDS[kind])}
    if wrong := sorted(wanted ^ (set(words) - {"kind"}), key=str):
        raise GlassformerError(
            f"the change {kind} takes {', '.join(sorted(wanted))}; '{wrong[0]!s:.60}' is missing or strange"
        )
    return KINDS[kind](**{name: _value(f"{kind}: {name}", name, words[name]) for name in wanted})


def _value(where: str, name: str, value: Any) -> Any:
    if name in ("head", "position"):
        return _whole(where, value)
    if name == "positions":
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise GlassformerError(f"{where} must be two places; got {value!r:.60}")
        return tuple(_whole(where, one) for one in value)
    if name in _NUMBERS:
        low, high = _NUMBERS[name]
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or not low <= value <= high or (name == "stretch" and value == 0):
            raise GlassformerError(f"{where} must be a number from {low:g} to {high:g}; got {value!r:.60}")
        return float(value)
    if not isinstance(value, str):
        raise GlassformerError(f"{where} must be a name; got {value!r:.60}")
    return value


def _whole(where: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise GlassformerError(f"{where} must be a whole number from 0; got {value!r:.60}")
    return value


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
