"""The chunked loss equals that of torch: values and gradients, label smoothing, ignored labels, bias."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from glassformer.data.examples import IGNORE_INDEX
from glassformer.training import losses
from glassformer.training.losses import cross_entropy, projected_cross_entropy


@given(
    rows=st.integers(1, 23),
    width=st.integers(1, 9),
    vocab=st.integers(2, 31),
    chunk=st.integers(1, 30),
    label_smoothing=st.sampled_from([0.0, 0.1, 0.7]),
    biased=st.booleans(),
    softcap=st.sampled_from([None, 1.5]),
    seed=st.integers(0, 99),
)
def test_chunked_loss_equals_unchunked_loss(
    rows: int,
    width: int,
    vocab: int,
    chunk: int,
    label_smoothing: float,
    biased: bool,
    softcap: float | None,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    x = torch.randn(rows, width, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(vocab, width, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(vocab, dtype=torch.float64, requires_grad=True) if biased else None
    labels = torch.randint(0, vocab, (rows,))
    labels[torch.rand(rows) < 0.3] = IGNORE_INDEX
    leaves = [t for t in (x, weight, bias) if t is not None]
    logits = F.linear(x, weight, bias)
    if softcap is not None:
        logits = softcap * (logits / softcap).tanh()
    expected = F.cross_entropy(
        logits, labels, reduction="sum", ignore_index=IGNORE_INDEX, label_smoothing=label_smoothing
    )
    ours = projected_cross_entropy(
        x, weight, labels, bias=bias, label_smoothing=label_smoothing, softcap=softcap, chunk=chunk
    )
    expected_grads = torch.autograd.grad(expected * 3, leaves)
    grads = torch.autograd.grad(ours * 3, leaves)
    assert torch.allclose(ours.double(), expected, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    plain = cross_entropy(logits.float(), labels, label_smoothing=label_smoothing)
    torch.testing.assert_close(plain.double(), expected, rtol=1e-5, atol=1e-5)


def test_ignored_labels_have_no_loss_and_frozen_weights_no_gradient() -> None:
    x, weight = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4)
    loss = projected_cross_entropy(x, weight, torch.full((3,), IGNORE_INDEX))
    (gradient,) = torch.autograd.grad(loss, x)
    assert float(loss.detach()) == 0.0 and not gradient.any()
    with torch.no_grad():
        assert projected_cross_entropy(x, weight, torch.tensor([0, 1, 2])) > 0


def test_memory_does_not_depend_on_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    chunk = losses._chunk_loss

    def recording(logits: torch.Tensor, *args: Any) -> Any:
        held.append(logits.numel())
        return chunk(logits, *args)

    monkeypatch.setattr(losses, "_chunk_loss", recording)
    rows, vocab = 1500, 30_000
    projected_cross_entropy(torch.randn(rows, 2), torch.randn(vocab, 2), torch.zeros(rows, dtype=torch.long))
    assert sum(held) == rows * vocab and max(held) <= 1 << 24
