"""Translating, summarising, mending and going on with text, from Python."""

from __future__ import annotations

import gzip
import itertools
import math
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import glassformer
from glassformer.core.errors import GlassformerError
from glassformer.text import TokenizerPlan, encode_tagged, load_tokenizer, train_tokenizer
from glassformer.text.documents import halved, sentences
from glassformer.verbs.writing.pieces import LONG, Cutter, Place
from glassformer.verbs.writing.prompts import Pieces, following
from glassformer.verbs.writing.sources import language, mending, own_tag, plain
from tests.text import layouts
from tests.verbs.reversing import KOREAN, ROWS, bytewise, reverse, reverser, speaker

DATA = Path(os.environ.get("GLASSFORMER_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.fixture(scope="module")
def bundle():
    return glassformer.load(reverser())


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    return glassformer.load(speaker(tmp_path_factory.mktemp("speaker") / "model", max_len=600))


# ---- translating ------------------------------------------------------------------------------------


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
    made = glassformer.Bundle(model=model, tokenizer=tokenizer, family="bart", generation=generation)
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
    made = glassformer.Bundle(model=bundle.model, tokenizer=tokenizer)
    spoken = language(made, "fra")
    assert spoken.tag == ">>fra<<"
    tagged = encode_tagged(tokenizer, ["red"], ">>fra<<")[0].ids
    assert plain(made, tag=spoken.tag)(["red"]) == [tagged] and tagged[0] == tokenizer.token_id(">>fra<<")
    assert language(made, "<de>").settings == {"forced_bos_token_id": tokenizer.token_id("<de>")}
    made.config = {"task_specific_params": {"translation_en_to_ro": {"prefix": "translate to Romanian: "}}}
    assert language(made, "ro").prefix == "translate to Romanian: "
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
    made = glassformer.Bundle(model=glassformer.tiny(family, **size).eval(), tokenizer=tokenizer)
    texts = ["the old captain", "바다에", "the sea. 🌊 The captain sang to the old sea!", "a"]
    does = made.generate if family in ("gpt2", "llama") else made.translate
    for beams in (1, 3):
        found = does(texts, max_new_tokens=8, details=True, num_beams=beams)
        for text, passage in zip(texts, found, strict=True):
            (alone,) = does([text], max_new_tokens=8, details=True, num_beams=beams)
            assert (alone.text, alone.tokens) == (passage.text, passage.tokens)
            assert alone.score == pytest.approx(passage.score, abs=1e-4)


def test_a_recurrent_model_writes_too():
    from glassformer.api import build_any
    from glassformer.baselines.spec import LSTMEncoderDecoder, LSTMLanguageModel

    tokenizer = bytewise()
    size = tokenizer.vocab_size
    torch.manual_seed(0)
    pairs = build_any(LSTMEncoderDecoder(src_vocab_size=size, tgt_vocab_size=size, d_model=16, start_id=3))
    text = build_any(LSTMLanguageModel(vocab_size=size, d_model=16))
    reads = glassformer.Bundle(model=pairs.eval(), tokenizer=tokenizer)
    writes = glassformer.Bundle(model=text.eval(), tokenizer=tokenizer)
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
    made = glassformer.Bundle(model=bundle.model, tokenizer=train_tokenizer(["red"], plan))
    assert own_tag(made)(">>fra<< red") == ""  # which this tokenizer takes for text
    layouts.LAYOUTS["two-sided"](tmp_path)
    made = glassformer.Bundle(model=bundle.model, tokenizer=load_tokenizer(tmp_path))
    tagged = [own_tag(made)(line) for line in (">>fra<<  red", ">>fra<<red", ">>xyz<< red", ">>fra")]
    assert tagged == [">>fra<<  ", ">>fra<<", "", ""]


# ---- whole documents --------------------------------------------------------------------------------


def test_lines_stay_lines(bundle):
    text = "red blue\n\n  gold\n \nblue blue red\n"
    rows = ["red blue", "gold", "blue blue red"]
    one, two, three = bundle.translate(rows)
    assert bundle.translate([text]) == [f"{one}\n\n  {two}\n\n{three}\n"]


def test_a_long_line_is_translated_by_its_sentences(bundle):
    parts = [f"{row}。" for row in ROWS[20:60]]
    text, expected = " ".join(parts), [" ".join(bundle.translate(parts))]
    assert len(bundle.tokenizer.encode(text).ids) > LONG
    assert bundle.translate([text]) == expected == bundle.translate([text], split="always")


@given(st.lists(st.sampled_from(["red", "blue,", "gold.", "Green;", "z.", "3."]), min_size=1, max_size=90))
def test_pieces_fit_and_nothing_is_lost(words):
    """Every word is in one piece, in order, and no piece is longer than the model reads."""
    seen: dict[tuple[int, ...], str] = {}

    def encode(texts):
        found = []
        for text in texts:
            ids = [hash(word) % 1000 for word in text.split()]
            seen[tuple(ids)] = text
            found.append(ids)
        return found

    (layout,) = Cutter(encode=encode, reads=7, split="long").layouts([" ".join(words)])
    places = [part for part in layout if isinstance(part, Place)]
    assert all(len(place.ids) <= 7 for place in places)
    assert "".join(seen[tuple(p.ids)] if isinstance(p, Place) else p for p in layout) == " ".join(words)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('Mr. J. R. Lee of the U.S. Navy paid $3.50. Then he left. "Oh?" he asked. "Yes!" She smiled.', 5),
        ("It was 1999. No. 5 is alive. No. I will not go at 5 p.m. today... Why? See www.x.com for it.", 6),
        ("Am 3. Mai kam z. B. Dr. Ott, d. h. der Chef, in die Hauptstr. 5 usw. Er war 42. Dann ging er.", 3),
        ("M. Dupont a dit : « Bonjour ! » Puis il est parti, cf. p. 12, etc. Est-ce vrai ? Oui.", 4),
        ("그는 집에 갔다. 3.5도였다! 정말? U.S. 대통령이 왔다.", 4),
        ("我来了。你好！真的吗？", 3),
        ("1. Introduction to glass.", 1),
        ("no stop here", 1),
    ],
)  # fmt: skip
def test_sentences_end_where_people_see_them_end(text, expected):
    found = sentences(text)
    assert len(found) == expected, found
    assert "".join(sentence + gap for sentence, gap in found) == text


@pytest.mark.skipif(not (DATA / "flores").is_dir(), reason="GLASSFORMER_DATA has no flores")
@pytest.mark.parametrize(
    ("name", "found", "right"),
    [
        *((f"flores/flores-test.{tongue}.gz", 0.97, 0.8) for tongue in ("en", "de", "fr", "ko")),
        *((f"wmt-newstest/newstest2018.en-de.{tongue}.gz", 0.94, 0.97) for tongue in ("en", "de")),
    ],
)
def test_real_sentences_are_found_again(name, found, right):
    """Lines joined by fives come apart where they were joined; some hold several sentences themselves."""
    with gzip.open(DATA / name, "rt", encoding="utf-8") as file:
        lines = [line.strip() for line in file if line.strip()]
    hits = joints = ends = 0
    for at in range(0, len(lines) - 4, 5):
        group = lines[at : at + 5]
        true = {*itertools.accumulate(len(line) + 1 for line in group[:-1])}
        got = {*itertools.accumulate(len(one) + len(gap) for one, gap in sentences(" ".join(group))[:-1])}
        hits, joints, ends = hits + len(true & got), joints + len(true), ends + len(got)
    assert hits / joints >= found and hits / ends >= right


@given(st.text(alphabet=' .!?aB3"»。\u00a0,\n', max_size=200))
def test_sentences_lose_nothing(text):
    assert "".join(sentence + gap for sentence, gap in sentences(text)) == text
    cut = halved(text)
    assert cut is None or ("".join(cut) == text and max(len(cut[0]), len(cut[2])) < len(text))


# ---- going on with text -----------------------------------------------------------------------------


@settings(max_examples=30)
@given(
    text=st.one_of(st.text(max_size=60), st.sampled_from([KOREAN * 5, "don ' t . n't 's " * 40])),
    cut=st.integers(0, 9),
)
@pytest.mark.parametrize("kind", ["byte", "bpe", "unigram", "word", "char"])
def test_pieces_joined_are_the_text(kind, text, cut):
    tokenizer = by_kind(kind)
    ids = tokenizer.encode(text, special=False).ids
    pieces = Pieces(tokenizer, ids[:cut])
    found = [*(pieces.push(token) for token in ids[cut:]), pieces.end()]
    assert "".join(found) == following(tokenizer, ids[:cut], ids[cut:])
    if "\ufffd" not in tokenizer.decode(ids):
        assert not any("\ufffd" in piece for piece in found[:-1])


def by_kind(kind, made={}):  # noqa: B006 (learned once)
    if kind not in made:
        plan = TokenizerPlan(kind=kind, vocab_size=300, min_frequency=1)
        made[kind] = bytewise() if kind == "byte" else train_tokenizer([KOREAN, "the old sea"] * 3, plan)
    return made[kind]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"do_sample": True, "seed": 4, "temperature": 1.5},
        {"max_new_tokens": 300, "do_sample": True, "seed": 1},
        {"do_sample": True, "seed": 2, "stop": "e"},
    ],
    ids=str,
)
def test_a_stream_is_what_generate_gives(talker, settings):
    for prompt in ("the old 바다", "🌊", ""):
        (whole,) = talker.generate([prompt], details=True, **settings)
        stream = talker.stream(prompt, **settings)
        assert "".join(stream) == whole.text
        assert (stream.written.ended, len(stream.written.ids)) == (whole.ended, whole.tokens)
        assert not settings.get("stop") or (whole.ended == "stop" and "e" not in whole.text)


def test_a_stream_that_is_left_stops(talker):
    stream = talker.stream("the", do_sample=True, seed=0, max_new_tokens=500)
    next(stream)
    stream.close()
    assert stream.written is None and list(stream) == []


def test_without_an_end_token_the_limit_ends():
    plan = TokenizerPlan(kind="char", vocab_size=60, marks="none")
    tokenizer = train_tokenizer(["the old captain"], plan)
    made = glassformer.Bundle(model=glassformer.tiny("llama"), tokenizer=tokenizer)
    tokenizer._role_ids["eos"] = None
    (passage,) = made.generate(["the"], details=True, max_new_tokens=11)
    assert (passage.ended, passage.tokens) == ("length", 11)


def test_a_gap_is_one_token_among_words_spelled_as_in_training(bundle):
    plan = TokenizerPlan(kind="bpe", vocab_size=200, marks="end", tags=("<gap>",))
    tokenizer = train_tokenizer(["the old captain sang to the sea"] * 3, plan)
    made = glassformer.Bundle(model=bundle.model, tokenizer=tokenizer)
    whole = tokenizer.encode(" the old captain sang").ids
    middle = tokenizer.encode(" old captain", special=False).ids
    at = next(n for n in range(len(whole)) if whole[n : n + len(middle)] == middle)
    expected = [*whole[:at], tokenizer.token_id("<gap>"), *whole[at + len(middle) :]]
    encode = mending(made, gap="<gap>", before=" ")
    assert encode(["the <gap>  sang", "the<gap>sang", "the old captain sang"]) == [expected, expected, whole]
    assert "</s>" not in tokenizer.decode(encode(["</s> <gap>"])[0][:-2], skip_special=True)


def test_the_job_of_a_folder_is_kept_to(bundle, talker):
    made = glassformer.Bundle(
        model=bundle.model, tokenizer=bundle.tokenizer, files={"job.json": {"job": "restore"}}
    )
    with pytest.raises(GlassformerError, match="trained to restore, not to translate"):
        made.translate(["red"])
    with pytest.raises(GlassformerError, match="trained to translate, not to restore"):
        bundle.restore(["red"])
    with pytest.raises(GlassformerError, match="goes on from a prompt"):
        talker.translate(["red"])
    with pytest.raises(GlassformerError, match="writes no text"):
        glassformer.Bundle(model=glassformer.tiny("bert"), tokenizer=bundle.tokenizer).generate(["red"])
    with pytest.raises(GlassformerError, match="has no tokenizer"):
        glassformer.Bundle(model=bundle.model).translate(["red"])


# ---- bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "settings", "sentence"),
    [
        (["red"], {"num_beams": 0}, "num_beams must be"),
        (["red"], {"temperature": 0.0, "do_sample": True}, "temperature must be above 0"),
        (["red"], {"temperature": math.nan, "do_sample": True}, "temperature must be a finite"),
        (["red"], {"top_p": 2.0, "do_sample": True}, "top_p must lie"),
        (["red"], {"num_beam": 2}, "did you mean num_beams"),
        (["red"], {"num_return_sequences": 2}, "details"),
        (["red"], {"to": "xx"}, "no language 'xx'"),
        (["red"], {"split": "words"}, "split must be"),
        (["red"], {"batch_tokens": 0}, "holds nothing"),
        (["red", 5], {}, "text 2 must be a string"),
        (5, {}, "texts must be strings"),
        (["half \ud800"], {}, "not Unicode"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_a_sentence(bundle, texts, settings, sentence):
    with pytest.raises(GlassformerError, match=sentence):
        bundle.translate(texts, **settings)


def test_what_cannot_be_read_is_a_sentence(talker):
    with pytest.raises(GlassformerError, match=r"prompt 2 has .* tokens, and .* reads at most 600"):
        talker.generate(["the", "sea " * 700])
    made = glassformer.load(reverser())
    word = "x" * 1_000_000
    with pytest.raises(GlassformerError, match="text 2 holds 1,000,000 letters with no space"):
        made.translate(["red", word])
    with pytest.raises(GlassformerError, match="text 1 has 5,001 tokens, and the model reads at most 5,000"):
        made.summarize(["red " * 5000])
    cutter = Cutter(encode=lambda texts: [[1] * len(text) for text in texts], reads=512)
    with pytest.raises(GlassformerError, match="1,000,000 letters with no space"):
        list(cutter.layouts([word]))
    (layout,) = cutter.layouts(["red, blue " * 100_000])
    assert sum(len(part.ids) for part in layout if isinstance(part, Place)) > 800_000


@pytest.mark.parametrize(
    "text", ["\x00", "a\x07b\x1b[31m", "\u202e", "\ufeff", "\u2028red\u2028", "</s> <pad>"]
)
def test_odd_letters_are_letters(bundle, talker, text):
    (passage,) = bundle.translate([text], details=True, max_new_tokens=5)
    assert passage.tokens <= 5 and "\n" not in passage.text
    assert isinstance(talker.generate([text], max_new_tokens=3)[0], str)
