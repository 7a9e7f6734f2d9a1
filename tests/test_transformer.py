"""The chapter's classes compute the formulas written out here, and what torch's modules compute."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import glassformer
from glassformer import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForwardNetwork,
    Mask,
    MultiHeadAttention,
    PositionalEncoding,
    ScaledDotProductAttention,
    Transformer,
    TransformerEncoder,
    TransformerEncoderBlock,
    from_torch,
)
from glassformer.core.build import build_model
from glassformer.core.inputs import TextInputs
from glassformer.errors import (
    GlassformerError,
    InputTooLongError,
    InvalidValueError,
    MissingValueError,
    ShapeError,
    UnknownNameError,
)

# batch, target and source have the same length, so that a mask of the wrong kind is not caught by its shape
B = T = S = 5
D, H, F_, N, V = 12, 3, 20, 2, 30
CLOSE = {"atol": 1e-6, "rtol": 1e-5}
SMALL = {"d_model": D, "num_heads": H, "d_ff": F_, "num_layers": N, "src_vocab_size": V, "tgt_vocab_size": 26}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def redraw(module: nn.Module) -> Any:
    """The module in evaluation, with no number left at 0 or 1."""
    with torch.no_grad():
        for value in module.parameters():
            value.add_(torch.randn_like(value) * 0.2)
    return module.eval()


# ---- the textbook ----------------------------------------------------------------------------------------


def textbook_attention(layer: MultiHeadAttention, x: Tensor, mask: Any = None, k_v: Any = None) -> Any:
    """softmax(Q K^T / sqrt(d_k)) V in each head, with scores of -inf where the mask is 0."""
    k_v = x if k_v is None else k_v

    def heads(y: Tensor) -> Tensor:
        return y.view(*y.shape[:2], H, D // H).transpose(1, 2)

    q, k, v = heads(layer.q_proj(x)), heads(layer.k_proj(k_v)), heads(layer.v_proj(k_v))
    scores = q @ k.transpose(-2, -1) / math.sqrt(D // H)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -torch.inf)
    weights = scores.softmax(-1).nan_to_num(0.0)
    return layer.out_proj((weights @ v).transpose(1, 2).reshape(*x.shape)), weights


def textbook_layer(layer: Any, x: Tensor, masks: tuple[Any, Any], memory: Any, pre: bool, act: Any) -> Tensor:
    """One encoder layer, or a decoder layer if there is a memory."""

    def ffn(y: Tensor) -> Tensor:
        up = layer.ffn.up(y)
        return layer.ffn.down(F.silu(layer.ffn.gate(y)) * up if act == "swiglu" else act(up))

    steps = [(layer.norm_self, lambda y: textbook_attention(layer.self_attn, y, masks[0])[0])]
    if memory is not None:
        cross = layer.cross_attn
        steps.append((layer.norm_cross, lambda y: textbook_attention(cross, y, masks[1], memory)[0]))
    for norm, step in [*steps, (layer.norm_ffn, ffn)]:
        x = x + step(norm(x)) if pre else norm(x + step(x))
    return x


def textbook_stack(stack: Any, x: Tensor, *args: Any) -> Tensor:
    for layer in stack.blocks:
        x = textbook_layer(layer, x, *args)
    return x if stack.final_norm is None else stack.final_norm(x)


def textbook_positions(length: int, width: int = D) -> Tensor:
    pe = torch.zeros(length, width)
    position = torch.arange(length).double()[:, None]
    rates = 10000 ** (-torch.arange(0, width, 2).double() / width)
    pe[:, 0::2], pe[:, 1::2] = torch.sin(position * rates), torch.cos(position * rates)[:, : width // 2]
    return pe


def textbook(model: Transformer, src: Tensor, tgt: Tensor, masks: Any, pre: bool, act: Any) -> Tensor:
    src_mask, tgt_mask, memory_mask = masks
    x = model.src_embed.token.weight[src] * math.sqrt(D) + textbook_positions(src.shape[1])
    memory = textbook_stack(model.encoder, x, (src_mask, None), None, pre, act)
    y = model.tgt_embed.token.weight[tgt] * math.sqrt(D) + textbook_positions(tgt.shape[1])
    y = textbook_stack(model.decoder, y, (tgt_mask, memory_mask), memory, pre, act)
    bias = getattr(model.head, "bias", None)
    return y @ model.head.weight.T + (0 if bias is None else bias)


def batch(length: int = S) -> tuple[Tensor, Tensor]:
    return torch.randint(3, V, (B, length)), torch.randint(3, 26, (B, T))


def random_mask(*shape: int) -> Tensor:
    """Which keys are visible; every query sees the first one."""
    mask = torch.rand(shape) > 0.4
    mask[..., 0] = True
    return mask


# ---- the table of the chapter: constructors and calls ----------------------------------------------------

X, MEMORY = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
SRC, TGT = torch.randint(3, 20, (2, 7)), torch.randint(3, 20, (2, 5))
SEE_ALL, SEE_MEMORY, CAUSAL = torch.ones(2, 1, 1, 5), torch.ones(2, 1, 1, 7), torch.ones(5, 5).tril()
TABLE: dict[str, tuple[Any, str, tuple[Any, ...], tuple[Any, ...]]] = {
    # name: class, parameters in order, arguments, calls
    "PositionalEncoding": (PositionalEncoding, "d_model max_len=5000", (16,), ((X,),)),
    "ScaledDotProductAttention": (
        ScaledDotProductAttention,
        "",
        (),
        ((X, MEMORY, MEMORY), (X, X, X, CAUSAL)),
    ),
    "MultiHeadAttention": (
        MultiHeadAttention,
        "d_model num_heads",
        (16, 4),
        ((X,), (X, CAUSAL), (X, None, MEMORY)),
    ),
    "FeedForwardNetwork": (FeedForwardNetwork, "d_model d_ff dropout=0.1", (16, 32), ((X,),)),
    "EncoderLayer": (EncoderLayer, "d_model num_heads d_ff dropout=0.1", (16, 4, 32), ((X,), (X, SEE_ALL))),
    "DecoderLayer": (
        *(DecoderLayer, "d_model num_heads d_ff dropout=0.1", (16, 4, 32)),
        ((X, MEMORY), (X, MEMORY, CAUSAL, SEE_MEMORY)),
    ),
    "Encoder": (
        Encoder,
        "d_model num_heads d_ff num_layers dropout=0.1",
        (16, 4, 32, 2),
        ((X,), (X, SEE_ALL)),
    ),
    "Decoder": (
        *(Decoder, "d_model num_heads d_ff num_layers dropout=0.1", (16, 4, 32, 2)),
        ((X, MEMORY), (X, MEMORY, CAUSAL, SEE_MEMORY)),
    ),
    "TransformerEncoderBlock": (
        *(TransformerEncoderBlock, "d_model=512 num_heads=8 d_ff=2048 dropout=0.1", (16, 4, 32)),
        ((X,), (X, SEE_ALL)),
    ),
    "TransformerEncoder": (
        TransformerEncoder,
        "d_model=512 num_heads=8 d_ff=2048 num_layers=6 max_len=5000 dropout=0.1",
        *((16, 4, 32, 2), ((X,), (X, SEE_ALL))),
    ),
    "Transformer": (
        Transformer,
        "d_model=512 num_heads=8 d_ff=2048 num_layers=6 src_vocab_size=37000 tgt_vocab_size=37000 "
        "max_len=5000 dropout=0.1",
        (16, 4, 32, 2, 20, 20),
        ((SRC, TGT), (SRC, TGT, SEE_MEMORY, CAUSAL, SEE_MEMORY)),
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_constructors_and_calls_are_the_chapters(name: str) -> None:
    kind, expected, arguments, calls = TABLE[name]
    assert getattr(glassformer, name) is kind
    parameters = inspect.signature(kind).parameters.values()
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    shown = [p.name if p.default is p.empty else f"{p.name}={p.default}" for p in positional]
    assert shown == expected.split()
    module = kind(*arguments)
    width = 20 if name == "Transformer" else 16
    for call in calls:
        out = module(*call)
        assert (out[0] if isinstance(out, tuple) else out).shape == (2, 5, width)


def test_positional_encoding_adds_the_waves_of_the_formula() -> None:
    encoding = PositionalEncoding(D, max_len=40)
    x = torch.randn(2, 9, D)
    torch.testing.assert_close(encoding(x), x + textbook_positions(9), **CLOSE)
    assert encoding.pe.shape == (1, 40, D) and "pe" in encoding.state_dict()
    assert not list(encoding.parameters())
    row = [0.84147, 0.54030, 0.09983, 0.99500, 0.01000, 0.99995, 0.00100, 1.00000]
    torch.testing.assert_close(PositionalEncoding(8).pe[0, 1], torch.tensor(row), atol=1e-5, rtol=0)


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_scaled_dot_product_attention_matches_the_formula(lead: tuple[int, ...]) -> None:
    Q, K, V_ = torch.randn(*lead, 4, 8), torch.randn(*lead, 6, 8), torch.randn(*lead, 6, 10)
    mask = random_mask(4, 6)
    output, weights = ScaledDotProductAttention()(Q, K, V_, mask)
    expected = (Q @ K.transpose(-2, -1) / math.sqrt(8)).masked_fill(~mask, -torch.inf).softmax(-1)
    torch.testing.assert_close(weights, expected, **CLOSE)
    torch.testing.assert_close(output, expected @ V_, **CLOSE)


@pytest.mark.parametrize("cross", [False, True])
def test_multi_head_attention_matches_the_formula_and_torch(cross: bool) -> None:
    theirs = redraw(nn.MultiheadAttention(D, H, batch_first=True))
    ours = MultiHeadAttention(D, H).eval()
    ours.load_state_dict(from_torch(theirs).state_dict())
    x, k_v = torch.randn(B, T, D), torch.randn(B, S, D) if cross else None
    source = x if k_v is None else k_v
    mask = random_mask(T, S)
    out, weights = ours(x, mask, k_v, return_weights=True)
    assert weights.shape == (B, H, T, S)
    for expected in (
        textbook_attention(ours, x, mask, k_v),
        theirs(x, source, source, attn_mask=~mask, average_attn_weights=False),
    ):
        torch.testing.assert_close(out, expected[0], **CLOSE)
        torch.testing.assert_close(weights, expected[1], **CLOSE)
    torch.testing.assert_close(ours(x, mask, k_v), out, **CLOSE)


# ---- masks: told apart by their dimensions and their argument, although B = T = S ------------------------


def as_integers(mask: Tensor) -> Tensor:
    return mask.long()


def as_zeros_and_ones(mask: Tensor) -> Tensor:
    return mask.float()


def as_scores(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)


@pytest.mark.parametrize(
    "shape", [(T, S), (B, T, S), (B, 1, S), (B, 1, T, S), (B, H, T, S), (B, 1, 1, S), (1, 1, T, S)]
)
@pytest.mark.parametrize("form", [None, as_integers, as_zeros_and_ones, as_scores])
def test_masks_mean_what_their_shape_says(shape: tuple[int, ...], form: Any) -> None:
    ours, layer = redraw(MultiHeadAttention(D, H)), redraw(EncoderLayer(D, H, F_))
    x = torch.randn(B, T, D)
    mask = random_mask(*shape)
    wide = mask[:, None] if mask.dim() == 3 else mask
    given = mask if form is None else form(mask)
    torch.testing.assert_close(ours(x, given), textbook_attention(ours, x, wide)[0], **CLOSE)
    expected = textbook_layer(layer, x, (wide, None), None, False, F.relu)
    torch.testing.assert_close(layer(x, given), expected, **CLOSE)


@pytest.mark.parametrize("stacked", [False, True])
def test_float_masks_are_added_to_the_scores_as_in_torch(stacked: bool) -> None:
    layer = nn.TransformerDecoderLayer(D, H, F_, batch_first=True)
    theirs = redraw(nn.TransformerDecoder(layer, N) if stacked else layer)
    ours = (Decoder(D, H, F_, N) if stacked else DecoderLayer(D, H, F_)).eval()
    ours.load_state_dict(from_torch(theirs).state_dict())
    x, memory = torch.randn(B, T, D), torch.randn(B, S, D)
    scores, across = (
        torch.randn(T, T).masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf),
        torch.randn(T, S),
    )
    expected = theirs(x, memory, tgt_mask=scores, memory_mask=across)
    torch.testing.assert_close(ours(x, memory, scores, across[None]), expected, **CLOSE)


def test_scores_that_start_at_zero_have_a_gradient() -> None:
    layer, scores = redraw(EncoderLayer(D, H, F_)), torch.zeros(T, T, requires_grad=True)
    layer(torch.randn(B, T, D), scores)[..., 0].sum().backward()
    assert scores.grad is not None and scores.grad.abs().max() > 1e-3


def test_two_dimensions_are_padding_for_the_source_and_a_matrix_for_the_target() -> None:
    model = redraw(Transformer(**SMALL))
    src, tgt = batch()
    real, seen = random_mask(B, S), random_mask(T, T)
    # padding in the middle is not counted otherwise
    given = model(TextInputs(src, positions=torch.arange(S)[None]), tgt, real, seen, real)
    masks = (real[:, None, None], seen, real[:, None, None])
    torch.testing.assert_close(given, textbook(model, src, tgt, masks, False, F.relu), **CLOSE)
    other = (real, seen[:, None, None], real)
    assert not torch.allclose(given, textbook(model, src, tgt, other, False, F.relu), atol=1e-3)


def test_decoders_are_causal_unless_a_target_mask_decides_for_each_query() -> None:
    layer, decoder = redraw(DecoderLayer(D, H, F_)), redraw(Decoder(D, H, F_, N))
    x, memory = torch.randn(B, T, D), torch.randn(B, S, D)
    causal, free, padding = torch.ones(T, T).tril(), random_mask(T, T), random_mask(B, 1, 1, T)
    for ours, theirs in ((layer, textbook_layer), (decoder, textbook_stack)):
        for given, expected in ((None, causal), (causal, causal), (free, free), (padding, padding * causal)):
            wanted = theirs(ours, x, (expected, None), memory, False, F.relu)
            torch.testing.assert_close(ours(x, memory, given), wanted, **CLOSE)


def test_fully_masked_rows_give_zeros_forward_and_backward() -> None:
    nothing = torch.zeros(B, 1, T, S, dtype=torch.bool)
    Q = torch.randn(B, T, 8, requires_grad=True)
    output, weights = ScaledDotProductAttention()(Q, Q, Q, nothing[:, 0])
    attention, x = MultiHeadAttention(D, H), torch.randn(B, T, D, requires_grad=True)
    out, shown = attention(x, nothing, return_weights=True)
    torch.testing.assert_close(out, attention.out_proj.bias.expand_as(out))
    assert not (output.any() or weights.any() or shown.any())
    (output.sum() + attention(x, nothing).square().sum()).backward()
    assert not (Q.grad.any() or x.grad.any())


# ---- layers, stacks and the whole model ------------------------------------------------------------------

OPTIONS: dict[str, tuple[dict[str, Any], Any]] = {
    "paper": ({}, F.relu),
    "pre-norm gelu": ({"norm_first": True, "activation": "gelu"}, F.gelu),
    "pre-norm swiglu": ({"norm_first": True, "activation": "swiglu"}, "swiglu"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_transformer_matches_the_textbook_with_gradients(name: str) -> None:
    options, act = OPTIONS[name]
    model = redraw(Transformer(**SMALL, **options))
    src, tgt = batch(length=7)
    masks = (random_mask(B, 1, 1, 7), torch.ones(B, 1, T, T).tril(), random_mask(B, 1, 1, 7))
    logits = model(src, tgt, *masks)
    expected = textbook(model, src, tgt, masks, options.get("norm_first", False), act)
    torch.testing.assert_close(logits, expected, atol=2e-6, rtol=1e-5)
    probe = torch.randn_like(logits)
    ours = torch.autograd.grad((logits * probe).mean(), list(model.parameters()))
    theirs = torch.autograd.grad((expected * probe).mean(), list(model.parameters()))
    for mine, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, wanted, **CLOSE)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("tied", [False, True])
def test_transformer_is_the_family_of_the_core(name: str, tied: bool, tmp_path: Path) -> None:
    sizes = {**SMALL, "tgt_vocab_size": V}
    model = redraw(Transformer(**sizes, **OPTIONS[name][0], tied=tied))
    built = build_model(model.spec).eval()
    assert list(built.state_dict()) == list(model.state_dict())
    built.load_state_dict(model.state_dict())
    src, tgt = batch()
    assert torch.equal(built(src, tgt), model(src, tgt))
    glassformer.save(model, tmp_path / "model")
    loaded = glassformer.load(tmp_path / "model").model
    assert torch.equal(loaded(src, tgt), model(src, tgt))
    assert loaded.generate(src, max_new_tokens=6) == model.generate(src, max_new_tokens=6)
    shared = model.src_embed.token.weight is model.tgt_embed.token.weight is model.head.weight
    assert shared is tied


def test_generation_starts_and_ends_with_the_given_tokens() -> None:
    model = redraw(Transformer(**SMALL, bos_token_id=4))
    src, _ = batch()
    rows = model.generate(src, max_new_tokens=8, min_new_tokens=8, eos_token_id=None)
    with torch.no_grad():
        tgt = torch.full((B, 1), 4)
        for _ in range(8):
            scores = model(src, tgt)[:, -1]
            scores[:, 2] = -torch.inf  # the end token is not allowed yet
            tgt = torch.cat((tgt, scores.argmax(-1, keepdim=True)), 1)
    assert rows == tgt[:, 1:].tolist()
    end = rows[0][3]
    stopping = redraw(Transformer(**SMALL, bos_token_id=4, eos_token_id=end))
    stopping.load_state_dict(model.state_dict())
    (short,) = stopping.generate(src[:1], max_new_tokens=8)
    assert short == rows[0][: rows[0].index(end)] or 2 in short


def test_paper_has_the_published_number_of_parameters_and_is_initialized() -> None:
    model = Transformer(tied=True)
    count = sum(parameter.numel() for parameter in model.parameters())
    layers = 6 * (2 * 4 * (512 * 512 + 512) + 4 * (512 * 512 + 512) + 2 * (2 * 512 * 2048 + 2560) + 5 * 1024)
    assert count == layers + 37000 * 512 == 63_082_496
    embedded = model.src_embed.token.weight * 512**0.5
    assert 0.98 < embedded.std() < 1.02  # as large as the positions that are added


def test_return_weights_gives_the_weights_of_every_layer() -> None:
    encoder = redraw(TransformerEncoder(D, H, F_, N, max_len=9))
    x = torch.randn(B, 7, D, requires_grad=True)
    mask = random_mask(B, 1, 1, 7)
    out, weights = encoder(x, mask, return_weights=True)
    torch.testing.assert_close(out, encoder(x, mask))
    expected = textbook_stack(encoder, x + textbook_positions(7), (mask, None), None, True, F.gelu)
    torch.testing.assert_close(out, expected, **CLOSE)
    hidden = x + textbook_positions(7)
    for layer, shown in zip(encoder.blocks, weights, strict=True):
        wanted = textbook_attention(layer.self_attn, layer.norm_self(hidden), mask)[1]
        torch.testing.assert_close(shown, wanted, **CLOSE)
        hidden, again = layer(hidden, mask, return_weights=True)
        torch.testing.assert_close(again, wanted, **CLOSE)
    (gradient,) = torch.autograd.grad(weights[1].square().sum(), x)
    assert gradient.any()


class ModuleListEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.position = PositionalEncoding(D, 64)
        self.layers = nn.ModuleList(EncoderLayer(D, H, F_) for _ in range(N))

    def forward(self, x: Tensor, mask: Tensor | None = None, obs: Any = None) -> Tensor:
        x = self.position(x)
        for n, layer in enumerate(self.layers):
            x = layer(x, mask, obs=obs and obs.scope(f"layers.{n}"))
        return x


def test_layers_in_a_module_list_train_and_can_be_observed() -> None:
    model, x, mask = ModuleListEncoder(), torch.randn(2, 5, D), torch.ones(2, 1, 1, 5)
    optimizer, goal = torch.optim.Adam(model.parameters(), lr=1e-2), torch.randn(2, 5, D)
    losses = []
    for _ in range(60):
        losses.append(F.mse_loss(model(x, mask), goal))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.7 * losses[0]
    record = glassformer.observe(model, (x, mask))
    assert torch.equal(record.output, model.eval()(x, mask))
    assert record.attentions() == ["layers.0.self_attn", "layers.1.self_attn"]


@pytest.mark.slow
def test_layers_in_a_module_list_compile_and_export_to_onnx(tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    model = redraw(ModuleListEncoder())
    x, mask = torch.randn(2, 5, D), random_mask(2, 1, 1, 5)
    expected = model(x, mask)
    torch.testing.assert_close(torch.compile(model, fullgraph=True)(x, mask), expected, **CLOSE)
    program = torch.onnx.export(model, (x, mask), dynamo=True, verbose=False)
    program.save(str(tmp_path / "encoder.onnx"))
    session = ort.InferenceSession(str(tmp_path / "encoder.onnx"))
    names = [value.name for value in session.get_inputs()]
    (out,) = session.run(None, dict(zip(names, (x.numpy(), mask.numpy()), strict=True)))
    torch.testing.assert_close(torch.from_numpy(out), expected.detach(), atol=1e-5, rtol=1e-5)


# ---- usage code of chapters, with their classes replaced by an import ----------------------------------


def translate_step_by_step() -> None:
    """The whole model with masks built from the ids, a training step, and a greedy loop."""
    model = Transformer(32, 4, 64, 2, 50, 60, 20, 0.1)
    src, tgt = torch.randint(1, 50, (2, 7)), torch.randint(1, 60, (2, 6))
    src_mask = (src != 0).unsqueeze(1).unsqueeze(2)
    tgt_mask = (tgt != 0).unsqueeze(1).unsqueeze(2) & torch.tril(torch.ones(6, 6)).bool()
    assert model(src, tgt, src_mask, tgt_mask, src_mask).shape == (2, 6, 60)
    criterion, optimizer = nn.CrossEntropyLoss(ignore_index=0), torch.optim.Adam(model.parameters(), lr=1e-3)
    output = model(src, tgt[:, :-1])
    criterion(output.contiguous().view(-1, 60), tgt[:, 1:].contiguous().view(-1)).backward()
    optimizer.step()
    ys = torch.ones(2, 1, dtype=torch.long)
    for _ in range(3):
        ys = torch.cat([ys, model(src, ys)[:, -1].argmax(-1, keepdim=True)], dim=1)
    assert ys.shape == (2, 4) and len(model.generate(src, max_new_tokens=3)) == 2


def classify_with_attention_maps() -> None:
    """Blocks in a module list, with the attention map of each, and a mean over the positions."""
    blocks = nn.ModuleList([TransformerEncoderBlock(32, 4, 64) for _ in range(2)])
    embedding, head, maps = nn.Embedding(50, 32), nn.Linear(32, 2), []
    ids = torch.randint(1, 50, (3, 9))
    x = PositionalEncoding(32)(embedding(ids) * math.sqrt(32))
    for block in blocks:
        x, weights = block(x, (ids != 0)[:, None, None, :], return_weights=True)
        maps.append(weights)
    F.cross_entropy(head(x.mean(dim=1)), torch.tensor([0, 1, 0])).backward()
    assert [weights.shape for weights in maps] == [(3, 4, 9, 9)] * 2


def translate_a_korean_sentence() -> None:
    """한국어 문장 하나: 0/1 마스크와 -1e9를 더하는 마스크는 같고, 학습하면 번역문이 나온다."""
    words = ["<pad>", "<bos>", "<eos>", "나는", "학교에", "간다", "i", "go", "to", "school"]
    src, tgt = torch.tensor([[3, 4, 5, 2, 0]]), torch.tensor([[1, 6, 7, 8, 9]])
    label = torch.tensor([[6, 7, 8, 9, 2]])
    attention, x = MultiHeadAttention(32, 4), PositionalEncoding(d_model=32)(torch.randn(1, 5, 32))
    mask = (src != 0).float()[:, None, None]
    torch.testing.assert_close(attention(x, mask), attention(x, (1.0 - mask) * -1e9), **CLOSE)
    model = Transformer(32, 4, 64, 2, len(words), len(words), dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        loss = F.cross_entropy(model(src, tgt).reshape(-1, len(words)), label.reshape(-1), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    (ids,) = model.eval().generate(src, max_new_tokens=10)
    assert [words[index] for index in ids] == ["i", "go", "to", "school"]


@pytest.mark.parametrize(
    "code", [translate_step_by_step, classify_with_attention_maps, translate_a_korean_sentence]
)
def test_usage_code_of_chapters_runs(code: Any) -> None:
    code()


# ---- errors ----------------------------------------------------------------------------------------------

IDS = torch.ones(2, 5, dtype=torch.long)
WRONG: dict[str, tuple[Any, type[GlassformerError], dict[str, Any]]] = {
    "heads that do not divide d_model": (
        lambda m: EncoderLayer(10, 3, 8),
        InvalidValueError,
        {"name": "d_model", "value": 10},
    ),
    "sizes in the order of another text": (
        lambda m: Transformer(500, 250, 16, 4, 2, 32, 100, 0.1),
        InvalidValueError,
        {"name": "num_heads", "value": 250},
    ),
    "a dropout of 2": (
        lambda m: EncoderLayer(16, 4, 32, 2),
        InvalidValueError,
        {"name": "dropout", "value": 2},
    ),
    "an id beyond the vocabulary": (
        lambda m: m(IDS * V, IDS),
        InvalidValueError,
        {"name": "token id", "value": V},
    ),
    "ids as lists": (lambda m: m([[1, 2]], [[1]]), InvalidValueError, {"name": "ids", "value": "list"}),
    "ids without a batch": (lambda m: m(IDS[0], IDS[0]), ShapeError, {"what": "ids", "shape": [5]}),
    "longer than max_len": (
        lambda m: Transformer(**SMALL, max_len=4)(IDS, IDS),
        InputTooLongError,
        {"length": 5, "limit": 4},
    ),
    "positions beyond max_len": (
        lambda m: PositionalEncoding(16, 4)(X),
        InputTooLongError,
        {"length": 5, "limit": 4},
    ),
    "another batch": (lambda m: m(IDS, IDS[:1]), ShapeError, {"what": "the target", "shape": [1, 5]}),
    "padding as a target mask": (
        lambda m: m(IDS, IDS, None, IDS > 0),
        ShapeError,
        {"what": "tgt_mask", "shape": [2, 5]},
    ),
    "masks of a decoder in the other order": (
        lambda m: m.decoder(X[..., :D], MEMORY[..., :D], SEE_MEMORY, SEE_ALL),
        ShapeError,
        {"what": "tgt_mask", "shape": [2, 1, 1, 7]},
    ),
    "a source mask of another length": (
        lambda m: m(IDS, IDS, IDS[:, 1:] > 0),
        ShapeError,
        {"what": "src_mask"},
    ),
    "ids as a mask": (lambda m: m(IDS, IDS, IDS * 7), InvalidValueError, {"name": "src_mask"}),
    "ids for an encoder of vectors": (lambda m: m.encoder(IDS), ShapeError, {"what": "x", "shape": [2, 5]}),
    "integers for vectors": (
        lambda m: PositionalEncoding(16)(X.long()),
        ShapeError,
        {"what": "x", "shape": [2, 5, 16]},
    ),
    "vectors of another width": (
        lambda m: EncoderLayer(D, H, F_)(X),
        ShapeError,
        {"what": "x", "shape": [2, 5, 16]},
    ),
    "queries and keys of other widths": (
        lambda m: ScaledDotProductAttention()(X, X[..., :8], X),
        ShapeError,
        {"what": "K", "shape": [2, 5, 8]},
    ),
    "keys without values": (
        lambda m: ScaledDotProductAttention()(X, MEMORY, X),
        ShapeError,
        {"what": "K", "shape": [2, 7, 16]},
    ),
    "vectors as the mask": (
        lambda m: MultiHeadAttention(16, 4)(X, X, X),
        InvalidValueError,
        {"name": "mask"},
    ),
    "keys as the mask": (
        lambda m: MultiHeadAttention(16, 4)(X, MEMORY, MEMORY.clone()),
        InvalidValueError,
        {"name": "mask"},
    ),
    "a layer without d_ff": (lambda m: EncoderLayer(16, 4), MissingValueError, {"name": "d_ff"}),
    "a decoder layer without a memory": (
        lambda m: m.decoder.blocks[0](X),
        MissingValueError,
        {"name": "enc_output"},
    ),
    "dropout in the place of max_len": (
        lambda m: PositionalEncoding(16, 0.1),
        InvalidValueError,
        {"name": "max_len"},
    ),
    "an unknown activation of a layer": (
        lambda m: EncoderLayer(16, 4, 32, activation="ReLU"),
        UnknownNameError,
        {"kind": "activation", "name": "ReLU"},
    ),
    "an unknown activation": (lambda m: Transformer(**SMALL, activation="sigmoid"), GlassformerError, {}),
    "vocabularies of two sizes that are tied": (lambda m: Transformer(**SMALL, tied=True), ShapeError, {}),
    **{
        f"torch's {name}": (call, UnknownNameError, {"kind": "argument", "name": name})
        for name, call in {
            "nhead": lambda m: Encoder(16, nhead=4, d_ff=32, num_layers=2),
            "dim_feedforward": lambda m: EncoderLayer(16, 4, dim_feedforward=32),
            "batch_first": lambda m: Decoder(16, 4, 32, 2, batch_first=True),
            "need_weights": lambda m: MultiHeadAttention(16, 4)(X, need_weights=True),
            "src_key_padding_mask": lambda m: m.encoder.blocks[0](X[..., :D], src_key_padding_mask=IDS > 0),
            "tgt_key_padding_mask": lambda m: m(IDS, IDS, tgt_key_padding_mask=IDS > 0),
            "num_layer": lambda m: Transformer(num_layer=4),
            "return_weights": lambda m: m(IDS, IDS, return_weights=True),
        }.items()
    },
}


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_get_a_typed_error(case: str) -> None:
    call, kind, fields = WRONG[case]
    with pytest.raises(kind) as caught:
        call(Transformer(**SMALL))
    assert caught.value.fields.items() >= fields.items()


def test_padded_ids_need_no_mask() -> None:
    model = redraw(Transformer(**SMALL))
    src, tgt = batch(length=7)
    padded = torch.cat((src, torch.zeros(B, 3, dtype=torch.long)), 1)
    torch.testing.assert_close(model(padded, tgt), model(src, tgt), **CLOSE)
    whole = redraw(Transformer(**SMALL, pad_token_id=None))
    whole.load_state_dict(model.state_dict())
    everything = torch.ones(B, 1, 1, 10)
    masks = (everything, torch.ones(T, T).tril(), everything)
    torch.testing.assert_close(
        whole(padded, tgt), textbook(whole, padded, tgt, masks, False, F.relu), **CLOSE
    )


def test_padding_of_the_source_is_hidden_from_the_decoder_under_any_source_mask() -> None:
    model = redraw(Transformer(**SMALL))
    src, tgt = batch(length=7)
    src[:, 5:] = 0
    real = (src != 0)[:, None, None]
    by_query = real.expand(B, 1, 7, 7)
    torch.testing.assert_close(model(src, tgt, by_query), model(src, tgt, by_query, None, real), **CLOSE)


def test_float_padding_of_the_source_is_added_to_the_scores() -> None:
    model = redraw(Transformer(**SMALL))
    src, tgt = batch()
    scores = torch.randn(B, S)
    given = model(src, tgt, scores, None, scores)
    expected = model(src, tgt, scores[:, None, None], None, scores[:, None, None])
    torch.testing.assert_close(given, expected, **CLOSE)


def test_masks_keep_their_meaning_as_mask_objects() -> None:
    layer, x = redraw(EncoderLayer(D, H, F_)), torch.randn(B, T, D)
    torch.testing.assert_close(layer(x, Mask(causal=True)), layer(x, torch.ones(T, T).tril()), **CLOSE)
    real = random_mask(B, T)
    torch.testing.assert_close(layer(x, Mask(padding=real)), layer(x, real[:, None]), **CLOSE)
