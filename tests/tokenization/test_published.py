"""tokenizer.json, alone and with other files; roles, options and unknown keys are preserved."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers
from transformers import AutoTokenizer

from glassformer.tokenization import Tokenizer, load_tokenizer
from tests.tokenization.layouts import LAYOUTS, byte_level, published_unigram


def load(folder: Path) -> Tokenizer:
    tokenizer = load_tokenizer(folder)
    assert tokenizer is not None
    return tokenizer


def write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def test_lone_tokenizer_json_without_truncation_or_padding(tmp_path: Path) -> None:
    published_unigram(tmp_path)
    tokenizer = load(tmp_path)
    assert (tokenizer.pad_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.bos_id) == (0, 1, 2, None)
    long = "The old captain sang " * 10
    ids = tokenizer.encode(long).ids
    assert ids[-1] == tokenizer.eos_id and len(ids) > 16 and tokenizer.pad_id not in ids
    assert tokenizer.decode(ids) == long
    backend = Backend.from_file(str(tmp_path / "tokenizer.json"))
    backend.no_truncation()
    backend.no_padding()
    assert ids == backend.encode(long).ids

    tokenizer.save(tmp_path / "again")
    assert (tmp_path / "again/tokenizer.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()


def test_unigram_does_not_encode_text_as_special_tokens(tmp_path: Path) -> None:
    published_unigram(tmp_path)
    tokenizer = load(tmp_path)
    raw = Backend.from_file(str(tmp_path / "tokenizer.json"))
    raw.no_padding()
    raw.encode_special_tokens = True
    text = "the</s>captain <pad>"
    assert 1 in raw.encode(text, add_special_tokens=False).ids  # what a plain switch would give
    assert not {0, 1} & set(tokenizer.encode(text, special=False).ids)
    assert {0, 1} <= set(tokenizer.encode(text, special=False, parse_special=True).ids)


def test_word_level_does_not_encode_text_as_special_tokens(tmp_path: Path) -> None:
    vocabulary = {"[UNK]": 0, "[PAD]": 1, "[MASK]": 2, "a": 3}
    backend = Backend(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["[UNK]", "[PAD]", "[MASK]"])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load(tmp_path)
    assert tokenizer.encode("a [MASK] b a").ids == [3, 0, 0, 3]
    assert tokenizer.encode("a [MASK] b a", parse_special=True).ids == [3, 2, 0, 3]


@pytest.mark.parametrize("where", ["config.json", "generation_config.json"])
def test_roles_come_from_the_model_files(tmp_path: Path, where: str) -> None:
    published_unigram(tmp_path)
    write(tmp_path / where, {"bos_token_id": 7, "eos_token_id": [1, 2], "pad_token_id": -1})
    tokenizer = load(tmp_path)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (7, 1, 0)


def test_old_and_new_spellings_of_special_tokens_agree(tmp_path: Path) -> None:
    """Strings, objects, a map file, an id table: the same tokens and the same ids."""
    token = {"content": "<w>", "lstrip": False, "rstrip": False, "special": True}
    spellings: dict[str, dict[str, object]] = {
        "strings": {"tokenizer_config.json": {"pad_token": "<p>", "extra_special_tokens": ["<w>"]}},
        "objects": {
            "tokenizer_config.json": {"pad_token": {"content": "<p>"}},
            "special_tokens_map.json": {"additional_special_tokens": [token]},
        },
        "table": {
            "tokenizer_config.json": {
                "pad_token": "<p>",
                "added_tokens_decoder": {"SIZE": token, "SIZE+1": {**token, "content": "<p>"}},
            }
        },
        "files": {
            "special_tokens_map.json": {"pad_token": "<p>", "additional_special_tokens": ["<w>"]},
            "added_tokens.json": {"<w>": "SIZE", "<p>": "SIZE+1"},
        },
    }
    results = []
    for name, files in spellings.items():
        folder = tmp_path / name
        folder.mkdir()
        byte_level(folder, roberta=False)
        size = len(json.loads((folder / "vocab.json").read_text(encoding="utf-8")))
        (folder / "tokenizer_config.json").unlink()
        for file, value in files.items():
            text = json.dumps(value)
            if file == "added_tokens.json":
                text = text.replace('"SIZE+1"', str(size + 1)).replace('"SIZE"', str(size))
            text = text.replace("SIZE+1", str(size + 1)).replace("SIZE", str(size))
            (folder / file).write_text(text, encoding="utf-8")
        tokenizer = load(folder)
        ids = tokenizer.encode("a<w>b<p>", parse_special=True).ids
        results.append(
            (ids, tokenizer.pad_id == size + 1, tokenizer.token_id("<w>") == size, tokenizer.special_ids)
        )
    assert all(entry == results[0] for entry in results)
    assert results[0][1:3] == (True, True)


def test_mask_in_text_takes_the_space_before_it(tmp_path: Path) -> None:
    byte_level(tmp_path, roberta=True)
    tokenizer = load(tmp_path)
    ids = tokenizer.encode("The <mask> sang", parse_special=True).ids
    tokens = tokenizer.tokens(ids)
    at = tokens.index("<mask>")
    assert tokens[at - 1] != "Ġ"
    tokenizer.save(tmp_path / "again")
    reference = AutoTokenizer.from_pretrained(tmp_path / "again")
    assert reference("The <mask> sang")["input_ids"] == ids


def test_unknown_keys_and_extra_files_are_saved_again(tmp_path: Path) -> None:
    for name, make in LAYOUTS.items():
        folder = tmp_path / name
        folder.mkdir()
        make(folder)
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        config |= {"something_new": {"of": [1, "나"]}, "model_max_length": 10**30}
        write(folder / "tokenizer_config.json", config)
        (folder / "chat_template.jinja").write_text("{{ x }}", encoding="utf-8")
        names = load(folder).save(folder / "out")
        assert sorted(names) == sorted(path.name for path in (folder / "out").iterdir())
        saved = json.loads((folder / "out/tokenizer_config.json").read_text(encoding="utf-8"))
        assert {key: saved[key] for key in config} == config
        assert (folder / "out/chat_template.jinja").read_text(encoding="utf-8") == "{{ x }}"
