"""WordPiece from a vocab.txt: one token a line, its line number its id."""

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from glassformer.errors import GlassformerError
from glassformer.tokenization.adding import add_declared, add_known
from glassformer.tokenization.declared import ROLES, Declared
from glassformer.tokenization.folder import read_text, translated
from glassformer.tokenization.library import LibraryTokenizer
from glassformer.tokenization.tokenizer import Tokenizer

_DEFAULTS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


def load_wordpiece(declared: Declared) -> Tokenizer:
    """The tokenizer of a folder with a vocab.txt."""
    path = declared.folder / "vocab.txt"
    lines = read_text(path).removesuffix("\n").split("\n")
    vocabulary = {token: index for index, token in enumerate(lines)}
    if len(vocabulary) < len(lines):
        twice = next(token for index, token in enumerate(lines) if vocabulary[token] != index)
        raise GlassformerError(f"{path} holds {twice!r} on two lines, so an id has no token.")

    tokens = {role: declared.role(role, _DEFAULTS.get(role)) for role in ROLES}
    names = {role: token.content for role, token in tokens.items() if token is not None}
    for role in ("unk", "cls", "sep"):
        if names.get(role) not in vocabulary:
            raise GlassformerError(
                f"{path} lacks {names.get(role, f'a {role} token')!r}, which every text needs."
            )
    with translated(f"{path} cannot be used as a vocabulary"):
        backend = Backend(models.WordPiece(vocabulary, unk_token=names["unk"]))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=declared.flag("tokenize_chinese_chars", True),
        strip_accents=declared.flag("strip_accents", declared.flag("do_lower_case", True)),
        lowercase=declared.flag("do_lower_case", True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")

    with translated(f"{path} and the files beside it do not fit together"):
        add_declared(backend, declared)
        add_known(backend, [token for token in tokens.values() if token is not None])
    role_ids = {role: backend.token_to_id(name) for role, name in names.items()}
    backend.post_processor = processors.TemplateProcessing(
        single=f"{names['cls']}:0 $A:0 {names['sep']}:0",
        pair=f"{names['cls']}:0 $A:0 {names['sep']}:0 $B:1 {names['sep']}:1",
        special_tokens=[(names[role], vocabulary[names[role]]) for role in ("cls", "sep")],
    )
    return LibraryTokenizer(backend, declared, role_ids)
