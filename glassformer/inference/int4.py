"""Linear layers with 4-bit weights: groups of 32 inputs share a scale and a minimum, as in llama.cpp's Q4_1.

Only the weights are quantized; products are computed in bfloat16 by torch's packed 4-bit kernels.

N rows, D features in, O features out, G groups.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from glassformer.inference.linear import UnfusedLinear, concatenate
from glassformer.inference.prepare import WeightAndBias

GROUP = 32  # inputs per scale
MAX_ROWS = 16  # per call on a CPU; the time per row grows with more
TILES = 2  # of 16 inputs, in the packed layout for CUDA


def quantize_int4(weight: Tensor, group: int = GROUP) -> tuple[Tensor, Tensor]:
    """Quantize a weight (O, D) to integers from 0 to 15, and a scale and zero point per group (G, O, 2).

    An entry stands for (integer - 8) * scale + zero.

    >>> weight = torch.linspace(-1, 1, 64).view(2, 32)
    >>> bool((dequantize_int4(*quantize_int4(weight)) - weight).abs().max() <= 1 / 30 + 1e-6)
    True
    """
    grouped = weight.detach().float().unflatten(1, (-1, group))  # (O, G, group)
    low, high = grouped.amin(-1), grouped.amax(-1)
    scale = ((high - low) / 15).clamp(min=1e-8)
    integers = ((grouped - low[..., None]) / scale[..., None]).round().clamp(0, 15).to(torch.int32)
    return integers.flatten(1), torch.stack((scale, low + 8 * scale), -1).transpose(0, 1).contiguous()


def dequantize_int4(integers: Tensor, scales: Tensor) -> Tensor:
    """Return the float32 weight (O, D) of the result of `quantize_int4`."""
    scale, zero = scales.float().transpose(0, 1).unbind(-1)  # (O, G)
    grouped = (integers.unflatten(1, (scale.shape[1], -1)) - 8).float()
    return (grouped * scale[..., None] + zero[..., None]).flatten(1)


def fits_int4(weight: Tensor) -> bool:
    """Whether the packed kernels support the shape of a weight (O, D)."""
    out, width = weight.shape
    return out % 16 == 0 and width % (16 * TILES) == 0 and width % GROUP == 0


class Int4Linear(UnfusedLinear):
    """Linear layer with 4-bit weights: half the memory of int8."""

    def __init__(self, parts: Sequence[WeightAndBias]) -> None:
        weight, bias = concatenate(parts)
        self.bias = None if bias is None else bias.detach()
        with torch.inference_mode(False):
            integers, scales = quantize_int4(weight)
            self.scales = scales.to(torch.bfloat16)
            if weight.is_cuda:  # takes two integers per byte
                pairs = (integers[:, ::2] << 4 | integers[:, 1::2]).to(torch.uint8)
                self.packed = torch.ops.aten._convert_weight_to_int4pack(pairs, TILES)
            else:
                self.packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(integers, 1)

    def product(self, x: Tensor) -> Tensor:
        rows = x.to(torch.bfloat16).contiguous()
        if x.is_cuda:
            y: Tensor = torch.ops.aten._weight_int4pack_mm(rows, self.packed, GROUP, self.scales)
        else:
            run = torch.ops.aten._weight_int4pack_mm_for_cpu
            y = torch.cat([run(part, self.packed, GROUP, self.scales) for part in rows.split(MAX_ROWS)])
        y = y.to(x.dtype)
        return y if self.bias is None else y + self.bias
