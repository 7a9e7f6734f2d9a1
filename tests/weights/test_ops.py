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
    Ignored,
    Op,
    PermuteRotary,
    Rename,
    Reshape,
    Split,
    SplitGroups,
    Tied,
    Transpose,
    add_prefix,
    expand,
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


def test_split_matches_a_product_with_the_fused_weight() -> None:
    """x @ W + b of an (in, out) layer, cut in three, is what three Linears give."""
    weight, bias, x = torch.randn(4, 12), torch.randn(12), torch.randn(5, 4)
    split = Split("x", QKV, sizes=(4, 4, 4), transpose=True)
    parts = zip(split.load([weight]), split.load([bias]), strict=True)
    ours = [torch.nn.functional.linear(x, w, b) for w, b in parts]
    torch.testing.assert_close(torch.cat(ours, -1), x @ weight + bias)


def test_split_groups_follows_the_published_layout() -> None:
    """Reading the fused product as (G, R + 2, K), the last two of each group are key and value."""
    groups, queries, head_dim = 2, 3, 4
    weight, x = torch.randn(groups * (queries + 2) * head_dim, 6), torch.randn(6)
    op = SplitGroups("x", QKV, groups=groups, queries=queries, head_dim=head_dim)
    q, k, v = (part @ x for part in op.load([weight]))
    fused = (weight @ x).view(groups, queries + 2, head_dim)
    torch.testing.assert_close(q.view(groups, queries, head_dim), fused[:, :-2])
    torch.testing.assert_close(k.view(groups, head_dim), fused[:, -2])
    torch.testing.assert_close(v.view(groups, head_dim), fused[:, -1])


@pytest.mark.parametrize("width", [8, 6])
def test_permuted_rotary_gives_the_same_scores(width: int) -> None:
    """Interleaved rotation of theirs and half-split rotation of ours give the same q . k."""
    heads, head_dim, d_model = 3, 8, 5
    angles = torch.randn(width // 2)
    cos, sin = angles.cos(), angles.sin()

    def interleaved(x: Tensor) -> Tensor:
        even, odd = x[:, :width:2], x[:, 1:width:2]
        turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1)
        return torch.cat((turned.flatten(1), x[:, width:]), -1)

    def halves(x: Tensor) -> Tensor:
        left, right = x[:, : width // 2], x[:, width // 2 : width]
        turned = (left * cos - right * sin, right * cos + left * sin)
        return torch.cat((*turned, x[:, width:]), -1)

    op = PermuteRotary("{q,k}", "{q,k}", num_heads=heads, head_dim=head_dim, width=width)
    theirs = torch.randn(2, heads * head_dim, d_model).unbind()
    x, y = torch.randn(2, d_model)
    q, k = ((w @ v).view(heads, head_dim) for w, v in zip(theirs, (x, y), strict=True))
    expected = (interleaved(q) * k).sum(-1)
    q, k = ((w @ v).view(heads, head_dim) for w, v in zip(op.load(theirs), (x, y), strict=True))
    torch.testing.assert_close((halves(q) * k).sum(-1), expected)


def test_tied_rejects_unequal_duplicates() -> None:
    op = Tied("{a,b}.weight", "ours")
    nan = torch.tensor([float("nan"), 1.0])
    assert op.load([nan, nan.clone()])[0] is nan
    with pytest.raises(ConflictError):
        op.load([nan, torch.tensor([0.0, 1.0])])
    with pytest.raises(ConflictError):
        Tied("a", "{p,q}").save([torch.zeros(2), torch.ones(2)])


def test_expand_and_add_prefix_list_every_operation() -> None:
    table = add_prefix(
        "{base}",
        "decoder.",
        expand(
            (
                Rename("h.{i}.ln.{p}", "blocks.{i}.norm.{p}"),
                Tied(("wte.{p}", "head.{p}"), "embed.{p}", save_as="head.{p}"),
                Ignored("h.*.mask"),
            ),
            i=2,
            p=("weight", "bias"),
        ),
    )
    assert [op.theirs for op in table] == [
        ("{base}h.0.ln.weight",),
        ("{base}h.0.ln.bias",),
        ("{base}h.1.ln.weight",),
        ("{base}h.1.ln.bias",),
        ("{base}wte.weight", "{base}head.weight"),
        ("{base}wte.bias", "{base}head.bias"),
        ("{base}h.*.mask",),
    ]
    assert table[1].ours == ("decoder.blocks.0.norm.bias",)
    assert table[4] == Tied(
        ("{base}wte.weight", "{base}head.weight"),
        "decoder.embed.weight",
        save_as="{base}head.weight",
    )
