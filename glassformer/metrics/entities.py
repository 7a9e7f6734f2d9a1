"""Entity-level precision, recall and F1 of tag sequences, as seqeval and conlleval define them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from glassformer.metrics.labels import ClassMetrics, precision_recall_f1

OUTSIDE = "O"


class TaggedSpan(NamedTuple):
    """An entity: its type, and its first and last word."""

    type: str
    first: int
    last: int


def split_tag(tag: str) -> tuple[str, str]:
    """Split a tag into its prefix and its type; a tag without a prefix is a one-word entity (prefix S).

    >>> split_tag("B-PER"), split_tag("O"), split_tag("NOUN")
    (('B', 'PER'), ('O', ''), ('S', 'NOUN'))
    """
    if tag == OUTSIDE:
        return OUTSIDE, ""
    if len(tag) > 2 and tag[1] == "-" and tag[0] in "BIESLU":
        return {"L": "E", "U": "S"}.get(tag[0], tag[0]), tag[2:]
    return "S", tag


def find_entities(tags: Sequence[str]) -> list[TaggedSpan]:
    """Find the entities of a sentence tagged with IOB1, IOB2, IOBES or BILOU.

    As in conlleval, an entity may also begin with I, after another type or outside of an entity.

    >>> find_entities(["B-PER", "I-PER", "O", "I-LOC", "I-ORG"])
    [TaggedSpan(type='PER', first=0, last=1), TaggedSpan(type='LOC', first=3, last=3), \
TaggedSpan(type='ORG', first=4, last=4)]
    """
    spans: list[TaggedSpan] = []
    first, before, kind = 0, OUTSIDE, ""
    for n, tag in enumerate([*tags, OUTSIDE]):
        prefix, current = split_tag(tag)
        new = prefix in "BS" or before in "ESO" or current != kind
        if before != OUTSIDE and (new or prefix == OUTSIDE):
            spans.append(TaggedSpan(kind, first, n - 1))
        if prefix != OUTSIDE and new:
            first = n
        before, kind = prefix, current
    return spans


class EntityScores(NamedTuple):
    """Micro-averaged precision, recall and F1 over entities, and the metrics of each entity type."""

    precision: float
    recall: float
    f1: float
    table: list[ClassMetrics]


def entity_scores(predicted: Iterable[Sequence[str]], true: Iterable[Sequence[str]]) -> EntityScores:
    """Compare predicted with true tags, sentence by sentence; an entity counts only if type and span match.

    >>> entity_scores([["B-PER", "O"]], [["B-PER", "B-LOC"]])[:3]
    (1.0, 0.5, 0.6666666666666666)
    """
    hits, guesses, support = Counter[str](), Counter[str](), Counter[str]()
    for guess, gold in zip(predicted, true, strict=True):
        found, expected = find_entities(guess), find_entities(gold)
        guesses.update(span.type for span in found)
        support.update(span.type for span in expected)
        hits.update(span.type for span in set(found) & set(expected))
    rows = [
        ClassMetrics(name, *precision_recall_f1(hits[name], guesses[name], support[name]), support[name])
        for name in sorted(guesses | support)
    ]
    return EntityScores(*precision_recall_f1(hits.total(), guesses.total(), support.total()), table=rows)
