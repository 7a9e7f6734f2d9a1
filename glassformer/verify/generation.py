"""Checks of generation: KV caches and preparation for inference do not change the outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from glassformer.bundle import Bundle
from glassformer.core.inputs import Memory, TextInputs
from glassformer.core.kernels import Kernel
from glassformer.core.kv_cache import KVCache
from glassformer.core.masks import Mask
from glassformer.core.model import AnyModel, DecoderOnly, EncoderDecoder
from glassformer.core.precision import upcast
from glassformer.errors import GlassformerError
from glassformer.generation import GenerationConfig, GenerationOutput, GenerationParams, generate, prefill
from glassformer.generation.continuous import Scheduler
from glassformer.generation.inference_model import InferenceModel, prepare_for_inference
from glassformer.generation.prompt import Prompt
from glassformer.generation.step_decoder import decoder_start_ids
from glassformer.inference.encoder import InferenceEncoder, PackedModel, supports
from glassformer.inference.linear import WeightFormat
from glassformer.processors.text import token_input
from glassformer.verify.comparison import CheckResult, Tolerance, check_result, relative_error, skipped
from glassformer.verify.image_prompts import cached_equals_uncached_with_images
from glassformer.verify.inputs import (
    RandomInputs,
    Side,
    drop_padding,
    fitting_length,
    has_tokens,
    is_per_token,
    named_outputs,
    pools_padding,
    random_inputs,
)

NEW_TOKENS, BEAMS = 12, 3  # enough for the beam cache to drop the slots of discarded beams
# relative to the largest output; a larger error is a bug, not quantization
MAX_QUANTIZATION_ERROR: dict[WeightFormat, float] = {"int8": 0.5, "int4": 1.0}
TEXT = (
    "The river had risen in the night. When the children came down in the morning, the lower field was "
    "a lake, and the old boat that nobody had used for years was floating near the gate as if it had been "
    "waiting for them. Their father laughed and said that it was the boat's turn to go to school."
)

# ---- cached = uncached ----------------------------------------------------------------------------------


def cached_equals_uncached(bundle: Bundle, name: str) -> CheckResult:
    """Compare every KV cache (contiguous, greedy, beams, continuous batching) with uncached forwards."""
    model = bundle.model
    if not isinstance(model, EncoderDecoder | DecoderOnly):
        return skipped(name, "an encoder has no cache")
    if model.spec.modalities == ("text", "image"):
        if isinstance(model, DecoderOnly):
            return cached_equals_uncached_with_images(model, name)
        return skipped(name, "not measured for questions with an image")
    sample = random_inputs(model, "left")
    if sample.masks[-1] is None:
        return skipped(name, "object queries are decoded at once")
    with torch.no_grad():
        full = drop_padding(model, sample, sample.run(model))
        if not all(is_per_token(model.spec.head, key) for key in full):
            return skipped(name, "this head needs the full sequence at once")
        length = sample.inputs[-1].shape[1]
        differences = []
        for chunks, static in (([1] * length, False), (_uneven_chunks(length), False), ([1] * length, True)):
            stepped = drop_padding(model, sample, _run_in_chunks(model, sample, chunks, static))
            differences += [relative_error(stepped[key], full[key]) for key in full]
        note = "token by token, in uneven chunks, with static shapes"
        sources: list[Tensor] = []
        sequences: list[GeneratedSequence] = []
        if model.spec.yields == "next tokens":
            sources, generated = _generate(model)
            sequences = list(dict.fromkeys(sequence for sequence, _ in generated))
            expected = {
                sequence: _uncached_logprobs(model, sources, sequence, sample.kernel)
                for sequence in sequences
            }
            differences += [relative_error(logprobs, expected[sequence]) for sequence, logprobs in generated]
            note += "; greedy search, beams, continuous batching"

        def uncached(model: AnyModel, sample: RandomInputs) -> list[Tensor]:
            outputs = drop_padding(model, sample, sample.run(model)).values()
            logprobs = (_uncached_logprobs(model, sources, one, sample.kernel) for one in sequences)
            return [*outputs, *logprobs]

        return check_result(name, differences, Tolerance.of_model(model, sample, uncached), note)


def _uneven_chunks(length: int) -> list[int]:
    """Chunk sizes 4, 1, 3, 1, 4, ... that add up to `length`."""
    chunks: list[int] = []
    while (left := length - sum(chunks)) > 0:
        chunks.append(min((4, 1, 3, 1)[len(chunks) % 4], left))
    return chunks


def _run_in_chunks(
    model: AnyModel, sample: RandomInputs, chunks: Sequence[int], static: bool
) -> dict[str, Tensor]:
    """Feed the last input chunk by chunk, with a cache; return the concatenated outputs."""
    ids, mask = sample.inputs[-1], sample.masks[-1]
    assert mask is not None
    parameter = next(model.parameters())
    capacity = ids.shape[1] if static else ids.shape[1] + 3
    cache = KVCache.allocate(
        model.spec, len(sample), capacity, dtype=parameter.dtype, device=parameter.device
    )
    cache = cache.with_static_shapes() if static else cache
    memory = model.encode(sample.inputs[0], sample.masks[0]) if isinstance(model, EncoderDecoder) else None
    parts: list[dict[str, Tensor]] = []
    done = 0
    for size in chunks:
        chunk, done = ids[:, done : done + size], done + size
        key_mask = mask if static else mask[:, :done]  # with static shapes the mask covers the full buffer
        if isinstance(model, DecoderOnly):
            result = model(chunk, key_mask, cache=cache)
        else:
            assert isinstance(model, EncoderDecoder) and memory is not None
            result = model.decode(
                TextInputs(chunk, Mask(padding=key_mask)), Memory.of(memory, sample.masks[0]), cache=cache
            )
        parts.append(named_outputs(result))
    return {key: torch.cat([part[key] for part in parts], 1) for key in parts[0]}


class GeneratedSequence(NamedTuple):
    """Generated ids, after the ids of the prompt or, with a source, after the start tokens.

    row: index of the source or prompt.
    """

    row: int
    context: tuple[int, ...]
    ids: tuple[int, ...]


def _generate(
    model: EncoderDecoder | DecoderOnly,
) -> tuple[list[Tensor], list[tuple[GeneratedSequence, Tensor]]]:
    """Generate with `generate` and the scheduler, greedily and with beams.

    Return the sources (1, S) of an encoder-decoder, and sequences with their log-probs.
    """
    length = fitting_length(model.spec, 2 * NEW_TOKENS)
    count = min(NEW_TOKENS, length // 2)
    sample = random_inputs(model, "right", length=length - count, target_length=1)
    inputs, mask = sample.inputs[0], sample.masks[0]
    rows = [sample.single_row(row).inputs[0] for row in range(len(sample))]  # (1, S) each
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
    outputs: list[tuple[int, GenerationOutput]] = []
    for params in settings:
        generated = generate(prepared, inputs, params, attention_mask=mask)
        outputs += [(row, output) for row, beams in enumerate(generated) for output in beams]
    length_of = model.spec.inputs()[0].num_tokens
    prompts = [Prompt.of_source(x, length_of(x.shape)) if mask is None else Prompt(x[0]) for x in rows]
    scheduler = Scheduler(prepared)
    try:
        requests = [
            (row, scheduler.submit(prompt, params))
            for row, prompt in enumerate(prompts)
            for params in settings
        ]
        outputs += [(row, output) for row, request in requests for output in request.result()]
    finally:
        scheduler.close(drain=False)
    return rows if starts else [], [
        (
            GeneratedSequence(row, tuple(starts or rows[row][0].tolist()), tuple(output.ids)),
            torch.tensor(output.logprobs, device=inputs.device),
        )
        for row, output in outputs
    ]


def _uncached_logprobs(
    model: AnyModel, sources: Sequence[Tensor], sequence: GeneratedSequence, kernel: Kernel
) -> Tensor:
    """Return the log-probs (T,) of generated tokens, from one forward pass over the full sequence."""
    parameter = next(model.parameters())
    device = parameter.device
    ids = torch.tensor([[*sequence.context, *sequence.ids[:-1]]], device=device)
    inputs = tuple(
        x.to(parameter.dtype) if x.is_floating_point() else x for x in (*sources[sequence.row :][:1], ids)
    )
    masks = tuple(None if x.is_floating_point() else torch.ones_like(x, dtype=torch.bool) for x in inputs)
    logits = RandomInputs(inputs, masks, kernel).run(model)["output"]
    logprobs = upcast(logits[0, len(sequence.context) - 1 :]).log_softmax(-1)
    return logprobs.gather(1, torch.tensor(sequence.ids, device=device)[:, None])[:, 0]


# ---- prepared = loaded ----------------------------------------------------------------------------------


def prepared_equals_loaded(bundle: Bundle, name: str) -> CheckResult:
    """Compare the model prepared for inference, as all tasks run it, with the model as loaded."""
    outputs = _loaded_and_prepared(bundle, "own")
    if isinstance(outputs, str):
        return skipped(name, outputs)
    sample, loaded, prepared = outputs
    differences = [relative_error(prepared[key], loaded[key]) for key in loaded]

    def as_loaded(model: AnyModel, sample: RandomInputs) -> list[Tensor]:
        outputs = drop_padding(model, sample, sample.run(model))
        return [outputs[key] for key in loaded]

    with torch.no_grad():
        tolerance = Tolerance.of_model(bundle.model, sample, as_loaded)
        return check_result(name, differences, tolerance, "as all tasks run it")


def quantized_near_loaded(bundle: Bundle, name: str, weights: WeightFormat) -> CheckResult:
    """Measure how far quantized weights move the outputs from those of the loaded model."""
    try:
        outputs = _loaded_and_prepared(bundle, weights)
    except GlassformerError as error:
        return skipped(name, str(error))
    if isinstance(outputs, str):
        return skipped(name, outputs)
    _, loaded, quantized = outputs
    differences = [relative_error(quantized[key], loaded[key]) for key in loaded]
    key = next(iter(loaded))
    choices = [o[key] > 0 if key == "masks" else o[key].argmax(-1) for o in (loaded, quantized)]
    same = (choices[0] == choices[1]).flatten()
    note = f"the same choice at {int(same.sum()):,} of {same.numel():,}"
    ids = _text(bundle)
    if ids is not None:
        before, after = (_loss(scores[key], ids) for scores in (loaded, quantized))
        note += f"; loss on a text {before:.3f}, {weights} {after:.3f}"
    return check_result(name, differences, Tolerance(MAX_QUANTIZATION_ERROR[weights]), note)


def _text(bundle: Bundle) -> Tensor | None:
    """Return the ids (1, T) of a real text for a language model with a tokenizer, else None."""
    model = bundle.model
    if bundle.tokenizer is None or not isinstance(model, DecoderOnly) or not has_tokens(model):
        return None
    ids = bundle.tokenizer.encode(TEXT).ids[: fitting_length(model.spec, 64)]
    known = max(ids, default=0) < token_input(bundle).vocab_size
    return torch.tensor([ids], device=next(model.parameters()).device) if known and len(ids) > 1 else None


def _loss(scores: Tensor, ids: Tensor) -> float:
    """Return the mean next-token loss of logits (1, T, V) for ids (1, T)."""
    return float(nn.functional.cross_entropy(scores[0, :-1].float(), ids[0, 1:]))


def _loaded_and_prepared(
    bundle: Bundle, weights: WeightFormat
) -> tuple[RandomInputs, dict[str, Tensor], dict[str, Tensor]] | str:
    """Return the inputs and the outputs of the loaded and the prepared model, or why there are none."""
    model = bundle.model
    with torch.inference_mode():
        if supports(model):
            side: Side = "right" if has_tokens(model) else "none"
            sample = random_inputs(model, side)
            loaded, prepared = (
                {
                    key: tensor
                    for key, tensor in drop_padding(model, sample, named_outputs(result)).items()
                    if not pools_padding(model.spec.head, key, side)
                }
                for result in (run(*sample.arguments()) for run in (model, InferenceEncoder(model, weights)))
            )
            return sample, loaded, prepared
        if model.spec.yields != "next tokens":
            sample = random_inputs(model)
            packed = PackedModel(model, weights)(*sample.arguments())
            return sample, sample.run(model), named_outputs(packed)
        if model.spec.modalities == ("text", "image") and not isinstance(model, DecoderOnly):
            return "not measured for questions with an image"
        ids = _text(bundle)
        sample = (
            random_inputs(model, "none").without_images(model.spec)
            if ids is None
            else RandomInputs((ids,), (torch.ones_like(ids).bool(),))
        )
        if len(sample.inputs) > 1:
            source, target = sample.inputs
            started = torch.cat(
                (target[:1, :1].expand(len(target), 1), target[:, 1:]), 1
            )  # a prefill has one start token for all rows
            sample = RandomInputs((source, started), sample.masks)
        full = sample.run(model)["output"]
        stepped = _decode_step_by_step(prepare_for_inference(model, weights), sample, full.shape[1])
        return sample, {"output": full}, {"output": stepped}


def _decode_step_by_step(model: nn.Module, sample: RandomInputs, length: int) -> Tensor:
    """Return logits (B, T, V), computed with one decode step per token."""
    ids = sample.inputs[-1]
    if len(sample.inputs) == 1:
        inputs, starts = ids[:, :1], None
    else:
        inputs, starts = sample.inputs[0], [int(ids[0, 0])]
    mask = None if inputs.is_floating_point() else torch.ones_like(inputs, dtype=torch.bool)
    result = prefill(model, inputs, mask, start_ids=starts, capacity=length)
    parts = [result.logits.clone()]
    parts += [result.decoder.step(ids[:, n]).clone() for n in range(1, length)]
    return torch.stack(parts, 1)
