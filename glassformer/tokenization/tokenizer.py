"""What every tokenizer offers, whatever library and files stand behind it."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, SupportsIndex, get_args

from glassformer.errors import GlassformerError
from glassformer.tokenization.declared import Declared
from glassformer.tokenization.display import Part, readable
from glassformer.tokenization.saving import companions

Side = Literal["source", "target"]
SpecialInText = Literal["plain", "keep"]
TARGET_FILE = "tokenizer_target.json"  # the target side's, where it has a vocabulary of its own

# The tidying that some published folders ask for after decoding.
_TIDY = (" .", " ?", " !", " ,", " n't", " 'm", " 's", " 've", " 're")


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """One encoded text (or pair of texts): five lists of the same length, one entry per token.

    ids        the token ids
    types      0 or 1, as models with token types want them
    offsets    (start, end) in characters of the text the token came from; (0, 0) for added tokens
    sequences  0 for the text, 1 for the pair, None for tokens added around them
    words      number of the word in its text, None for tokens added around them
    """

    ids: list[int]
    types: list[int] = field(repr=False)
    offsets: list[tuple[int, int]] = field(repr=False)
    sequences: list[int | None] = field(repr=False)
    words: list[int | None] = field(repr=False)

    def __len__(self) -> int:
        return len(self.ids)


class Tokenizer(ABC):
    """Text to ids and back.

    `special=True` puts the model's own marks around the text ([CLS] ... [SEP], ... </s>, <s> ...).
    Text that spells such a mark ("</s>", "[MASK]") is plain text unless `special_in_text="keep"`.
    `side` matters only where source and target have vocabularies of their own.
    """

    def __init__(self, declared: Declared, role_ids: dict[str, int | None]) -> None:
        self._declared = declared
        self._role_ids = role_ids

    def encode(
        self,
        text: str,
        pair: str | None = None,
        *,
        special: bool = True,
        special_in_text: SpecialInText = "plain",
        side: Side = "source",
    ) -> Encoded:
        """Encode one text, or two that belong together."""
        pairs = None if pair is None else [pair]
        return self.encode_batch([text], pairs, special=special, special_in_text=special_in_text, side=side)[
            0
        ]

    def encode_batch(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        special: bool = True,
        special_in_text: SpecialInText = "plain",
        side: Side = "source",
    ) -> list[Encoded]:
        """Encode many texts; no padding, no cutting."""
        if special_in_text not in get_args(SpecialInText):
            raise GlassformerError(f'special_in_text must be "plain" or "keep", and is {special_in_text!r}.')
        self._check_side(side)
        texts = _checked(texts, "text")
        if pairs is not None:
            pairs = _checked(pairs, "pair")
            if len(pairs) != len(texts):
                raise GlassformerError(f"{len(texts)} texts came with {len(pairs)} pairs.")
        if not texts:
            return []
        return self._encode(texts, pairs, special=special, keep=special_in_text == "keep", side=side)

    def ids_of(self, texts: Sequence[str], *, side: Side = "source") -> list[list[int]]:
        """The ids of many texts with the model's marks, and nothing about where they come from: quicker.

        A text that comes twice is encoded once, and its list stands in both places: leave it as it is.
        """
        self._check_side(side)
        texts = _checked(texts, "text")
        once = list(dict.fromkeys(texts))
        ids = self._ids_of(once, side) if once else []
        if len(once) == len(texts):
            return ids
        found = dict(zip(once, ids, strict=True))
        return [found[text] for text in texts]

    def _ids_of(self, texts: list[str], side: Side) -> list[list[int]]:
        return [one.ids for one in self._encode(texts, None, special=True, keep=False, side=side)]

    def begun_ids_of(self, texts: Sequence[str]) -> list[tuple[list[int], int]]:
        """The ids of many texts without marks, each with the place in the text where its first token ends."""
        texts = _checked(texts, "text")
        return self._begun_ids_of(texts) if texts else []

    def _begun_ids_of(self, texts: list[str]) -> list[tuple[list[int], int]]:
        encoded = self._encode(texts, None, special=False, keep=False, side="source")
        return [(one.ids, one.offsets[0][1] if one.offsets else 0) for one in encoded]

    @property
    def sides_differ(self) -> bool:
        """Whether a text's ids depend on its side, because each has a vocabulary of its own."""
        return False

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, side: Side = "target") -> str:
        """The text of the ids, without those the tokenizer does not know and bytes that make no letter."""
        self._check_side(side)
        text = self._decode(_whole(ids), skip_special=skip_special, side=side)
        if self._declared.config.get("clean_up_tokenization_spaces") is True and self._tidies:
            for spaced in _TIDY[:4]:
                text = text.replace(spaced, spaced[1:])
            text = text.replace(" ' ", "'")
            for spaced in _TIDY[4:]:
                text = text.replace(spaced, spaced[1:])
        return text

    def tokens(self, ids: Iterable[int], *, side: Side = "source") -> list[str]:
        """The vocabulary's own spelling of each id ("Ġthe", "▁the", "##ing")."""
        self._check_side(side)
        return [self._token(index, side) or f"<id {index}>" for index in _whole(ids)]

    def pieces(self, ids: Iterable[int], *, side: Side = "source") -> list[str]:
        """Each id in a form to show a person: spaces as spaces, bytes as the letters they make.

        A letter split over several tokens appears in each with its share: "안(1/2)", "안(2/2)".
        """
        return readable(self.parts(ids, side=side))

    def parts(self, ids: Iterable[int], *, side: Side = "source") -> list[Part]:
        """What each id stands for: text of its own, or bytes that may begin or end inside a letter."""
        self._check_side(side)
        return [self._part(index, side) for index in _whole(ids)]

    def save(self, folder: str | Path) -> list[str]:
        """Write the tokenizer's files into a folder, as the reference library reads them.

        Returns the names of the files written.
        """
        folder = Path(folder)
        files = {**self._files(), **companions(self._declared, self._written())}
        for name in ("tokenizer.json", TARGET_FILE):
            if name not in files and (folder / name).exists():
                raise GlassformerError(
                    f"{folder} already has a {name}, which would be read in place of the "
                    f"tokenizer to be saved there; remove it or save to another folder."
                )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                (folder / name).write_bytes(content)
        except OSError as fault:
            raise GlassformerError(f"The tokenizer cannot be saved to {folder}: {fault.strerror}.") from fault
        return list(files)

    def token_id(self, token: str, *, side: Side = "source") -> int | None:
        """The id of a token in the vocabulary's own spelling, None when there is none."""
        self._check_side(side)
        return self._id(token, side)

    @property
    def max_length(self) -> int | None:
        """How many tokens the model was made for, where the folder says so."""
        value = self._declared.config.get("model_max_length")
        sane = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**9
        return value if sane else None

    @property
    def pad_id(self) -> int | None:
        """Id of the padding token."""
        return self._role_ids.get("pad")

    @property
    def bos_id(self) -> int | None:
        """Id of the token that begins a text."""
        return self._role_ids.get("bos")

    @property
    def eos_id(self) -> int | None:
        """Id of the token that ends a text."""
        return self._role_ids.get("eos")

    @property
    def unk_id(self) -> int | None:
        """Id of the token for what the vocabulary cannot spell."""
        return self._role_ids.get("unk")

    @property
    def cls_id(self) -> int | None:
        """Id of the token whose state stands for the whole text."""
        return self._role_ids.get("cls")

    @property
    def sep_id(self) -> int | None:
        """Id of the token between and after texts."""
        return self._role_ids.get("sep")

    @property
    def mask_id(self) -> int | None:
        """Id of the token that hides a word."""
        return self._role_ids.get("mask")

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
        """Ids of all tokens that are marks and not text."""

    @property
    def unknown_ids(self) -> frozenset[int]:
        """The id of what the vocabulary cannot spell, or none: not where it also begins or ends texts."""
        return frozenset(() if self.unk_id in (None, self.bos_id, self.eos_id) else (self.unk_id,))

    @cached_property
    def spelling_ids(self) -> frozenset[int]:
        """Ids that stand for letters without a piece of their own: the unknown one, and single bytes.

        None of a vocabulary that spells everything by bytes; nor those of ASCII, which are letters.
        """
        found = (self._id(f"<0x{byte:02X}>", "source") for byte in range(0x80, 0x100))
        return self.unknown_ids.union(index for index in found if index is not None)

    # What a backend supplies.
    _class_name: str  # the reference library's class that reads our saved files
    _tidies: bool  # whether clean_up_tokenization_spaces is honoured

    @abstractmethod
    def _encode(
        self, texts: list[str], pairs: list[str] | None, *, special: bool, keep: bool, side: Side
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
        """Options of the saved configuration that the folder may not have given."""
        return {}

    def _role_token(self, index: int) -> Any:
        """A role's token as the saved configuration names it."""
        return self._token(index, "source")

    def _written(self) -> dict[str, Any]:
        tokens = {
            f"{role}_token": self._role_token(index)
            for role, index in self._given_roles()
            if role not in self._declared.roles
        }
        return {"tokenizer_class": self._class_name, **self._settings(), **tokens}

    def _given_roles(self) -> list[tuple[str, int]]:
        return [(role, index) for role, index in self._role_ids.items() if index is not None]

    def _check_side(self, side: str) -> None:
        if side not in get_args(Side):
            raise GlassformerError(f'side must be "source" or "target", and is {side!r}.')


def _checked(texts: Any, name: str) -> list[str]:
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise GlassformerError(f"A batch must be a list of strings, not a {type(texts).__name__}.")
    texts = list(texts)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise GlassformerError(
                f"{name.capitalize()} {number} must be a string, not {type(text).__name__}."
            )
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as fault:
            raise GlassformerError(
                f"{name.capitalize()} {number} is not Unicode text: half a surrogate pair stands "
                f"at position {fault.start}."
            ) from fault
    return texts


def _whole(ids: Any) -> list[int]:
    """Ids as plain non-negative ints, from any sequence or tensor of one dimension."""
    if hasattr(ids, "tolist"):
        ids = ids.tolist()
    if not isinstance(ids, Iterable) or isinstance(ids, str | bytes):
        raise GlassformerError(f"Ids must be a list of whole numbers, not {type(ids).__name__}.")
    whole = []
    for index in ids:
        if isinstance(index, bool) or not isinstance(index, SupportsIndex):
            raise GlassformerError(f"{index!r} is not a token id; ids are whole numbers from 0.")
        whole.append(operator.index(index))
        if not 0 <= whole[-1] < 2**31:
            raise GlassformerError(f"{index!r} is not a token id; ids are whole numbers from 0.")
    return whole
