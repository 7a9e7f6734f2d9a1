"""Claims about generation: KV caches change nothing, and neither does preparing the model for inference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from glassformer.bundle import Bundle
from glassformer.core import spec
from glassformer.core.kv_cache import KVCache
from glassformer.core.model import AnyModel, DecoderOnly, EncoderDecoder, EncoderOnly
from glassformer.errors import GlassformerError
from glassformer.generation import GenerationConfig, GenerationOutput, GenerationParams, generate, prefill
from glassformer.generation.continuous import Scheduler
from glassformer.generation.inference_model import InferenceModel, prepare_for_inference
from glassformer.generation.step_decoder import decoder_start_ids
from glassformer.inference.encoder import InferenceEncoder, supports
from glassformer.inference.linear import Weights
from glassformer.verify.claims import Claim, gap, measured, skipped, tolerance_of
from glassformer.verify.inputs import (
    RandomInputs,
    at_real,
    fitting_length,
    has_tokens,
    outputs,
    per_token,
    random_inputs,
)

NEW_TOKENS, BEAMS = 12, 3  # enough that a beam cache drops the slots of dead beams
MAX_INT8_GAP = 0.5  # relative to the largest score: a larger one is an error, not quantization
TEXT = (
    "The river had risen in the night. When the children came down in the morning, the lower field was "
    "a lake, and the old boat that nobody had used for years was floating near the gate as if it had been "
    "waiting for them. Their father laughed and said that it was the boat's turn to go to school."
)

# ---- cached = uncached ----------------------------------------------------------------------------------


def cached_equals_uncached(bundle: Bundle, name: str) -> Claim:
    """Every KV cache against forwards without one: contiguous, greedy search, beams, continuous batching."""
    model = bundle.model
    if isinstance(model, EncoderOnly):
        return skipped(name, "an encoder has no cache")
    if not has_tokens(model):
        return skipped(name, "only tokens are generated step by step")
    sample = random_inputs(model, "left")
    with torch.no_grad():
        whole = at_real(model, sample, sample.run(model))
        if not all(per_token(model.spec.head, key) for key in whole):
            return skipped(name, "this head needs the whole sequence at once")
        length = sample.inputs[-1].shape[1]
        gaps = []
        for pieces, static in (([1] * length, False), (_uneven(length), False), ([1] * length, True)):
            stepped = at_real(model, sample, _in_pieces(model, sample, pieces, static))
            gaps += [gap(stepped[key], whole[key]) for key in whole]
        note = "token by token, in uneven pieces, with static shapes"
        if isinstance(model.spec.head, spec.LanguageModelSpec):
            gaps += _generation_gaps(model)
            note += "; greedy search, beams, continuous batching"
    return measured(name, gaps, tolerance_of(model), note)


def _uneven(length: int) -> list[int]:
    """Pieces 4, 1, 3, 1, 4, ... that make up `length`."""
    pieces: list[int] = []
    while (left := length - sum(pieces)) > 0:
        pieces.append(min((4, 1, 3, 1)[len(pieces) % 4], left))
    return pieces


def _in_pieces(
    model: AnyModel, sample: RandomInputs, pieces: Sequence[int], static: bool
) -> dict[str, Tensor]:
    """The sample's last input fed piece by piece into a cache; the outputs concatenated again."""
    ids, real = sample.inputs[-1], sample.real[-1]
    assert real is not None
    parameter = next(model.parameters())
    capacity = ids.shape[1] if static else ids.shape[1] + 3
    cache = KVCache.allocate(
        model.spec, len(sample), capacity, dtype=parameter.dtype, device=parameter.device
    )
    cache = cache.with_static_shapes() if static else cache
    memory = model.encode(sample.inputs[0], sample.real[0]) if isinstance(model, EncoderDecoder) else None
    parts: list[dict[str, Tensor]] = []
    done = 0
    for size in pieces:
        piece, done = ids[:, done : done + size], done + size
        keys = real if static else real[:, :done]  # with static shapes the mask covers the whole buffer
        if isinstance(model, DecoderOnly):
            result = model(piece, keys, cache=cache)
        else:
            assert isinstance(model, EncoderDecoder) and memory is not None
            result = model.decode(piece, memory, keys, sample.real[0], cache=cache)
        parts.append(outputs(result))
    return {key: torch.cat([part[key] for part in parts], 1) for key in parts[0]}


def _generation_gaps(model: EncoderDecoder | DecoderOnly) -> Iterator[float]:
    """Log-probs of generated tokens, as generation and the scheduler give them, against uncached forwards."""
    length = fitting_length(model.spec, 2 * NEW_TOKENS)
    count = min(NEW_TOKENS, length // 2)
    sample = random_inputs(model, "right", length=length - count, target_length=1)
    inputs, mask = sample.inputs[0], sample.real[0]
    assert mask is not None
    starts = decoder_start_ids(model, None) if isinstance(model, EncoderDecoder) else []
    if isinstance(model, EncoderDecoder) and not starts:
        starts = [int(sample.inputs[1][0, 0])]
    prepared = InferenceModel(model, None)
    settings = [
        GenerationParams(
            config=GenerationConfig(max_new_tokens=count, num_beams=beams, num_return_sequences=beams),
            start_ids=starts or None,
        )
        for beams in (1, BEAMS)
    ]
    rows = [ids[real].tolist() for ids, real in zip(inputs, mask, strict=True)]
    for params in settings:
        for row, found in zip(rows, generate(prepared, inputs, params, attention_mask=mask), strict=True):
            yield from (_logprob_gap(model, row, starts, one) for one in found)
    scheduler = Scheduler(prepared)
    try:
        requests = [(row, scheduler.submit(row, params)) for row in rows for params in settings]
        for row, request in requests:
            yield from (_logprob_gap(model, row, starts, one) for one in request.result())
    finally:
        scheduler.close(drain=False)


def _logprob_gap(
    model: EncoderDecoder | DecoderOnly, row: list[int], starts: list[int], output: GenerationOutput
) -> float:
    """How far the log-probs of an output are from those of one forward over the whole sequence."""
    device = next(model.parameters()).device
    before = starts or row
    ids = torch.tensor([[*before, *output.ids[:-1]]], device=device)
    mask = torch.ones_like(ids, dtype=torch.bool)
    if isinstance(model, EncoderDecoder):
        source = torch.tensor([row], device=device)
        logits = model(source, ids, torch.ones_like(source, dtype=torch.bool), mask)
    else:
        logits = model(ids, mask)
    expected = logits[0, len(before) - 1 :].float().log_softmax(-1)
    chosen = expected.gather(1, torch.tensor(output.ids, device=device)[:, None])[:, 0]
    return gap(torch.tensor(output.logprobs, device=device), chosen)


# ---- prepared = loaded ----------------------------------------------------------------------------------


def prepared_equals_loaded(bundle: Bundle, name: str) -> Claim:
    """The model prepared for inference on this machine, as all tasks run it, against the model as loaded."""
    found = _loaded_and_prepared(bundle, "own")
    if isinstance(found, str):
        return skipped(name, found)
    loaded, prepared = found
    gaps = [gap(prepared[key], loaded[key]) for key in loaded]
    return measured(name, gaps, tolerance_of(bundle.model), "as all tasks run it")


def int8_near_loaded(bundle: Bundle, name: str) -> Claim:
    """What quantizing the weights to eight bits costs."""
    try:
        found = _loaded_and_prepared(bundle, "int8")
    except GlassformerError as error:
        return skipped(name, str(error))
    if isinstance(found, str):
        return skipped(name, found)
    loaded, quantized = found
    gaps = [gap(quantized[key], loaded[key]) for key in loaded]
    key = next(iter(loaded))
    same = (quantized[key].argmax(-1) == loaded[key].argmax(-1)).flatten()
    note = f"the same choice at {int(same.sum()):,} of {same.numel():,}"
    ids = _text(bundle)
    if ids is not None:
        before, after = (_loss(scores[key], ids) for scores in (loaded, quantized))
        note += f"; loss on a text {before:.3f}, int8 {after:.3f}"
    return measured(name, gaps, MAX_INT8_GAP, note)


def _text(bundle: Bundle) -> Tensor | None:
    """A real text (1, T) for a language model with a tokenizer."""
    model = bundle.model
    if bundle.tokenizer is None or not isinstance(model, DecoderOnly) or not has_tokens(model):
        return None
    ids = bundle.tokenizer.encode(TEXT).ids[: fitting_length(model.spec, 64)]
    known = (
        isinstance(model.spec.input, spec.TokensSpec) and max(ids, default=0) < model.spec.input.vocab_size
    )
    return torch.tensor([ids], device=next(model.parameters()).device) if known and len(ids) > 1 else None


def _loss(scores: Tensor, ids: Tensor) -> float:
    """Scores (1, T, V) and ids (1, T) -> the mean loss of each next token."""
    return float(nn.functional.cross_entropy(scores[0, :-1].float(), ids[0, 1:]))


def _loaded_and_prepared(
    bundle: Bundle, weights: Weights
) -> tuple[dict[str, Tensor], dict[str, Tensor]] | str:
    """Outputs of the model as loaded and as prepared; or why there are none."""
    model = bundle.model
    with torch.inference_mode():
        if supports(model):
            sample = random_inputs(model, "right" if has_tokens(model) else "none")
            runs = (model, InferenceEncoder(model, weights))
            loaded, prepared = (at_real(model, sample, sample.run(one)) for one in runs)  # type: ignore[arg-type]
            return loaded, prepared
        generates = isinstance(model, EncoderDecoder | DecoderOnly)
        if not generates or not isinstance(model.spec.head, spec.LanguageModelSpec) or not has_tokens(model):
            return "tasks run this model as it is"
        ids = _text(bundle)
        sample = (
            random_inputs(model, "none")
            if ids is None
            else RandomInputs((ids,), (torch.ones_like(ids).bool(),))
        )
        if len(sample.inputs) > 1:
            source, target = sample.inputs
            started = torch.cat((target[:1, :1].expand(len(target), 1), target[:, 1:]), 1)  # by one token
            sample = RandomInputs((source, started), sample.real)
        whole = sample.run(model)["output"]
        stepped = _stepped(prepare_for_inference(model, weights), sample, whole.shape[1])
        return {"output": whole}, {"output": stepped}


def _stepped(model: nn.Module, sample: RandomInputs, length: int) -> Tensor:
    """Scores (B, T, V) token by token, as in generation."""
    ids = sample.inputs[-1]
    if len(sample.inputs) == 1:
        given, starts = ids[:, :1], None
    else:
        given, starts = sample.inputs[0], [int(ids[0, 0])]
    mask = torch.ones_like(given, dtype=torch.bool)
    result = prefill(model, given, mask, start_ids=starts, capacity=length)
    parts = [result.logits.clone()]
    parts += [result.decoder.step(ids[:, n]).clone() for n in range(1, length)]
    return torch.stack(parts, 1)
