"""One way to write for every model that writes: greedy, sampled or by beams, from a source or a prompt.

B rows, S source or prompt positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from math import isnan

import torch
from torch import Tensor, nn

from glassformer.errors import GlassformerError
from glassformer.generation import pick
from glassformer.generation.batches import ahead, batches
from glassformer.generation.beam import write_beams
from glassformer.generation.decoder import decoder_start_ids, widen
from glassformer.generation.inference_model import prefill
from glassformer.generation.settings import Decoding
from glassformer.generation.shaping import Shaping
from glassformer.generation.single import OnToken, write_single
from glassformer.generation.stop import Decode, check_stops
from glassformer.generation.written import Written
from glassformer.inference.rest import at_rest

OnWritten = Callable[[Sequence[int]], None]


def write(
    model: nn.Module,
    inputs: Tensor,
    *,
    settings: Decoding,
    eos_id: int | Sequence[int] | None,
    pad_id: int,
    start_ids: Sequence[int] | int | None = None,
    prefix: Sequence[int] | None = None,
    mask: Tensor | None = None,
    max_new_tokens: int | Tensor | None = None,
    keep_tree: bool = False,
    decode: Decode | None = None,
    on_token: OnToken | None = None,
) -> list[list[Written]]:
    """Sources or prompts (B, S) -> for each, `num_return_sequences` texts, the best first.

    eos_id: the token, or any of those, that ends a text; None: only the length does.
    pad_id: what pads `inputs`, on either side; `mask` (B, S), True where real, says it better.
    start_ids: how the target begins, for a model with a source; by default as its spec says. They are
    read, not written.
    prefix: the tokens every text begins with. They are written, as sure as can be: their log-prob is 0.
    max_new_tokens: the most that is written, for all rows or for each (B,), the end token counted; by
    default what the settings say. A row ends sooner where the model's table of positions does.
    decode: ids to text, for the settings' `stop`; the tokens that complete a stop stay in `ids`.
    on_token: called with the row (of B times num_return_sequences) and the token, as soon as one is
    chosen, but not with the end token.
    """
    found = _write(
        model,
        inputs,
        settings=settings,
        eos_id=eos_id,
        pad_id=pad_id,
        start_ids=start_ids,
        prefix=prefix,
        mask=mask,
        max_new_tokens=max_new_tokens,
        keep_tree=keep_tree,
        decode=decode,
        on_token=on_token,
        generator=generator_of(settings, inputs.device),
    )
    for text in chain.from_iterable(found):
        check_sound(text)
    return found


@torch.inference_mode()
def _write(
    model: nn.Module,
    inputs: Tensor,
    *,
    settings: Decoding,
    eos_id: int | Sequence[int] | None,
    pad_id: int,
    start_ids: Sequence[int] | int | None,
    prefix: Sequence[int] | None,
    mask: Tensor | None,
    max_new_tokens: int | Tensor | None,
    keep_tree: bool,
    decode: Decode | None,
    on_token: OnToken | None,
    generator: torch.Generator | None,
) -> list[list[Written]]:
    check_stops(settings.stop, decode)
    if on_token is not None and settings.num_beams > 1:
        raise GlassformerError("beams settle on no token before the end; stream with num_beams 1")
    starts = decoder_start_ids(model, start_ids)
    real = inputs != pad_id if mask is None else mask
    read = torch.full((len(inputs),), len(starts), device=inputs.device) if starts else real.sum(1)
    limits = limits_of(settings, max_new_tokens, inputs, read)
    if not len(inputs):
        return []
    ends = torch.tensor([eos_id] if isinstance(eos_id, int) else list(eos_id or ()), device=inputs.device)
    with at_rest(model), torch.cuda.device_of(inputs):  # kernels run on the GPU that is in use
        steps, logits, most = prefill(model, inputs, real, start_ids=start_ids, capacity=int(limits.max()))
        check_ids(settings, prefix, logits.shape[-1])
        if most is not None:
            limits = limits.clamp(max=most)
        if prefix is None and settings.forced_bos_token_id is not None and len(starts) == 1:
            prefix = [settings.forced_bos_token_id]
        shaping = Shaping.of(
            settings,
            ends=ends.long(),
            vocab=logits.shape[-1],
            prefix=tuple(prefix or ()),
            limits=limits,
            least=(settings.min_length - read).clamp(min=settings.min_new_tokens),
            given=_given(inputs, real, starts),
        )
        together = rows_each(settings)
        if together > 1:
            each = torch.arange(len(inputs), device=inputs.device).repeat_interleave(together)
            if settings.num_beams > 1:
                widen(steps, len(inputs), together, inputs.device)
            else:
                steps.select(each)  # samples of one text part ways: they end at different times
            shaping.select(each)
            logits = logits.index_select(0, each)
        if settings.num_beams > 1:
            return write_beams(
                steps, logits, shaping, generator=generator, decode=decode, keep_tree=keep_tree
            )
        texts = write_single(
            steps,
            logits,
            shaping,
            generator=generator,
            decode=decode,
            on_token=on_token,
            keep_tree=keep_tree,
        )
    grouped = [texts[n : n + together] for n in range(0, len(texts), together)]
    return [sorted(group, key=lambda text: -text.score) for group in grouped]


def write_all(
    model: nn.Module,
    examples: Iterable[Sequence[int]],
    *,
    settings: Decoding,
    eos_id: int | Sequence[int] | None,
    pad_id: int,
    start_ids: Sequence[int] | int | None = None,
    prefix: Sequence[int] | None = None,
    max_new_tokens: int | Callable[[int], int] | None = None,
    keep_tree: bool = False,
    decode: Decode | None = None,
    tokens: int = 16_384,
    on_written: OnWritten | None = None,
) -> Iterator[list[Written]]:
    """Sources or prompts of any lengths -> what `write` gives for each, in the order given.

    Examples are read a bounded number ahead. Those of like length are written together, as many as a
    budget of `tokens` holds: read and written ones, padding and beams counted. `max_new_tokens` may depend
    on an example's length. `on_written` is told which examples, counted from 0, were just written; they are
    given when all before them are written too.
    """
    for texts in stream(
        model,
        examples,
        settings=settings,
        eos_id=eos_id,
        pad_id=pad_id,
        start_ids=start_ids,
        prefix=prefix,
        max_new_tokens=max_new_tokens,
        keep_tree=keep_tree,
        decode=decode,
        tokens=tokens,
        on_written=on_written,
    ):
        for text in texts:
            check_sound(text)
        yield texts


def stream(
    model: nn.Module,
    examples: Iterable[Sequence[int]],
    *,
    settings: Decoding,
    eos_id: int | Sequence[int] | None,
    pad_id: int,
    start_ids: Sequence[int] | int | None = None,
    prefix: Sequence[int] | None = None,
    max_new_tokens: int | Callable[[int], int] | None = None,
    keep_tree: bool = False,
    decode: Decode | None = None,
    tokens: int = 16_384,
    on_written: OnWritten | None = None,
) -> Iterator[list[Written]]:
    """As `write_all`, with scores that are no numbers taken as they come: training may lead there."""
    if tokens < 1:
        raise GlassformerError(f"a budget of {tokens} tokens holds nothing; give at least 1")
    asked = settings.max_new_tokens if max_new_tokens is None else max_new_tokens
    device = next(model.parameters()).device
    generator = generator_of(settings, device)
    starts = len(decoder_start_ids(model, start_ids))

    def limit(length: int) -> int:
        if callable(asked):
            return asked(length)
        if asked is None and settings.max_length is not None:
            return max(0, settings.max_length - (starts or length))
        if asked is None:
            raise GlassformerError(_UNBOUNDED)
        return asked

    first = 0
    for near in ahead(iter(examples), limit, tokens // rows_each(settings)):
        found: list[list[Written]] = [[] for _ in near]
        lengths, limits = [len(example) for example, _ in near], [most for _, most in near]
        for batch in batches(lengths, limits, tokens // rows_each(settings)):
            width = max(1, *(lengths[n] for n in batch))
            ids = torch.full((len(batch), width), pad_id)
            for row, n in enumerate(batch):
                ids[row, : lengths[n]] = torch.as_tensor(near[n][0], dtype=torch.long)
            real = torch.arange(width) < torch.tensor([lengths[n] for n in batch])[:, None]
            texts = _write(
                model,
                ids.to(device),
                settings=settings,
                eos_id=eos_id,
                pad_id=pad_id,
                start_ids=start_ids,
                prefix=prefix,
                mask=real.to(device),
                max_new_tokens=torch.tensor([limits[n] for n in batch], device=device),
                keep_tree=keep_tree,
                decode=decode,
                on_token=None,
                generator=generator,
            )
            for n, one in zip(batch, texts, strict=True):
                found[n] = one
            if on_written is not None:
                on_written([first + n for n in batch])
        first += len(near)
        yield from found


_UNBOUNDED = "nothing says how many tokens to write; give max_new_tokens"


def limits_of(settings: Decoding, most: int | Tensor | None, inputs: Tensor, read: Tensor) -> Tensor:
    """How many tokens each row (B,) may be given."""
    asked = settings.max_new_tokens if most is None else most
    if asked is None and settings.max_length is not None:
        asked = settings.max_length - read
    if asked is None:
        raise GlassformerError(_UNBOUNDED)
    limits = torch.as_tensor(asked, device=inputs.device)
    if limits.is_floating_point() or limits.shape not in ((), (len(inputs),)):
        raise GlassformerError(
            f"max_new_tokens must be one whole number, or one for each of the {len(inputs)} rows; "
            f"got {str(limits.dtype).removeprefix('torch.')} {tuple(limits.shape)}"
        )
    return limits.long().expand(len(inputs)).clamp(min=0)


def check_sound(text: Written) -> None:
    if isnan(text.score):
        raise GlassformerError(
            "the scores are no numbers: the model overflowed, or the settings forbid every token; "
            "try dtype float32, or forbid less"
        )


def check_ids(settings: Decoding, prefix: Sequence[int] | None, vocab: int) -> None:
    """Tokens that are to be forced must be some that the model can write."""
    forced = (*(prefix or ()), settings.forced_bos_token_id, settings.forced_eos_token_id)
    wrong = next((token for token in forced if token is not None and not 0 <= token < vocab), None)
    if wrong is not None:
        raise GlassformerError(f"token {wrong} cannot be forced: the model writes tokens 0 to {vocab - 1}")


def rows_each(settings: Decoding) -> int:
    """The rows that one example becomes."""
    return settings.num_beams if settings.num_beams > 1 else settings.num_return_sequences


def _given(inputs: Tensor, real: Tensor, starts: Sequence[int]) -> Tensor:
    """What stands before the first token to write (B, T), right-aligned: the start, or else the prompt."""
    if starts:
        return torch.tensor(starts, device=inputs.device).expand(len(inputs), -1)
    order = real.int().argsort(dim=1, stable=True)
    return inputs.masked_fill(~real, pick.NOTHING).gather(1, order)


def generator_of(settings: Decoding, device: torch.device) -> torch.Generator | None:
    """The settings' own source of chance; None: torch's."""
    return None if settings.seed is None else torch.Generator(device).manual_seed(settings.seed)
