"""The model as the verbs run it, its weights laid out for this machine, beside the model as it was loaded."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from glassformer.bundle import Bundle
from glassformer.core import spec
from glassformer.core.model import DecoderOnly, EncoderDecoder
from glassformer.errors import GlassformerError
from glassformer.generation.inference_model import prefill, prepare_for_inference
from glassformer.inference.encoder import InferenceEncoder, supports
from glassformer.inference.linear import Weights
from glassformer.verify.claims import Claim, gap, measured, skipped, tolerance_of
from glassformer.verify.inputs import Sample, at_real, fitting_length, has_tokens, sample_for

ROUNDED = 0.5  # beside the largest score: what moves one by more is broken, not rounded
TEXT = (
    "The river had risen in the night. When the children came down in the morning, the lower field was "
    "a lake, and the old boat that nobody had used for years was floating near the gate as if it had been "
    "waiting for them. Their father laughed and said that it was the boat's turn to go to school."
)


def laid_out_equals_loaded(bundle: Bundle, name: str) -> Claim:
    """What the verbs multiply by is the same model."""
    found = _both(bundle, "own")
    if isinstance(found, str):
        return skipped(name, found)
    loaded, laid_out = found
    gaps = [gap(laid_out[key], loaded[key]) for key in loaded]
    return measured(name, gaps, tolerance_of(bundle.model), "as the verbs run it")


def int8_near_loaded(bundle: Bundle, name: str) -> Claim:
    """What weights rounded to eight bits cost."""
    try:
        found = _both(bundle, "int8")
    except GlassformerError as error:
        return skipped(name, str(error))
    if isinstance(found, str):
        return skipped(name, found)
    loaded, rounded = found
    gaps = [gap(rounded[key], loaded[key]) for key in loaded]
    key = next(iter(loaded))
    same = (rounded[key].argmax(-1) == loaded[key].argmax(-1)).flatten()
    note = f"the same choice at {int(same.sum()):,} of {same.numel():,}"
    ids = _text(bundle)
    if ids is not None:
        before, after = (_loss(scores[key], ids) for scores in (loaded, rounded))
        note += f"; loss on a text {before:.3f}, rounded {after:.3f}"
    return measured(name, gaps, ROUNDED, note)


def _text(bundle: Bundle) -> Tensor | None:
    """A real text (1, T) for a language model with a tokenizer."""
    model = bundle.model
    if bundle.tokenizer is None or not isinstance(model, DecoderOnly) or not has_tokens(model):
        return None
    ids = bundle.tokenizer.encode(TEXT).ids[: fitting_length(model.spec, 64)]
    known = isinstance(model.spec.input, spec.Tokens) and max(ids, default=0) < model.spec.input.vocab_size
    return torch.tensor([ids], device=next(model.parameters()).device) if known and len(ids) > 1 else None


def _loss(scores: Tensor, ids: Tensor) -> float:
    """Scores (1, T, V) and ids (1, T) -> the mean loss of each next token."""
    return float(nn.functional.cross_entropy(scores[0, :-1].float(), ids[0, 1:]))


def _both(bundle: Bundle, weights: Weights) -> tuple[dict[str, Tensor], dict[str, Tensor]] | str:
    """Outputs of the model as loaded and as laid out; or why there are none."""
    model = bundle.model
    with torch.inference_mode():
        if supports(model):
            sample = sample_for(model, "right" if has_tokens(model) else "none")
            runs = (model, InferenceEncoder(model, weights))
            loaded, laid_out = (at_real(model, sample, sample.run(one)) for one in runs)  # type: ignore[arg-type]
            return loaded, laid_out
        writes = isinstance(model, EncoderDecoder | DecoderOnly)
        if not writes or not isinstance(model.spec.head, spec.LanguageModel) or not has_tokens(model):
            return "the verbs run this model as it is"
        ids = _text(bundle)
        sample = sample_for(model, "none") if ids is None else Sample((ids,), (torch.ones_like(ids).bool(),))
        if len(sample.inputs) > 1:
            source, target = sample.inputs
            begun = torch.cat((target[:1, :1].expand(len(target), 1), target[:, 1:]), 1)  # by one token
            sample = Sample((source, begun), sample.real)
        whole = sample.run(model)["output"]
        return {"output": whole}, {
            "output": _stepped(prepare_for_inference(model, weights), sample, whole.shape[1])
        }


def _stepped(model: nn.Module, sample: Sample, length: int) -> Tensor:
    """Scores (B, T, V) token by token, as they are written."""
    ids = sample.inputs[-1]
    if len(sample.inputs) == 1:
        given, starts = ids[:, :1], None
    else:
        given, starts = sample.inputs[0], [int(ids[0, 0])]
    begun = prefill(model, given, torch.ones_like(given, dtype=torch.bool), start_ids=starts, capacity=length)
    parts = [begun.logits.clone()]
    parts += [begun.decoder.step(ids[:, n]).clone() for n in range(1, length)]
    return torch.stack(parts, 1)
