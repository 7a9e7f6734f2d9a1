"""Texts with no, one and several images: generated together, with caches, they equal a forward pass of each.

S tokens of an image, T of a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glassformer.core.inputs import ImageTextInputs
from glassformer.core.kernels import Kernel
from glassformer.core.kv_cache import KVCache
from glassformer.core.model import AnyModel, DecoderOnly
from glassformer.core.precision import upcast
from glassformer.generation import GenerationConfig, GenerationOutput, GenerationParams, generate
from glassformer.generation.continuous import Scheduler
from glassformer.generation.continuous.prefix_cache import BLOCK
from glassformer.generation.inference_model import InferenceModel
from glassformer.generation.prompt import Prompt
from glassformer.verify.comparison import CheckResult, Tolerance, check_result, relative_error, skipped
from glassformer.verify.inputs import RandomInputs, random_inputs

NUM_IMAGES = (0, 1, 1, 2)  # of each row
WORDS, NEW_TOKENS, BEAMS = BLOCK, 8, 3


class ImageRow(NamedTuple):
    """A text with the placeholders of its images. images: (N, C, height, width)."""

    ids: tuple[int, ...]
    images: Tensor


def cached_equals_uncached_with_images(model: DecoderOnly, name: str) -> CheckResult:
    """Compare chunks, batches and continuous batching of texts with images with uncached forward passes."""
    rows = _rows(model)
    if rows is None:
        return skipped(name, "the context is too short for two images")
    with torch.no_grad():
        generated = _generate(model, rows)
        sequences = [(row, output.ids) for row, output in generated]
        expected = [_logprobs(model, rows[row], ids, "auto") for row, ids in sequences]
        differences = [
            relative_error(torch.tensor(output.logprobs).to(logprobs), logprobs)
            for (_, output), logprobs in zip(generated, expected, strict=True)
        ]
        for row in rows:
            differences.append(relative_error(_run_in_chunks(model, row), _logits(model, row, (), "auto")))

        def uncached(model: AnyModel, sample: RandomInputs) -> list[Tensor]:
            return [_logprobs(model, rows[row], ids, sample.kernel) for row, ids in sequences]

        tolerance = Tolerance.of_model(model, random_inputs(model), uncached)
    note = "rows with 0, 1, 1 and 2 images; greedy search, beams, continuous batching, chunks"
    return check_result(name, differences, tolerance, note)


def _rows(model: DecoderOnly) -> list[ImageRow] | None:
    """Return random texts with their images; None if they do not fit."""
    tokens: Any = model.spec.input
    patches = tokens.image.input
    count = tokens.num_image_tokens(patches.image_size)
    longest = WORDS + max(NUM_IMAGES) * count + NEW_TOKENS
    if longest > (getattr(tokens.position, "max_len", None) or model.spec.max_len or longest):
        return None
    generator = torch.Generator().manual_seed(0)
    usable = [n for n in range(tokens.vocab_size) if n not in (tokens.pad_id, tokens.image_id)]
    parameter = next(model.parameters())
    words = [usable[n] for n in torch.randint(len(usable), (WORDS,), generator=generator).tolist()]
    rows = []
    for number in NUM_IMAGES:  # the rows differ only in their images
        ids = list(words)
        for image in range(number):
            start = 1 + image * (count + 1)
            ids[start:start] = [tokens.image_id] * count
        shape = (number, patches.channels, *patches.image_size)
        rows.append(ImageRow(tuple(ids), torch.randn(shape, generator=generator).to(parameter)))
    return rows


def _generate(model: DecoderOnly, rows: Sequence[ImageRow]) -> list[tuple[int, GenerationOutput]]:
    """Generate from all rows together, in one batch and by the scheduler; return row and output."""
    tokens: Any = model.spec.input
    embed: Any = model.embed
    prompts = [
        Prompt.with_images(
            row.ids,
            embed.encode_images(row.images) if len(row.images) else (),
            tokens.image_id,
            [(number, n) for n in range(len(row.images))],
        )
        for number, row in enumerate(rows)
    ]
    settings = [
        GenerationParams(
            config=GenerationConfig(max_new_tokens=NEW_TOKENS, num_beams=beams, num_return_sequences=beams)
        )
        for beams in (1, BEAMS)
    ]
    prepared = InferenceModel(model, None)
    outputs: list[tuple[int, GenerationOutput]] = []
    for params in settings:
        groups = generate(prepared, prompts, params)
        outputs += [(row, output) for row, group in enumerate(groups) for output in group]
    scheduler = Scheduler(prepared)
    try:
        for _ in range(2):  # the second time, the prefix cache has the prompts
            requests = [
                (row, scheduler.submit(prompt, params))
                for row, prompt in enumerate(prompts)
                for params in settings
            ]
            outputs += [(row, output) for row, request in requests for output in request.result()]
    finally:
        scheduler.close(drain=False)
    # a generated placeholder stands for no image
    return [(row, output) for row, output in outputs if tokens.image_id not in output.ids]


def _logits(model: AnyModel, row: ImageRow, ids: Sequence[int], kernel: Kernel) -> Tensor:
    """Return the logits (T, V) of a text and what follows, from one forward pass."""
    parameter = next(model.parameters())
    text = torch.tensor([[*row.ids, *ids]], device=parameter.device)
    images = row.images.to(parameter.dtype) if len(row.images) else None
    mask = torch.ones_like(text, dtype=torch.bool)  # a generated pad token is a token like others
    logits: Tensor = model(ImageTextInputs(text, mask, images=images), kernel=kernel)
    return logits[0]


def _logprobs(model: AnyModel, row: ImageRow, ids: Sequence[int], kernel: Kernel) -> Tensor:
    """Return the log-probabilities (T,) of generated tokens, from one forward pass."""
    logits = _logits(model, row, ids[:-1], kernel)[len(row.ids) - 1 :]
    chosen = torch.tensor(ids, device=logits.device)[:, None]
    return upcast(logits).log_softmax(-1).gather(1, chosen)[:, 0]


def _run_in_chunks(model: DecoderOnly, row: ImageRow) -> Tensor:
    """Return the logits (T, V) of a text that is read piece by piece, with a cache."""
    tokens: Any = model.spec.input
    embed: Any = model.embed
    parameter = next(model.parameters())
    vectors = iter(embed.encode_images(row.images) if len(row.images) else ())
    cache = KVCache.allocate(model.spec, 1, len(row.ids), dtype=parameter.dtype, device=parameter.device)
    parts, start = [], 0
    while start < len(row.ids):
        is_image = row.ids[start] == tokens.image_id
        own = next(vectors) if is_image else None
        end = start + (1 if own is None else len(own))
        piece = torch.tensor([row.ids[start:end]], device=parameter.device)
        images = None if own is None else own[None]
        parts.append(model(ImageTextInputs(piece, images=images), cache=cache)[0])
        start = end
    return torch.cat(parts)
