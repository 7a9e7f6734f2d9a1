"""Texts that a translator has not learnt to read: paragraphs, long sentences, pictures, strange letters."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import glassformer
from glassformer.api import Pipeline as Bundle
from glassformer.errors import GlassformerError
from glassformer.tasks.watch import Watch
from glassformer.tasks.writing.pieces import Cutter, Place
from glassformer.tasks.writing.rewriting import translating
from glassformer.tasks.writing.signs import Signs, placed, runs
from glassformer.tasks.writing.stand_ins import lettered, put_back
from glassformer.tokenization import load_tokenizer
from tests.tasks.folders import words
from tests.tokenization.layouts import LAYOUTS

SENTENCES = (
    "Hello everyone!",
    "My name is Anna and I live in Berlin.",
    "I have two cats and a dog.",
    "Yesterday we went to the park.",
    "Will you come with us tomorrow?",
)
KOREAN = ("어제 우리는 공원에 갔다.", "날씨가 아주 좋았다.", "내일 다시 오겠습니다.")


@pytest.fixture(scope="module")
def pocket() -> Bundle:
    return glassformer.load("pocket")


@pytest.mark.parametrize(("said", "to"), [(SENTENCES, "de"), (SENTENCES, "ko"), (KOREAN, "en")])
def test_a_paragraph_is_translated_by_its_sentences(pocket: Bundle, said: list[str], to: str) -> None:
    """The model has learnt single sentences, and drops or bends those that follow the first."""
    alone = [pocket.translate(one, to=to)[0] for one in said]
    (whole,) = pocket.translate(" ".join(said), to=to, details=True)
    assert whole.text == " ".join(alone) and not whole.doubts
    assert pocket.translate(" ".join(said), to=to, split="never") != [whole.text]


def test_no_piece_is_longer_than_what_was_learnt(pocket: Bundle) -> None:
    """A sentence of hundreds of words is cut at its clauses, and nothing of it is lost."""
    sentence = " and ".join(f"the old captain number {n} sang to the sea, which was calm," for n in range(30))
    plan = translating(pocket, {}, to="de")
    (layout,) = plan.layouts([sentence])
    read = [part.ids for part in layout if isinstance(part, Place)]
    assert len(read) > 3 and max(map(len, read)) <= (pocket.job.usual_len or 0)
    assert plan.doubts(layout) == ()
    assert pocket.tokenizer is not None
    again = [part if isinstance(part, str) else pocket.tokenizer.decode(part.ids) for part in layout]
    assert "".join(again) == sentence


UNBROKEN = {
    "a": "a" * 3000,
    "한": "나는오늘아침에학교에갔다가집에왔다" * 100,
    "漢": "我今天早上去了学校然后回家了" * 100,
    "ไ": "ฉันไปโรงเรียนเมื่อเช้านี้" * 100,
}


@pytest.mark.parametrize("text", UNBROKEN.values(), ids=UNBROKEN)
def test_what_has_no_space_is_cut_at_what_was_learnt(pocket: Bundle, text: str) -> None:
    """So that it is translated in the time of a paragraph; a model given it whole writes on and on."""
    plan = translating(pocket, {}, to="en")
    (layout,) = plan.layouts([f"Hello. {text}"])
    read = [part.ids for part in layout if isinstance(part, Place)]
    assert len(read) > 20 and max(map(len, read)) <= (pocket.job.usual_len or 0)
    assert "cut" in plan.doubts(layout) and "long" not in plan.doubts(layout)
    assert pocket.tokenizer is not None
    assert "".join(pocket.tokenizer.decode(ids) for ids in read) == f"Hello.{text}"
    said = pocket.tokenizer.encode("sea", special=False).ids
    assert plan.compose(layout, [said] * len(read)) == " ".join(["sea"] * len(read))


def test_a_letter_of_more_marks_than_the_model_reads_is_refused_alone(pocket: Bundle) -> None:
    """It cannot be cut; read whole, it would end the lines around it too."""
    lines = ["Hello.", "a" + "\u0301" * 3000, "Bye."]
    told: list[tuple[int, str]] = []
    watch = Watch(refuse=lambda number, why: told.append((number, why)))
    layouts = list(translating(pocket, {}, to="de").layouts(lines, watch))
    assert [bool(layout) for layout in layouts] == [True, False, True]
    ((number, why),) = told
    assert number == 2 and "marks" in why and "5,000" in why
    with pytest.raises(GlassformerError, match="text 2 holds a letter with so many marks"):
        pocket.translate(lines, to="de")


def test_no_space_is_put_where_none_is_written(pocket: Bundle) -> None:
    plan = translating(pocket, {}, to="en")
    (layout,) = plan.layouts(["我来了。你好！"])
    assert pocket.tokenizer is not None
    for said, together in (("I came.", "I came. Good."), ("我来了。", "我来了。Good."), ("มา", "มาGood.")):
        found = [pocket.tokenizer.encode(text, special=False).ids for text in (said, "Good.")]
        assert plan.compose(layout, found) == together


@pytest.mark.parametrize(("learnt", "pieces"), [(None, 1), (5, 4), (100, 2)])
def test_a_sentence_of_few_words_is_never_cut(learnt: int | None, pieces: int) -> None:
    """A model that was taught with labels of five tokens may still be asked for a sentence."""
    cutter = Cutter(
        encode=lambda texts: [[1] * len(text.split()) for text in texts],
        reads=None,
        learnt=learnt,
        split="always",
    )
    (long,) = cutter.layouts([" ".join(["sea"] * 140)])
    (short,) = cutter.layouts([" ".join(["sea"] * 48)])
    assert len([part for part in long if isinstance(part, Place)]) == pieces
    assert len([part for part in short if isinstance(part, Place)]) == 1


@pytest.mark.parametrize("to", ["de", "fr", "ko"])
@pytest.mark.parametrize(
    ("text", "read", "kept"),
    [
        ("I love you 😀", "I love you", " 😀"),
        ("I love you 😀.", "I love you.", " 😀"),
        ("Thanks 🙏🏽 for your help.", "Thanks for your help.", " 🙏🏽"),
        ("I love you. 👩‍🚀 🏴󠁧󠁢󠁳󠁣󠁴󠁿", "I love you.", " 👩‍🚀 🏴󠁧󠁢󠁳󠁣󠁴󠁿"),
        ("I love you (😀).", "I love you.", " (😀)"),
        ("We live in 🇩🇪 Germany now.", "We live in Germany now.", " 🇩🇪"),
        ("Use ☎ 555-1234 now.", "Use 555-1234 now.", " ☎"),
    ],
)
def test_a_picture_stays_and_the_words_are_as_without_it(
    pocket: Bundle, text: str, read: str, kept: str, to: str
) -> None:
    (with_it,) = pocket.translate(text, to=to, details=True)
    assert with_it.text == pocket.translate(read, to=to)[0] + kept
    assert with_it.doubts == ()


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        # within a sentence, whatever it goes on with
        ("Das ist ein 🎁 Geschenk für dich.", ["Das ist ein Geschenk für dich.", " 🎁", ""]),
        ("C'est la 🗼 Tour Eiffel !", ["C'est la Tour Eiffel !", " 🗼", ""]),
        ("어제 🌳 공원에 갔다.", ["어제 공원에 갔다.", " 🌳", ""]),
        ("사과🍎를 먹었어요. 또 올게요.", ["사과를 먹었어요.", " 🍎", " 또 올게요."]),
        ("서울🗼까지 갔다.", ["서울까지 갔다.", " 🗼", ""]),
        ("I saw 🐱 (a cat) and 🐶 Rex.", ["I saw (a cat) and Rex.", " 🐱", "", " 🐶", ""]),
        ("日本語です😀。次の文", ["日本語です。", " 😀", "次の文"]),
        # in the place of a word: it is read with the others
        ("I like 🍎 and 🍌. Bye 👋", ["I like 🍎 and 🍌. Bye ", "👋", ""]),
        ("Wo ist mein 📱?", ["Wo ist mein 📱?"]),
        ("Je bois du ☕ tous les matins.", ["Je bois du ☕ tous les matins."]),
        ("나는 🍎를 좋아해.", ["나는 🍎를 좋아해."]),
        ("나는 🐶에게 밥을 줬다.", ["나는 🐶에게 밥을 줬다."]),
        ("🍎 is red.", ["🍎 is red."]),
        ("She saw a 🐱. I ate an 🍎 and 🍌!", ["She saw a 🐱. I ate an 🍎 and 🍌!"]),
        ("We really love 🍕 with a 🍷.", ["We really love 🍕 with a 🍷."]),
        ("J'adore l’🍎.", ["J'adore l’🍎."]),
        # behind a word that may end a sentence, in whatever language
        ("Nice hat 😍!", ["Nice hat!", " 😍", ""]),
        ("Nice hat 😍 and shoes!", ["Nice hat and shoes!", " 😍", ""]),
        ("Das kann nicht sein 😂!", ["Das kann nicht sein!", " 😂", ""]),
        ("I love my son ❤️.", ["I love my son.", " ❤️", ""]),
        ("You are all I need 💕.", ["You are all I need.", " 💕", ""]),
        ("You are all I need 💕 and want.", ["You are all I need and want.", " 💕", ""]),
        ("With love ❤️ and kisses.", ["With love and kisses.", " ❤️", ""]),
        ("I could die 😂 and laugh.", ["I could die and laugh.", " 😂", ""]),
        ("Was machst du 😊 heute?", ["Was machst du heute?", " 😊", ""]),
        ("Ruf mich an 📱!", ["Ruf mich an!", " 📱", ""]),
        ("Was ist das 😂?", ["Was ist das?", " 😂", ""]),
        ("Thanks a ton 🙏!", ["Thanks a ton!", " 🙏", ""]),
        ("What is it like 🤔?", ["What is it like?", " 🤔", ""]),
        ("Il y en a 😂!", ["Il y en a!", " 😂", ""]),
        ("Un cœur en or ❤️!", ["Un cœur en or!", " ❤️", ""]),
        ("Je suis dans le bois 🌲.", ["Je suis dans le bois.", " 🌲", ""]),
        ("She said 'hi'😂.", ["She said 'hi'.", " 😂", ""]),
        # in the place of a stop
        ("Thanks 🙏 See you tomorrow!", ["Thanks ", "🙏", " See you tomorrow!"]),
        ("He said “no!” 😀 Berlin won.", ["He said “no!” ", "😀", " Berlin won."]),
        ("Danke 🙏 Wir sehen uns.", ["Danke ", "🙏", " Wir sehen uns."]),
        ("Bonjour 👋 J'ai faim.", ["Bonjour ", "👋", " J'ai faim."]),
        ("맛있어요😋 다음에 또 갔다.", ["맛있어요", "😋", " 다음에 또 갔다."]),
        ("✅ Open ✅ Small", ["", "✅", " Open ", "✅", " Small"]),
        # drawn as pictures only where that is asked for
        ("It is 20°C, © Glass™ №5 ㎏ today.", ["It is 20°C, © Glass™ №5 ㎏ today."]),
        ("1️⃣ Open ™️ it.", ["", "1️⃣", " Open it.", " ™️", ""]),
        # no words
        ("(😀)", ["(", "😀", ")"]),
        ("*** 😀, !", ["*** ", "😀", ", !"]),
    ],
)
def test_no_sentence_is_torn_by_a_picture(tmp_path: Path, line: str, parts: list[str]) -> None:
    words(tmp_path)  # a vocabulary with none of the signs
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None and Signs(tokenizer).carried(line) == parts


@pytest.mark.parametrize(
    ("text", "to"),
    [
        ("I like 🍎 and 🍌.", "de"),
        ("Where is my 📱?", "fr"),
        ("I drink 🥛 every morning.", "ko"),
        ("Ich habe einen 🍎 gegessen.", "en"),
        ("나는 🍎를 좋아해.", "en"),
        ("Where is my 👩‍🚀?", "de"),
    ],
)
def test_a_picture_in_the_place_of_a_word_keeps_it(pocket: Bundle, text: str, to: str) -> None:
    (passage,) = pocket.translate(text, to=to, details=True)
    assert runs(passage.text)[1::2] == runs(text)[1::2] and passage.doubts == ()
    assert passage.text[-1] in ".?!"  # behind it nothing stands


IN_PLACE = (
    "I like 🍎 and 🍌.",
    "Where is my 📱?",
    "I drink 🥛 every morning.",
    "She bought a 🚗 yesterday.",
    "We ate 🍕 and 🍟 today.",
    "I lost my 🔑 in the park.",
    "He gave me a 🎁.",
    "They have a 🐶 and a 🐱.",
    "I want 🍦 now.",
    "The 🐟 is in the water.",
    "There is a 🌳 behind the house.",
    "Can I have a ☕?",
    "The 🐦 was very small.",
    "We need 🍞 and 🧀.",
    "My 🚲 is old.",
    "I would like a 🍺.",
    "Do you like 🐈 or 🐕?",
    "Every 🌹 is red.",
    "She reads a 📖 in the garden.",
    "I saw a 🦁 at the zoo.",
)


@pytest.mark.parametrize("to", ["de", "fr", "ko"])
def test_translators_copy_the_letter_to_where_the_word_would_stand(pocket: Bundle, to: str) -> None:
    for text, said in zip(IN_PLACE, pocket.translate(IN_PLACE, to=to), strict=True):
        assert Counter(runs(said)[1::2]) == Counter(runs(text)[1::2]) and said[-1] in ".?!", said


@given(st.permutations(["X를", "Q", "🍎를", "🍌"]).map(" ".join))
def test_a_letter_of_the_text_stands_in_for_nothing(text: str) -> None:
    read, stands = lettered(runs(text), lambda letter: letter != "W")
    assert [letter for letter, _ in stands] == ["V", "G"] and put_back(read, stands) == text
    assert put_back("V and X", stands) == f"{stands[0][1]} and X {stands[1][1]}"  # one that is lost


def test_what_no_letter_is_left_for_is_not_read(pocket: Bundle) -> None:
    """A picture that is read as it is becomes words."""
    fruit = "🍎🍌🍇🍉🍊🍋🍐🍑🍒🍓🥝🍍🥭🥥"
    text = "I bought a " + ", a ".join(fruit) + "."
    plan = translating(pocket, {}, to="de")
    (layout,) = plan.layouts([text])
    assert "letters" not in plan.doubts(layout)
    assert not any(len(runs(part.text)) > 1 for part in layout if isinstance(part, Place))
    assert set("".join(runs(pocket.translate(text, to="de")[0])[1::2])) == set(fruit)


BITS = [
    "Thanks",
    "See you",
    "사과",
    "를",
    "갔다",
    ".",
    "! ",
    "...",
    " ",
    "(",
    ")",
    '"',
    "5",
    "🙏",
    "👍🏽",
    "❤️",
    "1️⃣",
    "°",
]


@given(st.lists(st.sampled_from(BITS), max_size=12).map("".join), st.integers(0, 700))
def test_no_letter_is_lost_beside_a_picture(line: str, more: int) -> None:
    """Signs change places, and nothing else does but the spaces around them; no word is cut in two."""
    line += " word" * more
    parts = placed(runs(line))
    assert Counter("".join(parts).replace(" ", "")) == Counter(line.replace(" ", "")) and len(parts) % 2
    assert sum(part.count("word") for part in parts[::2]) == more


def test_what_the_vocabulary_has_is_read(pocket: Bundle) -> None:
    assert pocket.tokenizer is not None
    cut = Signs(pocket.tokenizer).carried
    assert pocket.tokenizer.token_id("°") is not None
    assert cut("5 °C in May") == ["5 °C in May"] and cut("한국어 é") == ["한국어 é"]
    assert cut("🎉") == ["", "🎉", ""]
    assert pocket.translate("🎉 🎉", to="de") == ["🎉 🎉"]


@pytest.mark.parametrize(
    ("text", "words", "doubts"),
    [
        ("Where is the library?", {}, ()),
        ("Привет, how are you?", {}, ("letters",)),
        (" ".join(SENTENCES * 3), {"split": "never"}, ("long",)),
        (" ".join(SENTENCES * 3), {}, ()),
    ],
)
def test_what_it_cannot_read_is_told(
    pocket: Bundle, text: str, words: dict[str, str], doubts: tuple[str, ...]
) -> None:
    (found,) = pocket.translate(text, to="de", num_beams=1, details=True, **words)
    assert found.doubts == doubts


@pytest.mark.parametrize(("family", "doubts"), [("llama", ()), ("t5", ("letters",))])
def test_a_model_that_goes_on_has_learnt_bytes(tmp_path: Path, family: str, doubts: tuple[str, ...]) -> None:
    """What is published spells by bytes what has no piece; one that rewrites makes words up of them."""
    LAYOUTS["byte-fallback"](tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None and "<0xF0>" in tokenizer.tokens(tokenizer.encode("🎉").ids)
    model = glassformer.tiny(family, vocab_size=tokenizer.vocab_size)
    bundle = Bundle(model=model, tokenizer=tokenizer, generation={"eos_token_id": tokenizer.eos_id})
    (found,) = bundle.generate("the 🎉", max_new_tokens=2, details=True)
    assert found.doubts == doubts


def test_the_end_of_texts_is_nothing_unknown(tmp_path: Path) -> None:
    """An empty prompt begins with it, and some published vocabularies name it the unknown token too."""
    LAYOUTS["byte-level"](tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "unk_token": "<|endoftext|>"}))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None and tokenizer.unk_id is not None and tokenizer.unk_id == tokenizer.eos_id
    model = glassformer.tiny("gpt2", vocab_size=tokenizer.vocab_size)
    bundle = Bundle(model=model, tokenizer=tokenizer, generation={"eos_token_id": tokenizer.eos_id})
    assert bundle.generate("", max_new_tokens=2, details=True)[0].doubts == ()
