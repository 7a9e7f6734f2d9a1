"""The likeliest token at every step, for every model that writes.

B rows, S source or prompt positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor, nn

from glassformer.core.errors import GlassformerError
from glassformer.decoding.steps import begin

LOOK_EVERY: Final = 8  # steps between two looks at who has finished on a GPU, each of which waits for it
WORTHWHILE: Final = 0.75  # rows are moved together once at most this share of them is unfinished
_NOTHING = -1  # what stands behind a finished row


@torch.inference_mode()
def greedy(
    model: nn.Module,
    inputs: Tensor,
    *,
    start_ids: Sequence[int] | int | None = None,
    eos_id: int | Sequence[int],
    pad_id: int,
    max_new_tokens: int | Tensor,
    mask: Tensor | None = None,
) -> list[list[int]]:
    """Sources or prompts (B, S) -> the tokens written for each, without the end token.

    start_ids: how the target begins, for a model with a source; by default as its spec says.
    eos_id: the token, or any of those, that ends a row.
    pad_id: what pads `inputs`, on either side; `mask` (B, S), True where real, says it better.
    max_new_tokens: the most that is written, for all rows or for each (B,), the end token counted. A row
    ends sooner where the model's table of positions does.
    """
    limits = _limits(max_new_tokens, inputs)
    if not len(inputs):
        return []
    ends = torch.tensor([eos_id] if isinstance(eos_id, int) else list(eos_id), device=inputs.device)
    real = inputs != pad_id if mask is None else mask
    with at_rest(model):
        steps, logits, most = begin(model, inputs, real, start_ids=start_ids, room=int(limits.max()))
        if most is not None:
            limits = limits.clamp(max=most)
        longest = int(limits.max())
        written = torch.full((len(inputs), longest), _NOTHING, device=inputs.device)
        rows = torch.arange(len(inputs), device=inputs.device)  # where each row of now stands in `written`
        done = limits <= 0
        look = 1 if inputs.is_cpu else LOOK_EVERY
        for n in range(longest):
            ids = logits.argmax(-1)  # (B,)
            written[rows, n] = ids.masked_fill(done, _NOTHING)
            done = done | (ids[:, None] == ends).any(-1) | (limits <= n + 1)
            if n + 1 == longest:
                break
            if (n + 1) % look == 0:
                left = (~done).nonzero()[:, 0]
                if not len(left):
                    break
                if len(left) <= WORTHWHILE * len(done):
                    steps.select(left)
                    rows, ids, limits, done = rows[left], ids[left], limits[left], done[left]
            logits = steps.step(ids)
    finished = {_NOTHING, *ends.tolist()}
    return [_until(row, finished) for row in written.tolist()]


def decode_all(
    model: nn.Module,
    examples: Sequence[Sequence[int]],
    *,
    start_ids: Sequence[int] | int | None = None,
    eos_id: int | Sequence[int],
    pad_id: int,
    max_new_tokens: int | Callable[[int], int],
    tokens: int = 16_384,
) -> list[list[int]]:
    """Sources or prompts of any lengths -> what `greedy` writes for each, in the order given.

    Rows of like length are decoded together, as many as a budget of `tokens` holds: read and written
    ones, padding counted. `max_new_tokens` may depend on an example's length.
    """
    if tokens < 1:
        raise GlassformerError(f"a budget of {tokens} tokens holds nothing; give at least 1")
    device = next(model.parameters()).device
    allowed = max_new_tokens if callable(max_new_tokens) else lambda _: max_new_tokens
    limits = [allowed(len(example)) for example in examples]
    results: list[list[int]] = [[] for _ in examples]
    for batch in _batches([len(example) for example in examples], limits, tokens):
        width = max(1, *(len(examples[n]) for n in batch))
        ids = torch.full((len(batch), width), pad_id)
        for row, n in enumerate(batch):
            ids[row, : len(examples[n])] = torch.as_tensor(examples[n], dtype=torch.long)
        lengths = torch.tensor([len(examples[n]) for n in batch])
        found = greedy(
            model,
            ids.to(device),
            start_ids=start_ids,
            eos_id=eos_id,
            pad_id=pad_id,
            max_new_tokens=torch.tensor([limits[n] for n in batch], device=device),
            mask=(torch.arange(width) < lengths[:, None]).to(device),
        )
        for n, row_ids in zip(batch, found, strict=True):
            results[n] = row_ids
    return results


def _batches(lengths: Sequence[int], limits: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Rows by falling cost, so that the batch that needs most memory comes first."""
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


def _limits(most: int | Tensor, inputs: Tensor) -> Tensor:
    """How many tokens each row may be given (B,)."""
    limits = torch.as_tensor(most, device=inputs.device)
    if limits.is_floating_point() or limits.shape not in ((), (len(inputs),)):
        raise GlassformerError(
            f"max_new_tokens must be one whole number, or one for each of the {len(inputs)} rows; "
            f"got {str(limits.dtype).removeprefix('torch.')} {tuple(limits.shape)}"
        )
    return limits.long().expand(len(inputs)).clamp(min=0)


def _until(row: list[int], finished: set[int]) -> list[int]:
    """The row up to its first token in `finished`."""
    for n, token in enumerate(row):
        if token in finished:
            return row[:n]
    return row


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """No dropout inside; afterwards every module is as it was."""
    active = [module for module in model.modules() if module.training]
    for module in active:
        module.training = False
    try:
        yield
    finally:
        for module in active:
            module.training = True
