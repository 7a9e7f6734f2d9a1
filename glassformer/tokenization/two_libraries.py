"""A vocabulary for each side of a translation: tokenizer.json (source) and tokenizer_target.json (target).

Marks and tags have the same ids on both sides, so one padding id and one end id serve both. Other programs
that read such a folder see the tokenizer of the source.
"""

from glassformer.errors import GlassformerError
from glassformer.tokenization.declared import Declared
from glassformer.tokenization.display import Part
from glassformer.tokenization.library import LibraryTokenizer
from glassformer.tokenization.published import load_published
from glassformer.tokenization.tokenizer import TARGET_FILE, Encoded, Side, Tokenizer


def separate(source: Tokenizer, target: Tokenizer) -> Tokenizer:
    """One tokenizer of two: `side="source"` is the first, `side="target"` the second.

    >>> from glassformer.tokenization.train import TokenizerPlan, train_tokenizer
    >>> plan = TokenizerPlan(kind="char", vocab_size=50)
    >>> both = separate(train_tokenizer(["ab"], plan), train_tokenizer(["xyz"], plan))
    >>> both.vocab_size, both.target_vocab_size, both.encode("z", side="target").ids
    (6, 7, [6, 3])
    """
    if not isinstance(source, LibraryTokenizer) or not isinstance(target, LibraryTokenizer):
        raise GlassformerError("Only tokenizers that are a tokenizer.json each can be put side by side.")
    return TwoLibraryTokenizer(source, target)


def load_two_libraries(declared: Declared) -> Tokenizer:
    """The tokenizer of a folder with tokenizer.json and tokenizer_target.json."""
    if not (declared.folder / "tokenizer.json").is_file():
        raise GlassformerError(
            f"{declared.folder} has {TARGET_FILE} but lacks tokenizer.json, its other half."
        )
    return separate(load_published(declared), load_published(declared, TARGET_FILE))


class TwoLibraryTokenizer(Tokenizer):
    """Hands each call to the tokenizer of its side."""

    _class_name = LibraryTokenizer._class_name

    def __init__(self, source: LibraryTokenizer, target: LibraryTokenizer) -> None:
        ours, theirs = _named(source), _named(target)
        for name in sorted(ours.keys() | theirs.keys()):
            here, there = ours.get(name), theirs.get(name)
            if here != there:
                raise GlassformerError(
                    f"The two sides must have the same marks, but {name} has id {here} on the source side "
                    f"and {there} on the target side; learn both with the same marks and tags."
                )
        super().__init__(source._declared, source._role_ids)
        self._sides: dict[Side, LibraryTokenizer] = {"source": source, "target": target}
        self._tidies = target._tidies

    def _encode(
        self, texts: list[str], pairs: list[str] | None, *, special: bool, keep: bool, side: Side
    ) -> list[Encoded]:
        return self._sides[side]._encode(texts, pairs, special=special, keep=keep, side=side)

    def _ids_of(self, texts: list[str], side: Side) -> list[list[int]]:
        return self._sides[side]._ids_of(texts, side)

    def _begun_ids_of(self, texts: list[str]) -> list[tuple[list[int], int]]:
        return self._sides["source"]._begun_ids_of(texts)

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

    @property
    def vocab_size(self) -> int:
        return self._sides["source"].vocab_size

    @property
    def target_vocab_size(self) -> int:
        return self._sides["target"].vocab_size

    @property
    def special_ids(self) -> frozenset[int]:
        return self._sides["source"].special_ids


def _named(tokenizer: LibraryTokenizer) -> dict[str, int]:
    """Ids by role and by special token."""
    roles = {f"the {role} token": index for role, index in tokenizer._given_roles()}
    return roles | {repr(tokenizer._token(index, "source")): index for index in tokenizer.special_ids}
