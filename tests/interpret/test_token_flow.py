"""A followed token: its vectors, sources, units and readings are those of the forward pass."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from glassformer.bundle import Bundle
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.interpret.logit_lens import logit_lens
from glassformer.interpret.schema import DetectOutcome, ItemNotFoundError, StackPass
from glassformer.interpret.token_flow import MAX_UNITS, token_flow
from glassformer.interpret.trace import Trace
from tests.interpret.models import classifier, drawing_model, example_values, tiny_bundle, trace_of

FAMILIES = (
    *("gpt2", "llama", "falcon", "palm", "gemma2", "original", "bart", "bert", "deberta", "vit", "dinov2"),
    *("swin", "swinv2", "clip", "vilt", "yolos", "detr", "blip", "patchtst", "labels"),
)


def bundle_of(family: str) -> Bundle:
    return classifier() if family == "labels" else tiny_bundle(family)


def flow_trace(family: str) -> Trace:
    bundle = bundle_of(family)
    return trace_of(bundle, example_values(bundle))


def added(trace: Trace, row: int, one: StackPass) -> list[tuple[torch.Tensor, torch.Tensor, Any]]:
    """For each sum over sublayers: the residual vector before it, what the modules add, and the block."""
    model: Any = trace.bundle.model
    found = []
    for update in one.updates:
        if update.kind != "add_norm":
            continue
        path = update.sum.rpartition(".")[0]
        block, outputs = model.get_submodule(path), []
        for part, norm_out in (("self_attn", "self"), ("cross_attn", "cross"), ("ffn", "ffn")):
            key = {"self_attn": "self", "cross_attn": "cross"}.get(part, part)
            if not any(stage.endswith(f".{key}") for stage in update.stages[:-1]):
                continue
            output = trace.record[f"{path}.{part}.{'down' if part == 'ffn' else 'out'}"][row, one.position]
            norm = getattr(
                block, f"norm_{norm_out}" if block.wiring == "res_post" else f"norm_{norm_out}_out", None
            )
            scale = getattr(block, f"scale_{part}")
            output = output if norm is None else norm(output)
            outputs.append(output if scale is None else scale(output))
        assert update.before is not None
        found.append((torch.tensor(one.vectors[update.before]), torch.stack(outputs).sum(0), update))
    return found


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_vectors_are_sums_of_what_the_blocks_add(family: str) -> None:
    trace = flow_trace(family)
    flow = token_flow(trace)
    for one in flow.passes:
        model: Any = trace.bundle.model
        for update, following in itertools.pairwise(one.updates):
            assert following.before is not None
            if family != "yolos":  # it adds positions again before each layer
                assert one.vectors[following.before] == one.vectors[update.after]
        sums = added(trace, flow.row, one)
        assert sums
        for before, output, update in sums:
            total = torch.tensor(one.vectors[update.sum])
            torch.testing.assert_close(before + output, total, atol=1e-5, rtol=1e-4)
            block = model.get_submodule(update.sum.rpartition(".")[0])
            part = update.sum.rpartition(".")[2].removesuffix("_in")
            after = getattr(block, part)(total[None, None])[0, 0] if block.wiring == "post" else total
            torch.testing.assert_close(after, torch.tensor(one.vectors[update.after]), atol=1e-5, rtol=1e-4)
        if one.updates[-1].kind == "final_norm":
            final, name = one.updates[-1], one.updates[-1].after
            expected = model.get_submodule(name)(torch.tensor(one.vectors[final.before or ""]))
            torch.testing.assert_close(torch.tensor(one.vectors[name]), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_sources_and_units_are_recomputed_from_weights_and_values(family: str) -> None:
    trace = flow_trace(family)
    flow = token_flow(trace)
    for one in flow.passes:
        for update in one.updates:
            found = update.attention
            if found is not None:
                heads = next(info.heads for info in trace.attentions() if info.name == found.name)
                values = trace.tensor(f"{found.name}.v")[flow.row]  # (G, S, K)
                strengths: Any = 0.0
                for head in range(heads):
                    weights = trace.record.token_weights(found.name, head, one.position)[flow.row]
                    norms = values[head * len(values) // heads].square().sum(-1).sqrt()
                    for source in found.sources:
                        assert source.weights[head] == pytest.approx(
                            float(weights[source.position]), abs=1e-6
                        )
                        assert source.value_norms[head] == pytest.approx(
                            float(norms[source.position]), rel=1e-4
                        )
                    strengths = strengths + weights * norms
                best = strengths.topk(len(found.sources))
                assert [source.strength for source in found.sources] == pytest.approx(
                    best.values.tolist(), rel=1e-4
                )
                assert found.total == pytest.approx(float(strengths.sum()), rel=1e-4)
            if update.units:
                path = update.sum.rpartition(".")[0]
                layer: Any = trace.bundle.model.get_submodule(f"{path}.ffn")
                hidden = trace.record[f"{path}.ffn.act"][flow.row, one.position]
                sizes = torch.stack([hidden[n] * layer.down.weight[:, n] for n in range(len(hidden))]).norm(
                    dim=-1
                )
                shown = [abs(unit.activation) * unit.norm for unit in update.units]
                assert shown == pytest.approx(sizes.topk(MAX_UNITS).values.tolist(), rel=1e-4)
                assert [hidden[unit.unit] for unit in update.units] == pytest.approx(
                    [unit.activation for unit in update.units]
                )


@pytest.mark.parametrize("family", ["gpt2", "original", "bert", "vit", "labels"])
def test_readings_are_those_of_the_logit_lens(family: str) -> None:
    trace = flow_trace(family)
    flow = token_flow(trace)
    last = flow.passes[-1]
    readings = [update.reading for update in last.updates if update.reading]
    layers = logit_lens(trace, last.position).layers
    assert [reading.predictions for reading in readings] == [layer.predictions[:5] for layer in layers]
    assert not any(update.reading for one in flow.passes[:-1] for update in one.updates)


@pytest.mark.parametrize("family", ["yolos", "detr"])
def test_a_query_shows_its_box_after_every_layer(family: str) -> None:
    trace = flow_trace(family)
    outcome, flow = trace.outcome, token_flow(trace)
    assert isinstance(outcome, DetectOutcome)
    last = flow.passes[-1]
    readings = [update.reading for update in last.updates if update.reading]
    query = last.position - outcome.first_query
    boxes, classes = trace.derived[outcome.boxes], trace.derived[outcome.probabilities]
    assert [reading.box for reading in readings] == [tuple(box) for box in boxes[:, query].tolist()]
    for reading, row in zip(readings, classes[:, query, :-1], strict=True):
        assert reading.predictions[0].probability == pytest.approx(float(row.max()))


def test_the_flow_goes_through_what_the_model_consists_of() -> None:
    def path(family: str, *asked: Any) -> list[tuple[str, int]]:
        return [(one.stack, one.position) for one in token_flow(flow_trace(family), *asked).passes]

    trace = flow_trace("original")
    (memory, source), (target, position) = path("original", "target", 4)
    total = sum(
        trace.record.weights(f"decoder.blocks.{layer}.cross_attn", head)[0, 4]
        * trace.record[f"decoder.blocks.{layer}.cross_attn.v"][0, head].norm(dim=-1)
        for layer in range(2)
        for head in range(trace.record["decoder.blocks.0.cross_attn.q"].shape[1])
    )
    words = [n for n, token in enumerate(trace.sequence("source").tokens) if not token.special]
    assert (memory, target, position) == ("encoder", "decoder", 4)
    assert source == max(words, key=lambda n: float(total[n]))
    assert path("original", "source", 2) == [("encoder", 2)]
    assert path("labels", "input", 3) == [("encoder", 3), ("encoder", 0)]  # the head reads [CLS]
    assert path("vit")[1] == ("encoder", 0) and path("vit")[0][1] > 0
    assert path("gpt2") == [("decoder", len(flow_trace("gpt2").sequence("input")) - 1)]
    assert path("clip", "image", 5) == [("image", 5), ("image", 0)]
    (first, at), (second, merged) = path("swin", "input", 27)
    stages = flow_trace("swin").sequences
    (x, y, _, _), (left, top, width, height) = stages[0].tokens[at].box, stages[1].tokens[merged].box  # type: ignore[misc]
    assert (first, second) == ("stage1", "stage2") and left <= x < left + width and top <= y < top + height


def test_tokens_that_do_not_exist_are_rejected() -> None:
    trace = flow_trace("gpt2")
    for asked in (("input", 99), ("input", 0, 1)):
        with pytest.raises(InvalidValueError):
            token_flow(trace, *asked)
    with pytest.raises(ItemNotFoundError):
        token_flow(trace, "target")
    drawer = drawing_model("dit")
    with pytest.raises(UnsupportedError):
        token_flow(trace_of(drawer, {"text": "0", "num_inference_steps": 2}))
