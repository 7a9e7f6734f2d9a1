"""Attention over a 2-D grid for inference: fused linear layers, and on a GPU one kernel for small windows."""

from __future__ import annotations

from functools import cached_property

from torch import Tensor

from glassformer.core import spec as specs
from glassformer.core.attention import AttentionBackend
from glassformer.core.vision.attention import GridAttention, RelativeBias2d, WindowAttention, WindowLayout
from glassformer.inference.prepare import FusedAttention, has_triton


class FusedGridAttention(FusedAttention, GridAttention):
    """Attention over a 2-D grid whose projections are fused linear layers."""

    def forward(  # type: ignore[override]
        self, x: Tensor, attend: AttentionBackend, *, residual: Tensor | None = None, obs: None = None
    ) -> Tensor:
        layout = attend.layout if isinstance(attend, WindowAttention) else None
        if not self.has_kernel or not isinstance(layout, WindowLayout) or layout.padded != layout.grid:
            return super().forward(x, attend, residual=residual)
        from glassformer.inference.gpu.window_attention import window_attention

        assert isinstance(self.position_bias, RelativeBias2d)
        bias = self.position_bias(x, layout.grid)[0]
        joined = window_attention(self.qkv(x), bias, layout, self.scale)
        return self.out(joined, residual=residual)

    @cached_property
    def has_kernel(self) -> bool:
        """Whether one kernel can compute this attention: small windows, a bias that does not depend on q."""
        window = self.spatial_window
        plain = self.q_norm is None and self.softcap is None and self.num_heads == self.num_kv_heads
        plain = (
            plain and self.head_dim == self.value_dim <= 64 and isinstance(self.position_bias, RelativeBias2d)
        )
        small = isinstance(window, specs.WindowSpec) and window.size <= 8
        return plain and small and self.q_proj.weight.is_cuda and has_triton()
