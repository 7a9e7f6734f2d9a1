"""Weight tables convert in both directions; mismatches are reported together."""

import pytest
import torch
from torch import Tensor

from glassformer.weights.convert import WeightsMismatchError, WeightTable, to_ours, to_theirs
from glassformer.weights.ops import (
    Computed,
    Ignored,
    Rename,
    Split,
    Tied,
    Transpose,
    add_prefix,
    expand,
)

D, V, LAYERS = 4, 7, 2


def table(*base: str) -> WeightTable:
    layers = expand(
        (
            Rename("h.{i}.ln.{p}", "blocks.{i}.norm.{p}"),
            Split("h.{i}.c_attn.{p}", "blocks.{i}.{q,k,v}_proj.{p}", sizes=(D, D, D), transpose=True),
            Transpose("h.{i}.c_proj.{p}", "blocks.{i}.out_proj.{p}"),
            Ignored("h.*.mask"),
        ),
        i=LAYERS,
        p=("weight", "bias"),
    )
    around = (
        Tied(("{base}wte.weight", "head.weight"), "embed.weight"),
        Computed("{base}sines", "sines"),
    )
    return WeightTable(add_prefix("{base}", "", layers) + around, base=base)


def published(prefix: str) -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (V, D)}
    for i in range(LAYERS):
        shapes |= {
            f"h.{i}.ln.weight": (D,),
            f"h.{i}.ln.bias": (D,),
            f"h.{i}.c_attn.weight": (D, 3 * D),
            f"h.{i}.c_attn.bias": (3 * D,),
            f"h.{i}.c_proj.weight": (D, D),
            f"h.{i}.c_proj.bias": (D,),
        }
    return {prefix + name: torch.randn(shape) for name, shape in shapes.items()}


def expected() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (V, D), "sines": (3, D)}
    for i in range(LAYERS):
        for name in ("norm", "q_proj", "k_proj", "v_proj", "out_proj"):
            shapes[f"blocks.{i}.{name}.weight"] = (D,) if name == "norm" else (D, D)
            shapes[f"blocks.{i}.{name}.bias"] = (D,)
    return shapes


def test_mismatch_names_every_tensor() -> None:
    source = published("")
    del source["h.1.c_attn.weight"], source["h.0.ln.bias"]
    source |= {f"extra.{i}": torch.zeros(1) for i in range(5)}
    source["h.0.c_attn.weight"] = torch.zeros(D, 3 * D + 1)
    source["h.0.c_proj.bias"] = torch.zeros(D, 1, 1)
    with pytest.raises(WeightsMismatchError) as caught:
        to_ours(source, table(""), expected(), where="X")
    error = caught.value
    assert error.missing == ["h.0.ln.bias", "h.1.c_attn.weight"]
    assert error.unexpected == [f"extra.{i}" for i in range(5)]
    assert [text.split()[0] for text in error.wrong_shapes] == ["h.0.c_attn.weight", "h.0.c_proj.bias"]


def test_unmapped_tensors_are_rejected() -> None:
    with pytest.raises(ValueError):
        to_theirs({"odd": torch.zeros(1)}, table(""))
    with pytest.raises(WeightsMismatchError):
        to_ours(published(""), table(""), expected() | {"head.bias": (V,)}, where="X")
