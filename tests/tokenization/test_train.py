"""Trained tokenizers: lossless text, special tokens, deterministic files that other libraries read."""

import os
import subprocess
import sys
import time
import unicodedata
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from glassformer.errors import (
    ConflictError,
    EmptyInputError,
    FileExistsAlreadyError,
    FileMissingError,
    GlassformerError,
    InvalidValueError,
    UnknownNameError,
)
from glassformer.tokenization import (
    Tokenizer,
    TokenizerPlan,
    encode_tagged,
    load_tokenizer,
    pair_tokenizers,
    tag_ids,
    tag_position,
    train_tokenizer,
)
from glassformer.tokenization.train import (
    Kind,
    Splitter,
    Template,
    byte_level_splitter,
    count_pretokens,
    metaspace_splitter,
)

KINDS: list[Kind] = list(get_args(Kind))
EACH = [(kind, "eos") for kind in KINDS]  # each kind and each template once
EACH += [("bpe", template) for template in get_args(Template) if template != "eos"]
TAGS = (">>de<<", "<gap>")
SENTENCES = [
    "The old captain sang to the sea, and the sea sang back.",
    "The young captain (the old one's son) counted 12345 stars; 67 fell.",
    "늙은 선장이 바다에 노래를 불렀고, 바다가 대답했다.",
    "Der alte Kapitän sang dem Meer ein Lied: »Größe«!",
]
TEXTS = SENTENCES * 3
ODD = ["", "a  b   c", "line\nline\ttab", "</s> <pad>>>de<<<gap>", "naïve e\u0301 가 ﬁ", "🙂\u200d👩 ▅ \0"]
any_text = st.text(st.characters(exclude_categories=["Cs"]))


def nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def train(kind: Kind, texts: list[str] = TEXTS, size: int = 600, template: Template = "eos") -> Tokenizer:
    return train_tokenizer(
        iter(texts), TokenizerPlan(kind=kind, vocab_size=size, template=template, tags=TAGS)
    )


BYTES = train("byte")


@pytest.fixture(scope="module")
def trained() -> dict[str, Tokenizer]:
    return {kind: train(kind) for kind in KINDS}


@given(any_text)
@example("  a \n\r\t ▁ Ġ")
@example("</s>e\u0301<unk>")
def test_byte_level_bpe_is_lossless(text: str) -> None:
    assert BYTES.decode(BYTES.encode(text).ids) == nfc(text)


@settings(max_examples=100)
@given(any_text.filter(nfc))
def test_characters_are_lossless_within_their_vocabulary(text: str) -> None:
    tokenizer = train_tokenizer([text], TokenizerPlan(kind="char", vocab_size=5000))
    ids = tokenizer.encode(text, special=False).ids
    assert tokenizer.decode(ids) == nfc(text) and len(ids) == len(nfc(text))


@pytest.mark.parametrize("kind", KINDS)
def test_training_texts_are_decoded_exactly(trained: dict[str, Tokenizer], kind: Kind) -> None:
    tokenizer = trained[kind]
    for text in SENTENCES:
        ids = tokenizer.encode(text).ids
        assert tokenizer.unk_id not in ids and tokenizer.decode(ids) == text
    assert tokenizer.vocab_size <= 600


def test_unknown_characters_become_unk(trained: dict[str, Tokenizer]) -> None:
    for kind in ("bpe", "unigram", "word", "char"):
        assert 1 in trained[kind].encode("数").ids
    assert trained["char"].encode("a数数a", special=False).ids.count(1) == 2
    assert trained["word"].encode("captain captains", special=False).ids[1:] == [1]


@pytest.mark.parametrize("kind", KINDS)
def test_decomposed_hangul_is_composed(trained: dict[str, Tokenizer], kind: Kind) -> None:
    decomposed = unicodedata.normalize("NFD", SENTENCES[2])
    assert decomposed != SENTENCES[2]
    assert trained[kind].encode(decomposed).ids == trained[kind].encode(SENTENCES[2]).ids
    again = train(kind, [unicodedata.normalize("NFD", text) for text in TEXTS])
    assert again._files() == trained[kind]._files()


@pytest.mark.parametrize("kind", KINDS)
def test_text_never_becomes_a_special_token(trained: dict[str, Tokenizer], kind: Kind) -> None:
    names = ["<pad>", "<s>", "</s>", *TAGS]
    # trained on texts that contain the special tokens, so a vocabulary could learn them
    tokenizer = train(kind, [*TEXTS, *names * 50, " ".join(names)])
    special = {0, 2, 3, 4, 5}
    assert tokenizer.special_ids == special | {1}
    for text in [*names, "".join(names), " ".join(names), "</s>the", "sea</s>", "the >>de<< sea"]:
        assert not special & set(tokenizer.encode(text, special=False).ids), text
        parsed = set(tokenizer.encode(text, special=False, parse_special=True).ids)
        assert parsed & special == {tokenizer.token_id(name) for name in names if name in text}


@pytest.mark.parametrize(("kind", "template"), EACH)
def test_saved_files_are_read_by_other_libraries(tmp_path: Path, kind: Kind, template: Template) -> None:
    tokenizer = train(kind, template=template)
    names = tokenizer.save(tmp_path)
    assert sorted(names) == ["tokenizer.json", "tokenizer_config.json"]
    loaded, reference = load_tokenizer(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert loaded is not None
    for text in [*SENTENCES, *ODD]:
        ids = tokenizer.encode(text).ids
        assert loaded.encode(text).ids == ids and loaded.decode(ids) == tokenizer.decode(ids)
        pair = tokenizer.encode(text, "the sea")
        assert loaded.encode(text, "the sea") == pair
        if "</s>" not in text:  # which transformers parses as a special token
            assert reference(text)["input_ids"] == ids
            assert reference.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids)
            assert reference(text, "the sea", return_token_type_ids=True)["token_type_ids"] == pair.type_ids
    roles = ("pad", "unk", "bos", "eos", "cls", "sep", "mask")
    role_ids = [getattr(tokenizer, f"{role}_id") for role in roles]
    assert role_ids[:4] == [0, 1, 2, 3] and [getattr(loaded, f"{role}_id") for role in roles] == role_ids
    assert [getattr(reference, f"{role}_token_id") for role in roles] == role_ids
    assert loaded.special_ids == tokenizer.special_ids == set(reference.all_special_ids) | {4, 5}
    loaded.save(tmp_path / "again")
    for name in names:
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / name).read_bytes()


PROGRAM = """
import hashlib, sys
from tests.tokenization.test_train import KINDS, TEXTS, train
letters = ["".join(chr(0xAC00 + (7 * n + k) % 3000) for k in range(5)) for n in range(800)]
for kind in KINDS:
    print(kind, hashlib.sha256(train(kind, [*TEXTS, *letters])._files()["tokenizer.json"]).hexdigest())
"""


def test_same_texts_give_the_same_file() -> None:
    """In other processes, with other hash seeds and thread counts; many characters are equally frequent."""
    printed = set()
    for seed, parallel in (("1", "true"), ("2", "false")):
        settings = {"PYTHONHASHSEED": seed, "TOKENIZERS_PARALLELISM": parallel}
        root = Path(__file__).parents[2]
        child = [sys.executable, "-c", PROGRAM]
        done = subprocess.run(child, capture_output=True, text=True, cwd=root, env={**os.environ, **settings})
        assert done.returncode == 0, done.stderr
        printed.add(done.stdout)
    assert len(printed) == 1


@given(st.lists(st.text("a1.▁ \n가́", max_size=12) | any_text, max_size=4))
@pytest.mark.parametrize(
    "splitter", [metaspace_splitter(), metaspace_splitter(max_punctuation=1), byte_level_splitter()]
)
def test_chunk_counts_match_pre_tokenized_texts(splitter: Splitter, texts: list[str]) -> None:
    texts = [*filter(None, texts), "ab" * 300 + " c " + "." * 400, "x " * 200]
    expected = Counter(
        pretoken for text in texts for pretoken, _ in splitter.pre_tokenizer.pre_tokenize_str(text)
    )
    assert count_pretokens(texts, splitter) == expected


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """With any number of words; the common ones are still counted exactly."""
    monkeypatch.setattr("glassformer.tokenization.train.MAX_DISTINCT", 100)
    texts = [f"sea w{chr(97 + n % 26)}{chr(97 + n // 26 % 26)}{chr(97 + n // 676)} sea" for n in range(5000)]
    counts = count_pretokens(texts, metaspace_splitter())
    assert counts["▁sea"] == 10_000 and len(counts) <= 110


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["a" * 10**6, "\u0301" * 100_000])
def test_hostile_text_takes_bounded_time(kind: Kind, text: str) -> None:
    start = time.process_time()
    tokenizer = train(kind, [text, "the sea"])
    assert tokenizer.encode(text).ids
    assert time.process_time() - start < 20


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["가", "▁", "a\0b\tc"])
def test_few_texts_give_a_small_vocabulary(kind: Kind, text: str) -> None:
    tokenizer = train_tokenizer([text], TokenizerPlan(kind=kind, vocab_size=30_000, min_frequency=1))
    assert 4 < tokenizer.vocab_size <= 4 + (256 if kind == "byte" else 0) + 2 * len(text) + 2
    assert kind == "byte" or 1 not in tokenizer.encode(text).ids


@pytest.mark.parametrize("kind", KINDS)
def test_vocabulary_size_is_a_maximum(kind: Kind) -> None:
    """With more characters than fit, the most common stay."""
    letters = ["".join(chr(0x4E00 + n) for n in range(2000)), *TEXTS * 5]
    tokenizer = train(kind, letters, 300)
    assert tokenizer.vocab_size <= 300
    assert tokenizer.vocab_size == 300 or kind in ("unigram", "word")  # which may have nothing more to learn
    assert 1 not in tokenizer.encode("t", special=False).ids or kind == "word"
    large = train(kind, letters, 1200)
    assert large.vocab_size <= 1200
    if kind in ("bpe", "unigram"):  # characters leave space for words
        assert len(large.encode("the captain sang", special=False).ids) == 3


def test_lowercase() -> None:
    for kind in KINDS:
        plan = TokenizerPlan(kind=kind, vocab_size=600, lowercase=True)
        tokenizer = train_tokenizer(TEXTS, plan)
        assert tokenizer.decode(tokenizer.encode("THE Old SEA").ids) == "the old sea"


def test_source_and_target_have_separate_vocabularies(tmp_path: Path) -> None:
    english, korean = train("bpe", SENTENCES[:2] * 9), train("unigram", SENTENCES[2:3] * 9)
    both = pair_tokenizers(english, korean)
    assert (both.vocab_size, both.target_vocab_size) == (english.vocab_size, korean.vocab_size)
    assert both.vocab_size != both.target_vocab_size
    assert sorted(both.save(tmp_path)) == ["tokenizer.json", "tokenizer_config.json", "tokenizer_target.json"]
    loaded = load_tokenizer(tmp_path)
    assert loaded is not None
    for tokenizer in (both, loaded):
        for text in (*SENTENCES, "</s>"):
            assert tokenizer.encode(text) == english.encode(text)
            target = tokenizer.encode(text, side="target")
            assert target == korean.encode(text)
            assert tokenizer.decode(target.ids) == korean.decode(target.ids)
            assert tokenizer.pieces(target.ids, side="target") == korean.pieces(target.ids)
        assert (tokenizer.pad_id, tokenizer.eos_id, tokenizer.special_ids) == (0, 3, english.special_ids)
    assert (
        PreTrainedTokenizerFast.from_pretrained(tmp_path)("the sea")["input_ids"]
        == both.encode("the sea").ids
    )

    with pytest.raises(FileExistsAlreadyError):
        english.save(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(FileMissingError):
        load_tokenizer(tmp_path)
    with pytest.raises(ConflictError):
        pair_tokenizers(english, train_tokenizer(TEXTS, TokenizerPlan(vocab_size=500)))


@pytest.mark.parametrize(("kind", "template"), EACH)
def test_encode_ids_matches_encode(kind: Kind, template: Template) -> None:
    texts = [*TEXTS, *ODD, *TEXTS]  # what comes twice is encoded once
    tokenizer = train(kind, template=template)
    ids = tokenizer.encode_ids(texts)
    assert ids == [encoded.ids for encoded in tokenizer.encode_batch(texts)]
    plain = tokenizer.encode_batch(texts, special=False)
    expected = [(encoded.ids, encoded.offsets[0][1] if encoded.offsets else 0) for encoded in plain]
    assert tokenizer.encode_ids_with_first_end(texts) == expected


@pytest.mark.parametrize(("kind", "template"), EACH)
def test_tag_precedes_the_text(kind: Kind, template: Template) -> None:
    tokenizer = train(kind, template=template)
    start, end = [2] if template in ("bos_eos", "cls_sep") else [], [] if template == "none" else [3]
    for text in [*SENTENCES, *ODD]:
        (tagged,) = encode_tagged(tokenizer, [text], ">>de<<")
        assert tagged.ids == [*start, 4, *tokenizer.encode(text, special=False).ids, *end]
        assert tagged.ids.index(4) == tag_position(tokenizer) and tag_ids(tokenizer, [">>de<<"]) == [4]
        assert (
            len({len(tagged.type_ids), len(tagged.offsets), len(tagged.sequence_ids), len(tagged.word_ids)})
            == 1
        )
        assert tokenizer.decode(tagged.ids) == tokenizer.decode(tokenizer.encode(text).ids)
    with pytest.raises(UnknownNameError):
        encode_tagged(tokenizer, ["a"], ">>fr<<")


BAD: list[tuple[list[object], dict[str, object], type[GlassformerError]]] = [
    ([], {}, EmptyInputError),
    (["half \ud800"], {}, InvalidValueError),
    (["a"], {"kind": "wordpiece"}, InvalidValueError),
    (["a"], {"vocab_size": 259, "kind": "byte"}, InvalidValueError),
    (["a"], {"tags": ("de",)}, InvalidValueError),
    (["a"], {"tags": ("<gap>", "<gap>")}, InvalidValueError),
]


@pytest.mark.parametrize(("texts", "settings", "error"), BAD)
def test_invalid_training_input_raises(
    texts: list[str], settings: dict[str, object], error: type[GlassformerError]
) -> None:
    with pytest.raises(error):
        train_tokenizer(texts, TokenizerPlan(**settings))  # type: ignore[arg-type]
