"""Weight operations are reversible, and views stay views."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from glassformer.errors import ConflictError
from glassformer.weights.ops import (
    Computed,
    Concat,
    Op,
    PermuteRotary,
    Rename,
    Reshape,
    Split,
    SplitGroups,
    Tied,
    Transpose,
)

small = st.integers(1, 4)
QKV = "{q,k,v}"


@st.composite
def rows(draw: st.DrawFn) -> tuple[Op, list[tuple[int, ...]]]:
    """An operation and the shapes of theirs it takes."""
    a, b, c, d = (draw(small) for _ in range(4))
    bias = draw(st.booleans())
    matrix = (a, b) if not bias else (a,)
    sizes = tuple(draw(st.lists(st.integers(0, 4), min_size=3, max_size=3)))
    pairs = draw(st.integers(0, c))
    heads = draw(
        st.sampled_from([(a * 2 * c, b), (a * 2 * c,), (a, 2 * c)])
    )  # a weight, a bias, a norm per head
    turned = draw(st.booleans())
    total = sum(sizes)
    fused = (total,) if bias else ((b, total) if turned else (total, b))
    grouped = a * (d + 2) * c
    choices: list[tuple[Op, list[tuple[int, ...]]]] = [
        (Rename("{x,y}", "{p,q}"), [matrix, (c,)]),
        (Transpose("x", "y"), [matrix]),
        (Reshape("x", "y", their_shape=(1, a, b), our_shape=(a * b,)), [(1, a, b)]),
        (Split("x", QKV, sizes=sizes, transpose=turned), [fused]),
        (Split("x", QKV, sizes=sizes, dim=1), [(b, total)]),
        (Concat(QKV, "x", sizes=sizes, dim=1), [(b, size) for size in sizes]),
        (
            SplitGroups("x", QKV, groups=a, queries=d, head_dim=c),
            [(grouped,) if bias else (grouped, b)],
        ),
        (PermuteRotary("x", "y", num_heads=a, head_dim=2 * c), [heads]),
        (PermuteRotary("x", "y", num_heads=a, head_dim=2 * c, width=2 * pairs), [heads]),
        (Tied("x", "{p,q}"), [matrix]),
        (Computed("x", "y"), [matrix]),
    ]
    return draw(st.sampled_from(choices))


def numbered(shapes: list[tuple[int, ...]]) -> list[Tensor]:
    """Tensors in which every number is different."""
    start, tensors = 0, []
    for shape in shapes:
        count = torch.Size(shape).numel()
        tensors.append(torch.arange(start, start + count).reshape(shape))
        start += count
    return tensors


@settings(deadline=None)  # a busy machine is no failure
@given(rows())
def test_ops_round_trip_in_both_directions(row: tuple[Op, list[tuple[int, ...]]]) -> None:
    op, shapes = row
    theirs = numbered(shapes)
    ours = op.load(theirs)
    assert len(ours) == len(op.ours)
    back = op.save(ours)
    assert [t.shape for t in back] == [t.shape for t in theirs]
    assert list(op.their_shapes([tuple(t.shape) for t in ours])) == shapes
    assert all(torch.equal(one, two) for one, two in zip(theirs, back, strict=True))
    fresh = numbered([tuple(t.shape) for t in ours])
    if isinstance(op, Tied):
        fresh = fresh[:1] * len(ours)  # tied tensors are one by definition
    again = op.load(op.save(fresh))
    assert all(torch.equal(one, two) for one, two in zip(fresh, again, strict=True))


def same_memory(one: Tensor, two: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == two.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    "op",
    [
        Rename("x", "y"),
        Transpose("x", "y"),
        Split("x", QKV, sizes=(4, 4, 4), transpose=True),
        Split("x", QKV, sizes=(1, 1, 2)),
        SplitGroups("x", QKV, groups=1, queries=2, head_dim=1),
    ],
)
def test_load_returns_views(op: Op) -> None:
    tensor = torch.randn(4, 12)
    assert all(same_memory(part, tensor) for part in op.load([tensor]))


def test_tied_rejects_unequal_duplicates() -> None:
    op = Tied("{a,b}.weight", "ours")
    nan = torch.tensor([float("nan"), 1.0])
    assert op.load([nan, nan.clone()])[0] is nan
    with pytest.raises(ConflictError):
        op.load([nan, torch.tensor([0.0, 1.0])])
    with pytest.raises(ConflictError):
        Tied("a", "{p,q}").save([torch.zeros(2), torch.ones(2)])
