"""Translating, summarising and mending, from Python."""

from __future__ import annotations

import itertools

import pytest
import torch

import glassformer
from glassformer.errors import GlassformerError
from glassformer.families.sidecars import JobInfo
from glassformer.tasks.writing.pieces import Cutter, Place
from glassformer.tasks.writing.sources import language, mending, own_tag, plain
from glassformer.tokenization import TokenizerPlan, encode_tagged, load_tokenizer, train_tokenizer
from tests.tasks.reversing import ROWS, bytewise, reverse, reverser, speaker
from tests.tokenization import layouts


@pytest.fixture(scope="module")
def bundle():
    return glassformer.load(reverser())


@pytest.mark.parametrize("beams", [None, 1])
def test_what_was_learned_is_translated_in_order(bundle, beams):
    """A slip here and there is the small model's; answers in another order would be nearly all wrong."""
    found = bundle.translate(ROWS, num_beams=beams)
    assert sum(got == reverse(row) for got, row in zip(found, ROWS, strict=True)) >= 0.85 * len(ROWS)
    assert found == list(bundle.translate(iter(ROWS), num_beams=beams, batch_tokens=300))
    assert found[5:8] == [bundle.translate(row, num_beams=beams)[0] for row in ROWS[5:8]]


def test_a_passage_tells_what_the_model_thinks_of_it(bundle):
    """The score of a greedy answer is its log-probability under the model read in one go."""
    (passage,) = bundle.translate(["red blue green"], num_beams=1, details=True)
    tokenizer = bundle.tokenizer
    source = torch.tensor([tokenizer.encode("red blue green").ids])
    answer = tokenizer.encode(passage.text, side="target").ids
    start = bundle.spec.start_id
    logits = bundle.model(source, torch.tensor([[start, *answer[:-1]]]))
    picked = logits.log_softmax(-1)[0].gather(1, torch.tensor(answer)[:, None]).sum()
    assert passage.score == pytest.approx(picked.item(), abs=1e-4)
    assert passage.tokens == len(answer) - 1 and passage.ended == "end" and passage.seconds > 0


def test_the_next_best_come_with_details(bundle):
    (passage,) = bundle.translate(["red blue green"], num_return_sequences=3, details=True)
    scores = [passage.score, *(other.score for other in passage.others)]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True)
    assert len({passage.text, *(other.text for other in passage.others)}) == 3


def test_no_more_is_read_than_batches_need(bundle):
    """An endless stream is answered; how far reading is ahead of answers does not grow."""
    read, ahead = 0, []

    def endless():
        nonlocal read
        for row in itertools.cycle(ROWS):
            read += 1
            yield row

    answers = bundle.translate(endless(), num_beams=1, batch_tokens=512)
    for done, _ in enumerate(itertools.islice(answers, 3000), 1):
        ahead.append(read - done)
    assert max(ahead[1000:]) <= max(ahead[:1000]) < 1000


def test_the_folder_says_how_to_write(tmp_path, bundle):
    """generation_config.json as the reference library honours it, and a setting given goes before it."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(2)
    tokenizer = bundle.tokenizer
    model = glassformer.tiny("bart", vocab_size=tokenizer.vocab_size, pad_id=tokenizer.pad_id)
    generation = {
        "num_beams": 3,
        "no_repeat_ngram_size": 2,
        "max_length": 9,
        "length_penalty": 0.6,
        "forced_bos_token_id": 5,
        "decoder_start_token_id": 3,
        "eos_token_id": 3,
        "pad_token_id": tokenizer.pad_id,
    }
    made = glassformer.Pipeline(model=model, tokenizer=tokenizer, family="bart", generation=generation)
    folder = glassformer.save(made, tmp_path / "bart")
    ours = glassformer.load(folder)
    theirs = transformers.BartForConditionalGeneration.from_pretrained(folder).eval()
    for given_words in ({}, {"num_beams": 2}, {"max_new_tokens": 4}):
        expected = []
        for row in ROWS[:30:7]:
            ids = theirs.generate(torch.tensor([tokenizer.encode(row).ids]), **given_words)[0].tolist()
            expected.append(tokenizer.decode(ids).strip())
        assert ours.translate(ROWS[:30:7], **given_words) == expected, given_words


def test_a_language_is_a_tag_or_the_first_token(bundle):
    plan = TokenizerPlan(kind="word", vocab_size=50, min_frequency=1, tags=(">>fra<<", "<de>"))
    tokenizer = train_tokenizer(["red blue"], plan)
    made = glassformer.Pipeline(model=bundle.model, tokenizer=tokenizer)
    spoken = language(made, "fra")
    assert spoken.tag == ">>fra<<"
    tagged = encode_tagged(tokenizer, ["red"], ">>fra<<")[0].ids
    assert plain(made, tag=spoken.tag)(["red"]) == [tagged] and tagged[0] == tokenizer.token_id(">>fra<<")
    assert language(made, "<de>").settings == {"forced_bos_token_id": tokenizer.token_id("<de>")}
    made.config = {"task_specific_params": {"translation_en_to_ro": {"prefix": "translate to Romanian: "}}}
    assert language(made, "ro").prefix == "translate to Romanian: "
    assert language(made, "FRA") == language(made, "Fra") == spoken and language(made, "RO").prefix
    for name, tag in (("French", "fra"), ("FRANÇAIS", "fra"), ("romanian", "ro")):
        with pytest.raises(GlassformerError, match=f"no language '{name}'; it knows that one as '{tag}'$"):
            language(made, name)
    with pytest.raises(GlassformerError, match="no language 'German': its tokenizer has neither"):
        language(made, "German")  # which it does not write
    with pytest.raises(GlassformerError, match="no language 'xx'"):
        language(made, "xx")


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("marian", "two-sided"),
        ("t5", "unigram"),
        ("bart", "byte-level-marked"),
        ("original", "unigram"),
        ("gpt2", "byte-level"),
        ("llama", "byte-fallback"),
    ],
)
def test_every_family_writes_from_its_folder(tmp_path, family, layout):
    """Published tokenizers with random weights: many at once give what one at a time gives."""
    torch.manual_seed(0)
    layouts.LAYOUTS[layout](tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    size = {"vocab_size": tokenizer.vocab_size}
    if family == "original":
        size = {"src_vocab_size": tokenizer.vocab_size, "start_id": 1}
    made = glassformer.Pipeline(model=glassformer.tiny(family, **size).eval(), tokenizer=tokenizer)
    texts = ["the old captain", "바다에", "the sea. 🌊 The captain sang to the old sea!", "a"]
    does = made.generate if family in ("gpt2", "llama") else made.translate
    for beams in (1, 3):
        found = does(texts, max_new_tokens=8, details=True, num_beams=beams)
        for text, passage in zip(texts, found, strict=True):
            (alone,) = does([text], max_new_tokens=8, details=True, num_beams=beams)
            assert (alone.text, alone.tokens) == (passage.text, passage.tokens)
            assert alone.score == pytest.approx(passage.score, abs=1e-4)


def test_a_recurrent_model_writes_too():
    from glassformer.baselines.spec import LSTMEncoderDecoder, LSTMLanguageModel
    from glassformer.bundle import build_model

    tokenizer = bytewise()
    size = tokenizer.vocab_size
    torch.manual_seed(0)
    pairs = build_model(LSTMEncoderDecoder(src_vocab_size=size, tgt_vocab_size=size, d_model=16, start_id=3))
    text = build_model(LSTMLanguageModel(vocab_size=size, d_model=16))
    reads = glassformer.Pipeline(model=pairs.eval(), tokenizer=tokenizer)
    writes = glassformer.Pipeline(model=text.eval(), tokenizer=tokenizer)
    assert reads.translate(["the sea", "", "a"], max_new_tokens=6)[1] == ""
    assert "".join(writes.stream("the", max_new_tokens=9)) == writes.generate("the", max_new_tokens=9)[0]


def test_every_sentence_of_a_line_gets_its_tag(bundle, tmp_path):
    """As the line's own tag, where the tokenizer takes it for one."""
    encoded = []

    def encode(texts):
        encoded.extend(texts)
        return [[1] * len(text) for text in texts]

    def lead(line):
        return ">>fra<< " if line.startswith(">>fra<< ") else ""

    line = "It rained all day long. " * 9
    (layout,) = Cutter(encode=encode, reads=None, lead=lead).layouts([f">>fra<< {line}"])
    assert encoded[1:] == [">>fra<< It rained all day long."] * 9
    assert len([part for part in layout if isinstance(part, Place)]) == 9
    plan = TokenizerPlan(kind="word", vocab_size=50, min_frequency=1, tags=(">>fra<<",))
    made = glassformer.Pipeline(model=bundle.model, tokenizer=train_tokenizer(["red"], plan))
    assert own_tag(made)(">>fra<< red") == ""  # which this tokenizer takes for text
    layouts.LAYOUTS["two-sided"](tmp_path)
    made = glassformer.Pipeline(model=bundle.model, tokenizer=load_tokenizer(tmp_path))
    tagged = [own_tag(made)(line) for line in (">>fra<<  red", ">>fra<<red", ">>xyz<< red", ">>fra")]
    assert tagged == [">>fra<<  ", ">>fra<<", "", ""]


def test_a_gap_is_one_token_among_words_spelled_as_in_training(bundle):
    plan = TokenizerPlan(kind="bpe", vocab_size=200, marks="end", tags=("<gap>",))
    tokenizer = train_tokenizer(["the old captain sang to the sea"] * 3, plan)
    made = glassformer.Pipeline(model=bundle.model, tokenizer=tokenizer)
    whole = tokenizer.encode(" the old captain sang").ids
    middle = tokenizer.encode(" old captain", special=False).ids
    at = next(n for n in range(len(whole)) if whole[n : n + len(middle)] == middle)
    expected = [*whole[:at], tokenizer.token_id("<gap>"), *whole[at + len(middle) :]]
    encode = mending(made, gap="<gap>", before=" ")
    assert encode(["the <gap>  sang", "the<gap>sang", "the old captain sang"]) == [expected, expected, whole]
    assert "</s>" not in tokenizer.decode(encode(["</s> <gap>"])[0][:-2], skip_special=True)


def test_the_job_of_a_folder_is_kept_to(bundle, tmp_path):
    talker = glassformer.load(speaker(tmp_path / "talker"))
    made = glassformer.Pipeline(model=bundle.model, tokenizer=bundle.tokenizer, job=JobInfo(name="restore"))
    with pytest.raises(GlassformerError, match="trained to restore, not to translate"):
        made.translate(["red"])
    with pytest.raises(GlassformerError, match="trained to translate, not to restore"):
        bundle.restore(["red"])
    with pytest.raises(GlassformerError, match="goes on from a prompt"):
        talker.translate(["red"])
    with pytest.raises(GlassformerError, match="writes no text"):
        glassformer.Pipeline(model=glassformer.tiny("bert"), tokenizer=bundle.tokenizer).generate(["red"])
    with pytest.raises(GlassformerError, match="has no tokenizer"):
        glassformer.Pipeline(model=bundle.model).translate(["red"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"to": "xx"}, "no language 'xx'"),
        ({"split": "words"}, "split must be"),
        ({"prefix": 5}, "prefix must be"),
    ],
    ids=str,
)
def test_words_that_mean_nothing(bundle, words, sentence):
    with pytest.raises(GlassformerError, match=sentence):
        bundle.translate(["red"], **words)
