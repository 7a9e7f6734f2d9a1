"""Bad folders and bad arguments raise typed errors, never a backend's own exception."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glassformer.errors import (
    FileExistsAlreadyError,
    FileMissingError,
    FileProblemError,
    GlassformerError,
    InvalidValueError,
    ShapeError,
)
from glassformer.pretrained import folder_of
from glassformer.tokenization import load_tokenizer
from tests.tokenization.layouts import LAYOUTS, published_unigram


def change_json(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        path = folder / name
        value = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        change(value)
        path.write_text(json.dumps(value), encoding="utf-8")

    return run


def write_bytes(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def drop(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def setting(**values: object) -> Callable[[Path], None]:
    return change_json("tokenizer_config.json", lambda config: config.update(values))


def pop(key: str) -> Callable[[dict[str, Any]], object]:
    return lambda vocabulary: vocabulary.pop(key)


BAD = [
    ("wordpiece", write_bytes("tokenizer_config.json", b"{"), FileProblemError),
    ("wordpiece", write_bytes("vocab.txt", b"\xff\xfe"), FileProblemError),
    ("wordpiece", write_bytes("vocab.txt", b"[UNK]\n[CLS]\n[SEP]\na\nb\na\n"), FileProblemError),
    ("wordpiece", setting(do_lower_case="yes"), InvalidValueError),
    ("wordpiece", setting(cls_token=None), FileProblemError),
    ("wordpiece", setting(added_tokens_decoder={"9999": "<w>"}), FileProblemError),
    ("wordpiece", drop("vocab.txt"), FileMissingError),
    ("byte-level", drop("merges.txt"), FileMissingError),
    ("byte-level", write_bytes("merges.txt", b"#version: 0.2\na b c\n"), FileProblemError),
    ("byte-level", change_json("vocab.json", pop("a")), FileProblemError),
    ("byte-level", change_json("vocab.json", lambda v: v.update(a=v["b"])), FileProblemError),
    ("byte-level", setting(tokenizer_class="CTRLTokenizer"), FileMissingError),
    ("byte-level", setting(tokenizer_class="CLIPTokenizer"), FileProblemError),  # no <|startoftext|>
    ("byte-level-roberta", setting(sep_token=None), FileProblemError),
    ("unigram", write_bytes("spiece.model", b"not a model" * 9), FileProblemError),
    ("unigram", setting(tokenizer_class="XLNetTokenizer"), FileMissingError),
    ("unigram", setting(tokenizer_class="AlbertTokenizer"), FileProblemError),  # it has no [CLS]
    ("albert", write_bytes("spiece.model", b"not a model" * 9), FileProblemError),
    ("deberta", setting(tokenizer_class="XLNetTokenizer"), FileMissingError),
    ("unigram", setting(eos_token=None), FileProblemError),
    ("marian", drop("target.spm"), FileMissingError),
    ("marian", setting(unk_token="<none>"), FileProblemError),
    ("marian-separate", drop("target_vocab.json"), FileMissingError),
]


@pytest.mark.parametrize(("layout", "spoil", "error"), BAD)
def test_bad_folder_raises_a_typed_error(
    tmp_path: Path, layout: str, spoil: Callable[[Path], None], error: type[GlassformerError]
) -> None:
    LAYOUTS[layout](tmp_path)
    load_tokenizer(tmp_path)
    spoil(tmp_path)
    with pytest.raises(error) as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("part", ["normalizer", "decoder"])
def test_rules_that_blow_up_a_text_are_refused(tmp_path: Path, part: str) -> None:
    tokenizer = json.loads((folder_of("pocket-lm") / "tokenizer.json").read_text(encoding="utf-8"))
    rule = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
    tokenizer[part] = {"type": "Sequence", f"{part}s": [rule] * 10}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    with pytest.raises(FileProblemError) as caught:
        load_tokenizer(tmp_path)
    assert part in caught.value.problem


def test_folder_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "vit"}', encoding="utf-8")
    assert load_tokenizer(tmp_path) is None
    with pytest.raises(FileMissingError):
        load_tokenizer(tmp_path / "missing")


def test_saving_next_to_a_file_that_would_be_loaded_instead(tmp_path: Path) -> None:
    LAYOUTS["unigram"](tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    published_unigram(tmp_path)
    with pytest.raises(FileExistsAlreadyError):
        tokenizer.save(tmp_path)


def test_invalid_arguments_raise(tmp_path: Path) -> None:
    LAYOUTS["wordpiece"](tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer is not None
    calls: list[Callable[[], object]] = [
        lambda: tokenizer.encode(5),  # type: ignore[arg-type]
        lambda: tokenizer.encode("half \ud800 pair"),
        lambda: tokenizer.encode_batch("abc"),
        lambda: tokenizer.decode([-1]),
        lambda: tokenizer.decode([1.5]),  # type: ignore[list-item]
    ]
    for call in calls:
        with pytest.raises(InvalidValueError):
            call()
    with pytest.raises(ShapeError):
        tokenizer.encode_batch(["a"], ["b", "c"])
    with pytest.raises(FileProblemError):
        tokenizer.save(tmp_path / "vocab.txt")
    assert tokenizer.decode([10**6]) == "" and tokenizer.tokens([10**6]) == ["<id 1000000>"]
