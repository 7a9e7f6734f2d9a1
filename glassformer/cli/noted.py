"""What a person should know of texts that were written, on standard error: each thing once, with a count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from glassformer.cli.taken import say

if TYPE_CHECKING:
    from glassformer.bundle import Bundle
    from glassformer.tasks.writing.doubts import Doubt


class Notes:
    """Hears of every text; tells at once why one stopped, and when asked what there is to doubt of them."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle, self._said = bundle, False
        self._doubts: Counter[Doubt] = Counter()

    def hear(self, ended: str, doubts: Iterable[Doubt]) -> None:
        """How a text ended, and what there is to doubt of it."""
        self._doubts.update(doubts)
        if ended != "length" or self._said:
            return
        from glassformer.tasks.writing.ends import ends_of

        self._said = True
        if ends_of(self._bundle).eos_ids:
            say("note: a text was stopped at the limit of tokens, which --max-new-tokens moves")
        else:
            say("note: the model has no end token, so it wrote up to the limit, which --max-new-tokens moves")

    def tell(self) -> None:
        """The doubts since they were last told."""
        from glassformer.tasks.writing.doubts import doubt_told

        for doubt, texts in self._doubts.items():
            say(f"note: {doubt_told(self._bundle, doubt, texts)}")
        self._doubts.clear()


@contextmanager
def noting(bundle: Bundle) -> Iterator[Notes]:
    """Notes on a run, told at its end unless it is broken off."""
    notes = Notes(bundle)
    yield notes
    notes.tell()
