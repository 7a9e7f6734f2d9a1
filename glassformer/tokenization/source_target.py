"""Tokenizers with separate source and target vocabularies.

Two files (tokenizer.json for the source, tokenizer_target.json for the target) share the ids of special
tokens, so both sides have the same padding and EOS ids; other libraries load only the source tokenizer.
Marian folders have a SentencePiece model for each side and map pieces to ids in vocab.json; a text may start
with the target language, e.g. ">>fra<<", which is one token.
"""

from functools import cached_property
from pathlib import Path

from tokenizers import AddedToken

from glassformer.errors import ConflictError, UnsupportedError
from glassformer.tokenization.display import Part, decode_parts, from_metaspace
from glassformer.tokenization.fast_tokenizer import FastTokenizer
from glassformer.tokenization.folder import ROLES, TokenizerConfig, check_ids, read_vocabulary
from glassformer.tokenization.sentencepiece import (
    Piece,
    SentencePieceBase,
    SentencePieceModel,
    shift_pieces,
    split_special,
)
from glassformer.tokenization.tokenizer import TARGET_FILE, Encoded, Side, Tokenizer

_DEFAULTS = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
_TARGET_VOCABULARY = "target_vocab.json"


def pair_tokenizers(source: Tokenizer, target: Tokenizer) -> Tokenizer:
    """Combine two tokenizers, one for `side="source"` and one for `side="target"`.

    >>> from glassformer.tokenization.train import TokenizerPlan, train_tokenizer
    >>> plan = TokenizerPlan(kind="char", vocab_size=50)
    >>> both = pair_tokenizers(train_tokenizer(["ab"], plan), train_tokenizer(["xyz"], plan))
    >>> both.vocab_size, both.target_vocab_size, both.encode("z", side="target").ids
    (6, 7, [6, 3])
    """
    if not isinstance(source, FastTokenizer) or not isinstance(target, FastTokenizer):
        raise UnsupportedError("a tokenizer without tokenizer.json", "separate vocabularies")
    return SourceTargetTokenizer(source, target)


class SourceTargetTokenizer(Tokenizer):
    """Delegate each call to the tokenizer of the given side."""

    _class_name = FastTokenizer._class_name

    def __init__(self, source: FastTokenizer, target: FastTokenizer) -> None:
        source_ids, target_ids = _special_ids(source), _special_ids(target)
        for name in sorted(source_ids.keys() | target_ids.keys()):
            first, second = source_ids.get(name), target_ids.get(name)
            if first != second:
                reason = f"{name} has id {first} in the source and {second} in the target vocabulary"
                raise ConflictError(["source", "target"], reason)
        super().__init__(source._config, source._role_ids)
        self._sides: dict[Side, FastTokenizer] = {"source": source, "target": target}
        self._cleans_up = target._cleans_up

    def _encode(
        self, texts: list[str], pairs: list[str] | None, *, special: bool, parse_special: bool, side: Side
    ) -> list[Encoded]:
        return self._sides[side]._encode(
            texts, pairs, special=special, parse_special=parse_special, side=side
        )

    def _encode_ids(self, texts: list[str], side: Side) -> list[list[int]]:
        return self._sides[side]._encode_ids(texts, side)

    def _encode_ids_with_first_end(self, texts: list[str]) -> list[tuple[list[int], int]]:
        return self._sides["source"]._encode_ids_with_first_end(texts)

    @property
    def sides_differ(self) -> bool:
        return True

    def _decode(self, ids: list[int], *, skip_special: bool, side: Side) -> str:
        return self._sides[side]._decode(ids, skip_special=skip_special, side=side)

    def _token(self, index: int, side: Side) -> str | None:
        return self._sides[side]._token(index, side)

    def _id(self, token: str, side: Side) -> int | None:
        return self._sides[side]._id(token, side)

    def _part(self, index: int, side: Side) -> Part:
        return self._sides[side]._part(index, side)

    def _files(self) -> dict[str, bytes]:
        source, target = (self._sides[side]._files()["tokenizer.json"] for side in ("source", "target"))
        return {"tokenizer.json": source, TARGET_FILE: target}

    @cached_property
    def unstable_characters(self) -> int:
        return self._sides["target"].unstable_characters

    @property
    def vocab_size(self) -> int:
        return self._sides["source"].vocab_size

    @property
    def target_vocab_size(self) -> int:
        return self._sides["target"].vocab_size

    @property
    def special_ids(self) -> frozenset[int]:
        return self._sides["source"].special_ids


def _special_ids(tokenizer: FastTokenizer) -> dict[str, int]:
    """Return the special token ids by role and by token."""
    roles = {f"the {role} token": index for role, index in tokenizer._present_roles()}
    return roles | {repr(tokenizer._token(index, "source")): index for index in tokenizer.special_ids}


class MarianTokenizer(SentencePieceBase):
    """Encode with the SentencePiece model and the vocabulary of the given side, and add EOS."""

    _class_name = "MarianTokenizer"

    def __init__(self, config: TokenizerConfig, *, separate: bool) -> None:
        folder = config.folder
        names = ["source.spm", "target.spm", "vocab.json", *[_TARGET_VOCABULARY] * separate]
        self._contents = {name: (folder / name).read_bytes() for name in names}
        self._spm = {side: SentencePieceModel(folder / f"{side}.spm") for side in ("source", "target")}
        tokens = {role: config.role(role, _DEFAULTS.get(role)) for role in ROLES}
        roles = {role: token for role, token in tokens.items() if token is not None}
        self._special = {token.content: token for token in roles.values()}
        for _, token in config.added:
            if token.special:
                self._special.setdefault(token.content, token)
        source = target = _read_vocabulary(folder / "vocab.json", config, roles)
        if separate:
            target = _read_vocabulary(folder / _TARGET_VOCABULARY, config, roles)
        self._ids = {"source": source, "target": target}
        self._names = {
            side: {index: token for token, index in vocabulary.items()}
            for side, vocabulary in self._ids.items()
        }
        super().__init__(config, {role: source.get(t.content) for role, t in roles.items()})
        self._unknown = roles["unk"].content
        self._end = roles["eos"].content

    def _around(self, side: Side) -> tuple[list[int], list[int], list[int]]:
        return [], [], [self._ids[side][self._end]]

    @property
    def sides_differ(self) -> bool:
        return True

    def _pieces(self, text: str, parse_special: bool, side: Side) -> list[Piece]:
        pieces: list[Piece] = []
        tokens: list[AddedToken] = list(self._special.values()) if parse_special else []
        for part, start, matched in split_special(text, tokens):
            if matched:
                pieces.append(Piece(part, -1, start, start + len(part)))
                continue
            if part.startswith(">>") and (close := part.find("<<")) >= 0:
                code, part = part[: close + 2], part[close + 2 :]
                end = start + len(code)
                pieces.append(Piece(code, -1, start, end))
                start = end
            part_pieces = shift_pieces(self._spm[side].encode(part), start)
            # Unknown characters are separate pieces; even if they spell a special token, they are plain text.
            pieces += [
                piece._replace(text=self._unknown) if piece.text in self._special else piece
                for piece in part_pieces
            ]
        ids, unknown = self._ids[side], self._ids[side][self._unknown]
        return [piece._replace(number=ids.get(piece.text, unknown)) for piece in pieces]

    def _decode(self, ids: list[int], *, skip_special: bool, side: Side) -> str:
        names = self._names[side]
        segments: list[list[Part]] = [[]]
        for index in ids:
            token = names.get(index)
            if token is None or (skip_special and token in self._special):
                continue
            if token in self._special:
                segments += [[f"{token} "], []]
            else:
                segments[-1].append(from_metaspace(token))
        # Each segment was encoded separately, as if it started with a space.
        return "".join(decode_parts(parts).removeprefix(" ") for parts in segments).strip()

    def _token(self, index: int, side: Side) -> str | None:
        return self._names[side].get(index)

    def _id(self, token: str, side: Side) -> int | None:
        return self._ids[side].get(token)

    def _part(self, index: int, side: Side) -> Part:
        token = self._token(index, side)
        if token is None:
            return f"<id {index}>"
        return token if token in self._special else from_metaspace(token)

    def _files(self) -> dict[str, bytes]:
        return self._contents

    @cached_property
    def vocab_size(self) -> int:
        return max(self._names["source"]) + 1

    @cached_property
    def target_vocab_size(self) -> int:
        return max(self._names["target"]) + 1

    @cached_property
    def special_ids(self) -> frozenset[int]:
        ids = {self._ids["source"].get(token) for token in self._special}
        return frozenset(index for index in ids if index is not None)


def _read_vocabulary(path: Path, config: TokenizerConfig, roles: dict[str, AddedToken]) -> dict[str, int]:
    vocabulary = dict(read_vocabulary(path))
    for index, token in config.added:
        if index is not None and index not in vocabulary.values():
            vocabulary.setdefault(token.content, index)
    check_ids(set(vocabulary.values()), path)
    for role in ("unk", "eos"):
        if role not in roles or roles[role].content not in vocabulary:
            raise config.missing_token(path, role, roles.get(role))
    return vocabulary
