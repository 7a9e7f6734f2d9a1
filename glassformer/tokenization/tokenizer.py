"""The tokenizer interface, and language tags."""

import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, overload

from glassformer.errors import (
    FileExistsAlreadyError,
    FileProblemError,
    InvalidValueError,
    MissingValueError,
    ShapeError,
    UnknownNameError,
)
from glassformer.tokenization.chat_template import (
    Conversation,
    choose_template,
    read_templates,
    render_chat,
)
from glassformer.tokenization.display import Part, display_parts
from glassformer.tokenization.folder import TokenizerConfig
from glassformer.weights.atomic_write import write_file

Side = Literal["source", "target"]
TARGET_FILE = "tokenizer_target.json"  # for the target side, if it has its own vocabulary

# The replacements of clean_up_tokenization_spaces, before and after " ' ".
_CLEANED_FIRST = (" .", " ?", " !", " ,")
_CLEANED_LAST = (" n't", " 'm", " 's", " 've", " 're")
CLEANED_CHARACTERS = max(map(len, (*_CLEANED_FIRST, *_CLEANED_LAST)))
_TAG = re.compile(r">>[^<>\s]{1,28}<<")
_CODE = re.compile(r"[a-z]{2,3}_[A-Za-z]{2,4}")


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """One encoded text (or pair of texts): five lists of the same length, one entry per token.

    ids           the token ids
    type_ids      token types: 0 or 1
    offsets       character offsets (start, end) in the original text; (0, 0) for special tokens around it
    sequence_ids  0 for the first text, 1 for the second, None for special tokens around them
    word_ids      index of the word in its text, None for special tokens around it
    """

    ids: list[int]
    type_ids: list[int] = field(repr=False)
    offsets: list[tuple[int, int]] = field(repr=False)
    sequence_ids: list[int | None] = field(repr=False)
    word_ids: list[int | None] = field(repr=False)

    def __len__(self) -> int:
        return len(self.ids)


class _RoleId:
    """Descriptor for the id of a role's special token, e.g. `bos_id` for the role `bos`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._role = name.removesuffix("_id")

    def __get__(self, tokenizer: "Tokenizer | None", owner: type) -> int | None:
        return None if tokenizer is None else tokenizer._role_ids.get(self._role)


class Tokenizer(ABC):
    """Encode text to token ids, and decode ids to text.

    `special=True` adds the model's special tokens ([CLS] ... [SEP], ... </s>, <s> ...).
    The name of a special token in a text ("</s>", "[MASK]") is plain text unless `parse_special=True`.
    `side` matters only if source and target have separate vocabularies.
    """

    def __init__(self, config: TokenizerConfig, role_ids: dict[str, int | None]) -> None:
        self._config = config
        self._role_ids = role_ids

    def encode(
        self,
        text: str,
        pair: str | None = None,
        *,
        special: bool = True,
        parse_special: bool = False,
        side: Side = "source",
    ) -> Encoded:
        """Encode one text, or a pair of texts."""
        pairs = None if pair is None else [pair]
        batch = self.encode_batch([text], pairs, special=special, parse_special=parse_special, side=side)
        return batch[0]

    def encode_batch(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        special: bool = True,
        parse_special: bool = False,
        side: Side = "source",
    ) -> list[Encoded]:
        """Encode many texts, without padding or truncation."""
        texts = _check_texts(texts)
        if pairs is not None:
            pairs = _check_texts(pairs)
            if len(pairs) != len(texts):
                raise ShapeError("pairs", (len(pairs),), f"{len(texts)} texts")
        if not texts:
            return []
        return self._encode(texts, pairs, special=special, parse_special=parse_special, side=side)

    def encode_ids(self, texts: Sequence[str], *, side: Side = "source") -> list[list[int]]:
        """Encode many texts to ids with special tokens; faster than `encode_batch` (no offsets).

        Equal texts may share a list, so do not modify the lists.
        """
        texts = _check_texts(texts)
        distinct = list(dict.fromkeys(texts))
        ids = self._encode_ids(distinct, side) if distinct else []
        if len(distinct) == len(texts):
            return ids
        by_text = dict(zip(distinct, ids, strict=True))
        return [by_text[text] for text in texts]

    def _encode_ids(self, texts: list[str], side: Side) -> list[list[int]]:
        return [
            encoded.ids for encoded in self._encode(texts, None, special=True, parse_special=False, side=side)
        ]

    def encode_ids_with_first_end(self, texts: Sequence[str]) -> list[tuple[list[int], int]]:
        """Encode texts without special tokens; return for each its ids and where its first token ends."""
        texts = _check_texts(texts)
        return self._encode_ids_with_first_end(texts) if texts else []

    def _encode_ids_with_first_end(self, texts: list[str]) -> list[tuple[list[int], int]]:
        encodings = self._encode(texts, None, special=False, parse_special=False, side="source")
        return [(encoded.ids, encoded.offsets[0][1] if encoded.offsets else 0) for encoded in encodings]

    @property
    def sides_differ(self) -> bool:
        """Whether source and target have separate vocabularies."""
        return False

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, side: Side = "target") -> str:
        """Decode ids to text; unknown ids and incomplete characters are dropped."""
        text = self._decode(_to_ints(ids), skip_special=skip_special, side=side)
        if self._cleans_up_spaces:
            for spaced in _CLEANED_FIRST:
                text = text.replace(spaced, spaced[1:])
            text = text.replace(" ' ", "'")
            for spaced in _CLEANED_LAST:
                text = text.replace(spaced, spaced[1:])
        return text

    @property
    def _cleans_up_spaces(self) -> bool:
        return self._cleans_up and self._config.config.get("clean_up_tokenization_spaces") is True

    @cached_property
    def unstable_characters(self) -> int:
        """Number of characters at the end of a decoded text that the next token may change: " n" to "n't"."""
        return CLEANED_CHARACTERS if self._cleans_up_spaces else 0

    def tokens(self, ids: Iterable[int], *, side: Side = "source") -> list[str]:
        """Return the vocabulary entry of each id ("Ġthe", "▁the", "##ing")."""
        return [self._token(index, side) or f"<id {index}>" for index in _to_ints(ids)]

    def pieces(self, ids: Iterable[int], *, side: Side = "source") -> list[str]:
        """Return each id in readable form: spaces as spaces, bytes as characters.

        A character split over several tokens is shown in each of them with its share: "안(1/2)", "안(2/2)".
        """
        return display_parts(self.parts(ids, side=side))

    def parts(self, ids: Iterable[int], *, side: Side = "source") -> list[Part]:
        """Return the content of each id: text, or bytes that may start or end within a character."""
        return [self._part(index, side) for index in _to_ints(ids)]

    @cached_property
    def chat_templates(self) -> Mapping[str, str]:
        """The chat templates of the folder by name; empty if the model is not a chat model."""
        return read_templates(self._config)

    @overload
    def apply_chat_template(
        self, conversation: Conversation, *, tokenize: Literal[False], **options: Any
    ) -> str: ...

    @overload
    def apply_chat_template(self, conversation: Conversation, **options: Any) -> list[int]: ...

    def apply_chat_template(
        self,
        conversation: Conversation,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        **variables: Any,
    ) -> list[int] | str:
        """Render messages with the chat template of the model, as transformers does; return the token ids.

        As in transformers, the names of special tokens in a message are encoded as special tokens.

        conversation: messages, e.g. [{"role": "user", "content": "Hello"}]
        tools: JSON schemas of functions that the model may call
        documents: documents for templates that support retrieval, with the keys "title" and "text"
        chat_template: the name of one of several templates, or a template (default: the folder's)
        add_generation_prompt: end with the start of an assistant message, for the model to continue
        tokenize: return ids; False: the text
        variables: further variables of the template, e.g. enable_thinking=False
        """
        if not self.chat_templates and chat_template is None:
            raise MissingValueError(
                "a chat template",
                "to format messages, and the model folder has none",
                hint="use a chat model, or generate from a plain prompt",
            )
        special = {f"{role}_token": self._token(index, "source") for role, index in self._present_roles()}
        text = render_chat(
            choose_template(self.chat_templates, chat_template, tools=tools is not None),
            conversation,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            **{**special, **variables},
        )
        return self.encode(text, special=False, parse_special=True).ids if tokenize else text

    def save(self, folder: str | Path) -> list[str]:
        """Save the tokenizer in the format of transformers; return the file names."""
        folder = Path(folder)
        files = {**self._files(), **self._config.saved(self._saved_settings())}
        for name in ("tokenizer.json", TARGET_FILE):
            if name not in files and (folder / name).exists():
                hint = "it would be loaded instead of the saved tokenizer"
                raise FileExistsAlreadyError(folder / name, hint=hint)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name in files:
                (folder / name).parent.mkdir(exist_ok=True)
        except OSError as error:
            raise FileProblemError(folder, f"cannot be written ({error.strerror})") from error
        for name, content in files.items():
            write_file(folder / name, content)
        return list(files)

    def set_model_input_names(self, names: Sequence[str]) -> None:
        """Declare what transformers' tokenizer returns for a saved folder, e.g. token_type_ids."""
        self._config.config["model_input_names"] = list(names)

    def token_id(self, token: str, *, side: Side = "source") -> int | None:
        """Return the id of a vocabulary entry, e.g. "▁the"; None if it does not exist."""
        return self._id(token, side)

    @property
    def max_length(self) -> int | None:
        """The maximum input length of the model, if the folder declares it."""
        value = self._config.config.get("model_max_length")
        plausible = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**9
        return value if plausible else None

    # Ids of special tokens; None if the tokenizer has none.
    pad_id, bos_id, eos_id, unk_id = _RoleId(), _RoleId(), _RoleId(), _RoleId()
    cls_id, sep_id, mask_id = _RoleId(), _RoleId(), _RoleId()

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """One more than the largest id (of the source side)."""

    @property
    def target_vocab_size(self) -> int:
        """One more than the largest id of the target side."""
        return self.vocab_size

    @property
    @abstractmethod
    def special_ids(self) -> frozenset[int]:
        """Ids of all special tokens."""

    @property
    def unknown_ids(self) -> frozenset[int]:
        """The id of the unknown token, unless it is also BOS or EOS."""
        return frozenset(() if self.unk_id in (None, self.bos_id, self.eos_id) else (self.unk_id,))

    @cached_property
    def fallback_ids(self) -> frozenset[int]:
        """Ids for characters outside the vocabulary: the unknown token and byte-fallback tokens.

        Byte-level vocabularies have none. Byte tokens of ASCII are excluded: each is a complete character.
        """
        byte_ids = (self._id(f"<0x{byte:02X}>", "source") for byte in range(0x80, 0x100))
        return self.unknown_ids.union(index for index in byte_ids if index is not None)

    # Implemented by each backend.
    _class_name: str  # the transformers class that loads the saved files
    _cleans_up: bool  # whether clean_up_tokenization_spaces applies

    @abstractmethod
    def _encode(
        self, texts: list[str], pairs: list[str] | None, *, special: bool, parse_special: bool, side: Side
    ) -> list[Encoded]: ...

    @abstractmethod
    def _decode(self, ids: list[int], *, skip_special: bool, side: Side) -> str: ...

    @abstractmethod
    def _token(self, index: int, side: Side) -> str | None: ...

    @abstractmethod
    def _id(self, token: str, side: Side) -> int | None: ...

    @abstractmethod
    def _part(self, index: int, side: Side) -> Part: ...

    @abstractmethod
    def _files(self) -> dict[str, bytes]: ...

    def _settings(self) -> dict[str, Any]:
        """Return options to save in addition to the loaded ones."""
        return {}

    def _role_token(self, index: int) -> Any:
        """Return the token of a role in the form to be saved."""
        return self._token(index, "source")

    def _saved_settings(self) -> dict[str, Any]:
        tokens = {
            f"{role}_token": self._role_token(index)
            for role, index in self._present_roles()
            if role not in self._config.roles
        }
        return {"tokenizer_class": self._class_name, **self._settings(), **tokens}

    def _present_roles(self) -> list[tuple[str, int]]:
        return [(role, index) for role, index in self._role_ids.items() if index is not None]


def _check_texts(texts: Iterable[str]) -> list[str]:
    if isinstance(texts, str | bytes):
        raise InvalidValueError("texts", texts, "a list of strings")
    texts = list(texts)
    for text in texts:
        if not isinstance(text, str):
            raise InvalidValueError("text", text, "a string")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            expected = f"Unicode; there is a lone surrogate at position {error.start}"
            raise InvalidValueError("text", text.encode("utf-8", "replace").decode(), expected) from error
    return texts


def _to_ints(ids: Any) -> list[int]:
    """Convert a one-dimensional sequence or tensor of ids to a list of non-negative ints."""
    if hasattr(ids, "tolist"):
        ids = ids.tolist()
    try:
        integers = [operator.index(index) for index in ids]
    except TypeError:
        raise InvalidValueError("ids", ids, "a list of integers") from None
    for index in integers:
        if not 0 <= index < 2**31:
            raise InvalidValueError("token id", index, "an integer of at least 0")
    return integers


# Language tags: tokens such as `>>de<<` before a text, or `de_DE` before a target. A tag is inserted
# as an id and never through the text: a text that itself starts with ">>fr<<" stays text.


def tag_languages(tokenizer: Tokenizer) -> list[str]:
    """Return the languages that have a tag such as `>>de<<`, which precedes the source.

    >>> from glassformer.tokenization.train import TokenizerPlan, train_tokenizer
    >>> plan = TokenizerPlan(kind="char", vocab_size=50, tags=(">>de<<", "<gap>"))
    >>> tag_languages(train_tokenizer(["ab"], plan))
    ['de']
    """
    tokens = tokenizer.tokens(range(tokenizer.vocab_size))
    return [token[2:-2] for token in tokens if _TAG.fullmatch(token)]


def code_languages(tokenizer: Tokenizer) -> list[str]:
    """Return the languages that have a special token such as `de_DE`, which starts the target."""
    tokens = tokenizer.tokens(sorted(n for n in tokenizer.special_ids if n < tokenizer.vocab_size))
    return [token for token in tokens if _CODE.fullmatch(token)]


def encode_tagged(
    tokenizer: Tokenizer, texts: Sequence[str], tag: str, *, side: Side = "source"
) -> list[Encoded]:
    """Encode texts with the tag before each text, after BOS if the tokenizer adds it.

    >>> from glassformer.tokenization.train import TokenizerPlan, train_tokenizer
    >>> tokenizer = train_tokenizer(["ab"], TokenizerPlan(kind="char", vocab_size=50, tags=(">>de<<",)))
    >>> [encoded.ids for encoded in encode_tagged(tokenizer, ["ab", ">>de<<"], ">>de<<")]
    [[4, 5, 6, 3], [4, 1, 1, 1, 1, 1, 1, 3]]
    """
    (index,) = tag_ids(tokenizer, [tag], side=side)
    tagged = []
    for encoded in tokenizer.encode_batch(texts, side=side):
        at = _count_bos(encoded, tokenizer)
        encoded.ids.insert(at, index)
        encoded.type_ids.insert(at, 0)
        encoded.offsets.insert(at, (0, 0))
        encoded.sequence_ids.insert(at, None)
        encoded.word_ids.insert(at, None)
        tagged.append(encoded)
    return tagged


def tag_ids(tokenizer: Tokenizer, tags: Iterable[str], *, side: Side = "source") -> list[int]:
    """Return the id of each tag."""
    ids = []
    for tag in tags:
        index = tokenizer.token_id(tag, side=side)
        if index is None:
            raise UnknownNameError("tag", tag, where=f"the {side} vocabulary")
        ids.append(index)
    return ids


def tag_position(tokenizer: Tokenizer, *, side: Side = "source") -> int:
    """Return the index of the tag in the ids of a text: 0, or 1 after BOS."""
    return _count_bos(tokenizer.encode("a", side=side), tokenizer)


def _count_bos(encoded: Encoded, tokenizer: Tokenizer) -> int:
    first = encoded.ids[:1]
    return int(first in ([tokenizer.bos_id], [tokenizer.cls_id]) and encoded.sequence_ids[0] is None)
