"""Read the files of a tokenizer folder, including special tokens declared in small JSON files.

Old and new layouts are supported: a token is a string or {"content": ...}; roles are in
`tokenizer_config.json` or `special_tokens_map.json`; added tokens in `added_tokens_decoder`,
`added_tokens.json`, `additional_special_tokens` or `extra_special_tokens`.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from glassformer.errors import FileMissingError, FileProblemError, GlassformerError, InvalidValueError
from glassformer.json_text import read_object

ROLES = ("pad", "bos", "eos", "unk", "cls", "sep", "mask")
CONFIG = "tokenizer_config.json"
SPECIAL_MAP = "special_tokens_map.json"
ADDED = "added_tokens.json"
CHAT_TEMPLATE = "chat_template.jinja"
MORE_TEMPLATES = "additional_chat_templates"  # a folder of templates by name
OLD_CHAT_TEMPLATE = "chat_template.json"  # of processors
_COPIED = (SPECIAL_MAP, ADDED, CHAT_TEMPLATE, OLD_CHAT_TEMPLATE)
TOKENIZER_FILES = (  # every file that `load_tokenizer` reads
    *("tokenizer.json", "tokenizer_target.json", CONFIG, *_COPIED),
    *("source.spm", "target.spm", "vocab.json", "target_vocab.json"),
    *("spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "vocab.txt", "merges.txt"),
)
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized")
_FILES = re.compile(r"token.*\.json$|vocab.*\.(json|txt)$|^merges\.txt$|\.(model|spm)$")


def vocabulary_files(folder: str | Path) -> list[Path]:
    """Return the tokenizer files of a folder, sorted by name."""
    return sorted(path for path in Path(folder).glob("*") if _FILES.search(path.name) and path.is_file())


def fingerprint(folder: str | Path) -> str | None:
    """Return a hex digest of the tokenizer files of a folder; None if there are none."""
    digest = hashlib.blake2b(digest_size=16)
    paths = vocabulary_files(folder)
    for path in paths:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)} ".encode() + content)
    return digest.hexdigest() if paths else None


@contextmanager
def backend_errors(path: Path | str, problem: str) -> Iterator[None]:
    """Convert errors of a compiled backend inside the block to FileProblemError."""
    try:
        yield
    except (GlassformerError, MemoryError):
        raise
    except BaseException as error:
        # a Rust panic is not an Exception; KeyboardInterrupt and SystemExit must propagate
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise FileProblemError(path, f"{problem} ({reason})") from error


def read_text(path: Path) -> str:
    """Read a UTF-8 file; line ends become `\\n`."""
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise FileProblemError(path, f"is not UTF-8 text (byte {error.start})") from error


def read_vocabulary(path: Path) -> dict[str, int]:
    """Read a JSON object that maps tokens to unique ids."""
    vocabulary = read_object(path, missing_ok=True)
    tokens: dict[int, str] = {}
    for token, index in vocabulary.items():
        if not isinstance(index, int) or index < 0:
            raise InvalidValueError(f"{path}: {token}", index, "an integer of at least 0")
        if index in tokens:
            raise FileProblemError(path, f"id {index} belongs to both {tokens[index]!r} and {token!r}")
        tokens[index] = token
    return vocabulary


def check_ids(ids: set[int], path: Path) -> None:
    """Raise an error unless the ids are 0, 1, 2, ... without a gap."""
    missing = next((index for index in range(max(ids, default=0) + 1) if index not in ids), None)
    if missing is not None:
        raise FileProblemError(path, f"has no token with id {missing}")


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """The tokenizer settings of a folder, without the vocabulary.

    config           contents of tokenizer_config.json
    roles            role to token; None if the folder sets it to null
    added            (id or None, token), tokens besides the plain vocabulary
    role_ids         role to id, from config.json and generation_config.json
    tokenizer_class  the class of transformers, without "Fast"
    model_type       from config.json
    copied           files that are saved unchanged
    """

    folder: Path = Path()
    config: dict[str, Any] = field(default_factory=dict)
    roles: dict[str, AddedToken | None] = field(default_factory=dict)
    added: list[tuple[int | None, AddedToken]] = field(default_factory=list)
    role_ids: dict[str, int] = field(default_factory=dict)
    tokenizer_class: str | None = None
    model_type: str | None = None
    copied: dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "TokenizerConfig":
        """Read the JSON files of a model folder; missing files are ignored."""
        names = (CONFIG, SPECIAL_MAP, "config.json", "generation_config.json")
        config, special_map, model, generation = (
            read_object(folder / name, missing_ok=True) for name in names
        )

        roles: dict[str, AddedToken | None] = {}
        for path, source in ((folder / SPECIAL_MAP, special_map), (folder / CONFIG, config)):
            for role in ROLES:
                key = f"{role}_token"
                if key in source:
                    value = source[key]
                    roles[role] = None if value is None else _token(value, path, key, special=True)

        role_ids: dict[str, int] = {}
        for source in (generation, model):
            for role in ROLES:
                value = source.get(f"{role}_token_id")
                value = value[0] if isinstance(value, list) and value else value
                if isinstance(value, int) and value >= 0:
                    role_ids[role] = value

        class_name = config.get("tokenizer_class") or model.get("tokenizer_class")
        return cls(
            folder=folder,
            config=config,
            roles=roles,
            added=_added(folder, config, special_map),
            role_ids=role_ids,
            tokenizer_class=str(class_name).removesuffix("Fast") if class_name else None,
            model_type=model.get("model_type"),
            copied={
                path.relative_to(folder).as_posix(): path.read_bytes()
                for pattern in (*_COPIED, f"{MORE_TEMPLATES}/*.jinja")
                for path in sorted(folder.glob(pattern))
                if path.is_file()
            },
        )

    @property
    def kind(self) -> str | None:
        """The tokenizer class, or the model type if the class is missing or generic."""
        generic = {None, "PreTrainedTokenizer", "TokenizersBackend"}
        return self.model_type if self.tokenizer_class in generic else self.tokenizer_class

    def role(self, name: str, default: str | None = None) -> AddedToken | None:
        """Return the token of a role (e.g. "bos"), else the default."""
        if name in self.roles:
            return self.roles[name]
        return None if default is None else AddedToken(default, normalized=False, special=True)

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean option of tokenizer_config.json; null counts as missing."""
        value = self.config.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InvalidValueError(f"{self.folder / CONFIG}: {name}", value, "true or false")
        return value

    def saved(self, settings: dict[str, Any]) -> dict[str, bytes]:
        """Return the files to save by name. Keys of the loaded config take precedence over `settings`."""
        text = json.dumps({**settings, **self.config}, ensure_ascii=False, indent=2) + "\n"
        return {**self.copied, CONFIG: text.encode("utf-8")}

    def needs_tokenizer_json(self, name: str) -> FileMissingError:
        """Return the error for a tokenizer class that the file `name` does not fully describe."""
        hint = f"{name} does not describe a {self.kind} in full"
        return FileMissingError(self.folder / "tokenizer.json", "tokenizer file", hint=hint)

    def missing_token(self, path: Path, role: str, token: AddedToken | None) -> FileProblemError:
        """Return the error for a vocabulary that lacks a required token."""
        name = f"a {role} token" if token is None else repr(token.content)
        return FileProblemError(path, f"lacks {name}, which every text needs")


def _added(
    folder: Path, config: dict[str, Any], special_map: dict[str, Any]
) -> list[tuple[int | None, AddedToken]]:
    tokens: dict[str, tuple[int | None, AddedToken]] = {}

    path = folder / CONFIG
    for key, value in (config.get("added_tokens_decoder") or {}).items():
        if not key.isdecimal():
            raise InvalidValueError(f"{path}: added_tokens_decoder", key, "ids")
        token = _token(value, path, f"added_tokens_decoder.{key}", special=False)
        tokens[token.content] = (int(key), token)

    for content, index in read_object(folder / ADDED, missing_ok=True).items():
        if not isinstance(index, int):
            raise InvalidValueError(f"{folder / ADDED}: {content}", index, "an id")
        if content not in tokens:
            tokens[content] = (index, AddedToken(content, special=False, normalized=False))

    for name, source in ((SPECIAL_MAP, special_map), (CONFIG, config)):
        for key in ("additional_special_tokens", "extra_special_tokens"):
            values = source.get(key) or []
            if isinstance(values, dict):  # a dict in the newest layout
                values = list(values.values())
            if not isinstance(values, list):
                raise InvalidValueError(f"{folder / name}: {key}", values, "a list")
            for value in values:
                token = _token(value, folder / name, key, special=True)
                index = tokens[token.content][0] if token.content in tokens else None
                if index is None or not tokens[token.content][1].special:
                    tokens[token.content] = (index, token)

    return sorted(tokens.values(), key=lambda pair: (pair[0] is None, pair[0] or 0))


def _token(value: Any, path: Path, key: str, *, special: bool) -> AddedToken:
    if isinstance(value, str) and value:
        return AddedToken(value, special=special, normalized=False)
    if isinstance(value, dict) and isinstance(value.get("content"), str) and value["content"]:
        flags = {flag: bool(value.get(flag, False)) for flag in _FLAGS}
        return AddedToken(value["content"], special=special or bool(value.get("special")), **flags)
    raise InvalidValueError(f"{path}: {key}", value, 'a token: a string or {"content": ...}')
