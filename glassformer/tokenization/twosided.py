"""Tokenizers with a sentencepiece model for each side and ids of their own (vocab.json).

A text may begin with the language to translate into, as ">>fra<<": that is one token.
"""

from functools import cached_property
from pathlib import Path

from tokenizers import AddedToken

from glassformer.errors import GlassformerError
from glassformer.tokenization.declared import ROLES, Declared
from glassformer.tokenization.display import Part, from_metaspace, joined
from glassformer.tokenization.folder import read_bytes, read_vocabulary, refuse_gaps
from glassformer.tokenization.sentences import moved, put_together
from glassformer.tokenization.split import split_special
from glassformer.tokenization.spm import Piece, Spm
from glassformer.tokenization.tokenizer import Encoded, Side, Tokenizer

_DEFAULTS = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
_FILES = ("source.spm", "target.spm", "vocab.json")
_TARGET_VOCABULARY = "target_vocab.json"


def load_two_sided(declared: Declared) -> Tokenizer:
    """The tokenizer of a folder with source.spm, target.spm and vocab.json."""
    folder = declared.folder
    names = list(_FILES)
    separate = declared.flag("separate_vocabs", False)
    if separate:
        names.append(_TARGET_VOCABULARY)
    for name in names:
        if not (folder / name).is_file():
            raise GlassformerError(f"{folder} has {_FILES[0]} but lacks {name}, its other half.")
    return TwoSidedTokenizer(declared, names)


class TwoSidedTokenizer(Tokenizer):
    """Pieces by the side's sentencepiece model, ids by the side's vocabulary, an end mark after."""

    _class_name = "MarianTokenizer"
    _tidies = True

    def __init__(self, declared: Declared, names: list[str]) -> None:
        folder = declared.folder
        self._contents = {name: read_bytes(folder / name) for name in names}
        self._spm = {"source": Spm(folder / _FILES[0]), "target": Spm(folder / _FILES[1])}
        tokens = {role: declared.role(role, _DEFAULTS.get(role)) for role in ROLES}
        roles = {role: token for role, token in tokens.items() if token is not None}
        self._special = {token.content: token for token in roles.values()}
        for _, token in declared.added:
            if token.special:
                self._special.setdefault(token.content, token)
        source = _vocabulary(folder / _FILES[2], declared, roles)
        target = source
        if _TARGET_VOCABULARY in names:
            target = _vocabulary(folder / _TARGET_VOCABULARY, declared, roles)
        self._ids = {"source": source, "target": target}
        self._names = {
            side: {index: token for token, index in vocabulary.items()}
            for side, vocabulary in self._ids.items()
        }
        super().__init__(declared, {role: source.get(t.content) for role, t in roles.items()})
        self._unknown = roles["unk"].content
        self._end = roles["eos"].content

    def _encode(
        self, texts: list[str], pairs: list[str] | None, *, special: bool, keep: bool, side: Side
    ) -> list[Encoded]:
        ids = self._ids[side]
        unknown, end = ids[self._unknown], [ids[self._end]] if special else []
        found = []
        for number, text in enumerate(texts):
            pieces = [self._pieces(text, keep, side)]
            if pairs is not None:
                pieces.append(self._pieces(pairs[number], keep, side))
            numbers = [[ids.get(piece.text, unknown) for piece in part] for part in pieces]
            found.append(put_together(pieces, numbers, last=end))
        return found

    @property
    def sides_differ(self) -> bool:
        return True

    def _pieces(self, text: str, keep: bool, side: Side) -> list[Piece]:
        found: list[Piece] = []
        tokens: list[AddedToken] = list(self._special.values()) if keep else []
        for stretch, start, matched in split_special(text, tokens):
            if matched:
                end = start + len(stretch)
                found.append(Piece(stretch, -1, start, end))
                continue
            if stretch.startswith(">>") and (close := stretch.find("<<")) >= 0:
                code, stretch = stretch[: close + 2], stretch[close + 2 :]
                end = start + len(code)
                found.append(Piece(code, -1, start, end))
                start = end
            pieces = moved(self._spm[side].encode(stretch), start)
            # Letters unknown to the model come out as they stand: a mark spelled in them is no mark.
            found += [
                piece._replace(text=self._unknown) if piece.text in self._special else piece
                for piece in pieces
            ]
        return found

    def _decode(self, ids: list[int], *, skip_special: bool, side: Side) -> str:
        names = self._names[side]
        stretches: list[list[Part]] = [[]]
        for index in ids:
            token = names.get(index)
            if token is None or (skip_special and token in self._special):
                continue
            if token in self._special:
                stretches += [[f"{token} "], []]
            else:
                stretches[-1].append(from_metaspace(token))
        # Each stretch of text was encoded by itself, with a space imagined before it.
        return "".join(joined(parts).removeprefix(" ") for parts in stretches).strip()

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
        found = {self._ids["source"].get(token) for token in self._special}
        return frozenset(index for index in found if index is not None)


def _vocabulary(path: Path, declared: Declared, roles: dict[str, AddedToken]) -> dict[str, int]:
    vocabulary = dict(read_vocabulary(path))
    for index, token in declared.added:
        if index is not None and index not in vocabulary.values():
            vocabulary.setdefault(token.content, index)
    refuse_gaps(set(vocabulary.values()), path)
    for role in ("unk", "eos"):
        if role not in roles or roles[role].content not in vocabulary:
            name = repr(roles[role].content) if role in roles else f"a {role} token"
            raise GlassformerError(f"{path} lacks {name}, which every text needs.")
    return vocabulary
