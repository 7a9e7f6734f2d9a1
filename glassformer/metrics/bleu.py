"""BLEU and chrF of a whole corpus, by sacreBLEU, with the signatures that make them comparable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from glassformer.errors import ConflictError, InvalidValueError, UnknownNameError

Tokenize = Literal["13a", "intl", "char", "zh", "none", "ko-mecab", "ja-mecab"]
Case = Literal["mixed", "lower"]


@dataclass(frozen=True, kw_only=True)
class Score:
    """A score from 0 to 100 with sacreBLEU's signature.

    note: set if another tokenizer than the requested one had to be used.
    """

    score: float
    signature: str
    note: str | None = None


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    *,
    tokenize: Tokenize = "13a",
    case: Case = "mixed",
) -> Score:
    """Corpus BLEU of detokenised texts against one reference each, or as many each.

    tokenize: sacreBLEU's tokenizer. One for Korean or Japanese that is not installed is replaced by single
    characters, and `note` says so.

    >>> round(bleu(["a cat sat on the mat"], ["a cat sat on the mat"]).score, 6)
    100.0
    """
    columns = _columns(hypotheses, references)
    if tokenize not in get_args(Tokenize):
        raise UnknownNameError("BLEU tokenizer", tokenize, get_args(Tokenize))
    kind, note = _metrics().BLEU, None
    try:
        metric = kind(tokenize=tokenize, lowercase=case == "lower")
    except (RuntimeError, ImportError):
        metric = kind(tokenize="char", lowercase=case == "lower")
        note = (
            f"the BLEU tokenizer '{tokenize}' is not installed (pip install "
            f"'sacrebleu[{tokenize.split('-')[0]}]'), so BLEU is computed over single characters ('char')"
        )
    found = metric.corpus_score(list(hypotheses), columns)
    return Score(score=found.score, signature=str(metric.get_signature()), note=note)


def chrf(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    *,
    case: Case = "mixed",
) -> Score:
    """Corpus chrF, which counts characters and so needs no tokenizer.

    >>> round(chrf(["a cat sat on the mat"], ["a cat sat on the mat"]).score, 6)
    100.0
    """
    columns = _columns(hypotheses, references)
    metric = _metrics().CHRF(lowercase=case == "lower")
    found = metric.corpus_score(list(hypotheses), columns)
    return Score(score=found.score, signature=str(metric.get_signature()))


def _metrics() -> Any:
    """sacreBLEU's metrics, imported when first needed."""
    from sacrebleu import metrics

    return metrics


def _columns(
    hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]]
) -> list[list[str]]:
    """The first reference of every text, the second of every text, ..."""
    if not hypotheses or len(hypotheses) != len(references):
        reason = f"there are {len(hypotheses)} hypotheses and {len(references)} references"
        raise ConflictError(("hypotheses", "references"), reason)
    several = [[text] if isinstance(text, str) else list(text) for text in references]
    if len({len(texts) for texts in several}) != 1 or not several[0]:
        raise InvalidValueError("references", several, "the same number for each hypothesis")
    return [list(column) for column in zip(*several, strict=True)]
