"""Tiny tokenizers, trained on the spot and saved in each published layout."""

import io
import json
from pathlib import Path

import sentencepiece
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

_WHO = ["The old captain", "My younger sister", "A grey-haired teacher", "Nobody here", "The café owner"]
_DID = ["wrote 12 letters", "couldn't find the harbour", "sang", "opened the wooden door", "ran home"]
_WHEN = ["before sunrise.", "in the year 1871!", "(twice), I think;", "again & again?", "quietly..."]
_KOREAN = [
    "나는 오늘 학교에 갔다.",
    "바다가 아주 조용했다.",
    "어머니는 편지를 읽으셨다!",
    "그는 노래를 불렀다.",
]

CORPUS = [f"{who} {did} {when}" for who in _WHO for did in _DID for when in _WHEN] + _KOREAN * 8

# Plain texts that every layout must take: nothing here spells a special token.
TEXTS = [
    "The old captain sang quietly...",
    "",
    " ",
    "  leading and trailing   spaces  ",
    "Tabs\tand\nnewlines\r\nand\u00a0hard spaces",
    "나는 오늘 학교에 갔다. 어머니!",
    "각각 decomposed: \u1100\u1161\u11a8",
    "emoji 😀👩‍👩‍👧 and ❤️",
    "naïve café ÀÉÎ ﬁne Ⅷ ½",
    "汉字 and かな mixed",
    "x" * 300,
    "control \x01\x07\x1b chars and NUL \x00 inside",
    "a.b,c;d!e?f'g\"h(i)j[k]l<m>n",
    "can't we're I've isn't it's I'm",
    "zero\u200bwidth \ufeff bom \u200d",
    "# ## ### __ -- ''",
]
PAIRS = [("The captain sang", "나는 노래를"), ("", "second only"), (" ", "x")]


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def _spm(**options: object) -> bytes:
    model = io.BytesIO()
    if options["model_type"] == "unigram":
        options["hard_vocab_limit"] = False  # a small corpus may not fill the vocabulary
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, minloglevel=2, num_threads=1, **options
    )
    return model.getvalue()


def wordpiece(folder: Path, **config: object) -> None:
    """vocab.txt + tokenizer_config.json."""
    lower = bool(config.get("do_lower_case", True))
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.model.save(str(folder))
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", **config})


def byte_level(folder: Path, *, roberta: bool, **config: object) -> None:
    """vocab.json + merges.txt + tokenizer_config.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if roberta else ["<|endoftext|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*CORPUS, *["#### ###"] * 40], trainer)
    tokenizer.model.save(str(folder))
    kind = "RobertaTokenizer" if roberta else "GPT2Tokenizer"
    _write(folder / "tokenizer_config.json", {"tokenizer_class": kind, **config})


def unigram(folder: Path, **config: object) -> None:
    """spiece.model: pad 0, end 1, unknown 2, and the sentinels after the vocabulary."""
    model = _spm(vocab_size=200, model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (folder / "spiece.model").write_bytes(model)
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "T5Tokenizer", **config})


def albert(folder: Path) -> None:
    """spiece.model: pad 0, unknown 1, then [CLS], [SEP] and [MASK]."""
    special = ["[CLS]", "[SEP]", "[MASK]"]
    model = _spm(
        vocab_size=200,
        model_type="unigram",
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=special,
    )
    (folder / "spiece.model").write_bytes(model)
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "AlbertTokenizer"})


def deberta(folder: Path) -> None:
    """spm.model: [PAD] 0, [CLS] 1, [SEP] 2, [UNK] 3; [MASK] comes after the vocabulary."""
    names = {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}
    model = _spm(vocab_size=200, model_type="unigram", pad_id=0, bos_id=1, eos_id=2, unk_id=3, **names)
    (folder / "spm.model").write_bytes(model)
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "DebertaV2Tokenizer", "vocab_type": "spm"})


def byte_fallback(folder: Path, **config: object) -> None:
    """tokenizer.model: unknown 0, begin 1, end 2, then 256 bytes."""
    model = _spm(
        vocab_size=450,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        character_coverage=0.99,
    )
    (folder / "tokenizer.model").write_bytes(model)
    defaults = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False}
    _write(folder / "tokenizer_config.json", {**defaults, "legacy": False, **config})


def marian(folder: Path, *, separate: bool, **config: object) -> None:
    """source.spm + target.spm + vocab.json, the pieces of both in one vocabulary or in two."""
    pieces: dict[str, list[str]] = {}
    for side, kind in (("source", "unigram"), ("target", "bpe")):
        content = _spm(vocab_size=150, model_type=kind)
        (folder / f"{side}.spm").write_bytes(content)
        model = sentencepiece.SentencePieceProcessor(model_proto=content)
        pieces[side] = [model.id_to_piece(index) for index in range(3, model.get_piece_size())]
    # A few pieces are left out, as in published vocabularies: they become unknown.
    source, target = pieces["source"][::-1][5:], pieces["target"][5:]
    codes = [] if separate else [">>fra<<", ">>kor<<"]
    both = source if separate else [*dict.fromkeys([*codes, *source, *target])]
    order = ["</s>", "<unk>", "<pad>", *both] if separate else ["</s>", "<unk>", *both, "<pad>"]
    _write(folder / "vocab.json", {token: index for index, token in enumerate(order)})
    if separate:
        order = ["</s>", "<unk>", "<pad>", *target]
        _write(folder / "target_vocab.json", {token: index for index, token in enumerate(order)})
    defaults = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate}
    _write(folder / "tokenizer_config.json", {**defaults, **config})


def published_unigram(folder: Path) -> None:
    """A lone tokenizer.json whose model could spell its own special tokens."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200,
        special_tokens=["<pad>", "</s>", "<unk>"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(pad_id=0, pad_token="<pad>", length=16)
    tokenizer.save(str(folder / "tokenizer.json"))


LAYOUTS = {
    "wordpiece": wordpiece,
    "wordpiece-cased": lambda folder: wordpiece(
        folder, do_lower_case=False, strip_accents=False, tokenize_chinese_chars=False
    ),
    "byte-level": lambda folder: byte_level(folder, roberta=False, model_max_length=1024),
    "byte-level-prefixed": lambda folder: byte_level(
        folder, roberta=False, add_prefix_space=True, add_bos_token=True
    ),
    "byte-level-roberta": lambda folder: byte_level(
        folder,
        roberta=True,
        mask_token={"content": "<mask>", "lstrip": True, "__type": "AddedToken"},
    ),
    "unigram": unigram,
    "albert": albert,
    "deberta": deberta,
    "byte-fallback": byte_fallback,
    "byte-fallback-legacy": lambda folder: byte_fallback(folder, legacy=True, add_eos_token=True),
    "marian": lambda folder: marian(folder, separate=False),
    "marian-separate": lambda folder: marian(folder, separate=True),
}
