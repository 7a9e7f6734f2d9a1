"""Direct logit attribution: which heads and feed-forward layers wrote a logit into the residual stream.

The residual stream is a sum: the embedding, plus the output of every head and every feed-forward layer. With
the scales of the norms frozen at their values in this forward, the way from the stream to a logit is affine,
so that the logit is the sum of one number for each summand (and of the constants of norms and head).

Effects through later layers are not part of it: a head whose output another head moves on counts nothing.

The walk goes from the logit back to the embedding, with the gradient g of the logit. A summand s contributes
g . s. Post-norms after it are passed by their transposed linear parts. All sums are in float64.

D d_model, H heads, T positions, V vocabulary or labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from glassformer.core.block import Block
from glassformer.core.observe import Record
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.interpret import schema
from glassformer.interpret.logit_lens import head_context
from glassformer.interpret.outline import stack_output
from glassformer.interpret.readout import HeadReadout
from glassformer.interpret.trace import Trace
from glassformer.interpret.views import view_of


class _Summand(NamedTuple):
    """What a sublayer adds to the residual stream, (T, D). before: the stream that it is added to."""

    name: str
    module: Any
    added: Tensor
    norm_out: nn.Module | None = None
    scale: nn.Module | None = None


def attribute_logit(
    trace: Trace, position: int | None = None, id: int | None = None, *, against: int | None = None
) -> schema.LogitAttribution:
    """Return the contributions of embedding, heads and feed-forward layers to a logit, which sum to it.

    position: where the logit is read; by default, and for labels of the whole input, that of the main output
    id: of the token or label; by default the predicted one
    against: id of another one, whose logit is subtracted: what speaks for the one rather than the other?

    >>> import glassformer
    >>> from glassformer.interpret.schema import TraceInput
    >>> from glassformer.interpret.trace import trace_model
    >>> trace = trace_model(glassformer.load("pocket"), TraceInput(text="I do not sleep.", to="de"))
    >>> result = attribute_logit(trace, position=4)
    >>> result.prediction.text, result.prediction.logit == trace.record["head.logits"][0, 4].max().item()
    (' nicht', True)
    >>> abs(sum(part.value for part in result.contributions) - result.value) < 1e-9
    True
    """
    view = view_of(trace.bundle)
    readout = view.readout()
    position, id = _output_at(trace, readout, position, id)
    logits = trace.record["head.logits"][0].detach().double()
    row = logits if readout.whole_input else logits[position]
    for index in (id, *(() if against is None else (against,))):
        if not 0 <= index < len(row):
            raise InvalidValueError("id", index, f"0 to {len(row) - 1}")
    value = float(row[id] - (0.0 if against is None else row[against]))
    parts = list(_contributions(trace, readout, position, id, against, value))
    texts = readout.texts([id] if against is None else [id, against])
    return schema.LogitAttribution(
        position=None if readout.whole_input else position,
        prediction=schema.Prediction(id=id, text=texts[0], logit=float(row[id])),
        against=None
        if against is None
        else schema.Prediction(id=against, text=texts[1], logit=float(row[against])),
        value=value,
        contributions=tuple(parts[::-1]),
    )


@torch.no_grad()
def _output_at(trace: Trace, readout: HeadReadout, position: int | None, id: int | None) -> tuple[int, int]:
    outputs = view_of(trace.bundle).explained_outputs(trace.prepared, trace.record)
    rows = len(trace.record["head.logits"][0])
    if readout.whole_input:
        best = int(trace.record["head.logits"][0].argmax())
        return 0, best if id is None else id
    at = outputs[-1].position if position is None else position
    if at is None or not 0 <= at < rows:
        raise InvalidValueError("position", str(at), f"0 to {rows - 1}")
    known = {one.position: one.id for one in outputs}
    best = int(trace.record["head.logits"][0, at].argmax())
    return at, known.get(at, best) if id is None else id


def _contributions(
    trace: Trace, readout: HeadReadout, position: int, id: int, against: int | None, value: float
) -> Iterator[schema.LogitContribution]:
    """Yield the contributions from the head back to the embedding."""
    record, stack = trace.record, readout.stack
    model: Any = trace.bundle.model
    sites = readout.sites()
    final = record[stack_output(stack)].detach()  # (1, T, D), which the head reads
    gradient = _head_gradient(trace, readout, final, position, id, against)
    rows = gradient.abs().amax(-1).nonzero()[:, 0]  # the positions that the head reads
    g, y = gradient[rows], final[0].double()[rows]
    yield _part("output", "head", value - float((g * y).sum()))
    if (norm := readout.final_norm) is not None:
        g, constant = _through_norm(norm, _rows(record, sites[-1], rows), y, g)
        yield _part("norm", stack_output(stack), constant)
    for layer in reversed(range(stack.layers)):
        at = f"{stack.path}.blocks.{layer}"
        for item in _steps_back(record, model.get_submodule(at), at, rows):
            if isinstance(item, _Summand):
                yield from _split(record, item, layer, rows, g)
            else:
                name, norm, before, after = item
                g, constant = _through_norm(norm, before, after, g)
                yield _part("norm", name, constant, layer)
        if layer:  # some models add position embeddings between layers
            between = _rows(record, sites[layer], rows)
            extra = float((g * (_rows(record, f"{at}.resid_in", rows) - between)).sum())
            if extra:
                yield _part("embedding", f"{at}.resid_in", extra, layer)
    yield _part("embedding", sites[0], float((g * _rows(record, sites[0], rows)).sum()))


def _part(
    kind: Any, name: str, value: float, layer: int | None = None, head: int | None = None
) -> schema.LogitContribution:
    return schema.LogitContribution(kind=kind, name=name, layer=layer, head=head, value=value)


def _rows(record: Record, name: str, rows: Tensor) -> Tensor:
    """Return some rows (T, D) of a recorded tensor (1, T, D) in float64."""
    return record[name][0].detach().double()[rows]


def _head_gradient(
    trace: Trace, readout: HeadReadout, final: Tensor, position: int, id: int, against: int | None
) -> Tensor:
    """Return the gradient (T, D) of a logit by the input of the head (1, T, D)."""
    with torch.inference_mode(False), torch.enable_grad():
        x = final.clone().requires_grad_()
        logits = readout.head_logits(x, head_context(trace))
        row = logits if readout.whole_input else logits[:, position]
        logit = row[0, id] - (0 if against is None else row[0, against])
        (gradient,) = torch.autograd.grad(logit, x)
    return gradient[0].double()


def _through_norm(norm: Any, x: Tensor, y: Tensor, g: Tensor) -> tuple[Tensor, float]:
    """Pass g (T, D) back through y = norm(x) with a frozen scale; return also what its constants add."""
    if not hasattr(norm, "linear_part"):
        raise UnsupportedError(f"a norm {type(norm).__name__}", "logit attribution")
    with torch.inference_mode(False), torch.enable_grad():
        v = torch.zeros_like(x).requires_grad_()
        (before,) = torch.autograd.grad((g * norm.linear_part(v, at=x)).sum(), v)
    return before, float((g * y).sum() - (before * x).sum())


def _steps_back(record: Record, block: Block, at: str, rows: Tensor) -> Iterator[Any]:
    """Yield what a block adds and its post-norms (name, norm, input, output), the last first."""

    def site(name: str) -> Tensor:
        return _rows(record, f"{at}.{name}", rows)

    ffn = f"{at}.ffn", block.ffn, block.norm_ffn_out, block.scale_ffn, block.norm_ffn, "ffn", "resid_out"
    self_attn = (
        *(f"{at}.self_attn", block.self_attn, block.norm_self_out, block.scale_self_attn),
        *(block.norm_self, "self", "resid_self"),
    )
    cross = (
        *(f"{at}.cross_attn", block.cross_attn, block.norm_cross_out, block.scale_cross_attn),
        *(block.norm_cross, "cross", "resid_cross"),
    )
    if block.wiring.startswith("parallel"):
        attended = site("self_attn.out")
        attended = attended if block.scale_self_attn is None else block.scale_self_attn(attended)
        yield _Summand(ffn[0], ffn[1], site("resid_out") - site("resid_in") - attended)
        yield _Summand(self_attn[0], self_attn[1], attended, None, block.scale_self_attn)
        return
    attentions = [self_attn] if block.cross_attn is None else [self_attn, cross]
    if block.order == "cross_first":
        attentions.reverse()
    order = [*attentions, ffn]
    before = ["resid_in", *(one[-1] for one in order[:-1])]
    for (name, module, norm_out, scale, norm, part, after), previous in zip(
        order[::-1], before[::-1], strict=True
    ):
        start, end = site(previous), site(after)
        if part == "ffn" and f"{at}.local_conv" in record:
            start = site("local_conv")
        if block.wiring == "post":
            total = site(f"norm_{part}_in")
            yield f"{at}.norm_{part}", norm, total, end
            end = total
        if block.wiring == "res_post":
            norm_out = norm
        yield _Summand(name, module, end - start, norm_out, scale)
        if part == "ffn" and f"{at}.local_conv" in record:
            yield _Summand(f"{at}.local_conv", None, site("local_conv") - site(previous))


def _split(
    record: Record, summand: _Summand, layer: int, rows: Tensor, g: Tensor
) -> Iterator[schema.LogitContribution]:
    """Yield the contribution of a sublayer; of attention, those of its heads and of its bias."""
    name, module, added, norm_out, scale = summand
    whole = float((g * added).sum())
    heads = _heads(record, name, module, rows)
    if heads is None:
        yield _part("ffn" if name.endswith(".ffn") else "attention", name, whole, layer)
        return
    if norm_out is not None:
        linear: Any = norm_out
        heads = linear.linear_part(heads, at=_rows(record, f"{name}.out", rows))
    if scale is not None:
        heads = scale(heads)
    values = (g * heads).sum((-1, -2)).tolist()
    yield _part("bias", name, whole - sum(values), layer)
    for head, value in reversed(list(enumerate(values))):
        yield _part("head", name, value, layer, head)


def _heads(record: Record, name: str, module: Any, rows: Tensor) -> Tensor | None:
    """Return what each head adds, (H, T, D), without the bias; None if its heads were not recorded."""
    context = record.attention_contexts.get(name)
    if f"{name}.heads" not in record or context is None or context.windows is not None:
        return None
    heads = record[f"{name}.heads"][0].detach()[:, rows]  # (H, T, K)
    count, _, width = heads.shape
    alone = heads.new_zeros(count, len(rows), count * width)
    for head, own in enumerate(heads):
        alone[head, :, head * width : (head + 1) * width] = own
    with torch.no_grad():
        added: Tensor = module.out_proj(alone) - module.out_proj(torch.zeros_like(alone[:1]))
    return added.double()
