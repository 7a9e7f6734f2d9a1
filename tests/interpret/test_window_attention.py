"""Window attention in traces: on the whole grid, with the mask and the biases that the windows imply."""

from __future__ import annotations

import pytest
import torch

from glassformer.errors import UnsupportedError
from glassformer.interpret.head_patterns import describe_heads
from glassformer.interpret.tensors import read_tensor
from tests.interpret.models import example_values, tiny_bundle, trace_of


@pytest.mark.parametrize("family", ["swin", "swinv2"])
def test_weights_equal_masked_attention_over_the_whole_grid(family: str) -> None:
    bundle = tiny_bundle(family, window_size=4)  # divides the grid, so that there is no padding
    trace = trace_of(bundle, example_values(bundle))
    shifts = set()
    for attention in trace.attentions():
        windows = attention.windows
        assert windows is not None and attention.bias_table is not None
        rows, columns = windows.grid
        assert windows.grid == trace.sequence(attention.queries).grid
        shifts.add(windows.shift)
        row, column = torch.arange(rows).repeat_interleave(columns), torch.arange(columns).repeat(rows)
        window = (torch.stack((row, column)) - windows.shift).div(windows.size, rounding_mode="floor")
        allowed = (window[:, :, None] == window[:, None]).all(0)  # (T, S)
        table = read_tensor(trace, attention.bias_table).values  # (H, 2 * size - 1, 2 * size - 1)
        far = windows.size - 1
        down, across = (at[None] - at[:, None] for at in (row, column))  # from the query to the key
        bias = table[:, (down + far).clamp(0, 2 * far), (across + far).clamp(0, 2 * far)]
        q, k = (read_tensor(trace, f"{attention.name}.{part}").values[0] for part in "qk")
        scores = q @ k.transpose(-1, -2) * attention.scale + bias
        expected = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
        weights = read_tensor(trace, f"{attention.name}.weights").values[0]
        torch.testing.assert_close(weights, expected, atol=1e-5, rtol=1e-4)
        one = read_tensor(trace, f"{attention.name}.weights", "0,1,5").values  # without the whole matrix
        torch.testing.assert_close(one, weights[1, 5])
        masked = read_tensor(trace, f"{attention.name}.masked", "0,1").values
        assert torch.equal(masked.isfinite(), allowed)
    assert shifts == {0, 2}


def test_padded_windows_and_merged_patches() -> None:
    bundle = tiny_bundle("swin", window_size=3)  # pads the grid
    trace = trace_of(bundle, example_values(bundle))
    info, (height, width) = trace.info(), bundle.spec.input.image_size
    for sequence in trace.sequences:  # the patches of every stage cover the image once
        covered = torch.zeros(height, width)
        for token in sequence.tokens:
            x, y, wide, high = token.box
            covered[y : y + high, x : x + wide] += 1
        assert bool((covered == 1).all())
    assert [sequence.grid for sequence in trace.sequences] == [(8, 8), (4, 4)]
    for attention in info.attentions:
        query = len(trace.sequence(attention.queries)) - 1
        for head in range(attention.heads):
            ours = read_tensor(trace, f"{attention.name}.weights", f"0,{head},{query}").values
            torch.testing.assert_close(ours, trace.record.token_weights(attention.name, head, query)[0])
    assert [len(one.heads) for one in describe_heads(trace).attentions] == [2, 2, 4]
    for stage in info.stages:  # everything that the page asks for exists
        for name in stage.tensors.values():
            read_tensor(trace, name)
    with pytest.raises(UnsupportedError):
        trace_of(bundle, example_values(bundle), [{"kind": "mask_token", "sequence": "input", "position": 3}])
