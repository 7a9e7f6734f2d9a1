"""Generate token ids with any model: greedy, sampling or beam search, from a source or a prompt.

B rows, S source or prompt positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from glassformer.errors import InvalidValueError
from glassformer.generation import pick
from glassformer.generation.batches import ahead, batches
from glassformer.generation.beam import write_beams
from glassformer.generation.decoder import decoder_start_ids, widen
from glassformer.generation.inference_model import prefill
from glassformer.generation.request import GenerationOutput, GenerationRequest, per_row_limits
from glassformer.generation.shaping import Shaping
from glassformer.generation.single import write_single
from glassformer.inference.prepare import evaluation_mode

BATCH_TOKENS = 16_384


def generate(
    model: nn.Module, input_ids: Tensor, request: GenerationRequest, *, attention_mask: Tensor | None = None
) -> list[list[GenerationOutput]]:
    """Sources or prompts (B, S) -> `num_return_sequences` outputs for each, the best first.

    attention_mask (B, S): True for tokens that are not padding; by default those other than pad_token_id.
    """
    mask = input_ids != request.pad_token_id if attention_mask is None else attention_mask
    limits = per_row_limits(request, mask.sum(1), decoder_start_ids(model, request.start_ids))
    found = _generate(model, input_ids, request, mask, limits, request.generator(input_ids.device))
    for outputs in found:
        for output in outputs:
            output.check_finite()
    return found


def generate_batched(
    model: nn.Module,
    examples: Iterable[Sequence[int]],
    request: GenerationRequest,
    *,
    batch_tokens: int = BATCH_TOKENS,
    on_batch: Callable[[Sequence[int]], None] | None = None,
    check_finite: bool = True,
) -> Iterator[list[GenerationOutput]]:
    """Sources or prompts of any lengths -> what `generate` returns for each, in their order.

    Examples are read a bounded number ahead. Those of similar length are generated together, as many as a
    budget of `batch_tokens` holds: input and new tokens, padding and beams counted.
    on_batch: called with the indices of the examples that were just generated; they are yielded once all
    before them are finished too.
    check_finite: raise if the scores are NaN. During training, a diverging model may still be sampled.
    """
    if batch_tokens < 1:
        raise InvalidValueError("batch_tokens", batch_tokens, "at least 1")
    device = next(model.parameters()).device
    generator = request.generator(device)
    starts = len(decoder_start_ids(model, request.start_ids))
    budget = batch_tokens // request.config.rows
    first = 0
    for near in ahead(iter(examples), lambda length: request.limit(length, starts or length), budget):
        found: list[list[GenerationOutput]] = [[] for _ in near]
        lengths, limits = [len(example) for example, _ in near], [most for _, most in near]
        for batch in batches(lengths, limits, budget):
            width = max(1, *(lengths[n] for n in batch))
            ids = torch.full((len(batch), width), request.pad_token_id)
            for row, n in enumerate(batch):
                ids[row, : lengths[n]] = torch.as_tensor(near[n][0], dtype=torch.long)
            mask = torch.arange(width) < torch.tensor([lengths[n] for n in batch])[:, None]
            most = torch.tensor([limits[n] for n in batch], device=device)
            outputs = _generate(model, ids.to(device), request, mask.to(device), most, generator)
            for n, one in zip(batch, outputs, strict=True):
                found[n] = one
            if on_batch is not None:
                on_batch([first + n for n in batch])
        first += len(near)
        for one in found:
            if check_finite:
                for output in one:
                    output.check_finite()
            yield one


@torch.inference_mode()
def _generate(
    model: nn.Module,
    inputs: Tensor,
    request: GenerationRequest,
    mask: Tensor,
    limits: Tensor,
    generator: torch.Generator | None,
) -> list[list[GenerationOutput]]:
    """limits (B,): the most tokens of each row."""
    config = request.config
    starts = decoder_start_ids(model, request.start_ids)
    if not len(inputs):
        return []
    with evaluation_mode(model), torch.cuda.device_of(inputs):  # kernels run on the GPU that is in use
        steps, logits, most = prefill(
            model, inputs, mask, start_ids=request.start_ids, capacity=int(limits.max())
        )
        request.check_forced_ids(logits.shape[-1])
        if most is not None:
            limits = limits.clamp(max=most)
        read = torch.full_like(limits, len(starts)) if starts else mask.sum(1)
        shaping = Shaping.of(
            config,
            ends=torch.tensor(request.eos_ids, dtype=torch.long, device=inputs.device),
            vocab=logits.shape[-1],
            prefix=request.prefix(starts),
            limits=limits,
            least=(config.min_length - read).clamp(min=config.min_new_tokens),
            given=_given(inputs, mask, starts),
        )
        together = config.rows
        if together > 1:
            each = torch.arange(len(inputs), device=inputs.device).repeat_interleave(together)
            if config.num_beams > 1:
                widen(steps, len(inputs), together, inputs.device)
            else:
                steps.select(each)  # samples of one input part ways: they end at different times
            shaping.select(each)
            logits = logits.index_select(0, each)
        if config.num_beams > 1:
            return write_beams(steps, logits, shaping, request, generator=generator)
        texts = write_single(steps, logits, shaping, request, generator=generator)
    grouped = [texts[n : n + together] for n in range(0, len(texts), together)]
    return [sorted(group, key=lambda text: -text.score) for group in grouped]


def _given(inputs: Tensor, mask: Tensor, starts: Sequence[int]) -> Tensor:
    """What stands before the first token to generate (B, T), right-aligned: the start, or else the prompt."""
    if starts:
        return torch.tensor(starts, device=inputs.device).expand(len(inputs), -1)
    order = mask.int().argsort(dim=1, stable=True)
    return inputs.masked_fill(~mask, pick.NOTHING).gather(1, order)
