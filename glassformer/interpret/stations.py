"""The stations of a model in the order the data flows, and the names under which it was recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass
from typing import Any, Literal

from glassformer.core.attention import MultiHeadAttention
from glassformer.core.model import AnyModel
from glassformer.core.observe import Record
from glassformer.interpret.outline import StackInfo

StationKind = Literal[
    "tokens", "embedding", "position", "attention", "add_norm", "feed_forward", "final_norm", "head"
]


@dataclass(frozen=True, kw_only=True)
class Station:
    """One stop on the data's way. tensors: what a tensor is there for -> the name it was recorded under."""

    id: str
    kind: StationKind
    stack: str | None
    layer: int | None
    sequence: str
    tensors: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class AttentionInfo:
    """One attention. queries, keys: the sequences that look and that are looked at."""

    name: str
    stack: Literal["encoder", "decoder"]
    layer: int
    kind: Literal["self", "cross"]
    queries: str
    keys: str
    heads: int
    kv_heads: int
    scale: float
    head_dim: int
    biased: bool
    causal: bool
    window: int | None


def attentions_of(model: AnyModel, record: Record) -> tuple[AttentionInfo, ...]:
    """Every attention whose matrices can be asked for."""
    both = hasattr(model, "src_embed")
    found = []
    for name in record.attentions():
        stack, _, layer, part = name.split(".")
        module: Any = model.get_submodule(name)
        assert isinstance(module, MultiHeadAttention)
        cross = part == "cross_attn"
        own = ("source" if stack == "encoder" else "target") if both else "input"
        used = record.attended[name]
        found.append(
            AttentionInfo(
                name=name,
                stack="encoder" if stack == "encoder" else "decoder",
                layer=int(layer),
                kind="cross" if cross else "self",
                queries=own,
                keys="source" if cross else own,
                heads=module.num_heads,
                kv_heads=module.num_kv_heads,
                scale=used.scale,
                head_dim=module.head_dim,
                biased=used.bias is not None,
                causal=not cross and bool(getattr(model.get_submodule(stack), "causal", False)),
                window=module.window,
            )
        )
    return tuple(found)


def growth_of(stack: StackInfo, record: Record) -> list[str]:
    """The names of the residual stream's sites in a stack, from its first vectors to its last layer's."""
    sites = [f"{stack.embed}.out"]
    for layer in range(stack.layers):
        at = f"{stack.name}.blocks.{layer}"
        sites += [f"{at}.resid_{part}" for part in ("self", "cross", "out")]
    return [site for site in sites if site in record]


def last_of(stack: StackInfo) -> str:
    """The name of the vectors that leave a stack."""
    if stack.final_norm:
        return f"{stack.name}.final_norm"
    return f"{stack.name}.blocks.{stack.layers - 1}.resid_out" if stack.layers else f"{stack.embed}.out"


def stations_of(stacks: Several[StackInfo], record: Record) -> list[Station]:
    """All stations; a role whose tensor was not recorded is left out."""
    found: list[Station] = []
    memory = last_of(stacks[0])
    for stack in stacks:
        found += _first(stack, record)
        for layer in range(stack.layers):
            found += (
                _parallel(stack, layer, record)
                if stack.wiring == "parallel"
                else _layer(stack, layer, memory)
            )
        if stack.final_norm:
            before = growth_of(stack, record)[-1]
            found.append(_station(stack, "final", "final_norm", {"before": before, "after": last_of(stack)}))
    last = stacks[-1]
    heads = {name.removeprefix("head."): name for name in record if name.startswith("head.")}
    found.append(
        Station(
            id="head",
            kind="head",
            stack=None,
            layer=None,
            sequence=last.sequence,
            tensors={"before": last_of(last), **heads},
        )
    )
    return [_recorded(station, record) for station in found]


def _recorded(station: Station, record: Record) -> Station:
    derived = ("table", "table_ahead", "similarity")
    kept = {role: name for role, name in station.tensors.items() if name in record or role in derived}
    return Station(**{**vars(station), "tensors": kept})


def _station(
    stack: StackInfo, what: str, kind: StationKind, tensors: Mapping[str, str], layer: int | None = None
) -> Station:
    place = stack.name if layer is None else f"{stack.name}.{layer}"
    return Station(
        id=f"{place}.{what}",
        kind=kind,
        stack=stack.name,
        layer=layer,
        sequence=stack.sequence,
        tensors=tensors,
    )


def _first(stack: StackInfo, record: Record) -> Iterator[Station]:
    """What happens before the first layer."""
    yield _station(stack, "tokens", "tokens", {})
    names = ("scaled", "token", "patch", "kind", "norm", "out")
    yield _station(stack, "embed", "embedding", {name: f"{stack.embed}.{name}" for name in names})
    position = stack.position
    if position.name is None:
        return
    roles = {"table": f"{position.name}.table", "similarity": f"{position.name}.similarity"}
    if position.kind in ("relative", "alibi") and not stack.causal:
        roles["table_ahead"] = f"{position.name}.table_ahead"
    added = {"added": f"{stack.embed}.position", "after": f"{stack.embed}.out"}
    yield _station(stack, "position", "position", {**added, **roles})


def _attention(
    stack: StackInfo, layer: int, part: Literal["self", "cross"], read: str, memory: str
) -> Station:
    name = f"{stack.name}.blocks.{layer}.{part}_attn"
    roles = {"in": read, **({"memory": memory} if part == "cross" else {})}
    roles |= {role: f"{name}.{role}" for role in ("q", "k", "v", "heads", "out")}
    return _station(stack, part, "attention", roles, layer)


def _feed(stack: StackInfo, layer: int, read: str) -> Station:
    name = f"{stack.name}.blocks.{layer}.ffn"
    roles = {"in": read, **{role: f"{name}.{role}" for role in ("gate", "up", "act", "down")}}
    return _station(stack, "ffn", "feed_forward", roles, layer)


def _layer(stack: StackInfo, layer: int, memory: str) -> Iterator[Station]:
    """Each sub-layer and then its add & norm; norms before the sub-layer ("pre") or after the sum."""
    at = f"{stack.name}.blocks.{layer}"
    before = f"{at}.resid_in"
    for part in ("self", "cross", "ffn") if stack.cross else ("self", "ffn"):
        norm, after = f"{at}.norm_{part}", f"{at}.resid_{'out' if part == 'ffn' else part}"
        read = norm if stack.wiring == "pre" else before
        if part == "ffn":
            yield _feed(stack, layer, read)
        else:
            yield _attention(stack, layer, "self" if part == "self" else "cross", read, memory)
        roles = {
            "before": before,
            "sublayer": f"{at}.ffn.down" if part == "ffn" else f"{at}.{part}_attn.out",
            "sum": after if stack.wiring == "pre" else f"{norm}_in",
            "normed": norm,
            "after": after,
        }
        yield _station(stack, f"norm_{part}", "add_norm", roles, layer)
        before = after


def _parallel(stack: StackInfo, layer: int, record: Record) -> Iterator[Station]:
    """Attention and feed-forward side by side, both added at once."""
    at = f"{stack.name}.blocks.{layer}"
    yield _attention(stack, layer, "self", f"{at}.norm_self", "")
    yield _feed(stack, layer, f"{at}.norm_ffn" if f"{at}.norm_ffn" in record else f"{at}.norm_self")
    roles = {
        "before": f"{at}.resid_in",
        "normed": f"{at}.norm_self",
        "normed_ffn": f"{at}.norm_ffn",
        "sublayer": f"{at}.self_attn.out",
        "sublayer_ffn": f"{at}.ffn.down",
        "sum": f"{at}.resid_out",
        "after": f"{at}.resid_out",
    }
    yield _station(stack, "norm_self", "add_norm", roles, layer)
