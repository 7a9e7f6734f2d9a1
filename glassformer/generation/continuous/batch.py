"""The rows that are being written with one model: they join, take a step together, and leave.

N rows, M texts that are read, V vocabulary, G key/value heads, K head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from glassformer.core.model import DecoderOnly, EncoderDecoder
from glassformer.core.reading import first_vectors
from glassformer.generation.inference_model import InferenceModel
from glassformer.inference.attention import GrowingCache, run_ragged
from glassformer.inference.prepare import stream_dtype
from glassformer.inference.slot_cache import CrossSlotCache, Slot, SlotCache

ByLayer = list[Tensor]  # keys (G, S, K) or values (G, S, V)


@dataclass(eq=False)
class SlotRef:
    """Where one text is written: `width` rows, beams if there are several."""

    slot: Slot
    source: Slot | None


class SlotBatch:
    """Texts that one model writes, each with its own length."""

    def __init__(self, ready: InferenceModel) -> None:
        self.ready, model = ready, ready.model
        self.parameter = next(model.parameters())
        self.refs: list[SlotRef] = []
        dtype, device = stream_dtype(self.parameter), self.parameter.device
        self.slots = SlotCache(ready.decoder, dtype, device)
        self.embed: nn.Module = model.tgt_embed if isinstance(model, EncoderDecoder) else model.embed
        self.sources = (
            CrossSlotCache(ready.decoder, dtype, device) if isinstance(model, EncoderDecoder) else None
        )

    # ---- reading -------------------------------------------------------------------------------------

    def read_sources(self, sources: Sequence[Sequence[int]]) -> list[tuple[ByLayer, ByLayer]]:
        """Sources of any lengths -> the keys and values of each, by the decoder's layers."""
        ready, model = self.ready, self.ready.model
        assert ready.encoder is not None and isinstance(model, EncoderDecoder)
        lengths = [len(ids) for ids in sources]
        x = self._vectors(model.src_embed, sources, [0] * len(sources))
        memory = run_ragged(ready.encoder, x, lengths) if len(x) else x
        found: list[tuple[ByLayer, ByLayer]] = [([], []) for _ in sources]
        for attention in ready.decoder.cross_attentions:
            keys, values = attention.keys_values(memory)  # (N, G, K), (N, G, V)
            parts = zip(found, keys.split(lengths), values.split(lengths), strict=True)
            for own, k, v in parts:
                own[0].append(k.transpose(0, 1))
                own[1].append(v.transpose(0, 1))
        return found

    def read_pieces(self, pieces: Sequence[Sequence[int]], pasts: Sequence[GrowingCache]) -> Tensor:
        """Pieces of prompts, which `pasts` grow by -> vectors (M, D) of the last token of each."""
        assert isinstance(self.ready.model, DecoderOnly)
        x = self._vectors(self.embed, pieces, [int(past.length) for past in pasts])
        lengths = [len(ids) for ids in pieces]
        found = run_ragged(self.ready.decoder, x, lengths, pasts)
        return found.index_select(0, torch.tensor(lengths, device=found.device).cumsum(0) - 1)

    def _vectors(self, embed: nn.Module, texts: Sequence[Sequence[int]], firsts: Sequence[int]) -> Tensor:
        """What the first layer sees of texts that begin at these places: (N, D), one after another."""
        device = self.parameter.device
        ids = torch.tensor([token for text in texts for token in text], dtype=torch.long, device=device)
        places = torch.tensor(
            [first + n for text, first in zip(texts, firsts, strict=True) for n in range(len(text))],
            dtype=torch.long,
            device=device,
        )
        return self.ready.to_stream(first_vectors(embed, ids[None], places[None], 0, None).x[0])

    # ---- writing -------------------------------------------------------------------------------------

    def join_with_source(self, width: int, k: ByLayer, v: ByLayer) -> SlotRef:
        """A text that will be written from this source; its start is yet to be read."""
        assert self.sources is not None
        return self._added(SlotRef(self.slots.add_empty(width), self.sources.add(width, k, v)))

    def join_after(self, width: int, past: GrowingCache) -> SlotRef:
        """A text that goes on from what was read."""
        return self._added(
            SlotRef(
                self.slots.add(width, [one.k[0] for one in past.layers], [one.v[0] for one in past.layers]),
                None,
            )
        )

    def _added(self, ref: SlotRef) -> SlotRef:
        self.refs.append(ref)
        return ref

    def leave(self, ref: SlotRef) -> None:
        self.refs.remove(ref)
        self.slots.remove(ref.slot)
        if self.sources is not None and ref.source is not None:
            self.sources.remove(ref.source)

    def reorder(self, ref: SlotRef, beams: Tensor) -> None:
        """Each beam of a text is replaced by one of them (W,)."""
        self.slots.reorder(ref.slot, beams)

    def step(self, ids: Sequence[int]) -> Tensor:
        """The token just chosen for each row, in the order in which they joined -> logits (N, V)."""
        tokens = torch.tensor(ids, dtype=torch.long, device=self.parameter.device)
        places = self.slots.positions()
        x = self.ready.to_stream(first_vectors(self.embed, tokens[:, None], places[:, None], 0, None).x[:, 0])
        self.slots.prepare()
        across = None if self.sources is None else self.sources.attend
        x = self.ready.decoder.run(x, self.slots.attend, across)
        self.slots.advance()
        return self.ready.logits(x)
