"""The recurrent baselines: their layers against torch's own, and every equality the core's models keep."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glassformer.baselines import LSTMEncoderDecoder, LSTMLanguageModel, build_baseline, lstm_spec, spec
from glassformer.baselines.lstm import LSTMStack
from glassformer.core.inputs import Masks
from glassformer.core.masks import Mask
from glassformer.errors import (
    ConflictError,
    EmptyInputError,
    InvalidValueError,
    MissingValueError,
    UnsupportedError,
)
from glassformer.schema import from_dict, to_dict
from tests.generation.test_greedy import greedy, greedy_batched

PAD, START, EOS = 0, 1, 2
VOCAB = 23
PAIRS = spec.LSTMEncoderDecoderSpec(
    src_vocab_size=VOCAB, tgt_vocab_size=VOCAB, d_model=16, pad_id=PAD, start_id=START
)
TEXT = spec.LSTMLanguageModelSpec(vocab_size=VOCAB, d_model=16, pad_id=PAD)
LENGTHS = (7, 1, 4, 6)


def model_of(what: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    fields = {name: getattr(what, name) for name in what.__dataclass_fields__}
    model = build_baseline(type(what)(**{**fields, **options})).eval()
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value) * 0.3)
    return model


def rows(seed: int = 0) -> list[list[int]]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(3, VOCAB, (length,), generator=draw).tolist() for length in LENGTHS]


def padded(sequences: list[list[int]], side: str) -> tuple[Tensor, Tensor]:
    width = max(map(len, sequences)) + 2
    fill = [[PAD] * (width - len(row)) for row in sequences]
    ids = torch.tensor(
        [f + row if side == "left" else row + f for row, f in zip(sequences, fill, strict=True)]
    )
    return ids, ids != PAD


@pytest.mark.parametrize("bidirectional", [False, True])
def test_layers_match_torch(bidirectional: bool) -> None:
    torch.manual_seed(0)
    ours = LSTMStack(12, 3, dropout=0.5, bidirectional=bidirectional).eval()
    theirs = nn.LSTM(12, 6 if bidirectional else 12, 3, batch_first=True, bidirectional=bidirectional)
    renamed = {
        name.replace("_l0", f"_l{n}"): value
        for n, layer in enumerate(ours.layers)
        for name, value in layer.state_dict().items()
    }
    theirs.load_state_dict(renamed)
    x = torch.randn(4, 7, 12)
    out, state = ours(x)
    expected, (hidden, cell) = theirs(x)
    assert torch.allclose(out, expected, atol=1e-6)
    for mine, other in ((state.hidden, hidden), (state.cell, cell)):
        other = other.view(3, -1, 4, other.shape[-1]).transpose(1, 2).reshape(3, 4, 12)
        assert torch.allclose(mine, other, atol=1e-6)


def test_dot_attention_matches_the_formula() -> None:
    model = model_of(PAIRS, num_layers=1)
    src, tgt = torch.tensor([rows()[0]]), torch.tensor([rows(1)[0]])
    memory = model.encode(src)
    h, _ = model.decoder.layers[0](
        model.tgt_embed(tgt).x, (memory.state.hidden.contiguous(), memory.state.cell.contiguous())
    )
    weights = (h @ memory.x.transpose(1, 2)).softmax(-1)  # (1, T, S)
    expected = torch.tanh(torch.cat((h, weights @ memory.x), -1) @ model.combine.weight.T)
    assert torch.allclose(model.hidden_states(src, tgt)[0], expected, atol=1e-5)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("attention", ["none", "dot"])
def test_padding_does_not_change_encoder_decoder_outputs(side: str, attention: str) -> None:
    model = model_of(PAIRS, attention=attention)
    sources, targets = rows(), rows(1)[::-1]
    src, src_real = padded(sources, side)
    tgt, tgt_real = padded(targets, side)
    result = model(src, tgt, Masks(src_real, Mask(padding=tgt_real)))
    for n, (source, target) in enumerate(zip(sources, targets, strict=True)):
        alone = model(torch.tensor([source]), torch.tensor([target]))[0]
        assert torch.allclose(result[n][tgt_real[n]], alone, atol=1e-5), n
    if side == "right":
        assert torch.equal(result[tgt_real], model(src, tgt)[tgt_real])  # read off the pad id


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_does_not_change_language_model_outputs(side: str) -> None:
    model, texts = model_of(TEXT), rows()
    ids, real = padded(texts, side)
    result = model(ids)
    for n, text in enumerate(texts):
        assert torch.allclose(result[n][real[n]], model(torch.tensor([text]))[0], atol=1e-5), n


def plain(model: Any, row: list[int], most: int) -> list[int]:
    """Decode by running the full sequence again for every token."""
    pairs = isinstance(model, LSTMEncoderDecoder)
    out = [START] if pairs else list(row)
    start = len(out)
    with torch.no_grad():
        while len(out) - start < most:
            ids = torch.tensor([out])
            real = torch.ones_like(ids, dtype=torch.bool)
            source = torch.tensor([row])
            logits = model(source, ids, Masks(tgt=Mask(padding=real))) if pairs else model(ids, real)
            out.append(int(logits[0, -1].argmax()))
    return out[start:]


@pytest.mark.parametrize("what", [PAIRS, TEXT], ids=lambda what: type(what).__name__)
def test_decoding_step_by_step_equals_one_forward_pass(what: Any) -> None:
    model, sequences = model_of(what), rows()
    free = [plain(model, row, 9) for row in sequences]
    assert len({token for row in free for token in row}) > 4
    end = free[0][4]
    expected = [row[: row.index(end)] if end in row else row for row in free]
    for side in ("right", "left"):
        result = greedy(
            model, padded(sequences, side)[0], eos_token_id=end, pad_token_id=PAD, max_new_tokens=9
        )
        assert result == expected, side
    result = greedy_batched(model, sequences, 30, eos_token_id=end, pad_token_id=PAD, max_new_tokens=9)
    assert result == expected


def test_spec_round_trips_through_json() -> None:
    for what in (PAIRS, TEXT, spec.LSTMLanguageModelSpec(vocab_size=9, tied=("head",), dropout=0.25)):
        assert from_dict(json.loads(json.dumps(to_dict(what)))) == what
    assert isinstance(build_baseline(from_dict(to_dict(TEXT))), LSTMLanguageModel)


def test_options_that_do_not_fit_are_rejected() -> None:
    with pytest.raises(MissingValueError, match="vocab_size"):
        from_dict({"kind": "LSTMLanguageModel"})
    spec_untied = lstm_spec("LSTMLanguageModel", {"tied": []}, vocab_size=9, tied=("head",))
    assert spec_untied == spec.LSTMLanguageModelSpec(vocab_size=9)
    with pytest.raises(InvalidValueError, match="as in the data"):
        lstm_spec("LSTMLanguageModel", {"vocab_size": 8}, vocab_size=9)
    with pytest.raises(InvalidValueError, match="even"):
        spec.LSTMEncoderDecoderSpec(src_vocab_size=9, tgt_vocab_size=9, d_model=7)
    with pytest.raises(ConflictError):
        spec.LSTMEncoderDecoderSpec(src_vocab_size=9, tgt_vocab_size=8, tied=("source",))
    ids = torch.ones(2, 3, dtype=torch.long)
    with pytest.raises(UnsupportedError, match="one document per row"):
        model_of(PAIRS)(ids, ids, Mask(segments=ids))
    with pytest.raises(UnsupportedError, match="padding"):
        model_of(TEXT)(ids, torch.ones(2, 3, 3, dtype=torch.bool))
    with pytest.raises(EmptyInputError):
        greedy(model_of(TEXT), ids * PAD, eos_token_id=EOS, pad_token_id=PAD, max_new_tokens=2)
