"""A model under changes that a search can write with.

Every step reads all that was written once more, for a change may be of any earlier place; the source is read
once. B rows, S source places, T target places, D d_model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.core import spec as specs
from glassformer.core.heads import Context
from glassformer.core.model import EncoderDecoder
from glassformer.core.observe import Observer
from glassformer.core.reading import across, inferred
from glassformer.errors import GlassformerError
from glassformer.generation.decoder import PrefillResult
from glassformer.generation.inference_model import max_positions
from glassformer.interpret.altered import Altered, altered
from glassformer.interpret.changes import Change, MaskToken, Residual, Swap, parse_changes
from glassformer.interpret.ready import all_real
from glassformer.interpret.stretched import with_parts


class Changed(nn.Module):
    """An encoder-decoder under changes, which begins as one made ready does; see `SupportsPrefill`.

    The changes are of places in one source, so it is given one at a time, without padding.
    """

    def __init__(self, model: EncoderDecoder, changes: Sequence[Any]) -> None:
        super().__init__()
        self.model = with_parts(model, head=_LastPlace(model.head))
        self.changes = parse_changes(list(changes))

    @property
    def spec(self) -> specs.EncoderDecoder:
        return self.model.spec

    def prefill(
        self, inputs: Tensor, mask: Tensor, *, start_ids: Sequence[int], capacity: int
    ) -> PrefillResult:
        """A source (1, S)."""
        if not start_ids:
            raise GlassformerError("nothing says how the target begins; give start_ids")
        assert bool(mask.all())
        steps = _Steps(self, inputs, inputs.new_tensor(start_ids).expand(len(inputs), -1))
        table = max_positions(self.model.tgt_embed)
        # the last token written is never read again, so it needs no position
        most = None if table is None else max(0, table + 1 - len(start_ids))
        return PrefillResult(steps, steps.logits(), most)

    def altered(self, src: Tensor, tgt: Tensor) -> Altered:
        """The model with src (B, S) and tgt (B, T) to read, after the changes of what is there."""
        inputs = {
            **{"src": src, **all_real("src_mask", src, self.spec.source)},
            **{"tgt": tgt, **all_real("tgt_mask", tgt, self.spec.target, first=1)},
        }
        there = [change for change in self.changes if _is_there(change, tgt.shape[1])]
        return altered(self.model, inputs, there)


class _LastPlace(nn.Module):
    """A head that reads one place of a target alone: (B, T, D) -> (B, 1, V)."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, x: Tensor, context: Context, *, obs: Observer | None = None) -> Any:
        return self.head(x[:, -1:], Context(ids=context.ids), obs=obs)


class _Steps:
    """Rows being written by a changed model; see `Decoder`."""

    def __init__(self, model: Changed, src: Tensor, tgt: Tensor) -> None:
        self.model, self.src, self.tgt = model, src, tgt
        made = model.altered(src, tgt)
        given = made.inputs
        self.memory: Tensor = made.model.encode(  # (B, S, D)
            given["src"],
            given.get("src_mask"),
            positions=given.get("src_positions"),
            obs=Observer((), made.edit),
        )

    def step(self, ids: Tensor) -> Tensor:
        self.tgt = torch.cat((self.tgt, ids[:, None]), 1)
        return self.logits()

    def logits(self) -> Tensor:
        """The scores (B, V) of the token after all those that are there."""
        made = self.model.altered(self.src, self.tgt)
        given = made.inputs
        seen = inferred(made.model.src_embed, given["src"], given.get("src_mask"), "src_mask")
        scores: Tensor = made.model.decode(  # (B, 1, V)
            given["tgt"],
            self.memory,
            given.get("tgt_mask"),
            across(seen, given.get("tgt_mask")),
            positions=given.get("tgt_positions"),
            obs=Observer((), made.edit),
        )
        last = scores[:, -1].float()
        if not bool(last.amax(-1).isfinite().all()):
            raise GlassformerError("the changed model's scores are no numbers; change less")
        return last

    def select(self, rows: Tensor) -> None:
        self.src, self.tgt, self.memory = (x.index_select(0, rows) for x in (self.src, self.tgt, self.memory))


def _is_there(change: Change, length: int) -> bool:
    """Whether the places of the target that a change is of are among so many."""
    match change:
        case MaskToken(sequence="target", position=place):
            return place < length
        case Swap(sequence="target", positions=places):
            return max(places) < length
        case Residual(name=name, position=place) if name.startswith("decoder."):
            return place < length
    return True
