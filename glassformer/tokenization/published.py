"""tokenizer.json: the whole tokenizer in one file."""

from tokenizers import Tokenizer as Backend
from tokenizers import processors

from glassformer.errors import GlassformerError
from glassformer.tokenization.adding import add_declared, ends_template
from glassformer.tokenization.declared import ROLES, Declared
from glassformer.tokenization.folder import read_bytes, translated
from glassformer.tokenization.library import LibraryTokenizer

# Names that say their role by themselves, for folders that hold nothing but a tokenizer.json.
_WELL_KNOWN = {
    "pad": ("[PAD]", "<pad>", "<|pad|>", "<|finetune_right_pad_id|>"),
    "bos": ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<|endoftext|>"),
    "eos": ("</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]",),
    "sep": ("[SEP]",),
    "mask": ("[MASK]", "<mask>"),
}


def load_published(declared: Declared, name: str = "tokenizer.json") -> LibraryTokenizer:
    """The tokenizer of a folder with a tokenizer.json, or of another file of that kind."""
    path = declared.folder / name
    raw = read_bytes(path)
    with translated(f"{path} cannot be read as a tokenizer"):
        backend = Backend.from_str(raw.decode("utf-8"))
    if backend.get_vocab_size() == 0:
        raise GlassformerError(f"{path} holds no tokens.")
    with translated(f"{path} and the files beside it do not fit together"):
        grown = add_declared(backend, declared)
        role_ids = {role: _role_id(backend, declared, role) for role in ROLES}
        if "add_bos_token" in declared.config or "add_eos_token" in declared.config:
            backend.post_processor = ends_template(backend, declared, role_ids)
    return LibraryTokenizer(backend, declared, role_ids, raw=None if grown else raw)


def _role_id(backend: Backend, declared: Declared, role: str) -> int | None:
    """The id of a role: by its declared token, the model's config, the marks, or its name."""
    token = declared.roles.get(role)
    if token is not None:
        return backend.token_to_id(token.content)
    index = declared.role_ids.get(role)
    if index is not None and backend.id_to_token(index) is not None:
        return index
    if role in declared.roles:
        return None
    marks = backend.post_processor
    named = isinstance(marks, processors.BertProcessing | processors.RobertaProcessing)
    if named and role in ("cls", "sep"):
        return int(getattr(marks, role)[1])
    found = (backend.token_to_id(name) for name in _WELL_KNOWN[role])
    return next((index for index in found if index is not None), None)
