"""BLEU and chrF of a whole corpus, by sacreBLEU, with the signatures that make them comparable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from glassformer.core.errors import GlassformerError

if TYPE_CHECKING:
    from sacrebleu.metrics import BLEU

Tokenize = Literal["13a", "intl", "char", "zh", "none", "ko-mecab", "ja-mecab"]


@dataclass(frozen=True, kw_only=True)
class Translation:
    """Scores from 0 to 100, each with sacreBLEU's signature.

    note: one sentence where another tokenizer than the one asked for had to be used.
    """

    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    note: str | None = None


def score_translations(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    *,
    tokenize: Tokenize = "13a",
    case: Literal["mixed", "lower"] = "mixed",
) -> Translation:
    """Corpus BLEU and chrF of detokenised texts against one reference each, or as many each.

    tokenize: how BLEU cuts words; chrF needs none. A tokenizer for Korean or Japanese that is not installed
    is replaced by single characters, and `note` says so.

    >>> found = score_translations(["a cat sat on the mat"], ["a cat sat on the mat"])
    >>> round(found.bleu, 6), round(found.chrf, 6)
    (100.0, 100.0)
    """
    try:
        from sacrebleu.metrics import CHRF
    except ImportError:
        raise GlassformerError(
            "BLEU and chrF are worked out by sacreBLEU, which is not installed; run: pip install sacrebleu"
        ) from None
    columns = _columns(hypotheses, references)
    bleu, note = _bleu(tokenize, case)
    chrf = CHRF(lowercase=case == "lower")
    words = bleu.corpus_score(list(hypotheses), columns)
    letters = chrf.corpus_score(list(hypotheses), columns)
    return Translation(
        bleu=words.score,
        bleu_signature=str(bleu.get_signature()),
        chrf=letters.score,
        chrf_signature=str(chrf.get_signature()),
        note=note,
    )


def _columns(
    hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]]
) -> list[list[str]]:
    """The first reference of every text, the second of every text, ..."""
    if not hypotheses or len(hypotheses) != len(references):
        raise GlassformerError(
            f"there are {len(hypotheses)} translations and {len(references)} references; "
            "give at least one translation, and a reference for each"
        )
    several = [[text] if isinstance(text, str) else list(text) for text in references]
    if len({len(texts) for texts in several}) != 1 or not several[0]:
        raise GlassformerError("the translations have unlike numbers of references; give as many for each")
    return [list(column) for column in zip(*several, strict=True)]


def _bleu(tokenize: Tokenize, case: Literal["mixed", "lower"]) -> tuple[BLEU, str | None]:
    from sacrebleu.metrics import BLEU

    if tokenize not in get_args(Tokenize):
        raise GlassformerError(
            f"there is no BLEU tokenizer '{tokenize}'; known are {', '.join(get_args(Tokenize))}"
        )
    lowercase = case == "lower"
    try:
        return BLEU(tokenize=tokenize, lowercase=lowercase), None
    except (RuntimeError, ImportError):
        language = tokenize.split("-")[0]
        note = (
            f"the BLEU tokenizer '{tokenize}' is not installed (pip install 'sacrebleu[{language}]'), "
            "so BLEU was taken over single characters ('char')"
        )
        return BLEU(tokenize="char", lowercase=lowercase), note
