"""The marks that a vocabulary has for languages, by which a translator of several is told which to write."""

from __future__ import annotations

import re

from glassformer.tokenization.tokenizer import Tokenizer

_TAG = re.compile(r">>[^<>\s]{1,28}<<")
_CODE = re.compile(r"[a-z]{2,3}_[A-Za-z]{2,4}")


def read_languages(tokenizer: Tokenizer) -> list[str]:
    """Languages with a tag, as `>>de<<`, that is read before a text.

    >>> from glassformer.tokenization.train import TokenizerPlan, train_tokenizer
    >>> plan = TokenizerPlan(kind="char", vocab_size=50, tags=(">>de<<", "<gap>"))
    >>> read_languages(train_tokenizer(["ab"], plan))
    ['de']
    """
    spelt = tokenizer.tokens(range(tokenizer.vocab_size))
    return [token[2:-2] for token in spelt if _TAG.fullmatch(token)]


def written_languages(tokenizer: Tokenizer) -> list[str]:
    """Languages with a special token, as `de_DE`, that a target begins with."""
    spelt = tokenizer.tokens(sorted(n for n in tokenizer.special_ids if n < tokenizer.vocab_size))
    return [token for token in spelt if _CODE.fullmatch(token)]
