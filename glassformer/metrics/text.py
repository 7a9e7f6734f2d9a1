"""Metrics of generated text: BLEU and chrF by sacreBLEU, ROUGE, perplexity."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Case = Literal["mixed", "lower"]


@dataclass(frozen=True, kw_only=True)
class Score:
    """A score from 0 to 100 with sacreBLEU's signature. note: set if another tokenizer was used."""

    score: float
    signature: str
    note: str = ""


def bleu(
    hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str = "13a", case: Case = "mixed"
) -> Score:
    """Compute corpus BLEU of detokenized texts.

    tokenize: sacreBLEU's tokenizer. If one for Korean or Japanese is not installed, `char` is used, and
    `note` says so. case: "lower" ignores case.

    >>> round(bleu(["a cat sat on the mat"], ["a cat sat on the mat"]).score, 6)
    100.0
    """
    from sacrebleu.metrics import BLEU

    note = ""
    try:
        metric = BLEU(tokenize=tokenize, lowercase=case == "lower")
    except (RuntimeError, ImportError):
        metric = BLEU(tokenize="char", lowercase=case == "lower")
        note = (
            f"the BLEU tokenizer '{tokenize}' is not installed (pip install "
            f"'sacrebleu[{tokenize.split('-')[0]}]'), so BLEU is computed over single characters ('char')"
        )
    return replace(_corpus_score(metric, hypotheses, references), note=note)


def chrf(hypotheses: Sequence[str], references: Sequence[str], *, case: Case = "mixed") -> Score:
    """Compute corpus chrF, which compares character n-grams and needs no tokenizer."""
    from sacrebleu.metrics import CHRF

    return _corpus_score(CHRF(lowercase=case == "lower"), hypotheses, references)


def _corpus_score(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    result = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(score=result.score, signature=str(metric.get_signature()))


def rouge(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Compute the mean F1 of ROUGE-1, ROUGE-2 and ROUGE-L of texts and their references, from 0 to 100.

    ROUGE-1 and ROUGE-2 compare words and pairs of words, ROUGE-L the longest common subsequence of words.
    Words are runs of letters and digits, in lower case and without stemming; for ASCII text the scores equal
    those of the package rouge_score.

    >>> rouge(["the cat sat"], ["The cat sat down."])["rouge1"].__round__(2)
    85.71
    """
    totals = {"rouge1": 0.0, "rouge2": 0.0, "rougeL": 0.0}
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        words, expected = (re.findall(r"[^\W_]+", text.lower()) for text in (hypothesis, reference))
        for size, name in ((1, "rouge1"), (2, "rouge2")):
            found, wanted = (_count_ngrams(text, size) for text in (words, expected))
            totals[name] += _f1((found & wanted).total(), found.total(), wanted.total())
        totals["rougeL"] += _f1(_longest_common_subsequence(words, expected), len(words), len(expected))
    return {name: 100 * total / max(1, len(hypotheses)) for name, total in totals.items()}


def _count_ngrams(words: Sequence[str], size: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[n:] for n in range(size)), strict=False))


def _f1(hits: int, found: int, wanted: int) -> float:
    return 2 * hits / (found + wanted) if hits else 0.0


def _longest_common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    lengths = [0] * (len(second) + 1)  # of the words so far and each prefix of the second text
    for word in first:
        diagonal = 0
        for n, other in enumerate(second, 1):
            above = lengths[n]
            lengths[n] = diagonal + 1 if word == other else max(above, lengths[n - 1])
            diagonal = above
    return lengths[-1]


def perplexity(loss: float) -> float:
    """Return the perplexity exp(loss) of a mean loss in nats.

    >>> round(perplexity(math.log(8)), 6), perplexity(1000.0)
    (8.0, inf)
    """
    return math.inf if loss > 700 else math.exp(loss)  # exp(710) overflows a float
