"""Continue prompts, at once and streamed."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import glassformer
from glassformer.errors import UnsupportedError
from glassformer.tasks import TextGenerator, TextStream, Translator
from glassformer.tasks.streaming import IncrementalDecoder
from glassformer.tasks.text_generation import decode_continuation, segments_of
from glassformer.tokenization import TokenizerPlan, load_tokenizer, train_tokenizer
from tests.tasks.tiny_models import KOREAN, ROWS, byte_tokenizer, reversal_model, save_language_model
from tests.tokenization.layouts import LAYOUTS


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    return glassformer.load(
        save_language_model(tmp_path_factory.mktemp("language-model") / "model", max_len=600)
    )


@settings(max_examples=30)
@given(
    text=st.one_of(st.text(max_size=60), st.sampled_from([KOREAN * 5, "don ' t . n't 's " * 40])),
    cut=st.integers(0, 9),
)
@pytest.mark.parametrize("kind", ["byte", "bpe", "unigram", "word", "char"])
def test_streamed_pieces_join_to_the_text(kind, text, cut):
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode(text, special=False).ids
    decoder = IncrementalDecoder(tokenizer, ids[:cut])
    pieces = [*(decoder.push(token) for token in ids[cut:]), decoder.end()]
    assert "".join(pieces) == decode_continuation(tokenizer, ids[:cut], ids[cut:])
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


def test_each_token_is_one_piece_of_the_stream():
    tokenizer = tokenizer_of("bpe")
    ids = tokenizer.encode("the old sea the old sea", special=False).ids
    decoder = IncrementalDecoder(tokenizer, ids[:1])
    assert [decoder.push(token) for token in ids[1:]] == tokenizer.pieces(ids)[1:]
    byte_level = byte_tokenizer()  # a character is sent with its last token, the start of a stop string later
    ids = byte_level.encode("바다 ab abc", special=False).ids
    decoder = IncrementalDecoder(byte_level, (), ["abc"])
    pieces = [decoder.push(token) for token in ids]
    assert pieces == ["바", "다", " ", "", "", "ab ", "", "", ""] and decoder.end() == ""


@cache
def tokenizer_of(kind):
    plan = TokenizerPlan(kind=kind, vocab_size=300, min_frequency=1)
    return byte_tokenizer() if kind == "byte" else train_tokenizer([KOREAN, "the old sea"] * 3, plan)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"do_sample": True, "seed": 4, "temperature": 1.5},
        {"max_new_tokens": 300, "do_sample": True, "seed": 1},
        {"do_sample": True, "seed": 2, "stop_strings": "e"},
    ],
    ids=str,
)
def test_stream_equals_generate(language_model, options):
    task = TextGenerator(language_model, **options)
    for prompt in ("the old 바다", "🌊", ""):
        result, stream = task(prompt), TextStream(task, prompt)
        assert "".join(stream) == result.text == language_model.generate(prompt, **options)
        assert stream.result is not None
        streamed = (stream.result.text, stream.result.finish_reason, stream.result.num_tokens)
        assert streamed == (result.text, result.finish_reason, result.num_tokens)
        assert not options.get("stop_strings") or (result.finish_reason == "stop" and "e" not in result.text)


def test_closing_a_stream_stops_it(language_model):
    stream = language_model.stream("the", do_sample=True, seed=0, max_new_tokens=500)
    next(stream)
    stream.close()
    assert stream.result is None and list(stream) == []
    with pytest.raises(UnsupportedError):
        language_model.stream("the", num_beams=2)


def test_special_tokens_in_a_prompt_are_text_by_default(language_model):
    """A user's prompt cannot end a turn, but a chat template can."""
    tokenizer = language_model.tokenizer
    prompt = f"the{tokenizer.tokens([tokenizer.eos_id])[0]}sea"
    counts = {}
    for parse in (False, True):
        task = TextGenerator(language_model, parse_special=parse, max_new_tokens=6)
        (document,) = task.preprocess([prompt])
        counts[parse] = segments_of(document)[0].ids.count(tokenizer.eos_id)
        assert "".join(TextStream(task, prompt)) == task(prompt).text
    assert counts == {False: 0, True: 1}


def test_run_reads_a_bounded_number_ahead():
    """An endless stream is processed, and reading does not get further and further ahead."""
    read, ahead = 0, []

    def endless():
        nonlocal read
        for row in itertools.cycle(ROWS):
            read += 1
            yield row

    results = Translator(glassformer.load(reversal_model()), num_beams=1, batch_tokens=512).run(endless())
    for done, _ in enumerate(itertools.islice(results, 3000), 1):
        ahead.append(read - done)
    assert max(ahead[1000:]) <= max(ahead[:1000]) < 1000


@pytest.mark.parametrize(("family", "warnings"), [("llama", ()), ("t5", ("unknown_characters",))])
def test_language_models_read_bytes(tmp_path: Path, family: str, warnings: tuple[str, ...]) -> None:
    """Language models were trained on byte tokens; translation models invent words for them."""
    LAYOUTS["byte-fallback"](tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None and "<0xF0>" in tokenizer.tokens(tokenizer.encode("🎉").ids)
    model = glassformer.tiny(family, vocab_size=tokenizer.vocab_size)
    bundle = glassformer.Bundle(
        model=model, tokenizer=tokenizer, generation={"eos_token_id": tokenizer.eos_id}
    )
    assert TextGenerator(bundle, max_new_tokens=2)("the 🎉").warnings == warnings


@pytest.mark.parametrize("beams", [1, 3])
def test_search_trees_lead_to_the_texts(beams: int) -> None:
    bundle = glassformer.load(reversal_model())
    texts = ["", *ROWS[-7:], "red\n\nblue gold"]
    plain = Translator(bundle, num_beams=beams)(texts)
    results = Translator(bundle, num_beams=beams, return_tree=True)(texts)
    assert [result.text for result in results] == [result.text for result in plain]
    assert [len(result.trees) for result in results] == [0, *[1] * 7, 2]  # one per line
    assert not any(result.trees for result in plain)
    for result in results[1:-1]:
        (tree,) = result.trees
        last = tree.result()
        path = tree.path(last)
        assert tree.num_beams == beams
        assert result.score == pytest.approx(sum(n.logprob for n in path) / last.length_term, abs=1e-5)
        assert bundle.tokenizer is not None
        assert bundle.tokenizer.decode([node.token for node in path]) == result.text
