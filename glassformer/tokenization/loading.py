"""Load the tokenizer of a model folder from the files it has."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from glassformer.errors import FileMissingError, FileProblemError
from glassformer.tokenization.fast_tokenizer import FastTokenizer
from glassformer.tokenization.folder import (
    CONFIG,
    ROLES,
    TokenizerConfig,
    backend_errors,
    check_ids,
    read_text,
    read_vocabulary,
)
from glassformer.tokenization.sentencepiece import (
    LLAMA_LAYOUT,
    T5_LAYOUT,
    SentencePieceModel,
    SentencePieceTokenizer,
)
from glassformer.tokenization.source_target import MarianTokenizer, pair_tokenizers
from glassformer.tokenization.tokenizer import TARGET_FILE, Tokenizer

_GPT2_SPECIAL_TOKENS = dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>")
_ROBERTA_SPECIAL_TOKENS = dict(zip(ROLES, "<pad> <s> </s> <unk> <s> </s> <mask>".split(), strict=True))
_ROBERTA_KINDS = {"RobertaTokenizer", "BartTokenizer", "roberta", "bart"}
_GPT2_KINDS = {"GPT2Tokenizer", "gpt2"}
_CLIP_SPECIAL_TOKENS = {**_GPT2_SPECIAL_TOKENS, "pad": "<|endoftext|>", "bos": "<|startoftext|>"}
_CLIP_KINDS = {"CLIPTokenizer", "clip", "clip_text_model"}
_CLIP_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_SIGLIP_KINDS = {"SiglipTokenizer", "siglip", "siglip_text_model"}
_ALBERT_SPECIAL_TOKENS = dict(zip(ROLES, "<pad> [CLS] [SEP] <unk> [CLS] [SEP] [MASK]".split(), strict=True))
_ALBERT_KINDS = {"AlbertTokenizer", "albert"}
_DEBERTA_SPECIAL_TOKENS = {**_ALBERT_SPECIAL_TOKENS, "pad": "[PAD]", "unk": "[UNK]"}
_DEBERTA_KINDS = {"DebertaV2Tokenizer", "deberta-v2"}
_WORDPIECE_SPECIAL_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
# Names that imply a role, for folders that have nothing but a tokenizer.json.
_COMMON_NAMES = {
    "pad": ("[PAD]", "<pad>", "<|pad|>", "<|finetune_right_pad_id|>"),
    "bos": ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<|endoftext|>"),
    "eos": ("</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]",),
    "sep": ("[SEP]",),
    "mask": ("[MASK]", "<mask>"),
}
MAX_GROWTH = 64  # of a text in a normalizer or decoder; a few hostile rules could fill the memory
_MISMATCH = "does not match the files in its folder"


def load_tokenizer(folder: str | Path) -> Tokenizer | None:
    """Load the tokenizer of a model folder; None if the folder has none.

    The first of these that exists is used: tokenizer.json, with tokenizer_target.json if the target side has
    its own vocabulary; source.spm with target.spm and vocab.json; spm.model; spiece.model;
    sentencepiece.bpe.model or tokenizer.model; vocab.txt; vocab.json with merges.txt.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileMissingError(folder, "folder")

    def has(name: str) -> bool:
        return (folder / name).is_file()

    def require(*names: str) -> None:
        for name in names:
            if not has(name):
                raise FileMissingError(folder / name, "tokenizer file")

    config = TokenizerConfig.read(folder)
    if has(TARGET_FILE):
        require("tokenizer.json")
        return pair_tokenizers(load_tokenizer_json(config), load_tokenizer_json(config, TARGET_FILE))
    if has("tokenizer.json"):
        return load_tokenizer_json(config)
    if has("source.spm") or has("target.spm"):
        separate = config.flag("separate_vocabs", False)
        require("source.spm", "target.spm", "vocab.json", *["target_vocab.json"] * separate)
        return MarianTokenizer(config, separate=separate)
    if has("spiece.model") and config.kind in _ALBERT_KINDS:
        return _load_unigram(config, "spiece.model", _ALBERT_SPECIAL_TOKENS, _albert_normalizers)
    if has("spm.model"):
        if config.kind not in _DEBERTA_KINDS:
            raise config.needs_tokenizer_json("spm.model")
        return _load_unigram(config, "spm.model", _DEBERTA_SPECIAL_TOKENS, _deberta_normalizers)
    if has("spiece.model"):
        if config.kind in _SIGLIP_KINDS:  # it also lowercases and removes punctuation
            raise config.needs_tokenizer_json("spiece.model")
        return SentencePieceTokenizer.load(config, "spiece.model", T5_LAYOUT)
    for name in ("sentencepiece.bpe.model", "tokenizer.model"):
        if has(name):
            return SentencePieceTokenizer.load(config, name, LLAMA_LAYOUT)
    if has("vocab.txt"):
        return _load_wordpiece(config)
    if has("vocab.json") or has("merges.txt"):
        require("vocab.json", "merges.txt")
        return _load_clip_bpe(config) if config.kind in _CLIP_KINDS else _load_byte_level_bpe(config)
    if has(CONFIG):
        raise FileMissingError(folder / "tokenizer.json", "vocabulary")
    return None


def load_tokenizer_json(config: TokenizerConfig, name: str = "tokenizer.json") -> FastTokenizer:
    """Load a tokenizer from tokenizer.json, or another file of that format."""
    path = config.folder / name
    raw = path.read_bytes()
    with backend_errors(path, "is not a tokenizer"):
        backend = Backend.from_str(raw.decode("utf-8"))
    if backend.get_vocab_size() == 0:
        raise FileProblemError(path, "has no tokens")
    for name, part in (("normalizer", backend.normalizer), ("decoder", backend.decoder)):
        if part is not None and (growth := _growth(json.loads(part.__getstate__()))) > MAX_GROWTH:
            problem = f"has a {name} that can make a text {growth:.3g} times as long"
            raise FileProblemError(path, problem, hint=f"at most {MAX_GROWTH} times is accepted")
    with backend_errors(path, _MISMATCH):
        changed = _add_declared(backend, config)
        role_ids = {role: _role_id(backend, config, role) for role in ROLES}
        if "add_bos_token" in config.config or "add_eos_token" in config.config:
            backend.post_processor = _bos_eos_template(backend, config, role_ids)
    return FastTokenizer(backend, config, role_ids, raw=None if changed else raw)


def _growth(part: dict[str, Any]) -> float:
    """Return how many times longer a normalizer or decoder can make a text by replacing patterns."""
    if part["type"] == "Sequence":
        return math.prod(map(_growth, part.get("normalizers") or part.get("decoders") or ()))
    if part["type"] == "Replace":
        return max(1.0, len(part["content"]) / max(1, len(part["pattern"].get("String", ""))))
    return 1.0


def _role_id(backend: Backend, config: TokenizerConfig, role: str) -> int | None:
    """Look up the id of a role: declared token, model config, post-processor, or a common name."""
    token = config.roles.get(role)
    if token is not None:
        return backend.token_to_id(token.content)
    index = config.role_ids.get(role)
    if index is not None and backend.id_to_token(index) is not None:
        return index
    if role in config.roles:
        return None
    template = backend.post_processor
    named = isinstance(template, processors.BertProcessing | processors.RobertaProcessing)
    if named and role in ("cls", "sep"):
        return int(getattr(template, role)[1])
    candidates = (backend.token_to_id(name) for name in _COMMON_NAMES[role])
    return next((index for index in candidates if index is not None), None)


def _load_wordpiece(config: TokenizerConfig) -> Tokenizer:
    """Build a WordPiece tokenizer from vocab.txt: one token per line; its line number is its id."""
    path = config.folder / "vocab.txt"
    lines = read_text(path).removesuffix("\n").split("\n")
    vocabulary = {token: index for index, token in enumerate(lines)}
    if len(vocabulary) < len(lines):
        raise FileProblemError(path, "has the same token on two lines")

    tokens = {role: config.role(role, _WORDPIECE_SPECIAL_TOKENS.get(role)) for role in ROLES}
    names = {role: token.content for role, token in tokens.items() if token is not None}
    for role in ("unk", "cls", "sep"):
        if names.get(role) not in vocabulary:
            raise config.missing_token(path, role, tokens[role])
    with backend_errors(path, "is not a vocabulary"):
        backend = Backend(models.WordPiece(vocabulary, unk_token=names["unk"]))
    lowercase = config.flag("do_lower_case", True)
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.flag("tokenize_chinese_chars", True),
        strip_accents=config.flag("strip_accents", lowercase),
        lowercase=lowercase,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    with backend_errors(path, _MISMATCH):
        _add_declared(backend, config)
        _add_known(backend, [token for token in tokens.values() if token is not None])
    role_ids = {role: backend.token_to_id(name) for role, name in names.items()}
    backend.post_processor = processors.TemplateProcessing(
        single=f"{names['cls']}:0 $A:0 {names['sep']}:0",
        pair=f"{names['cls']}:0 $A:0 {names['sep']}:0 $B:1 {names['sep']}:1",
        special_tokens=[(names[role], vocabulary[names[role]]) for role in ("cls", "sep")],
    )
    return FastTokenizer(backend, config, role_ids)


Normalizers = list[normalizers.Normalizer]


def _load_unigram(
    config: TokenizerConfig,
    name: str,
    defaults: dict[str, str],
    normalizers_of: Callable[[TokenizerConfig, SentencePieceModel], Normalizers],
) -> Tokenizer:
    """Build a unigram tokenizer with [CLS] and [SEP] from the SentencePiece model in the file `name`."""
    path = config.folder / name
    spm = SentencePieceModel(path)
    tokens = {role: config.role(role, defaults[role]) for role in ROLES}
    known = {role: token for role, token in tokens.items() if token is not None}
    for role in ("unk", "cls", "sep"):
        if role not in known or known[role].content not in spm.index:
            raise config.missing_token(path, role, tokens[role])
    with backend_errors(path, "is not a unigram model"):
        backend = Backend(models.Unigram(spm.scores(), spm.index[known["unk"].content], False))
        backend.normalizer = normalizers.Sequence(normalizers_of(config, spm))
    prefix = "always" if config.flag("add_prefix_space", True) else "never"
    splitters: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.Metaspace(prepend_scheme=prefix)]
    if defaults is _ALBERT_SPECIAL_TOKENS:
        splitters.insert(0, pre_tokenizers.WhitespaceSplit())
    elif config.flag("split_by_punct", False):
        splitters.insert(0, pre_tokenizers.Punctuation(behavior="isolated"))
    backend.pre_tokenizer = pre_tokenizers.Sequence(splitters)
    backend.decoder = decoders.Metaspace(prepend_scheme=prefix)
    with backend_errors(path, _MISMATCH):
        _add_declared(backend, config)
        for token in known.values():
            _add(backend, token)
    role_ids = {role: backend.token_to_id(token.content) for role, token in known.items()}
    cls, sep = (known[role].content for role in ("cls", "sep"))
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, role_ids["cls"]), (sep, role_ids["sep"])],
    )
    return FastTokenizer(backend, config, role_ids)


def _albert_normalizers(config: TokenizerConfig, spm: SentencePieceModel) -> Normalizers:
    steps: Normalizers = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not config.flag("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if config.flag("do_lower_case", True):
        steps.append(normalizers.Lowercase())
    rules = spm.normalization_rules()
    return [*steps, normalizers.Precompiled(rules)] if rules else steps


def _deberta_normalizers(config: TokenizerConfig, spm: SentencePieceModel) -> Normalizers:
    lower = [normalizers.Lowercase()] if config.flag("do_lower_case", False) else []
    spaces = normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " ")
    return [*lower, spaces, normalizers.NFC(), normalizers.Strip(left=False, right=True)]


def _load_byte_level_bpe(config: TokenizerConfig) -> Tokenizer:
    """Build a byte-level BPE tokenizer from vocab.json and merges.txt.

    Whether special tokens are added around a text depends on the tokenizer class or model type, else on
    whether the vocabulary has them.
    """
    path = config.folder / "vocab.json"
    vocabulary = read_vocabulary(path)
    merges = _read_merges(config.folder / "merges.txt")
    check_ids(set(vocabulary.values()) | {index for index, _ in config.added if index is not None}, path)
    with backend_errors(path, "does not match merges.txt"):
        backend = Backend(models.BPE(vocab=vocabulary, merges=merges))
    prefix = config.flag("add_prefix_space", False)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    backend.decoder = decoders.ByteLevel()

    roberta = _is_roberta(config, vocabulary)
    defaults = _ROBERTA_SPECIAL_TOKENS if roberta else _GPT2_SPECIAL_TOKENS
    tokens = {role: config.role(role, defaults.get(role)) for role in ROLES}
    if roberta and "mask" not in config.roles:
        # In training, the mask replaced a word together with the space before it.
        tokens["mask"] = AddedToken("<mask>", lstrip=True, normalized=False, special=True)
    known = {role: token for role, token in tokens.items() if token is not None}
    with backend_errors(path, _MISMATCH):
        _add_declared(backend, config)
        _add_known(backend, list(known.values()))
    role_ids = {role: backend.token_to_id(token.content) for role, token in known.items()}
    if not roberta:
        backend.post_processor = _bos_eos_template(backend, config, role_ids)
        return FastTokenizer(backend, config, role_ids)
    separators = []
    for role in ("sep", "cls"):
        index = role_ids.get(role)
        if index is None:
            raise config.missing_token(path, role, tokens[role])
        separators.append((known[role].content, index))
    trim_offsets = config.flag("trim_offsets", True)
    sep, cls = separators
    backend.post_processor = processors.RobertaProcessing(sep, cls, trim_offsets, prefix)
    return FastTokenizer(backend, config, role_ids)


def _load_clip_bpe(config: TokenizerConfig) -> Tokenizer:
    """Build a byte-level BPE tokenizer of lower-cased words that end with </w>."""
    path = config.folder / "vocab.json"
    vocabulary = read_vocabulary(path)
    merges = _read_merges(config.folder / "merges.txt")
    check_ids(set(vocabulary.values()) | {index for index, _ in config.added if index is not None}, path)
    tokens = {role: config.role(role, _CLIP_SPECIAL_TOKENS.get(role)) for role in ROLES}
    known = {role: token for role, token in tokens.items() if token is not None}
    with backend_errors(path, "does not match merges.txt"):
        backend = Backend(
            models.BPE(
                vocab=vocabulary,
                merges=merges,
                continuing_subword_prefix="",
                end_of_word_suffix="</w>",
                unk_token=known["unk"].content,
            )
        )
    spaces = normalizers.Replace(Regex(r"\s+"), " ")
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), spaces, normalizers.Lowercase()])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_CLIP_WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    with backend_errors(path, _MISMATCH):
        _add_declared(backend, config)
        _add_known(backend, list(known.values()))
    role_ids = {role: backend.token_to_id(token.content) for role, token in known.items()}
    ends = []
    for role in ("eos", "bos"):
        index = role_ids.get(role)
        if index is None:
            raise config.missing_token(path, role, tokens[role])
        ends.append((known[role].content, index))
    end, start = ends
    backend.post_processor = processors.RobertaProcessing(end, start, False, False)
    return FastTokenizer(backend, config, role_ids)


def _is_roberta(config: TokenizerConfig, vocabulary: dict[str, int]) -> bool:
    if config.kind in _ROBERTA_KINDS | _GPT2_KINDS:
        return config.kind in _ROBERTA_KINDS
    if config.kind is not None:
        raise config.needs_tokenizer_json("vocab.json")
    return all(mark in vocabulary for mark in ("<s>", "</s>", "<pad>", "<mask>"))


def _read_merges(path: Path) -> list[tuple[str, str]]:
    """Read the merges in order of rank. Only the first line may be a comment; "# #" is a valid merge."""
    merges = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        left, space, right = line.partition(" ")
        if not (left and space and right) or " " in right:
            raise FileProblemError(path, f"is not two pieces: {line[:60]!r}", number)
        merges.append((left, right))
    return merges


def _add_declared(backend: Backend, config: TokenizerConfig) -> bool:
    """Add the declared tokens that the backend lacks; return whether there were any."""
    present = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    changed = False
    for index, token in config.added:
        if token.content not in present:
            changed = True
            _add(backend, token)
            actual = backend.token_to_id(token.content)
            if index is not None and actual != index:
                raise FileProblemError(
                    config.folder, f"declares id {index} for {token.content!r}, whose id is {actual}"
                )
            present[token.content] = token
    for role in config.roles.values():
        if role is not None and not (role.content in present and present[role.content].special):
            changed = True
            _add(backend, role)
            present[role.content] = role
    return changed


def _add_known(backend: Backend, tokens: list[AddedToken]) -> None:
    """Register those tokens that are in the vocabulary as added tokens."""
    for token in tokens:
        if backend.token_to_id(token.content) is not None:
            _add(backend, token)


def _add(backend: Backend, token: AddedToken) -> None:
    if token.special:
        backend.add_special_tokens([token])
    else:
        backend.add_tokens([token])


def _bos_eos_template(
    backend: Backend, config: TokenizerConfig, role_ids: dict[str, int | None]
) -> processors.PostProcessor:
    """Return a post-processor that adds BOS and EOS as set by add_bos_token and add_eos_token."""
    bos, eos = (
        role_ids[role] if config.flag(f"add_{role}_token", False) else None for role in ("bos", "eos")
    )

    def template(sequence: str, kind: int) -> list[str]:
        names = [None if bos is None else backend.id_to_token(bos), sequence]
        names.append(None if eos is None else backend.id_to_token(eos))
        return [f"{name}:{kind}" for name in names if name is not None]

    return processors.TemplateProcessing(
        single=template("$A", 0),
        pair=template("$A", 0) + template("$B", 1),
        special_tokens=[(backend.id_to_token(i), i) for i in (bos, eos) if i is not None],
    )
