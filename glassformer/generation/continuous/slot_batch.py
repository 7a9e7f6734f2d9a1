"""The running rows of continuous batching: rows join, take decode steps together, and leave.

N rows of the batch, M prompts, V vocabulary, D d_model, G key/value heads, K head width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from glassformer.core.model import EncoderDecoder
from glassformer.generation.inference_model import InferenceModel
from glassformer.generation.prompt import EmbeddingSpan, Prompt
from glassformer.inference.attention import DynamicKVCache, run_varlen
from glassformer.inference.kv_cache import layer_contexts
from glassformer.inference.slot_cache import Slot, SlotKVCache

ByLayer = list[Tensor]  # keys (G, S, K) or values (G, S, V)


class SlotBatch:
    """The running rows of one model: rows join, take decode steps together, and leave."""

    def __init__(self, model: InferenceModel) -> None:
        self.model, inner = model, model.model
        self.parameter = next(inner.parameters())
        like = self.parameter.new_empty(0, dtype=model.dtype)
        self.cache = SlotKVCache(model.decoder, like)
        self.sources = SlotKVCache(model.decoder, like, cross=True) if model.encoder is not None else None
        self.layers = layer_contexts(model.decoder, self.cache, self.sources)
        self.embed = inner.decoder_embed

    @property
    def rows(self) -> int:
        """Number of rows in the batch."""
        return self.cache.rows

    def read_sources(
        self, sources: Sequence[Sequence[int]], prompts: Sequence[Prompt | None]
    ) -> list[tuple[ByLayer, ByLayer]]:
        """Encode sources of any lengths; return the keys and values of each, by decoder layer.

        prompts: the sources that are not text.
        """
        memories = self._memories(sources, prompts)
        lengths, memory = [len(one) for one in memories], torch.cat(memories)
        caches: list[tuple[ByLayer, ByLayer]] = [([], []) for _ in sources]
        for attention in self.model.decoder.cross_attentions:
            keys, values = attention.keys_values(memory)  # (N, G, K), (N, G, V)
            for cache, k, v in zip(caches, keys.split(lengths), values.split(lengths), strict=True):
                cache[0].append(k.transpose(0, 1))
                cache[1].append(v.transpose(0, 1))
        return caches

    def _memories(self, sources: Sequence[Sequence[int]], prompts: Sequence[Prompt | None]) -> list[Tensor]:
        """Return the memory (S, D) of each source; those of token ids are encoded together."""
        model, inner = self.model, self.model.model
        assert isinstance(inner, EncoderDecoder)
        others = {n: model.encode(inner, one.source, None)[0] for n, one in enumerate(prompts) if one}
        texts = [ids for n, ids in enumerate(sources) if n not in others]
        if not texts:
            return [*others.values()]
        lengths = [len(ids) for ids in texts]
        x = self._embeddings(inner.src_embed, texts, [range(length) for length in lengths])
        memories = iter((run_varlen(model.encoder, x, lengths) if len(x) else x).split(lengths))
        return [others[n] if n in others else next(memories) for n in range(len(sources))]

    def read_prompts(
        self,
        pieces: Sequence[Sequence[int]],
        pasts: Sequence[DynamicKVCache],
        prompts: Sequence[Prompt | None],
    ) -> Tensor:
        """Prefill pieces of prompts and append them to `pasts`; return the last hidden states (M, D).

        prompts: the embeddings and position ids of each prompt, if any.
        """
        starts, lengths = [int(past.length) for past in pasts], [len(ids) for ids in pieces]
        positions: list[Sequence[int]] = [
            range(start, start + length) for start, length in zip(starts, lengths, strict=True)
        ]
        spans: list[EmbeddingSpan] = []
        explicit: dict[int, Tensor] = {}
        for n, prompt in enumerate(prompts):
            if prompt is not None:
                end = starts[n] + lengths[n]
                spans += prompt.spans_between(starts[n], end, sum(lengths[:n]))
                if prompt.positions is not None:
                    explicit[n] = prompt.positions[starts[n] : end].to(self.parameter.device)
                    positions[n] = explicit[n].tolist()
        x = self._embeddings(self.embed, pieces, positions, spans)
        hidden = run_varlen(self.model.decoder, x, lengths, pasts, explicit)
        return hidden.index_select(0, torch.tensor(lengths, device=hidden.device).cumsum(0) - 1)

    def _embeddings(
        self,
        embed: nn.Module,
        texts: Sequence[Sequence[int]],
        positions: Sequence[Sequence[int]],
        spans: Sequence[EmbeddingSpan] = (),
    ) -> Tensor:
        """Embed texts at these positions; return their concatenated embeddings (N, D)."""
        rows = [[x for part in parts for x in part] for parts in (texts, positions)]
        both = torch.tensor(rows, dtype=torch.long, device=self.parameter.device)
        return self.model.embeddings(embed, both[:1], both[1:], spans=spans)[0]

    def join(self, width: int, past: DynamicKVCache | tuple[ByLayer, ByLayer]) -> Slot:
        """Add a slot with `width` rows. past: the KV cache of a prompt, or keys and values of a source."""
        if isinstance(past, DynamicKVCache):
            return self.cache.add(
                width, *zip(*((layer.k[0], layer.v[0]) for layer in past.layers), strict=True)
            )
        assert self.sources is not None
        slot = self.cache.add(width)
        slot.source = self.sources.add(width, *past)
        return slot

    def leave(self, slot: Slot) -> None:
        self.cache.remove(slot)
        if self.sources is not None and slot.source is not None:
            self.sources.remove(slot.source)

    def step(self, ids: Sequence[int]) -> Tensor:
        """Take a decode step with the last token of each row, in slot order; return logits (N, V)."""
        tokens = torch.tensor(ids, dtype=torch.long, device=self.parameter.device)
        positions = self.cache.next_positions()
        x = self.model.embeddings(self.embed, tokens[:, None], positions[:, None])[:, 0]
        self.cache.prepare()
        if self.sources is not None:
            self.sources.prepare()
        x = self.model.decoder.finish(self.model.decoder.run(x, self.layers))
        self.cache.advance()
        return self.model.logits(x)
