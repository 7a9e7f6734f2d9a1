"""Language tags: tokens such as `>>de<<` in front of a text, or `de_DE` in front of a target.

A tag is inserted as an id and never through the text: a text that itself starts with ">>fr<<" stays text.
"""

import re
from collections.abc import Iterable, Sequence

from glassformer.errors import UnknownNameError
from glassformer.tokenization.tokenizer import Encoded, Side, Tokenizer

_TAG = re.compile(r">>[^<>\s]{1,28}<<")
_CODE = re.compile(r"[a-z]{2,3}_[A-Za-z]{2,4}")


def tag_languages(tokenizer: Tokenizer) -> list[str]:
    """The languages with a tag such as `>>de<<`, which precedes the source.

    >>> from glassformer.tokenization.train import TokenizerPlan, train_tokenizer
    >>> plan = TokenizerPlan(kind="char", vocab_size=50, tags=(">>de<<", "<gap>"))
    >>> tag_languages(train_tokenizer(["ab"], plan))
    ['de']
    """
    tokens = tokenizer.tokens(range(tokenizer.vocab_size))
    return [token[2:-2] for token in tokens if _TAG.fullmatch(token)]


def code_languages(tokenizer: Tokenizer) -> list[str]:
    """The languages with a special token such as `de_DE`, which starts the target."""
    tokens = tokenizer.tokens(sorted(n for n in tokenizer.special_ids if n < tokenizer.vocab_size))
    return [token for token in tokens if _CODE.fullmatch(token)]


def encode_tagged(
    tokenizer: Tokenizer, texts: Sequence[str], tag: str, *, side: Side = "source"
) -> list[Encoded]:
    """Encode texts with the tag before each, after BOS if there is one.

    >>> from glassformer.tokenization.train import TokenizerPlan, train_tokenizer
    >>> tokenizer = train_tokenizer(["ab"], TokenizerPlan(kind="char", vocab_size=50, tags=(">>de<<",)))
    >>> [encoded.ids for encoded in encode_tagged(tokenizer, ["ab", ">>de<<"], ">>de<<")]
    [[4, 5, 6, 3], [4, 1, 1, 1, 1, 1, 1, 3]]
    """
    index = _tag_id(tokenizer, tag, side)
    return [_insert_tag(encoded, index, tokenizer) for encoded in tokenizer.encode_batch(texts, side=side)]


def tag_ids(tokenizer: Tokenizer, tags: Iterable[str], *, side: Side = "source") -> list[int]:
    """The id of each tag."""
    return [_tag_id(tokenizer, tag, side) for tag in tags]


def tag_position(tokenizer: Tokenizer, *, side: Side = "source") -> int:
    """The position of the tag among a text's ids: 0, or 1 after BOS."""
    return _count_bos(tokenizer.encode("a", side=side), tokenizer)


def _tag_id(tokenizer: Tokenizer, tag: str, side: Side) -> int:
    index = tokenizer.token_id(tag, side=side)
    if index is None:
        raise UnknownNameError(f"tag of the {side} side", tag)
    return index


def _insert_tag(encoded: Encoded, index: int, tokenizer: Tokenizer) -> Encoded:
    at = _count_bos(encoded, tokenizer)
    return Encoded(
        ids=[*encoded.ids[:at], index, *encoded.ids[at:]],
        types=[*encoded.types[:at], 0, *encoded.types[at:]],
        offsets=[*encoded.offsets[:at], (0, 0), *encoded.offsets[at:]],
        sequences=[*encoded.sequences[:at], None, *encoded.sequences[at:]],
        words=[*encoded.words[:at], None, *encoded.words[at:]],
    )


def _count_bos(encoded: Encoded, tokenizer: Tokenizer) -> int:
    first = encoded.ids[:1]
    return int(first in ([tokenizer.bos_id], [tokenizer.cls_id]) and encoded.sequences[0] is None)
