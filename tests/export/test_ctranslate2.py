"""What CTranslate2's own runtime writes from our export is what we write."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy
import pytest
import torch
from safetensors.torch import load_file

import glassformer
from glassformer.core import spec
from glassformer.errors import InvalidValueError, MissingValueError, UnsupportedError
from glassformer.export.ctranslate2 import export_ctranslate2
from glassformer.generation import GenerationConfig, GenerationParams, generate
from glassformer.tokenization import load_tokenizer
from tests.cli.conftest import run  # noqa: F401 (a fixture)
from tests.export.shaken import shaken
from tests.tokenization import layouts

ctranslate2 = pytest.importorskip("ctranslate2")

EOS, MOST = 2, 16


def theirs(folder, rows, most=MOST):
    """(tokens, their summed log-probability) as CTranslate2 writes them greedily, a row of tokens each."""
    words = {"beam_size": 1, "length_penalty": 0, "return_scores": True}
    if (folder / "vocabulary.json").is_file():
        runtime = ctranslate2.Generator(str(folder), device="cpu", compute_type="float32", intra_threads=1)
        words |= {"max_length": most, "min_length": 0, "include_prompt_in_result": False}
        found = [runtime.generate_batch([row], **words)[0] for row in rows]
        return [(one.sequences[0], one.scores[0]) for one in found]
    runtime = ctranslate2.Translator(str(folder), device="cpu", compute_type="float32", intra_threads=1)
    found = runtime.translate_batch(rows, max_decoding_length=most, min_decoding_length=0, **words)
    return [(one.hypotheses[0], one.scores[0]) for one in found]


def ours(model, rows, eos=EOS, **words):
    """What we write greedily, one row at a time and so without padding."""
    settings, found = GenerationConfig(max_new_tokens=MOST, **words), []
    for row in rows:
        ids = torch.tensor([row])
        real = torch.ones_like(ids, dtype=torch.bool)
        found += generate(
            model,
            ids,
            GenerationParams(config=settings, eos_token_id=eos, pad_token_id=0),
            attention_mask=real,
        )[0]
    return found


def drawn_rows(model):
    read = model.spec.source if isinstance(model.spec, spec.EncoderDecoderSpec) else model.spec.input
    draw = torch.Generator().manual_seed(1)
    return [
        torch.randint(3, read.vocab_size - 2, (n,), generator=draw).tolist() for n in (9, 4, 33, 1, 20, 6)
    ]


def spelled(ids):
    return [f"<id {index}>" for index in ids]


def check_same(model, folder):
    """Greedy tokens equal, and their log-probabilities to 1e-4; the rows must not all say one thing."""
    bundle = glassformer.Pipeline(model=shaken(model), generation={"eos_token_id": EOS})
    exported = export_ctranslate2(bundle, folder)
    rows = drawn_rows(model)
    expected = ours(bundle.model, rows)
    assert len({tuple(text.ids) for text in expected}) > 1
    for (tokens, score), text in zip(
        theirs(exported.folder, list(map(spelled, rows))), expected, strict=True
    ):
        assert tokens == spelled(text.ids)
        assert score == pytest.approx(text.score, abs=1e-4)


def started(**words):
    return {"start_id": 1, **words}


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("original", started()),
        ("original", started(norm="pre", activation="gelu", norm_eps=1e-2)),
        ("original", started(position="learned", tgt_vocab_size=101, tied=("source", "head"))),
        ("original", started(position="rotary", activation="silu")),
        ("original", started(position="relative", norm="pre")),
        ("marian", {"decoder_heads": 8, "decoder_layers": 3}),
        ("bart", {}),
        ("t5", {"head_dim": 12}),
        ("t5", {"gated": True, "activation": "gelu_tanh", "tied": False}),
        ("gpt2", {}),
        ("llama", {}),
        ("mistral", {"window": None}),
    ],
)
def test_its_runtime_writes_what_we_write(tmp_path, family, words):
    check_same(glassformer.tiny(family, **words), tmp_path / "out")


@pytest.mark.parametrize(
    ("family", "words", "pooled"),
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
def test_its_encoder_gives_our_vectors(tmp_path, family, words, pooled):
    """The last layer's vectors of padded rows with token types, the pooled one, the head's weights."""
    model = shaken(glassformer.tiny(family, **words))
    out = export_ctranslate2(glassformer.Pipeline(model=model), tmp_path / "out").folder
    rows, draw = drawn_rows(model), torch.Generator().manual_seed(2)
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    mask = ids != 0  # what is drawn begins at 3
    types = model.spec.input.types
    kinds = None if types is None else torch.randint(types, ids.shape, generator=draw)
    runtime = ctranslate2.Encoder(str(out), device="cpu", compute_type="float32", intra_threads=1)
    told = None if kinds is None else [kind[real].tolist() for kind, real in zip(kinds, mask, strict=True)]
    found = runtime.forward_batch(rows, token_type_ids=told)
    with torch.no_grad():
        vectors, context = model.hidden_states(ids, mask, types=kinds)
    hidden = torch.from_numpy(numpy.array(found.last_hidden_state))
    torch.testing.assert_close(hidden[mask], vectors[mask], atol=1e-4, rtol=1e-4)
    assert (found.pooler_output is not None) == pooled
    there = torch.from_numpy(numpy.array(found.pooler_output)) if pooled else None
    if isinstance(model.spec.head, spec.FeaturesSpec):
        ours = model.head(vectors, context).pooled.detach()
        torch.testing.assert_close(there, ours, atol=1e-4, rtol=1e-4)
    if isinstance(model.spec.head, spec.ClassifySpec):
        beside = load_file(out / "head.safetensors")
        scores = there @ beside["out.weight"].T + beside["out.bias"]
        torch.testing.assert_close(scores, model.head(vectors, context).detach(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("dtype", "smaller", "within"), [("float16", 1.8, 2e-2), ("int8", 3.0, 0.2)])
def test_smaller_weights_write_nearly_the_same(tmp_path, dtype, smaller, within):
    """Half or a quarter of the bytes, and the scores of the same tokens move by no more than stated."""
    model = shaken(glassformer.tiny("marian", vocab_size=2000, d_model=128, num_layers=1))
    bundle = glassformer.Pipeline(model=model, generation={"eos_token_id": EOS})
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    whole = export_ctranslate2(bundle, tmp_path / "float32").folder
    small = export_ctranslate2(bundle, tmp_path / dtype, dtype).folder
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert (whole / "model.bin").stat().st_size > smaller * (small / "model.bin").stat().st_size
    rows = [spelled(row) for row in drawn_rows(model)]
    scored = []
    for folder in (whole, small):
        runtime = ctranslate2.Translator(str(folder), device="cpu", compute_type="float32", intra_threads=1)
        scored.append([torch.tensor(one.log_probs) for one in runtime.score_batch(rows, rows)])
    worst = max(float((a - b).abs().max()) for a, b in zip(*scored, strict=True))
    assert 0 < worst < within


@pytest.mark.parametrize(
    "scaling",
    [
        spec.LinearScalingSpec(factor=3.0),
        spec.BandScalingSpec(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_len=16),
        spec.BandScalingSpec(factor=4.0, low_freq_factor=1.0, high_freq_factor=3.0, original_max_len=8),
    ],
)
def test_stretched_rotary_positions_too(tmp_path, scaling):
    what = glassformer.tiny("llama").spec
    position = replace(what.decoder.position, scaling=scaling)
    model = glassformer.build(replace(what, decoder=replace(what.decoder, position=position)))
    check_same(model, tmp_path / "out")


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("marian", "two-sided"),
        ("t5", "unigram"),
        ("bart", "byte-level-marked"),
        ("gpt2", "byte-level"),
        ("llama", "byte-fallback"),
    ],
)
def test_published_folders_go_through_text(tmp_path, run, family, layout):  # noqa: F811
    """A folder in the published layout, its own vocabulary, a token it forbids, all by the command line."""
    layouts.LAYOUTS[layout](tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    model = shaken(glassformer.tiny(family, vocab_size=tokenizer.vocab_size))
    text = "the old captain sang"
    ids = tokenizer.encode(text).ids
    (first,) = (one.ids[0] for one in ours(model, [ids], tokenizer.eos_id))
    generation = {"eos_token_id": tokenizer.eos_id, "bad_words_ids": [[first]]}
    if getattr(model.spec, "start_id", None) is not None:
        generation["decoder_start_token_id"] = model.spec.start_id
    saved = glassformer.Pipeline(model=model, tokenizer=tokenizer, family=family, generation=generation)
    glassformer.save(saved, tmp_path / "model")
    done = run("export", tmp_path / "model", "--format", "ctranslate2", "--out", tmp_path / "out")
    assert done.code == 0, done.err
    ((tokens, _),) = theirs(tmp_path / "out", [tokenizer.tokens(ids)])
    loaded = glassformer.load(tmp_path / "model").model
    (expected,) = ours(loaded, [ids], tokenizer.eos_id, suppress_tokens=(first,))
    assert tokens == tokenizer.tokens(expected.ids, side="target")
    assert tokens and tokens[0] != tokenizer.tokens([first], side="target")[0]


def test_what_the_runtime_must_be_told_is_a_note(tmp_path):
    bundle = glassformer.Pipeline(
        model=glassformer.tiny("bart").eval(), generation={"eos_token_id": [2, 5], "forced_bos_token_id": 7}
    )
    bundle.generation["bad_words_ids"] = [[3, 4]]
    ends, begins, never = export_ctranslate2(bundle, tmp_path / "out").notes
    assert "end_token=['<id 2>', '<id 5>']" in ends and "target_prefix=[['<id 7>']]" in begins
    assert "suppress_sequences=[['<id 3>', '<id 4>']]" in never


@pytest.mark.parametrize(
    ("family", "options", "error"),
    [
        ("vit", {}, UnsupportedError),
        ("bart", {"head": spec.ClassifySpec(num_labels=2)}, UnsupportedError),
        ("mistral", {}, UnsupportedError),
        ("falcon", {}, UnsupportedError),
        ("original", {"start_id": 1, "position": "alibi"}, UnsupportedError),
        ("original", {}, MissingValueError),
    ],
)
def test_model_that_the_format_cannot_represent_is_refused(tmp_path, family, options, error):
    bundle = glassformer.Pipeline(model=glassformer.tiny(family, **options), generation={"eos_token_id": 2})
    with pytest.raises(error):
        export_ctranslate2(bundle, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_missing_end_token_and_existing_folder_are_refused(tmp_path, run, monkeypatch):  # noqa: F811
    model = tmp_path / "model"
    glassformer.save(glassformer.tiny("gpt2"), model)
    no_end = run("export", model, "--format", "ctranslate2", "--out", tmp_path / "out")
    assert no_end.code == 2 and "eos_token_id" in no_end.err
    bundle = glassformer.Pipeline(model=glassformer.tiny("gpt2"), generation={"eos_token_id": 101})
    with pytest.raises(InvalidValueError):
        export_ctranslate2(bundle, tmp_path / "out")
    there = run("export", model, "--format", "ctranslate2", "--out", model)
    assert there.code == 2 and "already exists" in there.err and glassformer.load(model)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", None)
    absent = run("export", model, "--format", "ctranslate2", "--out", tmp_path / "out")
    assert absent.code == 2 and "glassformer[export]" in absent.err
