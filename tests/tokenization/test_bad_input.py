"""Bad folders and bad calls: one sentence each, never a backend's own exception."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glassformer.errors import GlassformerError
from glassformer.tokenization import load_tokenizer
from glassformer.tokenization.folder import translated
from tests.tokenization.layouts import LAYOUTS, published_unigram


def change_json(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        path = folder / name
        value = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        change(value)
        path.write_text(json.dumps(value), encoding="utf-8")

    return run


def put(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def drop(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def setting(**values: object) -> Callable[[Path], None]:
    return change_json("tokenizer_config.json", lambda config: config.update(values))


def pop(key: str) -> Callable[[dict[str, Any]], object]:
    return lambda vocabulary: vocabulary.pop(key)


BAD = [
    ("wordpiece", put("tokenizer_config.json", b"{"), "not valid JSON"),
    ("wordpiece", put("tokenizer_config.json", b"[1]"), "must hold a JSON object"),
    ("wordpiece", put("tokenizer_config.json", b"[" * 100_000), "not valid JSON"),
    ("wordpiece", put("tokenizer_config.json", b'{"a": "\xff"}'), "not UTF-8"),
    ("wordpiece", put("config.json", b"nonsense"), "config.json is not valid JSON"),
    ("wordpiece", put("vocab.txt", b"\xff\xfe"), "not UTF-8"),
    ("wordpiece", put("vocab.txt", b""), "lacks '[UNK]'"),
    ("wordpiece", put("vocab.txt", b"[UNK]\n[CLS]\n[SEP]\na\nb\na\n"), "'a' on two lines"),
    ("wordpiece", setting(do_lower_case="yes"), "do_lower_case = 'yes'"),
    ("wordpiece", setting(cls_token=None), "cls"),
    ("wordpiece", setting(mask_token=17), "mask_token = 17"),
    ("wordpiece", setting(pad_token={"text": "x"}), "pad_token"),
    ("wordpiece", setting(added_tokens_decoder={"x": "<w>"}), "added_tokens_decoder"),
    ("wordpiece", setting(added_tokens_decoder={"9999": "<w>"}), "declares id 9999"),
    ("wordpiece", setting(additional_special_tokens="<w>"), "as a list"),
    ("wordpiece", drop("vocab.txt"), "no vocabulary"),
    ("byte-level", drop("merges.txt"), "lacks merges.txt"),
    ("byte-level", drop("vocab.json"), "lacks vocab.json"),
    ("byte-level", put("merges.txt", b"#version: 0.2\na b c\n"), "line 2"),
    ("byte-level", put("merges.txt", b"qqqq zzzz\n"), "do not fit together"),
    ("byte-level", change_json("vocab.json", pop("a")), "has a gap"),
    ("byte-level", change_json("vocab.json", lambda v: v.update(a="1")), "the id '1'"),
    ("byte-level", change_json("vocab.json", lambda v: v.update(a=-1)), "the id -1"),
    ("byte-level", change_json("vocab.json", lambda v: v.update(a=v["b"])), "to both"),
    ("byte-level", put("vocab.json", b"{}"), "holds no tokens"),
    ("byte-level", setting(tokenizer_class="CLIPTokenizer"), "'CLIPTokenizer'"),
    ("byte-level-marked", setting(sep_token=None), "sep"),
    ("unigram", put("spiece.model", b""), "is empty"),
    ("unigram", put("spiece.model", b"not a model" * 9), "cannot be read as a sentencepiece"),
    ("unigram", setting(extra_ids=-3), "extra_ids = -3"),
    ("unigram", setting(tokenizer_class="AlbertTokenizer"), "'AlbertTokenizer'"),
    ("unigram", setting(eos_token=None), "no eos token"),
    ("byte-fallback", setting(add_bos_token=1), "add_bos_token = 1"),
    ("two-sided", drop("target.spm"), "lacks target.spm"),
    ("two-sided", drop("source.spm"), "lacks source.spm"),
    ("two-sided", drop("vocab.json"), "lacks vocab.json"),
    ("two-sided", change_json("vocab.json", pop("<unk>")), "gap"),
    ("two-sided", setting(unk_token="<none>"), "lacks '<none>'"),
    ("two-sided-separate", drop("target_vocab.json"), "lacks target_vocab.json"),
]


@pytest.mark.parametrize(("layout", "spoil", "message"), BAD)
def test_bad_folder_is_one_sentence(
    tmp_path: Path, layout: str, spoil: Callable[[Path], None], message: str
) -> None:
    LAYOUTS[layout](tmp_path)
    load_tokenizer(tmp_path)
    spoil(tmp_path)
    with pytest.raises(GlassformerError) as told:
        load_tokenizer(tmp_path)
    text = str(told.value)
    assert message in text and text.endswith(".") and "\n" not in text


def test_folder_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "vit"}', encoding="utf-8")
    assert load_tokenizer(tmp_path) is None
    with pytest.raises(GlassformerError, match="no folder"):
        load_tokenizer(tmp_path / "missing")


@pytest.mark.filterwarnings("ignore")
def test_a_damaged_file_loads_or_says_so(tmp_path: Path) -> None:
    """Bytes of tokenizer.json cut, flipped or swapped: never anything but the one error."""
    published_unigram(tmp_path)
    path = tmp_path / "tokenizer.json"
    good = path.read_bytes()
    dice = random.Random(7)
    refused = 0
    for _ in range(150):
        bad = bytearray(good)
        for _ in range(dice.randrange(1, 4)):
            bad[dice.randrange(len(bad))] = dice.randrange(256)
        if dice.random() < 0.3:
            del bad[dice.randrange(len(bad)) :]
        path.write_bytes(bad)
        try:
            tokenizer = load_tokenizer(tmp_path)
            assert tokenizer is not None
            tokenizer.decode(tokenizer.encode("The captain </s> 나는").ids)
        except GlassformerError:
            refused += 1
    assert refused > 50


def test_saving_beside_a_file_that_would_be_read_instead(tmp_path: Path) -> None:
    LAYOUTS["unigram"](tmp_path)
    ours = load_tokenizer(tmp_path)
    assert ours is not None
    published_unigram(tmp_path)
    with pytest.raises(GlassformerError, match=r"already has a tokenizer\.json"):
        ours.save(tmp_path)


def test_bad_calls_are_one_sentence(tmp_path: Path) -> None:
    LAYOUTS["wordpiece"](tmp_path)
    ours = load_tokenizer(tmp_path)
    assert ours is not None
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: ours.encode(5), "must be a string"),  # type: ignore[arg-type]
        (lambda: ours.encode("a", 5), "must be a string"),  # type: ignore[arg-type]
        (lambda: ours.encode("half \ud800 pair"), "position 5"),
        (lambda: ours.encode_batch("abc"), "list of strings"),
        (lambda: ours.encode_batch(["a"], ["b", "c"]), "1 texts came with 2 pairs"),
        (lambda: ours.encode("a", side="left"), "side must be"),  # type: ignore[arg-type]
        (lambda: ours.encode("a", special_in_text=True), "special_in_text"),  # type: ignore[arg-type]
        (lambda: ours.decode([-1]), "-1 is not a token id"),
        (lambda: ours.decode([1.5]), "1.5 is not a token id"),  # type: ignore[list-item]
        (lambda: ours.decode("12"), "list of whole numbers"),  # type: ignore[arg-type]
        (lambda: ours.save(tmp_path / "vocab.txt"), "cannot be saved"),
    ]
    for call, message in calls:
        with pytest.raises(GlassformerError, match=message):
            call()
    assert ours.decode([10**6]) == "" and ours.tokens([10**6]) == ["<id 1000000>"]


def test_what_ends_the_program_is_no_fault_of_a_text() -> None:
    class Ended(BaseException):
        """As when the process is asked to end."""

    with pytest.raises(Ended), translated("the text cannot be encoded"):
        raise Ended
    panic = type("PanicException", (BaseException,), {})
    with (
        pytest.raises(GlassformerError, match=r"the text cannot be encoded: no room\."),
        translated("the text cannot be encoded"),
    ):
        raise panic("no room")
