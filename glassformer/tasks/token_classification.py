"""Find named entities, or other tagged spans, in texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack, get_args

from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.tasks.base import check_finite
from glassformer.tasks.classification import label_names
from glassformer.tasks.declarations.ner import AggregationStrategy, Entity
from glassformer.tasks.encoder import EncoderTask, EncoderTaskOptions
from glassformer.tokenization import Encoded

OUTSIDE = "O"


@dataclass(frozen=True, kw_only=True)
class _Unit:
    """A token or word with its predicted tag."""

    tag: str
    score: float
    start: int
    end: int

    def continues(self, previous: _Unit) -> bool:
        """Whether it belongs to the same entity as the previous unit: same type, and not B-."""
        prefix, kind = split_prefix(self.tag)
        return prefix != "B" and kind == split_prefix(previous.tag)[1]


def split_prefix(tag: str) -> tuple[str, str]:
    """Split B-PER into B and PER; a tag without a prefix counts as I.

    >>> split_prefix("B-PER"), split_prefix("O")
    (('B', 'PER'), ('I', 'O'))
    """
    return (tag[0], tag[2:]) if tag.startswith(("B-", "I-")) else ("I", tag)


class TokenClassifier(EncoderTask[list[Entity]]):
    """Find named entities in texts.

    aggregation_strategy: as in transformers' pipeline. "none" returns every token with a tag other than O,
    "simple" joins adjacent tokens of the same type, and "first" gives all tokens of a word the tag of its
    first token, then joins words. None is "first" for models trained with the job ner, which learn only the
    first token of each word, and "simple" for others.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        aggregation_strategy: AggregationStrategy | None = None,
        **options: Unpack[EncoderTaskOptions],
    ) -> None:
        head = getattr(bundle.spec, "head", None)
        if head is None or head.yields != "token labels":
            hint = f"its head is {getattr(head, 'kind', 'missing')}"
            raise UnsupportedError(bundle.display_name, "token classification", hint=hint)
        if aggregation_strategy not in (None, *get_args(AggregationStrategy)):
            expected = f"one of {', '.join(get_args(AggregationStrategy))}"
            raise InvalidValueError("aggregation_strategy", aggregation_strategy, expected)
        super().__init__(bundle, **options)
        self.strategy = aggregation_strategy or ("first" if bundle.job.name == "ner" else "simple")
        self.labels = label_names(bundle, head.num_labels)

    def forward(self, items: Sequence[Encoded]) -> Sequence[Tensor]:
        logits: Tensor = self.model(**self.processor.collate(items))  # (B, T, L)
        rows = zip(logits.float().cpu(), items, strict=True)
        return [check_finite(self.bundle, row[: len(item)]) for row, item in rows]

    def postprocess(self, input: str, item: Encoded | None, raw: Tensor | None) -> list[Entity]:
        if item is None or raw is None:
            return []
        return self.entities(input, item, raw)

    def entities(self, text: str, encoded: Encoded, logits: Tensor) -> list[Entity]:
        """Convert the logits (T, L) of a text to entities."""
        scores, classes = logits.softmax(-1).max(-1)
        units, before = list[_Unit](), -1  # the token before
        for n, sequence in enumerate(encoded.sequence_ids):
            start, end = trim_offsets(text, *encoded.offsets[n])
            if sequence is None or start == end:  # a special token or white space
                continue
            if self.strategy == "first" and before >= 0 and same_word(encoded, before, n, text):
                word = units[-1]
                units[-1] = _Unit(tag=word.tag, score=word.score, start=word.start, end=max(word.end, end))
            else:
                tag = self.labels[int(classes[n])]
                units.append(_Unit(tag=tag, score=float(scores[n]), start=start, end=end))
            before = n
        groups = list[list[_Unit]]()
        for unit in units:
            if self.strategy != "none" and groups and unit.continues(groups[-1][-1]):
                groups[-1].append(unit)
            else:
                groups.append([unit])
        return [self._entity(text, group) for group in groups if group[0].tag != OUTSIDE]

    def _entity(self, text: str, units: Sequence[_Unit]) -> Entity:
        tag, start, end = units[0].tag, units[0].start, units[-1].end
        return Entity(
            label=tag if self.strategy == "none" else split_prefix(tag)[1],
            score=sum(unit.score for unit in units) / len(units),
            start=start,
            end=end,
            text=text[start:end],
        )


def trim_offsets(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the offsets of a token without white space around it."""
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


def same_word(encoded: Encoded, first: int, second: int, text: str) -> bool:
    """Whether two adjacent tokens of a text belong to one word.

    Some tokenizers give all tokens of a text the same word id, so a space ends a word too.
    """
    start = encoded.offsets[second][0]
    if encoded.offsets[first][1] < start or any(map(str.isspace, text[max(0, start - 1) : start + 1])):
        return False
    word = encoded.word_ids[first]
    return word is not None and word == encoded.word_ids[second]
