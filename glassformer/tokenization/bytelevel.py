"""Byte-level BPE from vocab.json and merges.txt, with or without marks around the text.

The two files do not say which of the two it is; the class or model kind named beside them does, or
failing that the presence of the marks in the vocabulary.
"""

from pathlib import Path

from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from glassformer.errors import GlassformerError
from glassformer.tokenization.adding import add_declared, add_known, ends_template
from glassformer.tokenization.declared import ROLES, Declared
from glassformer.tokenization.folder import read_text, read_vocabulary, refuse_gaps, translated
from glassformer.tokenization.library import LibraryTokenizer
from glassformer.tokenization.tokenizer import Tokenizer

_BARE = dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>")
_MARKED = {
    "bos": "<s>",
    "eos": "</s>",
    "cls": "<s>",
    "sep": "</s>",
    "unk": "<unk>",
    "pad": "<pad>",
    "mask": "<mask>",
}
_MARKED_NAMES = {"RobertaTokenizer", "BartTokenizer", "roberta", "bart"}
_BARE_NAMES = {"GPT2Tokenizer", "gpt2"}
_ANY_NAME = {None, "PreTrainedTokenizer", "TokenizersBackend"}


def load_byte_level(declared: Declared) -> Tokenizer:
    """The tokenizer of a folder with vocab.json and merges.txt."""
    path = declared.folder / "vocab.json"
    vocabulary = read_vocabulary(path)
    merges = _merges(declared.folder / "merges.txt")
    extra = {index for index, _ in declared.added if index is not None}
    refuse_gaps(set(vocabulary.values()) | extra, path)
    with translated(f"{path} and merges.txt do not fit together"):
        backend = Backend(models.BPE(vocab=vocabulary, merges=merges))
    prefix = declared.flag("add_prefix_space", False)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    backend.decoder = decoders.ByteLevel()

    marked = _is_marked(declared, vocabulary)
    defaults = _MARKED if marked else _BARE
    tokens = {role: declared.role(role, defaults.get(role)) for role in ROLES}
    if marked and "mask" not in declared.roles:
        # These models learnt the mask in place of a word together with the space before it.
        tokens["mask"] = AddedToken("<mask>", lstrip=True, normalized=False, special=True)
    with translated(f"{path} and the files beside it do not fit together"):
        add_declared(backend, declared)
        add_known(backend, [token for token in tokens.values() if token is not None])
    role_ids = {
        role: backend.token_to_id(token.content) for role, token in tokens.items() if token is not None
    }
    if marked:
        backend.post_processor = processors.RobertaProcessing(
            _mark("sep", tokens, role_ids, path),
            _mark("cls", tokens, role_ids, path),
            declared.flag("trim_offsets", True),
            prefix,
        )
    else:
        backend.post_processor = ends_template(backend, declared, role_ids)
    return LibraryTokenizer(backend, declared, role_ids)


def _is_marked(declared: Declared, vocabulary: dict[str, int]) -> bool:
    kind = declared.tokenizer_class
    kind = declared.model_type if kind in _ANY_NAME else kind
    if kind in _MARKED_NAMES:
        return True
    if kind in _BARE_NAMES:
        return False
    if kind is not None:
        raise GlassformerError(
            f"{declared.folder} has the vocab.json and merges.txt of a {kind!r}, which only its "
            f"tokenizer.json describes in full; put that file beside them."
        )
    return all(mark in vocabulary for mark in ("<s>", "</s>", "<pad>", "<mask>"))


def _mark(
    role: str,
    tokens: dict[str, AddedToken | None],
    role_ids: dict[str, int | None],
    path: Path,
) -> tuple[str, int]:
    token, index = tokens[role], role_ids.get(role)
    if token is None or index is None:
        name = f"a {role} token" if token is None else repr(token.content)
        raise GlassformerError(f"{path} lacks {name}, which every text needs.")
    return token.content, index


def _merges(path: Path) -> list[tuple[str, str]]:
    """Pairs in order of rank. Only the first line may be a comment: "# #" is a merge like any."""
    merges = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        left, space, right = line.partition(" ")
        if not (left and space and right) or " " in right:
            raise GlassformerError(f"{path} line {number} is not two pieces: {line[:60]!r}.")
        merges.append((left, right))
    return merges
