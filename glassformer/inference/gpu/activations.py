"""The activations, as part of a kernel."""

from __future__ import annotations

from typing import Literal, get_args

import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]

from glassformer.errors import GlassformerError

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "tanh"]


def check(name: str | None) -> None:
    known = get_args(Activation)
    if name is not None and name not in known:
        raise GlassformerError(f"a product knows no activation {name!r}; choose one of {', '.join(known)}")


@triton.jit
def activated(x, NAME: tl.constexpr):
    """x (float32) bent by the activation of that name; None leaves it straight."""
    if NAME == "relu":
        x = tl.maximum(x, 0.0)
    elif NAME == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif NAME == "gelu_tanh":
        # (1 + tanh u) / 2 = sigmoid(2u)
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif NAME == "silu":
        x = x * tl.sigmoid(x)
    elif NAME == "quick_gelu":
        x = x * tl.sigmoid(1.702 * x)
    elif NAME == "tanh":
        x = 2.0 * tl.sigmoid(2.0 * x) - 1.0
    return x
