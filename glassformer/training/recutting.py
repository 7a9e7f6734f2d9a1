"""Which tokens of a tokenizer are two shorter ones: what `data.recut` may put in their place."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from glassformer.data.recut import WHOLE, halves
from glassformer.errors import GlassformerError
from glassformer.tokenization import Side, Tokenizer


def halves_of(tokenizer: Tokenizer, *, side: Side = "source") -> NDArray[np.int64]:
    """For each token the two that read the same together, (V, 2), or twice WHOLE. Marks and tags stay whole.

    >>> from glassformer.tokenization import TokenizerPlan, train_tokenizer
    >>> tokenizer = train_tokenizer(["ab ab"], TokenizerPlan(vocab_size=50))
    >>> found = halves_of(tokenizer)
    >>> [tokenizer.tokens(found[n]) for n in tokenizer.ids_of(["ab"])[0] if found[n, 0] != WHOLE]
    [['▁', 'ab']]
    """
    size = tokenizer.vocab_size if side == "source" else tokenizer.target_vocab_size
    kept = tokenizer.special_ids | tokenizer.unknown_ids
    table = halves(tokenizer.tokens(range(size), side=side), kept)
    for number, parts in enumerate(table.tolist()):
        # Spelled alike is not read alike where a vocabulary marks the parts inside a word, or single bytes.
        if WHOLE not in parts and tokenizer.decode([number], side=side) != tokenizer.decode(parts, side=side):
            table[number] = WHOLE
    if (table == WHOLE).all():
        raise GlassformerError(
            f"data.recut needs tokens that shorter ones spell, and the {side} side's tokenizer has none; "
            "set data.recut to 0, or take another tokenizer.kind, as bpe"
        )
    return table
