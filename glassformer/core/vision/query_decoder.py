"""An encoder-decoder with object queries: each query predicts one object of an image.

B batch, Q object queries, D d_model.
"""

from __future__ import annotations

from torch import Tensor

from glassformer.core.heads import HeadContext
from glassformer.core.inputs import MaskLike, Masks, Memory, ModelInputs, TextInputs, embed_inputs, tensor_of
from glassformer.core.kernels import Kernel
from glassformer.core.model import EncoderDecoder
from glassformer.core.observe import Observer, scope


class QueryDecoder(EncoderDecoder):
    """Encoder-decoder whose decoder refines trained object queries, all at once.

    >>> import torch
    >>> from glassformer.core import spec
    >>> from glassformer.core.build import build_model
    >>> attention, ffn = spec.AttentionSpec(num_heads=2), spec.FeedForwardSpec(d_ff=32)
    >>> block = spec.BlockSpec(attention=attention, cross_attention=attention, feed_forward=ffn)
    >>> resnet = spec.ResNetSpec(stem_width=8, widths=(8, 16, 16, 32), depths=(1, 1, 1, 1), layer="basic")
    >>> model = build_model(spec.EncoderDecoderSpec(
    ...     source=spec.FeatureMapSpec(backbone=resnet), target=spec.ObjectQueriesSpec(num_queries=7),
    ...     encoder=spec.StackSpec(d_model=16, num_layers=1, block=spec.BlockSpec(
    ...         attention=attention, feed_forward=ffn)),
    ...     decoder=spec.StackSpec(d_model=16, num_layers=1, block=block), head=spec.BoxesSpec(num_labels=5)))
    >>> model(torch.randn(2, 3, 64, 96)).boxes.shape
    torch.Size([2, 7, 4])
    """

    def hidden_states(
        self,
        src: ModelInputs,
        tgt: Tensor | TextInputs | None = None,
        *masks: Masks | MaskLike,
        kernel: Kernel = "auto",
        obs: Observer | None = None,
    ) -> tuple[Tensor, HeadContext]:
        """Images (B, C, height, width) -> the last hidden states of the queries (B, Q, D).

        The context holds those of all earlier layers, for training.
        """
        source = embed_inputs(self.src_embed, src, obs=scope(obs, "src_embed"))
        x = self.encoder(source, kernel=kernel, obs=scope(obs, "encoder"))
        memory = Memory(x, source.mask, source.position_embeddings)
        queries = self.tgt_embed(len(tensor_of(src)), obs=scope(obs, "tgt_embed"))
        decoder = scope(obs, "decoder")
        if not self.training:
            return self.decoder(queries, memory, kernel=kernel, obs=decoder), HeadContext()
        _, *states = self.decoder.layer_outputs(queries, memory, kernel=kernel, obs=decoder)
        *earlier, last = (self.decoder.finish(state.x) for state in states)
        return last, HeadContext(layers=tuple(earlier))
