"""Layers of LSTM over time, and rows laid out so that they can run: one document a row, padding last.

B rows, T positions, D d_model, L layers, N documents.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from glassformer.core.backend import Dropout
from glassformer.core.masks import Mask
from glassformer.core.positions import count_positions


class State(NamedTuple):
    """All that is known of the past: (L, B, D) each."""

    hidden: Tensor
    cell: Tensor

    def select(self, rows: Tensor) -> State:
        return State(self.hidden.index_select(1, rows), self.cell.index_select(1, rows))


class Recurrent(nn.Module):
    """L layers over time, (B, T, D) -> (B, T, D). Read both ways, each way has half the width.

    Each layer is a module of its own with our dropout between: the library's own dropout between layers
    keeps a random state on a GPU that no seed brings back, and a run could not be repeated.

    >>> x, state = Recurrent(16, 2, dropout=0.1, ways="both")(torch.randn(3, 5, 16))
    >>> x.shape, state.hidden.shape
    (torch.Size([3, 5, 16]), torch.Size([2, 3, 16]))
    """

    def __init__(
        self, d_model: int, num_layers: int, *, dropout: float, ways: Literal["forward", "both"]
    ) -> None:
        super().__init__()
        both = ways == "both"
        width = d_model // 2 if both else d_model
        self.layers = nn.ModuleList(
            nn.LSTM(d_model, width, batch_first=True, bidirectional=both) for _ in range(num_layers)
        )
        self.dropped = Dropout(dropout)

    @torch.no_grad()
    def remember(self) -> None:
        """Open the forget gates: a fresh state then fades slowly, and far gradients live."""
        for layer in self.layers:
            for name, bias in layer.named_parameters():
                if name.startswith("bias"):
                    bias.zero_()
                    if name.startswith("bias_ih"):
                        bias.chunk(4)[1].fill_(1.0)  # gates in torch's order: input, forget, cell, output

    def forward(
        self, x: Tensor, state: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """x (B, T, D), of which the first `lengths` (B,) of each row are real -> the same shape, the state.

        `lengths` must be on the CPU. Without them the state is that after the last column.
        """
        packed: Tensor | PackedSequence = x
        if lengths is not None:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        ends: list[tuple[Tensor, Tensor]] = []
        for n, layer in enumerate(self.layers):
            if n:
                packed = self._between(packed)
            begin = None if state is None else (state.hidden[n : n + 1], state.cell[n : n + 1])
            packed, end = layer(packed, begin)
            ends.append(end)
        if isinstance(packed, PackedSequence):
            out, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])
        else:
            out = packed
        # (ways, B, width) of each layer -> (L, B, D)
        joined = [
            torch.stack([torch.cat(tuple(part), -1) for part in parts]) for parts in zip(*ends, strict=True)
        ]
        return out, State(*joined)

    def _between(self, packed: Tensor | PackedSequence) -> Tensor | PackedSequence:
        if isinstance(packed, PackedSequence):
            data = self.dropped(packed.data)
            return PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
        dropped: Tensor = self.dropped(packed)
        return dropped


class Laid(NamedTuple):
    """Where each token (B, T) goes when every document has a row (N, longest) of its own, without padding."""

    row: Tensor  # (B, T)
    place: Tensor  # (B, T)
    real: Tensor | None  # (B, T); None where nothing is padding
    rows: int
    longest: int

    @classmethod
    def of(cls, mask: Mask, ids: Tensor) -> Laid:
        place = count_positions(mask.padding, mask.segments)
        many, longest = ids.shape
        row = torch.arange(many, device=ids.device)[:, None].expand_as(place)
        if mask.segments is not None:
            number = F.pad(mask.segments.diff().bool(), (1, 0)).cumsum(1)  # of the document in its row
            count = number[:, -1] + 1
            row = number + (count.cumsum(0) - count)[:, None]
            many, longest = int(count.sum()), int(place.max()) + 1
        return cls(row, place, mask.padding, many, longest)

    def out(self, ids: Tensor) -> Tensor:
        """(B, T) -> (N, longest); what is left empty holds token 0."""
        place = self.place if self.real is None else torch.where(self.real, self.place, self.longest)
        laid = ids.new_zeros(self.rows, self.longest + 1)  # padding is dropped into one column more
        laid[self.row, place] = ids
        return laid[:, : self.longest]

    def back(self, x: Tensor) -> Tensor:
        """(N, longest, D) -> (B, T, D); what stands at padding means nothing."""
        return x[self.row, self.place]

    def lengths(self) -> Tensor:
        """The real tokens of each row (B,), at least 1, on the CPU; for rows of one document each."""
        assert self.real is not None
        return self.real.sum(1).clamp(min=1).cpu()


def laid_out(mask: Mask, ids: Tensor, what: str) -> Laid | None:
    """How rows with padding or several documents are laid out; None where they can run as they are."""
    if mask.padding is None and mask.segments is None:
        return None
    batch, steps = ids.shape
    told = Mask(padding=mask.padding, segments=mask.segments)
    told.check(batch=batch, heads=1, queries=steps, keys=steps, what=what)
    return Laid.of(mask, ids)
