"""One request, checked: what is read, how it is written, and what that takes at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.core.embeddings import TokenInput
from glassformer.core.model import DecoderOnly, EncoderDecoder
from glassformer.errors import GlassformerError
from glassformer.generation.decoder import decoder_start_ids
from glassformer.generation.engine import check_ids, limits_of, rows_each
from glassformer.generation.inference_model import InferenceModel, max_positions
from glassformer.generation.settings import Decoding
from glassformer.generation.shaping import Shaping
from glassformer.generation.stop import Decode, check_stops

MOST_TOP = 100  # likeliest tokens that are told beside the chosen one


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What `engine.write` would be given for one row."""

    ids: tuple[int, ...]  # of the source or the prompt
    settings: Decoding
    ends: tuple[int, ...]
    starts: tuple[int, ...]  # how the target begins; empty for a model that goes on from its prompt
    prefix: tuple[int, ...] | None  # None: as the settings say
    limit: int  # tokens that may be written
    decode: Decode | None
    top: int  # likeliest tokens told at every step

    @property
    def rows(self) -> int:
        """Rows of the batch that it takes."""
        return rows_each(self.settings)

    @property
    def tokens(self) -> int:
        """The most that is held of it, read and written."""
        searched = self.settings.num_beams > 1
        read = len(self.ids) if searched else len(self.ids) * self.rows
        return read + self.rows * (len(self.starts) + self.limit)

    @property
    def read(self) -> int:
        """Tokens that stand before the first one written."""
        return len(self.starts) or len(self.ids)

    def shaping(self, vocab: int, device: torch.device) -> Shaping:
        """What the settings do to the scores, for this request's rows."""
        settings, rows = self.settings, self.rows
        prefix = self.prefix
        if prefix is None and settings.forced_bos_token_id is not None and len(self.starts) == 1:
            prefix = (settings.forced_bos_token_id,)
        least = max(settings.min_length - self.read, settings.min_new_tokens)
        return Shaping.of(
            settings,
            ends=torch.tensor(self.ends, dtype=torch.long, device=device),
            vocab=vocab,
            prefix=prefix or (),
            limits=torch.full((rows,), self.limit, device=device),
            least=torch.full((rows,), least, device=device),
            given=torch.tensor(self.starts or self.ids, device=device).expand(rows, -1),
        )


def asked(
    model: nn.Module,
    ids: Sequence[int] | Tensor,
    *,
    settings: Decoding,
    eos_id: int | Sequence[int] | None,
    start_ids: Sequence[int] | int | None,
    prefix: Sequence[int] | None,
    max_new_tokens: int | None,
    decode: Decode | None,
    top: int,
) -> Asked:
    """The request, or a sentence saying what is wrong with it."""
    check_stops(settings.stop, decode)
    if not 0 <= top <= MOST_TOP:
        raise GlassformerError(f"the likeliest tokens told at every step are 0 to {MOST_TOP}; got {top}")
    if top and settings.num_beams > 1:
        raise GlassformerError("beams settle on no token before the end; ask for no likeliest tokens there")
    given = tuple(ids.tolist() if isinstance(ids, Tensor) else ids)
    starts = tuple(decoder_start_ids(model, start_ids))
    read = torch.tensor([len(starts) or len(given)])
    limit = int(limits_of(settings, max_new_tokens, read, read)[0])
    if isinstance(model, InferenceModel):
        limit = min(limit, _room(model, given, starts))
        check_ids(settings, prefix, vocabulary(model))
    return Asked(
        ids=given,
        settings=settings,
        ends=(eos_id,) if isinstance(eos_id, int) else tuple(eos_id or ()),
        starts=starts,
        prefix=None if prefix is None else tuple(prefix),
        limit=limit,
        decode=decode,
        top=top,
    )


def vocabulary(model: InferenceModel) -> int:
    """How many tokens the model chooses from."""
    head: Any = model.model.head
    return int(head.weight.shape[0])


def _room(model: InferenceModel, given: Sequence[int], starts: Sequence[int]) -> int:
    """How many tokens the table of positions leaves room for; what cannot be read is refused."""
    inner = model.model
    if isinstance(inner, EncoderDecoder):
        if not starts:
            raise GlassformerError("nothing says how the target begins; give start_ids")
        _check(inner.src_embed, given, "source")
        _check(inner.tgt_embed, starts, "start")
        table, before = max_positions(inner.tgt_embed), len(starts)
    else:
        assert isinstance(inner, DecoderOnly)
        if starts:
            raise GlassformerError("a model without a source goes on from its prompt; put start_ids there")
        if not given:
            raise GlassformerError("a prompt is empty; begin it with the model's start token")
        _check(inner.embed, given, "prompt")
        table, before = max_positions(inner.embed), len(given)
    return 1 << 62 if table is None else max(0, table + 1 - before)


def _check(embed: nn.Module, ids: Sequence[int], what: str) -> None:
    """Every id must be one that the model reads, at a place that it knows."""
    assert isinstance(embed, TokenInput)
    vocab, table = embed.token.num_embeddings, max_positions(embed)
    wrong = next((one for one in ids if not 0 <= one < vocab), None)
    if wrong is not None:
        raise GlassformerError(f"the {what} holds the token {wrong}; the model reads tokens 0 to {vocab - 1}")
    if table is not None and len(ids) > table:
        raise GlassformerError(f"the {what} has {len(ids):,} tokens, and the model reads at most {table:,}")
