"""Generate token ids with any model, from sources or prompts: one padded batch, or many inputs in batches.

B rows, S source or prompt positions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from glassformer.core.embeddings import TokenInput, check_token_ids
from glassformer.core.inputs import Memory, ModelInputs, tensor_of
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.generation.beam_search import BeamSearch
from glassformer.generation.config import GenerationOptions, merge_generation_config
from glassformer.generation.generators import RandomGenerator
from glassformer.generation.guidance import guided_prefill
from glassformer.generation.inference_model import InferenceModel, prefill
from glassformer.generation.logits_processors import NO_TOKEN, LogitsProcessors
from glassformer.generation.loop import Search, TokenSearch, run_search
from glassformer.generation.params import GenerationOutput, GenerationParams
from glassformer.generation.prompt import Prompt, pad_prompts
from glassformer.generation.step_decoder import StepDecoder, decoder_start_ids, expand_beams
from glassformer.inference.kv_cache import COMPACT_INTERVAL
from glassformer.inference.memory import available_memory, cache_bytes_per_token
from glassformer.inference.prepare import evaluation_mode

BATCH_TOKENS: Final = 16_384
LOOKAHEAD: Final = 16  # number of batches to read ahead before examples are sorted by length
MAX_LOOKAHEAD: Final = 8192  # examples read ahead, however short
ALWAYS_FIT: Final = 64  # rows per input whose memory is not estimated
MEMORY_SHARE: Final = 0.5  # of the free memory that the rows of one input may take


def generate(
    model: nn.Module,
    input_ids: ModelInputs | Memory | Sequence[Prompt],
    params: GenerationParams,
    *,
    attention_mask: Tensor | None = None,
) -> list[list[GenerationOutput]]:
    """Generate from sources or prompts: `num_return_sequences` outputs for each, best first.

    input_ids: (B, S), or prompts of any lengths; images (B, C, height, width) for a model that reads them;
    or what the encoder returned for them, as `Memory`.
    attention_mask (B, S): True for real tokens; by default, all tokens except pad_token_id.
    """
    prompts: Sequence[Prompt] = ()
    if isinstance(input_ids, Sequence) and not isinstance(input_ids, Memory):
        device = next(model.parameters()).device
        input_ids, attention_mask, prompts = pad_prompts(input_ids, device, params.pad_token_id)
    tensor = tensor_of(input_ids)
    mask, lengths = attention_mask, [0] * len(tensor)
    if not tensor.is_floating_point():
        mask = tensor != params.pad_token_id if mask is None else mask
        lengths = mask.sum(1).tolist()
    if params.seeds is not None and len(params.seeds) != len(tensor):
        raise InvalidValueError("seeds", list(params.seeds), f"{len(tensor)} seeds, one for each input")
    starts = len(decoder_start_ids(model, params.start_ids))
    limits = [params.limit(length, starts or length) for length in lengths]
    outputs = _generate(model, input_ids, params, mask, limits, params.generator(tensor.device), prompts)
    for group in outputs:
        for output in group:
            output.check_finite()
    return outputs


def generate_ids(
    model: nn.Module,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    eos_token_id: int | Sequence[int] | None,
    options: GenerationOptions,
) -> list[list[int]]:
    """Implement the method `generate` of the core models: keyword options in, token ids out."""
    embed = getattr(model, "src_embed", None) or getattr(model, "embed", None)
    if isinstance(embed, TokenInput):
        check_token_ids(input_ids)
    if attention_mask is None and (pad_id := getattr(embed, "pad_id", None)) is not None:
        attention_mask = input_ids != pad_id
    if attention_mask is None and not input_ids.is_floating_point():
        attention_mask = torch.ones_like(input_ids)
    config = merge_generation_config({}, options)
    if eos_token_id is None:
        eos_token_id = getattr(getattr(model, "spec", None), "end_id", None)
    params = GenerationParams(config=config, eos_token_id=eos_token_id)
    mask = None if attention_mask is None else attention_mask.bool()
    outputs = generate(model, input_ids, params, attention_mask=mask)
    return [output.ids for group in outputs for output in group]


def generate_batched(
    model: nn.Module,
    examples: Iterable[Sequence[int] | Prompt],
    params: GenerationParams,
    *,
    batch_tokens: int = BATCH_TOKENS,
    on_batch: Callable[[Sequence[int]], None] | None = None,
    check_finite: bool = True,
) -> Iterator[list[GenerationOutput]]:
    """Generate from sources or prompts of any lengths; yield the outputs of each, in input order.

    A bounded number of examples is read ahead. Examples of similar length are generated together, up to
    `batch_tokens` tokens per batch: input and new tokens, including padding and beams.
    on_batch: called with the indices of the examples that were just generated; they are yielded once all
    earlier examples are finished too.
    check_finite: raise if the scores are NaN. During training, a diverging model may still be sampled.
    """
    if batch_tokens < 1:
        raise InvalidValueError("batch_tokens", batch_tokens, "at least 1")
    if params.seeds is not None:
        raise UnsupportedError("generate_batched", "seeds of rows", hint="call generate")
    device = next(model.parameters()).device
    generator = params.generator(device)
    starts = len(decoder_start_ids(model, params.start_ids))
    budget = batch_tokens // params.config.decoder_rows
    first = 0
    for window in _windows(examples, lambda length: params.limit(length, starts or length), budget):
        outputs: list[list[GenerationOutput]] = [[] for _ in window]
        lengths, limits = [len(example) for example, _ in window], [limit for _, limit in window]
        for batch in _batches(lengths, limits, budget):
            padded = [Prompt.of(window[n][0]) for n in batch]
            ids, mask, prompts = pad_prompts(padded, device, params.pad_token_id)
            own_limits = [limits[n] for n in batch]
            groups = _generate(model, ids, params, mask, own_limits, generator, prompts)
            for n, group in zip(batch, groups, strict=True):
                outputs[n] = group
            if on_batch is not None:
                on_batch([first + n for n in batch])
        first += len(window)
        for group in outputs:
            if check_finite:
                for output in group:
                    output.check_finite()
            yield group


@torch.inference_mode()
def _generate(
    model: nn.Module,
    inputs: ModelInputs | Memory,
    params: GenerationParams,
    mask: Tensor | None,
    limits: list[int],
    generator: RandomGenerator,
    prompts: Sequence[Prompt],
) -> list[list[GenerationOutput]]:
    """Generate from one padded batch. limits: maximum number of new tokens of each row."""
    tensor = tensor_of(inputs)
    if not len(tensor):
        return []
    with evaluation_mode(model), torch.cuda.device_of(tensor):  # for Triton kernels
        decoder, logits, search = start_search(model, inputs, params, mask, limits, generator, prompts)
        for _ in run_search(decoder, logits, search):
            pass
    return search.outputs()


def start_search(
    model: nn.Module,
    inputs: ModelInputs | Memory,
    params: GenerationParams,
    mask: Tensor | None,
    limits: Sequence[int],
    generator: RandomGenerator,
    prompts: Sequence[Prompt] = (),
) -> tuple[StepDecoder, Tensor, Search]:
    """Prefill the inputs; return the decoder, the logits of the first token, and the search to run."""
    tensor = tensor_of(inputs)
    config, device = params.config, tensor.device
    check_memory(model, params, tensor, max(limits))
    if config.guidance_scale == 1:
        decoder, logits, most = prefill(
            model, inputs, mask, start_ids=params.start_ids, capacity=max(limits), prompts=prompts
        )
    else:
        decoder, logits, most = guided_prefill(
            model, tensor, mask, config.guidance_scale, capacity=max(limits), prompts=prompts
        )
    vocab_size = logits.shape[-1]
    params.check_forced_ids(vocab_size)
    row_limits = torch.tensor(limits, dtype=torch.long, device=device)
    if most is not None:
        row_limits = row_limits.clamp(max=most)
    starts = decoder_start_ids(model, params.start_ids)
    context = _context(tensor, mask, starts)
    processors = LogitsProcessors.build(
        params, context, row_limits, vocab_size=vocab_size, prefix=params.prefix(starts)
    )
    if config.rows > 1:
        rows = torch.arange(len(tensor), device=device).repeat_interleave(config.rows)
        if config.num_beams > 1:
            expand_beams(decoder, len(tensor), config.rows, device)
        else:
            decoder.select(rows)  # samples of one input finish at different times
        processors.select(rows)
        logits = logits.index_select(0, rows)
    if config.num_beams > 1:
        return decoder, logits, BeamSearch(params, processors, generator, vocab_size)
    return decoder, logits, TokenSearch(params, processors, generator)


def check_memory(model: nn.Module, params: GenerationParams, inputs: Tensor, limit: int) -> None:
    """Raise if the beams or samples of one input (B, S) would not fit into the available memory.

    limit: maximum number of new tokens. The estimate is a lower bound: keys and values of all rows, and for a
    beam search the attention of every beam to the tokens of all beams; logits are copied a few times.
    """
    rows = params.config.rows
    if rows <= ALWAYS_FIT or (free := available_memory(inputs.device)) is None:
        return
    available = int(MEMORY_SHARE * free)
    layers = list(model.decoder.attentions) if isinstance(model, InferenceModel) else []
    dtype = model.dtype if isinstance(model, InferenceModel) else torch.float32
    per_token, heads = cache_bytes_per_token(layers, dtype), max((a.num_heads for a in layers), default=0)
    vocab_size = int(getattr(model, "vocab_size", 0))
    searches = params.config.num_beams > 1

    def needed(count: int) -> int:
        cached = limit * per_token + 4 * vocab_size * dtype.itemsize
        beams = (limit + 2 * heads * min(limit, COMPACT_INTERVAL)) * dtype.itemsize if searches else 0
        return count * (cached + beams * count)

    if needed(rows) > available:
        most = bisect_right(range(rows), available, key=needed) - 1
        name = "num_beams" if searches else "num_return_sequences"
        expected = f"at most {most:,}, as {free / 2**30:.1f} GB of memory are free"
        raise InvalidValueError(name, rows, expected)


def _context(inputs: Tensor, mask: Tensor | None, starts: Sequence[int]) -> Tensor:
    """Return the tokens before the first new one, (B, T), right-aligned: start tokens or prompt."""
    if starts:
        return torch.tensor(starts, device=inputs.device).expand(len(inputs), -1)
    assert mask is not None  # only an encoder-decoder, which has start tokens, reads images
    order = mask.int().argsort(dim=1, stable=True)
    return inputs.masked_fill(~mask, NO_TOKEN).gather(1, order)


def _windows(
    examples: Iterable[Sequence[int] | Prompt], limit: Callable[[int], int], tokens: int
) -> Iterator[list[tuple[Sequence[int] | Prompt, int]]]:
    """Yield lists of examples with their limits; each list has a bounded number of tokens."""
    window: list[tuple[Sequence[int] | Prompt, int]] = []
    cost = 0
    for example in examples:
        most = limit(len(example))
        window.append((example, most))
        cost += len(example) + most
        if cost >= LOOKAHEAD * tokens or len(window) == MAX_LOOKAHEAD:
            yield window
            window, cost = [], 0
    if window:
        yield window


def _batches(lengths: Sequence[int], limits: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Group rows into batches by descending cost, so that the batch that needs most memory comes first."""
    batch: list[int] = []
    longest = most = 0
    by_cost = sorted(range(len(lengths)), key=lambda n: (lengths[n] + limits[n], lengths[n]), reverse=True)
    for n in by_cost:
        longest, most = max(longest, lengths[n]), max(most, limits[n])
        if batch and (longest + most) * (len(batch) + 1) > tokens:
            yield batch
            batch, longest, most = [], lengths[n], limits[n]
        batch.append(n)
    if batch:
        yield batch
