"""Translate, summarize and restore."""

from __future__ import annotations

import pytest
import torch

import glassformer
from glassformer.errors import UnknownNameError
from glassformer.tasks import TextGenerator, Translator
from glassformer.tasks.text_generation import target_language
from glassformer.tasks.translation import gap_encoder, source_encoder, tag_reader
from glassformer.tokenization import TokenizerPlan, encode_tagged, load_tokenizer, train_tokenizer
from tests.tasks.tiny_models import ROWS, byte_tokenizer, reversal_model, reverse
from tests.tokenization import layouts

SENTENCES = (
    "Hello everyone!",
    "My name is Anna and I live in Berlin.",
    "I have two cats and a dog.",
    "Yesterday we went to the park.",
    "Will you come with us tomorrow?",
)
KOREAN = ("어제 우리는 공원에 갔다.", "날씨가 아주 좋았다.", "내일 다시 오겠습니다.")


@pytest.fixture(scope="module")
def bundle():
    return glassformer.load(reversal_model())


@pytest.fixture(scope="module")
def pocket():
    return glassformer.load("pocket")


@pytest.mark.parametrize("beams", [None, 1])
def test_results_come_in_order(bundle, beams):
    """The small model makes some mistakes; results in another order would be nearly all wrong."""
    translations = bundle.translate(ROWS, num_beams=beams)
    assert sum(
        translation == reverse(row) for translation, row in zip(translations, ROWS, strict=True)
    ) >= 0.85 * len(ROWS)
    small = Translator(bundle, num_beams=beams, batch_tokens=300)
    assert translations == [result.text for result in small.run(iter(ROWS))]
    assert translations[5:8] == [bundle.translate(row, num_beams=beams) for row in ROWS[5:8]]


def test_score_is_the_log_probability(bundle):
    """Of a greedy output, under the model in one forward pass."""
    result = Translator(bundle, num_beams=1)("red blue green")
    tokenizer = bundle.tokenizer
    source = torch.tensor([tokenizer.encode("red blue green").ids])
    answer = tokenizer.encode(result.text, side="target").ids
    logits = bundle.model(source, torch.tensor([[bundle.spec.start_id, *answer[:-1]]]))
    expected = logits.log_softmax(-1)[0].gather(1, torch.tensor(answer)[:, None]).sum()
    assert result.score == pytest.approx(expected.item(), abs=1e-4)
    assert result.num_tokens == len(answer) - 1 and result.finish_reason == "end" and result.seconds > 0


def test_generation_config_matches_transformers(tmp_path, bundle):
    """generation_config.json as transformers reads it, with the caller's options over it."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(2)
    tokenizer = bundle.tokenizer
    model = glassformer.tiny("bart", vocab_size=tokenizer.vocab_size, pad_id=tokenizer.pad_id)
    generation = {"num_beams": 3, "no_repeat_ngram_size": 2, "max_length": 9, "length_penalty": 0.6}
    generation |= {"forced_bos_token_id": 5, "decoder_start_token_id": 3, "eos_token_id": 3}
    generation |= {"pad_token_id": tokenizer.pad_id}
    bart = glassformer.Bundle(model=model, tokenizer=tokenizer, family="bart", generation=generation)
    folder = glassformer.save(bart, tmp_path / "bart")
    ours = glassformer.load(folder)
    theirs = transformers.BartForConditionalGeneration.from_pretrained(folder).eval()
    for options in ({}, {"num_beams": 2}, {"max_new_tokens": 4}):
        expected = []
        for row in ROWS[:30:7]:
            ids = theirs.generate(torch.tensor([tokenizer.encode(row).ids]), **options)[0].tolist()
            expected.append(tokenizer.decode(ids).strip())
        assert ours.translate(ROWS[:30:7], **options) == expected, options


def test_language_is_a_tag_a_prefix_or_the_first_token(bundle):
    plan = TokenizerPlan(kind="word", vocab_size=50, min_frequency=1, tags=(">>fra<<", "<de>"))
    tokenizer = train_tokenizer(["red blue"], plan)
    tagged_bundle = glassformer.Bundle(model=bundle.model, tokenizer=tokenizer)
    french = target_language(tagged_bundle, "fra")
    assert french.tag == ">>fra<<"
    tagged = encode_tagged(tokenizer, ["red"], ">>fra<<")[0].ids
    assert source_encoder(tokenizer, tag=french.tag)(["red"]) == [tagged]
    assert tagged[0] == tokenizer.token_id(">>fra<<")
    german = target_language(tagged_bundle, "<de>")
    assert german.options == {"forced_bos_token_id": tokenizer.token_id("<de>")}
    tagged_bundle.config = {
        "task_specific_params": {"translation_en_to_ro": {"prefix": "translate to Romanian: "}}
    }
    assert target_language(tagged_bundle, "ro").prefix == "translate to Romanian: "
    assert target_language(tagged_bundle, "FRA") == french and target_language(tagged_bundle, "RO").prefix
    with pytest.raises(UnknownNameError) as caught:
        target_language(tagged_bundle, "French")
    assert {"fra", "ro"} <= set(caught.value.known)


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("marian", "marian"),
        ("t5", "unigram"),
        ("bart", "byte-level-roberta"),
        ("original", "unigram"),
        ("gpt2", "byte-level"),
        ("llama", "byte-fallback"),
    ],
)
def test_batching_changes_nothing_in_any_family(tmp_path, family, layout):
    torch.manual_seed(0)
    layouts.LAYOUTS[layout](tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    size = {"vocab_size": tokenizer.vocab_size}
    if family == "original":
        size = {"src_vocab_size": tokenizer.vocab_size, "start_id": 1}
    bundle = glassformer.Bundle(model=glassformer.tiny(family, **size).eval(), tokenizer=tokenizer)
    texts = ["the old captain", "바다에", "the sea. 🌊 The captain sang to the old sea!", "a"]
    kind = TextGenerator if family in ("gpt2", "llama") else Translator
    for beams in (1, 3):
        task = kind(bundle, max_new_tokens=8, num_beams=beams)
        for text, result in zip(texts, task(texts), strict=True):
            alone = task(text)
            assert (alone.text, alone.num_tokens) == (result.text, result.num_tokens)
            assert alone.score == pytest.approx(result.score, abs=1e-4)


def test_lstm_models_generate():
    from glassformer.baselines.spec import LSTMEncoderDecoderSpec, LSTMLanguageModelSpec
    from glassformer.bundle import build_from_spec

    tokenizer = byte_tokenizer()
    size = tokenizer.vocab_size
    torch.manual_seed(0)
    pairs = build_from_spec(
        LSTMEncoderDecoderSpec(src_vocab_size=size, tgt_vocab_size=size, d_model=16, start_id=3)
    )
    text = build_from_spec(LSTMLanguageModelSpec(vocab_size=size, d_model=16))
    reads = glassformer.Pipeline(model=pairs.eval(), tokenizer=tokenizer)
    writes = glassformer.Pipeline(model=text.eval(), tokenizer=tokenizer)
    assert reads.translate(["the sea", "", "a"], max_new_tokens=6)[1] == ""
    assert "".join(writes.stream("the", max_new_tokens=9)) == writes.generate("the", max_new_tokens=9)


def test_tag_at_the_start_of_a_line_is_recognized(bundle, tmp_path):
    plan = TokenizerPlan(kind="word", vocab_size=50, min_frequency=1, tags=(">>fra<<",))
    assert tag_reader(train_tokenizer(["red"], plan))(">>fra<< red") == ""  # plain text for this tokenizer
    layouts.LAYOUTS["marian"](tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    tags = [tag_reader(tokenizer)(line) for line in (">>fra<<  red", ">>fra<<red", ">>xyz<< red", ">>fra")]
    assert tags == [">>fra<<  ", ">>fra<<", "", ""]


def test_gap_is_one_token_and_text_is_encoded_as_in_training():
    plan = TokenizerPlan(kind="bpe", vocab_size=200, template="eos", tags=("<gap>",))
    tokenizer = train_tokenizer(["the old captain sang to the sea"] * 3, plan)
    complete = tokenizer.encode(" the old captain sang").ids
    middle = tokenizer.encode(" old captain", special=False).ids
    at = next(n for n in range(len(complete)) if complete[n : n + len(middle)] == middle)
    expected = [*complete[:at], tokenizer.token_id("<gap>"), *complete[at + len(middle) :]]
    encode = gap_encoder(tokenizer, "<gap>", " ")
    assert encode(["the <gap>  sang", "the<gap>sang", "the old captain sang"]) == [
        expected,
        expected,
        complete,
    ]
    assert "</s>" not in tokenizer.decode(encode(["</s> <gap>"])[0][:-2], skip_special=True)


@pytest.mark.parametrize(("texts", "to"), [(SENTENCES, "de"), (SENTENCES, "ko"), (KOREAN, "en")])
def test_sentence_model_translates_paragraphs_by_sentence(pocket, texts, to):
    paragraph = Translator(pocket, to=to)(" ".join(texts))
    assert paragraph.text == " ".join(pocket.translate(texts, to=to)) and not paragraph.warnings
    assert pocket.translate(" ".join(texts), to=to, split="never") != paragraph.text
