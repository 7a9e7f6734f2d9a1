"""Going on with text, whole and in pieces, from Python."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import glassformer
from glassformer.errors import GlassformerError
from glassformer.tasks.writing.ends import ends_of
from glassformer.tasks.writing.prompts import Pieces, following, prompt_ids
from glassformer.tokenization import TokenizerPlan, train_tokenizer
from tests.tasks.reversing import KOREAN, bytewise, speaker


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    return glassformer.load(speaker(tmp_path_factory.mktemp("speaker") / "model", max_len=600))


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
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in found)


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
        {"do_sample": True, "seed": 2, "stop_strings": "e"},
    ],
    ids=str,
)
def test_a_stream_is_what_generate_gives(talker, settings):
    for prompt in ("the old 바다", "🌊", ""):
        (whole,) = talker.generate([prompt], details=True, **settings)
        stream = talker.stream(prompt, **settings)
        assert "".join(stream) == whole.text
        assert (stream.written.finish_reason, len(stream.written.ids)) == (whole.ended, whole.tokens)
        assert not settings.get("stop_strings") or (whole.ended == "stop" and "e" not in whole.text)


def test_a_stream_that_is_left_stops(talker):
    stream = talker.stream("the", do_sample=True, seed=0, max_new_tokens=500)
    next(stream)
    stream.close()
    assert stream.written is None and list(stream) == []


def test_without_an_end_token_the_limit_ends():
    plan = TokenizerPlan(kind="char", vocab_size=60, marks="none")
    tokenizer = train_tokenizer(["the old captain"], plan)
    made = glassformer.Pipeline(model=glassformer.tiny("llama"), tokenizer=tokenizer)
    tokenizer._role_ids["eos"] = None
    (passage,) = made.generate(["the"], details=True, max_new_tokens=11)
    assert (passage.ended, passage.tokens) == ("length", 11)


def test_marks_in_a_prompt_are_text_unless_asked(talker):
    """So that a prompt from strangers cannot end a turn, and one from a chat's template can."""
    ends, mark = ends_of(talker), talker.tokenizer.tokens([talker.tokenizer.eos_id])[0]
    (text,) = prompt_ids(talker, ends, [f"the{mark}sea"])
    (kept,) = prompt_ids(talker, ends, [f"the{mark}sea"], special_in_text="keep")
    assert talker.tokenizer.eos_id not in text and kept.count(talker.tokenizer.eos_id) == 1
    for way in ("plain", "keep"):
        (whole,) = talker.generate([f"the{mark}sea"], special_in_text=way, max_new_tokens=6)
        assert "".join(talker.stream(f"the{mark}sea", special_in_text=way, max_new_tokens=6)) == whole
    with pytest.raises(GlassformerError, match="special_in_text"):
        talker.generate(["the"], special_in_text="drop")
