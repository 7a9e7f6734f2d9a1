"""Texts with a tag in front, such as the language to translate into.

The tag goes in as an id and never through the text: a text that itself begins with ">>fr<<" stays text.
"""

from collections.abc import Iterable, Sequence

from glassformer.errors import GlassformerError
from glassformer.tokenization.tokenizer import Encoded, Side, Tokenizer


def encode_tagged(
    tokenizer: Tokenizer, texts: Sequence[str], tag: str, *, side: Side = "source"
) -> list[Encoded]:
    """Encode texts with the tag's one token before each, behind the begin mark where there is one.

    >>> from glassformer.tokenization.train import TokenizerPlan, train_tokenizer
    >>> tokenizer = train_tokenizer(["ab"], TokenizerPlan(kind="char", vocab_size=50, tags=(">>de<<",)))
    >>> [encoded.ids for encoded in encode_tagged(tokenizer, ["ab", ">>de<<"], ">>de<<")]
    [[4, 5, 6, 3], [4, 1, 1, 1, 1, 1, 1, 3]]
    """
    index = _index(tokenizer, tag, side)
    return [_tagged(encoded, index, tokenizer) for encoded in tokenizer.encode_batch(texts, side=side)]


def tag_ids(tokenizer: Tokenizer, tags: Iterable[str], *, side: Side = "source") -> list[int]:
    """The id of each tag."""
    return [_index(tokenizer, tag, side) for tag in tags]


def tag_place(tokenizer: Tokenizer, *, side: Side = "source") -> int:
    """Before which of a text's ids its tag goes: the first, or the second where a begin mark is the first."""
    return _begun(tokenizer.encode("a", side=side), tokenizer)


def _index(tokenizer: Tokenizer, tag: str, side: Side) -> int:
    index = tokenizer.token_id(tag, side=side)
    if index is None:
        raise GlassformerError(
            f"The tokenizer has no token {tag!r} for the {side} side; give a tag that it was made with."
        )
    return index


def _tagged(encoded: Encoded, index: int, tokenizer: Tokenizer) -> Encoded:
    at = _begun(encoded, tokenizer)
    return Encoded(
        ids=[*encoded.ids[:at], index, *encoded.ids[at:]],
        types=[*encoded.types[:at], 0, *encoded.types[at:]],
        offsets=[*encoded.offsets[:at], (0, 0), *encoded.offsets[at:]],
        sequences=[*encoded.sequences[:at], None, *encoded.sequences[at:]],
        words=[*encoded.words[:at], None, *encoded.words[at:]],
    )


def _begun(encoded: Encoded, tokenizer: Tokenizer) -> int:
    """How many begin marks stand before the text: one, or none."""
    return int(encoded.ids[:1] in ([tokenizer.bos_id], [tokenizer.cls_id]) and encoded.sequences[0] is None)
