"""The flow of one token: its residual vector after every addition, and what was added.

A token passes through one or more stacks. A target token is preceded by the source token that it attends to
most; a token of a model that pools is followed by the position that the head reads. Attention to a source is
measured by its weight times the norm of its value, summed over heads: a large weight on a short value
moves little. B rows, T positions, D d_model, H heads, S keys, F feed-forward units.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from glassformer.core.feedforward import FeedForward
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.interpret import schema
from glassformer.interpret.logit_lens import head_context, lens_table, logit_lens
from glassformer.interpret.outline import describe_stacks, describe_stages, find_submodule, stack_output
from glassformer.interpret.readout import head_readout
from glassformer.interpret.tensors import read_tensor
from glassformer.interpret.trace import Trace
from glassformer.tasks.classification import label_names

MAX_SOURCES: Final = 3
MAX_UNITS: Final = 8
MAX_PREDICTIONS: Final = 5
POOLING: Final = ("label", "embedding", "vector", "hidden states")  # what heads that may pool yield


class TokenPosition(NamedTuple):
    stack: schema.StackInfo
    position: int


@torch.inference_mode()
def token_flow(
    trace: Trace, sequence: str | None = None, position: int | None = None, row: int = 0
) -> schema.TokenFlow:
    """Return the flow of a token, by default of the one whose prediction matters most.

    row: of the batch; a series has one for each channel
    """
    stacks = describe_stacks(trace.bundle)
    if not stacks or not trace.record.tensors:
        raise UnsupportedError(trace.bundle.display_name, "following a token: it has no residual stream")
    known = [stack.sequence for stack in stacks]
    first = next(n for n, stack in reversed(list(enumerate(stacks))) if not stack.merging)
    sequence = known[first] if sequence is None else sequence
    if sequence not in known:
        raise schema.ItemNotFoundError("sequence", sequence, known)
    stack = stacks[known.index(sequence)]
    position = default_position(trace, stack) if position is None else position
    rows, length = trace.record[stack_output(stack)].shape[:2]
    if not 0 <= position < length:
        raise InvalidValueError("position", position, f"0 to {length - 1}")
    if not 0 <= row < rows:
        raise InvalidValueError("row", row, f"0 to {rows - 1}")
    stages = describe_stages(stacks, trace.record)
    path = [
        _pass(trace, one, [stage for stage in stages if stage.stack == one.stack.name], row)
        for one in _path(trace, stacks, TokenPosition(stack, position), row)
    ]
    return schema.TokenFlow(sequence=sequence, position=position, row=row, passes=tuple(path))


def default_position(trace: Trace, stack: schema.StackInfo) -> int:
    """Return the token to follow first: what the head pools, an object, a mask, or the most changing reading.

    Otherwise it is the center of an image, or the last word.
    """
    if (pooled := pooled_position(trace, stack)) is not None:
        return pooled
    match trace.outcome:
        case schema.DetectOutcome(objects=objects, first_query=first):
            return first + (objects[0].query if objects else 0)
        case schema.FillOutcome(masks=masks) if masks:
            return masks[0].position
    with suppress(UnsupportedError, schema.ItemNotFoundError):
        top, prob = lens_table(trace, stack.name)
        changes = (top[1:] != top[:-1]).sum(0) + prob[-1]
        changes[: trace.prepared.start - 1] = -1  # positions before the first generated token
        return int(changes.argmax())
    sequence = trace.sequence(stack.sequence)
    if sequence.grid is not None:
        return sequence.prefix + sequence.grid[0] // 2 * sequence.grid[1] + sequence.grid[1] // 2
    return max((n for n, token in enumerate(sequence.tokens) if not token.special), default=0)


def pooled_position(trace: Trace, stack: schema.StackInfo) -> int | None:
    """Return the position of a stack that the head reads, if it reads only one: all other gradients are 0."""
    spec, tower = trace.bundle.spec, stack.path.partition(".")[0]
    path = f"{tower}.head" if tower in spec.children() else "head"
    feeds_head = path != "head" or stack.name == describe_stacks(trace.bundle)[-1].name
    if not feeds_head or spec.heads()[path].yields not in POOLING:
        return None
    head: Any = trace.bundle.model.get_submodule(path)
    with torch.inference_mode(False), torch.enable_grad():
        x = trace.record[stack_output(stack)].clone().requires_grad_()
        output = head(x, head_context(trace, stack.sequence))
        pooled = getattr(output, "pooled", output)
        if not isinstance(pooled, Tensor) or pooled.dim() != 2:
            return None
        (gradient,) = torch.autograd.grad(pooled.sum(), x)
    read = gradient[0].any(-1).nonzero()[:, 0].tolist()
    return int(read[0]) if len(read) == 1 else None


def attention_strengths(
    trace: Trace, attention: str, position: int, row: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weights of a query and the norms of the values, (H, S), and their summed products (S,)."""
    weights = read_tensor(trace, f"{attention}.weights", f"{row},:,{position}").values
    norms = trace.tensor(f"{attention}.v")[row].float().norm(dim=-1).cpu()
    norms = norms.repeat_interleave(len(weights) // len(norms), 0)  # heads may share values
    return weights, norms, (weights * norms).sum(0)


def _path(
    trace: Trace, stacks: Sequence[schema.StackInfo], first: TokenPosition, row: int
) -> list[TokenPosition]:
    """Return the positions that the flow of a token goes through, stack by stack."""
    path, index = [first], stacks.index(first.stack)
    for stack in stacks[index + 1 :]:
        if not stack.merging:
            break
        path.append(TokenPosition(stack, _merged_position(trace, path[-1], stack)))
    if first.stack.cross:
        return [TokenPosition(stacks[index - 1], _main_source(trace, first, "cross", row)), *path]
    pooled = pooled_position(trace, first.stack)
    if pooled is None:
        return path
    if pooled == first.position:
        return [first._replace(position=_main_source(trace, first, "self", row)), first]
    return [first, first._replace(position=pooled)]


def _merged_position(trace: Trace, at: TokenPosition, merged: schema.StackInfo) -> int:
    """Return the position of the 2 x 2 patches that a patch is merged into."""
    grid, following = trace.sequence(at.stack.sequence).grid, trace.sequence(merged.sequence).grid
    assert grid is not None and following is not None
    return (at.position // grid[1] // 2) * following[1] + at.position % grid[1] // 2


def _main_source(trace: Trace, at: TokenPosition, kind: str, row: int) -> int:
    """Return the other token that contributes most to a token by attention, over all layers."""
    layers = [one for one in trace.attentions() if one.stack == at.stack.name and one.kind == kind]
    total = torch.stack([attention_strengths(trace, one.name, at.position, row)[2] for one in layers]).sum(0)
    special = torch.tensor([token.special for token in trace.sequence(layers[0].keys).tokens])
    if kind == "self":
        special[at.position] = True
    return int((total if special.all() else total.masked_fill(special, -1)).argmax())


def _pass(trace: Trace, at: TokenPosition, stages: Sequence[schema.Stage], row: int) -> schema.StackPass:
    readings = _readings(trace, at)
    updates = tuple(_updates(trace, at, stages, row, readings))
    names = dict.fromkeys(name for one in updates for name in (one.before, one.sum, one.after) if name)
    return schema.StackPass(
        stack=at.stack.name,
        sequence=at.stack.sequence,
        position=at.position,
        updates=updates,
        vectors={name: tuple(trace.record[name][row, at.position].float().tolist()) for name in names},
    )


def _updates(
    trace: Trace,
    at: TokenPosition,
    stages: Sequence[schema.Stage],
    row: int,
    readings: Mapping[str, schema.TokenReading],
) -> Iterator[schema.ResidualUpdate]:
    """Yield an update for each sum of the residual stream, with the sublayers whose outputs are added."""
    for stage in stages:
        roles, sublayers = stage.tensors, _added_sublayers(stage, stages)
        match stage.kind:
            case "embedding" | "merging":
                after = total = roles["out"]
                parts = (roles[role] for role in ("scaled", "token") if role in roles)
                same = (name for name in parts if trace.record[name].shape == trace.record[after].shape)
                before = next(same, None)
            case "add_norm":
                before, total, after = roles["before"], roles["sum"], roles["after"]
            case "final_norm":
                before, total, after = roles["before"], roles["before"], roles["after"]
            case _:
                continue
        yield schema.ResidualUpdate(
            stages=tuple(one.id for one in (*sublayers, stage)),
            kind=stage.kind,
            layer=stage.layer,
            before=before,
            sum=total,
            after=after,
            attention=next(
                (_attention(trace, one, at, row) for one in sublayers if "q" in one.tensors), None
            ),
            units=tuple(
                unit for one in sublayers if "down" in one.tensors for unit in _units(trace, one, at, row)
            ),
            reading=readings.get(after),
        )


def _added_sublayers(stage: schema.Stage, stages: Sequence[schema.Stage]) -> list[schema.Stage]:
    """Return the sublayers whose outputs a sum adds: one, or all of a layer with parallel sublayers."""
    layer = [one for one in stages if one.layer == stage.layer]
    sums = [one for one in layer if one.kind == "add_norm"]
    sublayers = [one for one in layer if one.kind in ("attention", "feed_forward")]
    if stage.kind != "add_norm" or len(sums) < 2:
        return sublayers if stage.kind == "add_norm" else []
    return [sublayers[sums.index(stage)]]


def _attention(trace: Trace, stage: schema.Stage, at: TokenPosition, row: int) -> schema.AttentionSources:
    name = stage.tensors["q"].removesuffix(".q")
    weights, norms, strengths = attention_strengths(trace, name, at.position, row)
    best = strengths.topk(min(MAX_SOURCES, len(strengths))).indices.tolist()
    return schema.AttentionSources(
        name=name,
        total=float(strengths.sum()),
        sources=tuple(
            schema.AttentionSource(
                position=n,
                weights=tuple(weights[:, n].tolist()),
                value_norms=tuple(norms[:, n].tolist()),
                strength=float(strengths[n]),
            )
            for n in best
            if strengths[n] > 0
        ),
    )


def _units(trace: Trace, stage: schema.Stage, at: TokenPosition, row: int) -> Iterator[schema.ActiveUnit]:
    """Yield the units that add most: by activation times the norm of the output vector."""
    layer = find_submodule(trace.bundle.model, stage.tensors["down"].removesuffix(".down"), (FeedForward,))
    if layer is None:
        return
    name = stage.tensors.get("act") or stage.tensors["up"]
    activations = trace.record[name][row, at.position].float()  # (F,)
    norms = layer.down.weight.float().norm(dim=0)
    for n in (activations.abs() * norms).topk(min(MAX_UNITS, len(norms))).indices.tolist():
        yield schema.ActiveUnit(unit=n, activation=float(activations[n]), norm=float(norms[n]))


def _readings(trace: Trace, at: TokenPosition) -> dict[str, schema.TokenReading]:
    """Return what the head reads at a token after the embedding and after each layer, by tensor."""
    path, outcome = f"{at.stack.path}.blocks", trace.outcome
    after = [f"{at.stack.embed}.out", *(f"{path}.{n}.resid_out" for n in range(at.stack.layers))]
    if isinstance(outcome, schema.DetectOutcome):
        return dict(zip(after[1:], _detections(trace, outcome, at), strict=False))
    try:
        readout = head_readout(trace.bundle)
    except UnsupportedError:
        return {}
    pooled = pooled_position(trace, at.stack) if readout.whole_input else at.position
    if readout.stack.name != at.stack.name or pooled not in (None, at.position):
        return {}
    lens = logit_lens(trace, at.position, MAX_PREDICTIONS)
    readings = (schema.TokenReading(predictions=layer.predictions) for layer in lens.layers)
    return dict(zip(after, readings, strict=True))


def _detections(
    trace: Trace, outcome: schema.DetectOutcome, at: TokenPosition
) -> Iterator[schema.TokenReading]:
    boxes, probabilities = trace.derived[outcome.boxes], trace.derived[outcome.probabilities]
    query = at.position - outcome.first_query
    if query < 0 or at.stack.name != describe_stacks(trace.bundle)[-1].name:
        return
    labels = label_names(trace.bundle, probabilities.shape[-1] - 1)
    for box, classes in zip(boxes[:, query], probabilities[:, query, :-1], strict=True):
        best = classes.topk(min(MAX_PREDICTIONS, len(classes)))
        rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        words = tuple(schema.Prediction(id=n, text=labels[n], probability=p) for n, p in rows)
        x_min, y_min, x_max, y_max = box.tolist()
        yield schema.TokenReading(predictions=words, box=(x_min, y_min, x_max, y_max))
