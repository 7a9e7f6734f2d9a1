"""CTranslate2 generates from our export what we generate."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy
import pytest
import torch
from safetensors.torch import load_file

import glassformer
from glassformer.core import spec
from glassformer.core.inputs import TextInputs
from glassformer.errors import InvalidValueError, MissingValueError, UnsupportedError
from glassformer.export.ctranslate2 import export_ctranslate2
from glassformer.generation import GenerationConfig, GenerationParams, generate
from glassformer.tokenization import load_tokenizer
from tests.cli.conftest import run  # noqa: F401 (a fixture)
from tests.export.randomized import randomize_parameters
from tests.tokenization import layouts

ctranslate2 = pytest.importorskip("ctranslate2")

EOS, MAX_NEW_TOKENS = 2, 16


def their_output(folder, rows, most=MAX_NEW_TOKENS):
    """The tokens that CTranslate2 generates greedily for each row, and their summed log-probability."""
    options = {"beam_size": 1, "length_penalty": 0, "return_scores": True}
    if (folder / "vocabulary.json").is_file():
        runtime = ctranslate2.Generator(str(folder), device="cpu", compute_type="float32", intra_threads=1)
        options |= {"max_length": most, "min_length": 0, "include_prompt_in_result": False}
        results = [runtime.generate_batch([row], **options)[0] for row in rows]
        return [(result.sequences[0], result.scores[0]) for result in results]
    runtime = ctranslate2.Translator(str(folder), device="cpu", compute_type="float32", intra_threads=1)
    results = runtime.translate_batch(rows, max_decoding_length=most, min_decoding_length=0, **options)
    return [(result.hypotheses[0], result.scores[0]) for result in results]


def our_outputs(model, rows, eos=EOS, **options):
    """What we generate greedily, one row at a time and so without padding."""
    config, outputs = GenerationConfig(max_new_tokens=MAX_NEW_TOKENS, **options), []
    for row in rows:
        ids = torch.tensor([row])
        mask = torch.ones_like(ids, dtype=torch.bool)
        outputs += generate(
            model,
            ids,
            GenerationParams(config=config, eos_token_id=eos, pad_token_id=0),
            attention_mask=mask,
        )[0]
    return outputs


def random_rows(model):
    read = model.spec.source if isinstance(model.spec, spec.EncoderDecoderSpec) else model.spec.input
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randint(3, read.vocab_size - 2, (n,), generator=generator).tolist()
        for n in (9, 4, 33, 1, 20, 6)
    ]


def id_tokens(ids):
    return [f"<id {index}>" for index in ids]


def check_same(model, folder):
    """Greedy tokens are equal, and log-probabilities within 1e-4; not all rows give the same tokens."""
    bundle = glassformer.Pipeline(model=randomize_parameters(model), generation={"eos_token_id": EOS})
    exported = export_ctranslate2(bundle, folder)
    rows = random_rows(model)
    expected = our_outputs(bundle.model, rows)
    assert len({tuple(text.ids) for text in expected}) > 1
    for (tokens, score), text in zip(
        their_output(exported.folder, list(map(id_tokens, rows))), expected, strict=True
    ):
        assert tokens == id_tokens(text.ids)
        assert score == pytest.approx(text.score, abs=1e-4)


def with_start(**options):
    return {"start_id": 1, **options}


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("original", with_start()),
        ("original", with_start(norm="pre", activation="gelu", norm_eps=1e-2)),
        ("original", with_start(position="learned", tgt_vocab_size=101, tied=("source", "head"))),
        ("original", with_start(position="rotary", activation="silu")),
        ("original", with_start(position="relative", norm="pre")),
        ("marian", {"decoder_heads": 8, "decoder_layers": 3}),
        ("bart", {}),
        ("t5", {"head_dim": 12}),
        ("t5", {"gated": True, "activation": "gelu_tanh", "tied": False}),
        ("gpt2", {}),
        ("llama", {}),
        ("mistral", {"window": None}),
    ],
)
def test_generation_matches_ctranslate2(tmp_path, family, options):
    check_same(glassformer.tiny(family, **options), tmp_path / "out")


@pytest.mark.parametrize(
    ("family", "options", "pooled"),
    [
        ("bert", {}, False),
        ("bert", {"head": spec.FeaturesSpec(pooler=True), "tied": False}, True),
        ("bert", {"head": spec.ClassifySpec(num_labels=3, hidden="tanh"), "tied": False}, True),
        ("roberta", {"head": spec.ClassifySpec(num_labels=3, hidden="gelu"), "tied": False}, True),
        ("distilbert", {}, False),
        ("distilbert", {"position": "sinusoidal"}, False),
        ("sentence", {}, False),
    ],
)
def test_encoder_matches_ctranslate2(tmp_path, family, options, pooled):
    """The hidden states of padded rows with token types, the pooler, and the head's weights."""
    model = randomize_parameters(glassformer.tiny(family, **options))
    out = export_ctranslate2(glassformer.Pipeline(model=model), tmp_path / "out").folder
    rows, generator = random_rows(model), torch.Generator().manual_seed(2)
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    mask = ids != 0  # random ids start at 3
    types = model.spec.input.types
    kinds = None if types is None else torch.randint(types, ids.shape, generator=generator)
    runtime = ctranslate2.Encoder(str(out), device="cpu", compute_type="float32", intra_threads=1)
    type_ids = (
        None
        if kinds is None
        else [kind[row_mask].tolist() for kind, row_mask in zip(kinds, mask, strict=True)]
    )
    output = runtime.forward_batch(rows, token_type_ids=type_ids)
    with torch.no_grad():
        vectors, context = model.hidden_states(TextInputs(ids, mask, kinds))
    hidden = torch.from_numpy(numpy.array(output.last_hidden_state))
    torch.testing.assert_close(hidden[mask], vectors[mask], atol=1e-4, rtol=1e-4)
    assert (output.pooler_output is not None) == pooled
    pooler_output = torch.from_numpy(numpy.array(output.pooler_output)) if pooled else None
    if isinstance(model.spec.head, spec.FeaturesSpec):
        ours = model.head(vectors, context).pooled.detach()
        torch.testing.assert_close(pooler_output, ours, atol=1e-4, rtol=1e-4)
    if isinstance(model.spec.head, spec.ClassifySpec):
        head = load_file(out / "head.safetensors")
        scores = pooler_output @ head["out.weight"].T + head["out.bias"]
        torch.testing.assert_close(scores, model.head(vectors, context).detach(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("dtype", "smaller", "within"), [("float16", 1.8, 2e-2), ("int8", 3.0, 0.2)])
def test_quantized_weights_give_similar_scores(tmp_path, dtype, smaller, within):
    """The file is smaller by about the expected factor, and the model is not changed."""
    model = randomize_parameters(glassformer.tiny("marian", vocab_size=2000, d_model=128, num_layers=1))
    bundle = glassformer.Pipeline(model=model, generation={"eos_token_id": EOS})
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    full = export_ctranslate2(bundle, tmp_path / "float32").folder
    small = export_ctranslate2(bundle, tmp_path / dtype, dtype).folder
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert (full / "model.bin").stat().st_size > smaller * (small / "model.bin").stat().st_size
    rows = [id_tokens(row) for row in random_rows(model)]
    logprobs = []
    for folder in (full, small):
        runtime = ctranslate2.Translator(str(folder), device="cpu", compute_type="float32", intra_threads=1)
        logprobs.append([torch.tensor(score.log_probs) for score in runtime.score_batch(rows, rows)])
    worst = max(float((a - b).abs().max()) for a, b in zip(*logprobs, strict=True))
    assert 0 < worst < within


@pytest.mark.parametrize(
    "scaling",
    [
        spec.LinearScalingSpec(factor=3.0),
        spec.BandScalingSpec(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_len=16),
        spec.BandScalingSpec(factor=4.0, low_freq_factor=1.0, high_freq_factor=3.0, original_max_len=8),
    ],
)
def test_rotary_scaling_matches_ctranslate2(tmp_path, scaling):
    model_spec = glassformer.tiny("llama").spec
    position = replace(model_spec.decoder.position, scaling=scaling)
    model = glassformer.build(replace(model_spec, decoder=replace(model_spec.decoder, position=position)))
    check_same(model, tmp_path / "out")


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("marian", "marian"),
        ("t5", "unigram"),
        ("bart", "byte-level-roberta"),
        ("gpt2", "byte-level"),
        ("llama", "byte-fallback"),
    ],
)
def test_published_folder_exports_from_the_command_line(tmp_path, run, family, layout):  # noqa: F811
    """With its own vocabulary and a suppressed token."""
    layouts.LAYOUTS[layout](tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    model = randomize_parameters(glassformer.tiny(family, vocab_size=tokenizer.vocab_size))
    text = "the old captain sang"
    ids = tokenizer.encode(text).ids
    (first,) = (output.ids[0] for output in our_outputs(model, [ids], tokenizer.eos_id))
    generation = {"eos_token_id": tokenizer.eos_id, "bad_words_ids": [[first]]}
    if getattr(model.spec, "start_id", None) is not None:
        generation["decoder_start_token_id"] = model.spec.start_id
    saved = glassformer.Pipeline(model=model, tokenizer=tokenizer, family=family, generation=generation)
    glassformer.save(saved, tmp_path / "model")
    done = run("export", tmp_path / "model", "--format", "ctranslate2", "--out", tmp_path / "out")
    assert done.code == 0, done.err
    ((tokens, _),) = their_output(tmp_path / "out", [tokenizer.tokens(ids)])
    loaded = glassformer.load(tmp_path / "model").model
    (expected,) = our_outputs(loaded, [ids], tokenizer.eos_id, suppress_tokens=(first,))
    assert tokens == tokenizer.tokens(expected.ids, side="target")
    assert tokens and tokens[0] != tokenizer.tokens([first], side="target")[0]


def test_notes_list_options_for_the_runtime(tmp_path):
    bundle = glassformer.Pipeline(
        model=glassformer.tiny("bart").eval(), generation={"eos_token_id": [2, 5], "forced_bos_token_id": 7}
    )
    bundle.generation["bad_words_ids"] = [[3, 4]]
    ends, prefix, never = export_ctranslate2(bundle, tmp_path / "out").notes
    assert "end_token=['<id 2>', '<id 5>']" in ends and "target_prefix=[['<id 7>']]" in prefix
    assert "suppress_sequences=[['<id 3>', '<id 4>']]" in never


@pytest.mark.parametrize(
    ("family", "options", "error"),
    [
        ("vit", {}, UnsupportedError),
        ("sam", {}, UnsupportedError),
        ("vision_encoder_decoder", {}, UnsupportedError),
        ("clip", {"tower": "text"}, UnsupportedError),  # its encoder is causal
        ("bart", {"head": spec.ClassifySpec(num_labels=2)}, UnsupportedError),
        ("mistral", {}, UnsupportedError),
        ("falcon", {}, UnsupportedError),
        ("original", {"start_id": 1, "position": "alibi"}, UnsupportedError),
        ("original", {}, MissingValueError),
    ],
)
def test_unsupported_model_raises(tmp_path, family, options, error):
    bundle = glassformer.Pipeline(model=glassformer.tiny(family, **options), generation={"eos_token_id": 2})
    with pytest.raises(error):
        export_ctranslate2(bundle, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_onnx_is_suggested_only_if_it_supports_the_model(tmp_path):
    for family, supported in (("detr", True), ("sam", False)):
        bundle = glassformer.Pipeline(model=glassformer.tiny(family))
        with pytest.raises(UnsupportedError) as error:
            export_ctranslate2(bundle, tmp_path / "out")
        assert ("ONNX" in error.value.hint) == supported


def test_missing_eos_token_existing_folder_and_missing_package(tmp_path, run, monkeypatch):  # noqa: F811
    model = tmp_path / "model"
    glassformer.save(glassformer.tiny("gpt2"), model)
    no_end = run("export", model, "--format", "ctranslate2", "--out", tmp_path / "out")
    assert no_end.code == 2 and "eos_token_id" in no_end.err
    bundle = glassformer.Pipeline(model=glassformer.tiny("gpt2"), generation={"eos_token_id": 101})
    with pytest.raises(InvalidValueError):
        export_ctranslate2(bundle, tmp_path / "out")
    existing = run("export", model, "--format", "ctranslate2", "--out", model)
    assert existing.code == 2 and "already exists" in existing.err and glassformer.load(model)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", None)
    absent = run("export", model, "--format", "ctranslate2", "--out", tmp_path / "out")
    assert absent.code == 2 and "ctranslate2" in absent.err


def test_transformer_without_tokenizer_generates_until_its_own_end_token(tmp_path):
    sizes = (16, 4, 32, 1, 20, 20)
    free = randomize_parameters(glassformer.Transformer(*sizes, bos_token_id=4).eval())
    rows = torch.randint(8, 20, (12, 5), generator=torch.Generator().manual_seed(0))
    end = free.generate(rows, max_new_tokens=MAX_NEW_TOKENS)[0][3]
    model = glassformer.Transformer(*sizes, bos_token_id=4, eos_token_id=end).eval()
    model.load_state_dict(free.state_dict())
    export_ctranslate2(glassformer.Pipeline(model=model), tmp_path / "out")
    theirs = their_output(tmp_path / "out", [[f"<id {n}>" for n in row] for row in rows.tolist()])
    ours = model.generate(rows, max_new_tokens=MAX_NEW_TOKENS)
    assert [tokens for tokens, _ in theirs] == [[f"<id {n}>" for n in row] for row in ours]
    assert len(ours[0]) <= 3
