"""Tokenizers of one sentencepiece model: with an end mark (spiece.model) or a begin mark.

A text's ids are the model's own; special tokens beyond its vocabulary follow after it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from tokenizers import AddedToken

from glassformer.errors import GlassformerError
from glassformer.tokenization.declared import ROLES, Declared
from glassformer.tokenization.display import Part, from_metaspace, joined
from glassformer.tokenization.split import split_special
from glassformer.tokenization.spm import Piece, Spm
from glassformer.tokenization.tokenizer import Encoded, Side, Tokenizer

_ANY_NAME = {None, "PreTrainedTokenizer", "TokenizersBackend"}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What is true of one kind of sentencepiece folder.

    classes       names of the reference library's classes with this layout; the first is written
    defaults      role to token where the folder does not say
    adds          which marks stand around a text where the folder does not say
    sentinels     how many <extra_id_k> follow the vocabulary where the folder does not say
    pair_type     token type of the second text of a pair
    spaced_parts  whether text after a special token gets a space before it, where not said
    """

    classes: tuple[str, ...]
    defaults: dict[str, str]
    adds: tuple[str, ...]
    sentinels: int
    pair_type: int
    spaced_parts: bool


END_MARKED = Layout(
    classes=("T5Tokenizer", "MT5Tokenizer", "t5", "mt5"),
    defaults={"eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
    adds=("eos",),
    sentinels=100,
    pair_type=0,
    spaced_parts=True,
)
BEGIN_MARKED = Layout(
    classes=("LlamaTokenizer", "llama", "mistral"),
    defaults={"bos": "<s>", "eos": "</s>", "unk": "<unk>"},
    adds=("bos",),
    sentinels=0,
    pair_type=1,
    spaced_parts=False,
)


def load_sentences(declared: Declared, name: str, layout: Layout) -> Tokenizer:
    """The tokenizer of a folder with one sentencepiece model, in the file `name`."""
    kind = declared.tokenizer_class
    kind = declared.model_type if kind in _ANY_NAME else kind
    if kind is not None and kind not in layout.classes:
        raise GlassformerError(
            f"{declared.folder} has the {name} of a {kind!r}, which numbers its tokens in a way "
            f"only a tokenizer.json tells; put that file beside it."
        )
    spm = Spm(declared.folder / name)
    return SentenceTokenizer(spm, name, declared, layout)


def _sentinels(declared: Declared, layout: Layout) -> int:
    given = declared.config.get("extra_ids")
    if given is not None:
        if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given < 10**6:
            raise GlassformerError(f"{declared.folder} has extra_ids = {given!r}.")
        return given
    named = sum(token.content.startswith("<extra_id_") for _, token in declared.added)
    return named or layout.sentinels


class SentenceTokenizer(Tokenizer):
    """One sentencepiece model, special tokens, and marks around the text."""

    _tidies = True

    def __init__(self, spm: Spm, name: str, declared: Declared, layout: Layout) -> None:
        self._spm, self._name, self._layout = spm, name, layout
        self._class_name = layout.classes[0]
        count = _sentinels(declared, layout)
        self._extra = {f"<extra_id_{count - 1 - k}>": spm.size + k for k in range(count)}
        self._special = {
            token: AddedToken(token, special=True, normalized=False)
            for token in [*self._extra, *spm.control()]
        }
        for place, token in declared.added:
            self._add(token, place, declared)
        for given in declared.roles.values():
            if given is not None:
                self._add(given, None, declared)
        self._name_of = {index: token for token, index in self._extra.items()}
        tokens = {role: declared.role(role, layout.defaults.get(role)) for role in ROLES}
        super().__init__(
            declared,
            {
                role: None if token is None else self._id(token.content, "source")
                for role, token in tokens.items()
            },
        )
        marks = []
        for role in ("bos", "eos"):
            wanted = declared.flag(f"add_{role}_token", role in layout.adds)
            index = self._role_ids[role] if wanted else None
            if wanted and index is None and role in layout.adds:
                raise GlassformerError(
                    f"{declared.folder / name} has no {role} token, which every text needs."
                )
            marks.append([] if index is None else [index])
        self._before, self._after = marks
        self._prefix = declared.flag("add_prefix_space", True)
        self._spaced_parts = declared.flag("legacy", layout.spaced_parts) or layout.spaced_parts

    def _add(self, token: AddedToken, index: int | None, declared: Declared) -> None:
        known = self._id(token.content, "source")
        if known is None:
            known = self.vocab_size
            self._extra[token.content] = known
        if index is not None and known != index:
            raise GlassformerError(
                f"{declared.folder} declares id {index} for {token.content!r}, but its vocabulary "
                f"gives that token id {known}."
            )
        self._special[token.content] = token

    def _encode(
        self, texts: list[str], pairs: list[str] | None, *, special: bool, keep: bool, side: Side
    ) -> list[Encoded]:
        found = []
        for number, text in enumerate(texts):
            pieces = [self._pieces(text, keep)]
            if pairs is not None:
                pieces.append(self._pieces(pairs[number], keep))
            found.append(
                put_together(
                    pieces,
                    [[piece.number for piece in part] for part in pieces],
                    before=self._before if special else [],
                    after=self._after if special else [],
                    pair_type=self._layout.pair_type,
                )
            )
        return found

    def _pieces(self, text: str, keep: bool) -> list[Piece]:
        found: list[Piece] = []
        # Added tokens that are not special are words of the language: they count in any text.
        tokens = [token for token in self._special.values() if keep or not token.special]
        for stretch, start, matched in split_special(text, tokens):
            if matched:
                index = self._id(stretch, "source")
                assert index is not None
                end = start + len(stretch)
                found.append(Piece(stretch, index, start, end))
                continue
            prefix = self._prefix and (start == 0 or self._spaced_parts)
            found += moved(self._spm.encode(stretch, prefix=prefix), start)
        return found

    def _decode(self, ids: list[int], *, skip_special: bool, side: Side) -> str:
        kept = [i for i in ids if i < self.vocab_size]
        if skip_special:
            kept = [i for i in kept if i not in self.special_ids]
        text = joined([self._part(index, side) for index in kept])
        return text.removeprefix(" ") if self._prefix and self._spm.prefixes else text

    def _token(self, index: int, side: Side) -> str | None:
        if index in self._name_of:
            return self._name_of[index]
        return self._spm.pieces[index] if index < self._spm.size else None

    def _id(self, token: str, side: Side) -> int | None:
        found = self._extra.get(token)
        return self._spm.index.get(token) if found is None else found

    def _part(self, index: int, side: Side) -> Part:
        token = self._token(index, side)
        if token is None:
            return f"<id {index}>"
        own = index in self.special_ids or index in self._name_of
        return token if own else from_metaspace(token)

    def _files(self) -> dict[str, bytes]:
        return {self._name: self._spm.content}

    def _settings(self) -> dict[str, Any]:
        if self._layout is not BEGIN_MARKED:
            return {}
        # Readers disagree about what holds when these are not given.
        return {
            "add_bos_token": bool(self._before),
            "add_eos_token": bool(self._after),
            "legacy": self._spaced_parts,
        }

    @property
    def vocab_size(self) -> int:
        return max([self._spm.size - 1, *self._extra.values()]) + 1

    @cached_property
    def special_ids(self) -> frozenset[int]:
        ids = {self._id(name, "source") for name, token in self._special.items() if token.special}
        return frozenset(index for index in ids if index is not None) | frozenset(
            index for _, index in self._given_roles()
        )


def moved(pieces: list[Piece], by: int) -> list[Piece]:
    """The pieces as they stand in a longer text."""
    if by == 0:
        return pieces
    return [Piece(text, number, start + by, end + by) for text, number, start, end in pieces]


def put_together(
    texts: list[list[Piece]],
    ids: list[list[int]],
    *,
    before: Sequence[int] = (),
    after: Sequence[int] = (),
    last: Sequence[int] = (),
    pair_type: int = 0,
) -> Encoded:
    """One text or a pair, given as pieces and their ids: marks around each and after the whole."""
    encoded = Encoded(ids=[], types=[], offsets=[], sequences=[], words=[])

    def add_marks(marks: Sequence[int], kind: int) -> None:
        count = len(marks)
        encoded.ids.extend(marks)
        encoded.types.extend([kind] * count)
        encoded.offsets.extend([(0, 0)] * count)
        encoded.sequences.extend([None] * count)
        encoded.words.extend([None] * count)

    for sequence, (pieces, numbers) in enumerate(zip(texts, ids, strict=True)):
        kind = pair_type if sequence else 0
        add_marks(before, kind)
        starts = (number == 0 or p.text[:1] == "▁" for number, p in enumerate(pieces))
        encoded.ids.extend(numbers)
        encoded.types.extend([kind] * len(pieces))
        encoded.offsets.extend([(piece.start, piece.end) for piece in pieces])
        encoded.sequences.extend([sequence] * len(pieces))
        encoded.words.extend([word - 1 for word in accumulate(starts)])
        add_marks(after, kind)
    add_marks(last, 0)
    return encoded
