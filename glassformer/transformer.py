"""The Transformer, part by part, under the names that every chapter about it uses.

Each class is a part of `glassformer.core` with the chapter's constructor and call: `Transformer` is an
`EncoderDecoder`, `Encoder` and `Decoder` are a `Stack`, and the layers a `Block`.

In every mask, true or 1 means *may attend*; a float mask of other numbers, such as -inf, is added to the
scores. Masks are (B, 1|H, 1|T, S), (B, 1|T, S) or (T, S); as `src_mask` and `memory_mask`, a 2-D mask is the
padding (B, S) of the source. A query that may attend to no key gives zeros.

B batch, T queries or target positions, S keys or source positions, D d_model, H heads, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from glassformer.core.attention import MultiHeadAttention
from glassformer.core.backend import Dropout
from glassformer.core.block import Block, LayerContext
from glassformer.core.build import embeddings_and_head, initialize
from glassformer.core.embeddings import EmbeddingOutput, check_vectors
from glassformer.core.feedforward import FeedForward
from glassformer.core.inputs import MaskLike, Masks, Memory, TextInputs
from glassformer.core.kernels import attend
from glassformer.core.masks import Mask
from glassformer.core.model import EncoderDecoder
from glassformer.core.norms import LayerNorm
from glassformer.core.observe import Observer, run_with_weights
from glassformer.core.positions import sinusoids
from glassformer.core.stack import Stack
from glassformer.errors import ExplainsArguments, InputTooLongError, InvalidValueError, ShapeError
from glassformer.families.original import Activation, original

Vectors = Tensor | EmbeddingOutput
LayerMask = MaskLike | LayerContext


class PositionalEncoding(ExplainsArguments, nn.Module):
    """Sine waves on even and cosine waves on odd dimensions, added to x: (B, T, D) -> (B, T, D).

    PE(pos, 2i) = sin(pos / 10000^(2i/D)) and PE(pos, 2i+1) = cos(pos / 10000^(2i/D)). The table `pe`
    (1, max_len, D) is a buffer: it is saved and moved with the model, but not trained.

    max_len, dropout: number of positions, and dropout rate of the sum

    >>> PositionalEncoding(4)(torch.zeros(1, 2, 4)).round(decimals=2).tolist()
    [[[0.0, 1.0, 0.0, 1.0], [0.8399999737739563, 0.5400000214576721, 0.009999999776482582, 1.0]]]
    """

    def __init__(self, d_model: int, max_len: int = 5000, *, dropout: float = 0.0) -> None:
        super().__init__()
        if not isinstance(max_len, int) or max_len < 1:
            raise InvalidValueError("max_len", max_len, "an integer above 0", hint="pass dropout by keyword")
        self.pe: torch.Tensor
        self.register_buffer("pe", sinusoids(max_len, d_model)[None])
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        _, max_len, d_model = self.pe.shape
        check_vectors("x", x, d_model)
        if x.shape[1] > max_len:
            raise InputTooLongError(x.shape[1], max_len, "positions", "shorten it, or set a larger max_len")
        out: Tensor = self.dropout(x + self.pe[:, : x.shape[1]].to(x.dtype))
        return out


class ScaledDotProductAttention(ExplainsArguments, nn.Module):
    """softmax(Q K^T / sqrt(d_k)) V: Q (..., T, d_k), K (..., S, d_k), V (..., S, d_v) -> (output, weights).

    The softmax runs over the keys: each row of the weights (..., T, S) sums to 1.

    >>> Q, K, V = torch.randn(2, 5, 8), torch.randn(2, 7, 8), torch.randn(2, 7, 12)
    >>> output, weights = ScaledDotProductAttention()(Q, K, V)
    >>> output.shape, weights.shape
    (torch.Size([2, 5, 12]), torch.Size([2, 5, 7]))
    """

    def __init__(self) -> None:
        super().__init__()

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: MaskLike = None) -> tuple[Tensor, Tensor]:
        if K.shape[:-1] != V.shape[:-1] or (K.shape[:-2], K.shape[-1]) != (Q.shape[:-2], Q.shape[-1]):
            raise ShapeError("K", K.shape, f"(..., S, d_k) for Q {tuple(Q.shape)} and V {tuple(V.shape)}")
        lead = {2: (None, None), 3: (slice(None), None)}.get(Q.dim(), ())
        steps: dict[str, Tensor] = {}  # the scores and the weights (B, H, T, S)
        output = attend(Q[lead], K[lead], V[lead], mask=mask, kernel="explicit", edit=steps.setdefault)
        return output.view(*Q.shape[:-1], -1), steps["weights"].view(*Q.shape[:-1], -1)


class FeedForwardNetwork(ExplainsArguments, FeedForward):
    """Two linear layers with an activation, for each position: x (B, T, D) -> (B, T, d_ff) -> (B, T, D).

    activation: "relu", "gelu", or "swiglu": silu(gate(x)) * up(x) as the hidden layer, without biases

    >>> FeedForwardNetwork(16, 64)(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(
        self, d_model: int, d_ff: int, dropout: float = 0.1, *, activation: Activation = "relu"
    ) -> None:
        if activation == "swiglu":
            super().__init__(d_model, d_ff, activation="silu", gated=True, biases=(), dropout=dropout)
        else:
            super().__init__(d_model, d_ff, activation=activation, dropout=dropout)


class _Layer(ExplainsArguments, Block):
    has_cross_attention = False

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout: float = 0.1,
        *,
        norm_first: bool = False,
        activation: Activation = "relu",
    ) -> None:
        super().__init__(
            self_attn=MultiHeadAttention(d_model, num_heads),
            cross_attn=MultiHeadAttention(d_model, num_heads) if self.has_cross_attention else None,
            ffn=FeedForwardNetwork(d_model, d_ff, dropout=0.0, activation=activation),
            norm=lambda: LayerNorm(d_model),
            wiring="pre" if norm_first else "post",
            dropout=dropout,
        )


class EncoderLayer(_Layer):
    """Self-attention, then feed-forward, each with add & norm: x (B, S, D) -> (B, S, D).

    dropout: dropout rate of the output of each sublayer, as in the paper
    norm_first: compute x + f(norm(x)) instead of the paper's norm(x + f(x))
    activation: activation of the feed-forward network

    >>> layer, x, mask = EncoderLayer(16, 4, 64), torch.randn(2, 5, 16), torch.ones(2, 1, 1, 5)
    >>> out, weights = layer(x, mask, return_weights=True)
    >>> out.shape, weights.shape                                              # (B, S, D), (B, H, S, S)
    (torch.Size([2, 5, 16]), torch.Size([2, 4, 5, 5]))
    """

    def forward(
        self, x: Tensor, mask: LayerMask = None, *, return_weights: bool = False, obs: Observer | None = None
    ) -> Any:
        if return_weights:
            out, weights = run_with_weights(self, x, mask)
            return out, weights[0]
        context = mask if isinstance(mask, LayerContext) else self.prepare(x, mask)._replace(obs=obs)
        return super().forward(x, context)


class DecoderLayer(_Layer):
    """Masked self-attention, cross-attention, feed-forward: x (B, T, D), enc_output (B, S, D) -> (B, T, D).

    Self-attention is causal, unless a `tgt_mask` says for each query which keys it may attend to. The
    arguments are those of `EncoderLayer`.

    >>> DecoderLayer(16, 4, 64)(torch.randn(2, 5, 16), torch.randn(2, 7, 16)).shape
    torch.Size([2, 5, 16])
    """

    has_cross_attention = True

    def forward(
        self,
        x: Tensor,
        enc_output: Tensor | LayerContext,
        tgt_mask: MaskLike = None,
        memory_mask: MaskLike = None,
        *,
        obs: Observer | None = None,
    ) -> Tensor:
        if isinstance(enc_output, LayerContext):
            return super().forward(x, enc_output)
        memory = Memory.of(enc_output, memory_mask)
        context = self.prepare(x, Mask.of(tgt_mask, "tgt_mask").with_causal(), memory)
        return super().forward(x, context._replace(obs=obs))


class _Layers(ExplainsArguments, Stack):
    layer: type[_Layer] = EncoderLayer

    def __init__(
        self, d_model: int, num_heads: int, d_ff: int, num_layers: int, dropout: float = 0.1, **options: Any
    ) -> None:
        layers = [self.layer(d_model, num_heads, d_ff, dropout, **options) for _ in range(num_layers)]
        final_norm = LayerNorm(d_model) if options.get("norm_first") else None
        super().__init__(layers, causal=self.layer.has_cross_attention, final_norm=final_norm)


class Encoder(_Layers):
    """A stack of encoder layers: x (B, S, D) -> (B, S, D). Positions are added outside.

    options: as in `EncoderLayer`. With `return_weights=True`, a call returns (x, [weights of each layer]).

    >>> Encoder(16, 4, 64, num_layers=2)(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    def forward(  # type: ignore[override]
        self, x: Vectors, mask: MaskLike = None, *, return_weights: bool = False, **options: Any
    ) -> Any:
        source = EmbeddingOutput.of(x, mask)
        forward = super().forward
        return run_with_weights(forward, source) if return_weights else forward(source, **options)


class Decoder(_Layers):
    """A stack of decoder layers: x (B, T, D), enc_output (B, S, D) -> (B, T, D). Positions are added outside.

    The decoder is causal without a `tgt_mask`. The arguments are those of `Encoder`.

    >>> Decoder(16, 4, 64, num_layers=2)(torch.randn(2, 5, 16), torch.randn(2, 7, 16)).shape
    torch.Size([2, 5, 16])
    """

    layer = DecoderLayer

    def forward(  # type: ignore[override]
        self,
        x: Vectors,
        enc_output: Tensor | Memory | None = None,
        tgt_mask: MaskLike = None,
        memory_mask: MaskLike = None,
        **options: Any,
    ) -> Tensor:
        source = EmbeddingOutput.of(x, tgt_mask, "tgt_mask")
        memory = None if enc_output is None else Memory.of(enc_output, memory_mask)
        return super().forward(source, memory, **options)


class TransformerEncoderBlock(EncoderLayer):
    """The encoder layer of today: pre-norm, with GELU.

    >>> TransformerEncoderBlock(16, 4, 64)(torch.randn(2, 5, 16)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(
        self, d_model: int = 512, num_heads: int = 8, d_ff: int = 2048, dropout: float = 0.1
    ) -> None:
        super().__init__(d_model, num_heads, d_ff, dropout, norm_first=True, activation="gelu")


class TransformerEncoder(Encoder):
    """The encoder of today: adds positions to x (B, S, D), then pre-norm layers with GELU and a final norm.

    >>> encoder = TransformerEncoder(16, 4, 64, num_layers=2)
    >>> x, weights = encoder(torch.randn(2, 5, 16), return_weights=True)
    >>> x.shape, len(weights), weights[0].shape
    (torch.Size([2, 5, 16]), 2, torch.Size([2, 4, 5, 5]))
    """

    def __init__(
        self,
        d_model: int = 512,
        num_heads: int = 8,
        d_ff: int = 2048,
        num_layers: int = 6,
        max_len: int = 5000,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(d_model, num_heads, d_ff, num_layers, dropout, norm_first=True, activation="gelu")
        self.positional_encoding = PositionalEncoding(d_model, max_len, dropout=dropout)

    def forward(self, x: Tensor, mask: MaskLike = None, **options: Any) -> Any:  # type: ignore[override]
        return super().forward(self.positional_encoding(x), mask, **options)


class Transformer(ExplainsArguments, EncoderDecoder):
    """The Transformer of "Attention Is All You Need": token ids -> logits of each next target token.

        x = dropout(sqrt(d_model) * embedding(src) + positions)
        memory = encoder(x, src_mask)
        y = dropout(sqrt(d_model) * embedding(tgt) + positions)
        logits = linear(decoder(y, memory, tgt_mask, memory_mask))

    The defaults are the paper's base model, which has 63 million parameters with `tied=True`.
    `glassformer.observe(model, (src, tgt))` records every tensor inside, `glassformer.save` saves the model.

    d_model, d_ff: width of the vectors between the layers, and of the hidden layer of a feed-forward network
    num_heads, num_layers: number of heads of an attention, and of layers of the encoder and of the decoder
    src_vocab_size, tgt_vocab_size, max_len: number of token ids, and largest number of tokens of a sequence
    dropout: dropout rate of the embeddings plus positions, and of the output of each sublayer
    norm_first, activation: as in `EncoderLayer`
    tied: whether source embedding, target embedding and output layer share one table, as in the paper
    pad_token_id: id that is masked where no mask is given; None: no id
    bos_token_id, eos_token_id: ids with which `generate` starts and ends a target

    >>> model = Transformer(16, 4, 64, num_layers=2, src_vocab_size=50, tgt_vocab_size=40)
    >>> src, tgt = torch.randint(3, 50, (2, 7)), torch.randint(3, 40, (2, 5))
    >>> model(src, tgt).shape                                                 # (B, T, V)
    torch.Size([2, 5, 40])
    >>> len(model.generate(src, max_new_tokens=4))                            # lists of ids, until the end
    2
    """

    def __init__(
        self,
        d_model: int = 512,
        num_heads: int = 8,
        d_ff: int = 2048,
        num_layers: int = 6,
        src_vocab_size: int = 37000,
        tgt_vocab_size: int = 37000,
        max_len: int = 5000,
        dropout: float = 0.1,
        *,
        norm_first: bool = False,
        activation: Activation = "relu",
        tied: bool = False,
        pad_token_id: int | None = 0,
        bos_token_id: int = 1,
        eos_token_id: int = 2,
    ) -> None:
        if num_heads > d_ff or num_heads == d_model > 1:
            raise InvalidValueError("num_heads", num_heads, "fewer than d_ff", "pass the sizes by keyword")
        sizes = (d_model, num_heads, d_ff, num_layers)
        spec = original(
            *(*sizes, src_vocab_size, tgt_vocab_size, max_len, dropout),
            pad_id=pad_token_id,
            start_id=bos_token_id,
            end_id=eos_token_id,
            norm="pre" if norm_first else "post",
            activation=activation,
            tied=("source", "head") if tied else (),
        )
        encoder = Encoder(*sizes, dropout, norm_first=norm_first, activation=activation)
        decoder = Decoder(*sizes, dropout, norm_first=norm_first, activation=activation)
        super().__init__(spec, encoder=encoder, decoder=decoder, **embeddings_and_head(spec))
        initialize(self, spec.init)

    def forward(  # type: ignore[override]
        self,
        src: Tensor | TextInputs,
        tgt: Tensor | TextInputs,
        src_mask: MaskLike | Masks = None,
        tgt_mask: MaskLike = None,
        memory_mask: MaskLike = None,
        **options: Any,
    ) -> Tensor:
        """src (B, S), tgt (B, T) -> logits (B, T, V) of each next target token."""
        logits: Tensor = super().forward(src, tgt, src_mask, tgt_mask, memory_mask, **options)
        return logits
