"""What a caller is handed: a list for a list, an iterator for an iterator; texts, or passages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from glassformer.errors import GlassformerError
from glassformer.tasks.watch import Watch
from glassformer.tasks.writing.batches import Plan, passages


def results(
    plan: Plan,
    texts: str | Iterable[str],
    *,
    details: bool,
    tree: bool,
    batch_tokens: int | None,
    watch: Watch,
) -> Any:
    """A list for a list, an iterator for an iterator; one string is a list of one."""
    plan, details = replace(plan, keep_tree=tree), details or tree
    if plan.settings.num_return_sequences > 1 and not details:
        raise GlassformerError(
            "num_return_sequences gives several texts for one; ask for details, which hold them"
        )
    if isinstance(texts, str):
        texts = [texts]
    if not isinstance(texts, Iterable):
        raise GlassformerError(f"texts must be strings, not a {type(texts).__name__}")
    if batch_tokens is not None and (not isinstance(batch_tokens, int) or batch_tokens < 1):
        raise GlassformerError(f"batch_tokens must be a whole number, 1 or more; got {batch_tokens!r}")
    found = passages(plan, texts, batch_tokens=batch_tokens, watch=watch)
    answers: Iterator[Any] = found if details else (passage.text for passage in found)
    return list(answers) if isinstance(texts, Sequence) else answers
