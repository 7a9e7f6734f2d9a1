"""Head ablation: how much the output changes if the output of one attention head is replaced.

A head that matters at one word of a long text has a small mean effect, so the effect is measured at every
position, and the peak is reported with the token that the model would have written there.

B rows, H heads, N ablated copies, T positions, K head size, V vocabulary or labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from glassformer.core.heads import SpanLogits
from glassformer.core.observe import Observer
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.interpret import schema
from glassformer.interpret.comparison import kl_divergence
from glassformer.interpret.prepared_input import copies_per_batch
from glassformer.interpret.readout import HeadReadout
from glassformer.interpret.trace import Trace
from glassformer.interpret.views import view_of


@torch.inference_mode()
def ablate_heads(
    trace: Trace,
    attention: str,
    *,
    mode: schema.AblationMode = "zero",
    metric: schema.AblationMetric = "kl",
    at: int | None = None,
    position: int | None = None,
    id: int | None = None,
    reference: Trace | None = None,
) -> schema.HeadAblation:
    """Replace the output of each head of an attention layer in turn and measure the effect on the output.

    mode: what replaces it: "zero"; the "mean" over the positions of the reference; or "resample", its
    outputs at other positions of the reference, drawn with a fixed seed
    metric: "kl", the KL divergence of the predictions, or "log_prob", the drop of the log-probability of the
    token that is there, or of the token `id` if given
    at: the head is replaced at this query only; None: at all
    position: where the effect is measured; None: at all positions, with their mean and peak
    reference: another input of the same model; by default the trace itself

    The copies run as one batch: in copy n, head n is replaced. A generated target is kept, so the effects of
    different heads are comparable. Models without probabilities have the metric "difference": the mean
    absolute change of the output.
    """
    if trace.interventions:
        raise UnsupportedError("a trace with interventions", "head ablation")
    if attention not in trace.record.attention_contexts:
        raise schema.ItemNotFoundError("attention", attention, trace.record.attentions())
    if at is not None and trace.record.attention_contexts[attention].windows is not None:
        raise UnsupportedError("window attention", "ablation at one query")
    queries = trace.record[f"{attention}.q"].shape[2]
    if at is not None and not 0 <= at < queries:
        raise InvalidValueError("at", at, f"0 to {queries - 1}")
    meter = _Meter(trace, metric, position, id)
    heads = trace.record[f"{attention}.q"].shape[1]
    substitute = _substitutes(trace if reference is None else reference, trace, attention, mode)
    parts = [
        meter.effects(_ablated_output(trace, attention, part.tolist(), substitute, at))
        for part in torch.arange(heads).split(copies_per_batch(meter.before))
    ]
    return schema.HeadAblation(
        attention=attention,
        measure=meter.measure,
        effects=tuple(value for effects, _ in parts for value in effects.flatten(1).mean(-1).tolist()),
        peaks=tuple(peak for _, peaks in parts for peak in peaks),
    )


def _substitutes(reference: Trace, trace: Trace, attention: str, mode: schema.AblationMode) -> Tensor:
    """Return what replaces the outputs of the heads, broadcastable to (B, H, T, K)."""
    own = trace.record[f"{attention}.heads"]
    name = f"{attention}.heads"
    if reference.bundle is not trace.bundle or name not in reference.record:
        raise UnsupportedError("a trace of another model", "ablation", hint="use an input of the same model")
    heads = reference.record[name]  # (B, H, T, K)
    match mode:
        case "zero":
            return own.new_zeros(1, 1, 1, 1)
        case "mean":
            return heads.mean(2, keepdim=True)
    generator = torch.Generator().manual_seed(0)
    count, length = own.shape[2], heads.shape[2]
    rows = torch.randperm(max(count, length), generator=generator)[:count] % length
    return heads[:, :, rows.to(heads.device)]


def _ablated_output(
    trace: Trace, attention: str, heads: Sequence[int], substitute: Tensor, at: int | None
) -> Tensor:
    """Run a batch with one copy of the input per head, in which that head is replaced; output (N, ...)."""
    copies = len(heads)
    where = slice(None) if at is None else slice(at, at + 1)

    def ablate(x: Tensor) -> Tensor:  # (N * B, H, T, K)
        x = x.clone()
        values = substitute.expand(x.shape[0] // copies, *x.shape[1:])
        for copy, head in zip(x.view(copies, -1, *x.shape[1:]), heads, strict=True):
            copy[:, head, where] = values[:, head, where]
        return x

    model: Any = trace.bundle.model
    return _output(model(**trace.prepared.repeated(copies), obs=Observer((), {f"{attention}.heads": ablate})))


def _output(output: Any) -> Tensor:
    """Return the main tensor of a model output: logits, embeddings, spans, masks or the mean forecast."""
    if isinstance(output, Tensor):
        return output.float()
    if isinstance(output, SpanLogits):
        return torch.stack(output, -1).float()
    named: dict[str, Tensor] = output._asdict()
    if "logits_per_image" in named:  # of each image and its text
        return named["logits_per_image"].diagonal()[:, None].float()
    mean: Tensor | None = getattr(output, "mean", None)  # of a predicted distribution
    return (named[min({"logits", "pooled", "masks"} & {*named})] if mean is None else mean).float()


class _Meter:
    """Measures the effect of an ablation on the output of a trace."""

    def __init__(
        self, trace: Trace, metric: schema.AblationMetric, position: int | None, id: int | None
    ) -> None:
        self.trace, self.before = trace, _output(trace.record.output)
        self.readout: HeadReadout | None = None
        self.measure: schema.AblationMeasure = "difference"
        self.positions: list[int] = []
        view = view_of(trace.bundle)
        try:
            readout = view.readout()
            p = readout.log_probabilities(self.before)
        except UnsupportedError:
            return
        if p is None:
            return
        self.readout, self.measure = readout, metric
        if p.dim() > 2:
            main = view.main_position(trace.outcome)
            self.positions = list(range(p.shape[1])) if main is None else [range(p.shape[1])[main]]
        if position is not None and p.dim() > 2:
            if not 0 <= position < p.shape[1]:
                raise InvalidValueError("position", position, f"0 to {p.shape[1] - 1}")
            self.positions = [position]
        known = {one.position: one.id for one in view.outputs(trace.prepared, trace.record)}
        self.logits = self._rows(self.before)[0]  # (T, V)
        self.p = readout.log_probabilities(self.logits)
        best = self.logits.argmax(-1).tolist()
        rows: list[int | None] = [*self.positions] or [None]
        self.ids = [known.get(at, one) if id is None else id for at, one in zip(rows, best, strict=True)]
        if id is not None and not 0 <= id < self.logits.shape[-1]:
            raise InvalidValueError("id", id, f"0 to {self.logits.shape[-1] - 1}")

    def _rows(self, output: Tensor) -> Tensor:
        """Return the logits (N, T, V) at the measured positions; T = 1 for the whole input."""
        return output[:, self.positions] if self.positions else output[:, None]

    def effects(self, after: Tensor) -> tuple[Tensor, list[schema.AblationPeak | None]]:
        """Return the effects (N, T) of N ablations and the peak of each, from their outputs (N, ...)."""
        if self.readout is None or self.p is None:
            change = (after - self.before).abs().flatten(1).mean(-1, keepdim=True)
            return change, [None] * len(after)
        logits = self._rows(after)
        q: Any = self.readout.log_probabilities(logits.flatten(0, 1))
        q = q.unflatten(0, logits.shape[:2])
        ids = torch.tensor(self.ids, device=q.device)[:, None]  # (T, 1)
        effects = (
            kl_divergence(self.p, q)
            if self.measure == "kl"
            else (self.p.gather(-1, ids) - q.gather(-1, ids.expand(len(q), -1, 1)))[..., 0]
        )
        return effects, [self._peak(row, one) for row, one in zip(effects, logits, strict=True)]

    def _peak(self, effects: Tensor, logits: Tensor) -> schema.AblationPeak:
        """Return the largest of the effects (T,), with the token that is there; logits (T, V) after it."""
        assert self.readout is not None
        n = int(effects.argmax())
        before, after = (self.readout.probabilities(one[n])[self.ids[n]] for one in (self.logits, logits))
        return schema.AblationPeak(
            position=self.positions[n] if self.positions else None,
            effect=float(effects[n]),
            prediction=schema.Prediction(id=self.ids[n], text=self.readout.texts([self.ids[n]])[0]),
            before=float(before),
            after=float(after),
        )
