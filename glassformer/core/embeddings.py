"""Input embeddings (B, T, D) of token ids or vectors.

B batch, T positions, D d_model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from glassformer.core.backend import Dropout, normal_table
from glassformer.core.masks import Mask
from glassformer.core.observe import Observer, tap
from glassformer.core.positions import Grid, LearnedPositions, SinusoidalPositions
from glassformer.errors import InvalidValueError, ShapeError, UnsupportedError

if TYPE_CHECKING:
    from glassformer.core.inputs import Memory, TextInputs


class EmbeddingOutput(NamedTuple):
    """Embedded vectors (B, T, D), and what the layers and the head need to know about them.

    mask: which of them may be attended to.
    positions: position ids (B|1, T), if they are not counted from the first vector on.
    grid: rows and columns of image patches, which come after the prefix tokens.
    position_embeddings: (B|1, T, D), added to the inputs of queries and keys of every layer.
    layer_positions: (layers - 1, 1, T, D), added to the outputs of the layers but the last.
    condition: (B, C), read by adaptive norms.
    memory: what cross-attention of the stack attends to, if the input brings it along.
    loc, scale: shift and scale of a series, which the head reverts.
    """

    x: Tensor
    mask: Mask
    positions: Tensor | None = None
    grid: Grid | None = None
    position_embeddings: Tensor | None = None
    layer_positions: Tensor | None = None
    condition: Tensor | None = None
    memory: Memory | None = None
    loc: Tensor | None = None
    scale: Tensor | None = None

    @classmethod
    def of(
        cls, x: Tensor | EmbeddingOutput, mask: Mask | Tensor | None = None, name: str = "mask"
    ) -> EmbeddingOutput:
        """Return vectors (B, T, D) with a mask, unless they already have what belongs to them."""
        return x if isinstance(x, EmbeddingOutput) else cls(x, Mask.of(mask, name))


class TokenInput(nn.Module):
    """Embed tokens: token embeddings times `scale`, plus positions and token types; then norm and dropout.

    embedding_dim: width of the embeddings, if a dense layer projects them to d_model; None: d_model

    >>> TokenInput(16, vocab_size=100)(torch.tensor([[5, 7, 9]])).x.shape
    torch.Size([1, 3, 16])
    """

    def __init__(
        self,
        d_model: int,
        *,
        vocab_size: int,
        embedding_dim: int | None = None,
        scale: float = 1.0,
        position: SinusoidalPositions | LearnedPositions | None = None,
        types: int | None = None,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
        pad_id: int | None = None,
    ) -> None:
        super().__init__()
        self.scale, self.pad_id = scale, pad_id
        width = embedding_dim or d_model
        self.token = nn.Embedding(vocab_size, width, _weight=normal_table(vocab_size, width))
        self.position = position
        self.kind = nn.Embedding(types, width, _weight=normal_table(types, width)) if types else None
        self.norm = norm
        self.dropout = Dropout(dropout)
        self.project = nn.Linear(embedding_dim, d_model) if embedding_dim else None

    def forward(
        self,
        ids: Tensor,
        *,
        positions: Tensor | None = None,
        last: int | None = None,
        types: Tensor | None = None,
        obs: Observer | None = None,
    ) -> EmbeddingOutput:
        """Embed ids (B, T) with positions and types (B|1, T) -> (B, T, D).

        last: an upper bound of the positions, if known.
        """
        return self.embed_vectors(
            self.token_vectors(ids), positions=positions, last=last, types=types, obs=obs
        )

    def embed_text(
        self, text: TextInputs, *, last: int | None = None, obs: Observer | None = None
    ) -> EmbeddingOutput:
        """Do the same as `forward` with the ids of a text and what belongs to them."""
        return self(text.ids, positions=text.positions, last=last, types=text.types, obs=obs)  # type: ignore[no-any-return]

    def token_vectors(self, ids: Tensor) -> Tensor:
        """Return the scaled token embeddings (B, T, W) of ids (B, T)."""
        _check_ids(ids, self.token.num_embeddings)
        x: Tensor = self.token(ids)
        return x if self.scale == 1.0 else x * self.scale

    def embed_vectors(
        self,
        x: Tensor,
        *,
        positions: Tensor | None = None,
        last: int | None = None,
        types: Tensor | None = None,
        obs: Observer | None = None,
    ) -> EmbeddingOutput:
        """Do the same as `forward` with vectors (B, T, W) in place of scaled token embeddings."""
        x = tap(obs, "token", x)
        if self.position is not None:
            if positions is None:
                positions = torch.arange(x.shape[1], device=x.device)[None]
            x = x + tap(obs, "position", self.position(positions, last)).to(x.dtype)
        if self.kind is not None:
            token_types = x.new_zeros(x.shape[:2], dtype=torch.long) if types is None else types
            _check_types(token_types, x.shape[:2], self.kind.num_embeddings)
            x = x + tap(obs, "kind", self.kind(token_types))
        elif types is not None:
            raise UnsupportedError("this model", "token types", hint="leave `types` out")
        if self.norm is not None:
            x = tap(obs, "norm", self.norm(x))
        x = self.dropout(x)
        return EmbeddingOutput(tap(obs, "out", x if self.project is None else self.project(x)), Mask())


def check_token_ids(ids: Tensor) -> None:
    """Raise unless `ids` are integer token ids (B, T)."""
    if not isinstance(ids, Tensor):
        hint = "convert them with torch.tensor(ids)"
        raise InvalidValueError("ids", type(ids).__name__, "a tensor of token ids", hint)
    if ids.dtype not in (torch.int64, torch.int32):
        hint = "convert them with ids.long()" if ids.dim() == 2 else "the model embeds the ids itself"
        raise InvalidValueError("ids.dtype", str(ids.dtype), "integers, the token ids", hint)
    if ids.dim() != 2:
        raise ShapeError("ids", ids.shape, "(B, T), a row for each sentence", hint="ids[None] adds the batch")


def check_vectors(name: str, x: Tensor, width: int) -> None:
    """Raise unless x are vectors (B, T, width)."""
    shape = x.shape
    if len(shape) != 3 or shape[2] != width or not x.is_floating_point():
        raise ShapeError(name, x.shape, f"vectors (B, T, {width})", hint="embed token ids first")


def _check_ids(ids: Tensor, vocab_size: int) -> None:
    """Raise if an id is out of range; on a GPU values are not checked, to avoid a synchronization."""
    check_token_ids(ids)
    if ids.is_cpu and ids.numel() and not torch.compiler.is_compiling():
        low, high = (int(v) for v in ids.aminmax())
        if low < 0 or high >= vocab_size:
            wrong = low if low < 0 else high
            raise InvalidValueError(
                "token id",
                wrong,
                f"0 to {vocab_size - 1}",
                hint="use the tokenizer of this model, or build the model with a larger vocabulary",
            )


def _check_types(types: Tensor, shape: torch.Size, count: int) -> None:
    """Raise if the token types do not match the ids; their values are checked only on a CPU."""
    fits = types.shape in (shape, (1, shape[1])) and types.dtype in (torch.int64, torch.int32)
    if fits and types.is_cpu and types.numel() and not torch.compiler.is_compiling():
        low, high = (int(v) for v in types.aminmax())
        fits = low >= 0 and high < count
    if not fits:
        expected = f"integers from 0 to {count - 1} in the shape of the ids {tuple(shape)}"
        raise ShapeError("types", types.shape, expected)


class VectorInput(nn.Module):
    """Vectors (B, T, D), used unchanged."""

    def forward(self, x: Tensor, *, obs: Observer | None = None) -> EmbeddingOutput:
        return EmbeddingOutput(tap(obs, "out", x), Mask())
