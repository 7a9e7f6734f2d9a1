"""One request, checked: what is read, how it is written, and what that takes at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.core.embeddings import TokenInput
from glassformer.core.model import DecoderOnly, EncoderDecoder
from glassformer.errors import (
    ConflictError,
    EmptyInputError,
    InputTooLongError,
    InvalidValueError,
    MissingValueError,
)
from glassformer.generation.config import GenerationConfig
from glassformer.generation.decoder import decoder_start_ids
from glassformer.generation.inference_model import InferenceModel, max_positions
from glassformer.generation.request import GenerationRequest
from glassformer.generation.shaping import Shaping


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What `generate` would be given for one row."""

    ids: tuple[int, ...]  # of the source or the prompt
    request: GenerationRequest
    starts: tuple[int, ...]  # how the target begins; empty for a model that goes on from its prompt
    limit: int  # tokens that may be written

    @property
    def settings(self) -> GenerationConfig:
        return self.request.config

    @property
    def rows(self) -> int:
        """Rows of the batch that it takes."""
        return self.settings.rows

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
        return Shaping.of(
            settings,
            ends=torch.tensor(self.request.eos_ids, dtype=torch.long, device=device),
            vocab=vocab,
            prefix=self.request.prefix(self.starts),
            limits=torch.full((rows,), self.limit, device=device),
            least=torch.full((rows,), self.request.min_new_tokens(self.read), device=device),
            given=torch.tensor(self.starts or self.ids, device=device).expand(rows, -1),
        )


def asked(model: nn.Module, ids: Sequence[int] | Tensor, request: GenerationRequest) -> Asked:
    """The request for these ids, checked against the model."""
    given = tuple(ids.tolist() if isinstance(ids, Tensor) else ids)
    starts = tuple(decoder_start_ids(model, request.start_ids))
    limit = request.limit(len(given), len(starts) or len(given))
    if isinstance(model, InferenceModel):
        limit = min(limit, _room(model, given, starts))
        request.check_forced_ids(vocabulary(model))
    return Asked(ids=given, request=request, starts=starts, limit=limit)


def vocabulary(model: InferenceModel) -> int:
    """How many tokens the model chooses from."""
    head: Any = model.model.head
    return int(head.weight.shape[0])


def _room(model: InferenceModel, given: Sequence[int], starts: Sequence[int]) -> int:
    """How many tokens the table of positions leaves room for; what cannot be read is refused."""
    inner = model.model
    if isinstance(inner, EncoderDecoder):
        if not starts:
            raise MissingValueError("start_ids", "to start the decoder")
        _check(inner.src_embed, given, "source")
        _check(inner.tgt_embed, starts, "start")
        table, before = max_positions(inner.tgt_embed), len(starts)
    else:
        assert isinstance(inner, DecoderOnly)
        if starts:
            raise ConflictError(("start_ids", "prompt"), "a decoder-only model continues its prompt")
        if not given:
            raise EmptyInputError("prompt", hint="begin it with the model's start token")
        _check(inner.embed, given, "prompt")
        table, before = max_positions(inner.embed), len(given)
    return 1 << 62 if table is None else max(0, table + 1 - before)


def _check(embed: nn.Module, ids: Sequence[int], what: str) -> None:
    """Every id must be one that the model reads, at a place that it knows."""
    assert isinstance(embed, TokenInput)
    vocab, table = embed.token.num_embeddings, max_positions(embed)
    wrong = next((one for one in ids if not 0 <= one < vocab), None)
    if wrong is not None:
        raise InvalidValueError(f"token of the {what}", wrong, f"a token id from 0 to {vocab - 1}")
    if table is not None and len(ids) > table:
        raise InputTooLongError(len(ids), table)
