"""Metrics of generated text: BLEU and chrF by sacreBLEU, ROUGE, exact match, token accuracy, perplexity."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from glassformer.errors import ConflictError, InvalidValueError, UnknownNameError

Tokenize = Literal["13a", "intl", "char", "zh", "none", "ko-mecab", "ja-mecab"]
Case = Literal["mixed", "lower"]


@dataclass(frozen=True, kw_only=True)
class Score:
    """A score from 0 to 100 with sacreBLEU's signature.

    note: set if the requested tokenizer was replaced by another one.
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
    """Compute corpus BLEU of detokenized texts. references: one per text, or several for each.

    tokenize: sacreBLEU's tokenizer. If one for Korean or Japanese is not installed, `char` is used, and
    `note` says so. case: "lower" ignores case.

    >>> round(bleu(["a cat sat on the mat"], ["a cat sat on the mat"]).score, 6)
    100.0
    """
    columns = _columns(hypotheses, references)
    if tokenize not in get_args(Tokenize):
        raise UnknownNameError("BLEU tokenizer", tokenize, get_args(Tokenize))
    from sacrebleu.metrics import BLEU

    note = None
    try:
        metric = BLEU(tokenize=tokenize, lowercase=case == "lower")
    except (RuntimeError, ImportError):
        metric = BLEU(tokenize="char", lowercase=case == "lower")
        note = (
            f"the BLEU tokenizer '{tokenize}' is not installed (pip install "
            f"'sacrebleu[{tokenize.split('-')[0]}]'), so BLEU is computed over single characters ('char')"
        )
    result = metric.corpus_score(list(hypotheses), columns)
    return Score(score=result.score, signature=str(metric.get_signature()), note=note)


def chrf(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    *,
    case: Case = "mixed",
) -> Score:
    """Compute corpus chrF, which compares character n-grams and needs no tokenizer.

    >>> round(chrf(["a cat sat on the mat"], ["a cat sat on the mat"]).score, 6)
    100.0
    """
    columns = _columns(hypotheses, references)
    from sacrebleu.metrics import CHRF

    metric = CHRF(lowercase=case == "lower")
    result = metric.corpus_score(list(hypotheses), columns)
    return Score(score=result.score, signature=str(metric.get_signature()))


def rouge(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Compute the mean F1 of ROUGE-1, ROUGE-2 and ROUGE-L of texts and their references, from 0 to 100.

    ROUGE-1 and ROUGE-2 compare words and pairs of words, ROUGE-L the longest common subsequence of words.
    Words are runs of letters and digits, in lower case and without stemming; for ASCII text the scores equal
    those of the package rouge_score.

    >>> rouge(["the cat sat"], ["The cat sat down."])["rouge1"].__round__(2)
    85.71
    """
    if len(hypotheses) != len(references):
        reason = f"there are {len(hypotheses)} texts and {len(references)} references"
        raise ConflictError(("hypotheses", "references"), reason)
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


def _columns(
    hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]]
) -> list[list[str]]:
    """Transpose references: a list of the first reference of every text, of the second, and so on."""
    if not hypotheses or len(hypotheses) != len(references):
        reason = f"there are {len(hypotheses)} hypotheses and {len(references)} references"
        raise ConflictError(("hypotheses", "references"), reason)
    reference_sets = [[text] if isinstance(text, str) else list(text) for text in references]
    counts = sorted({len(texts) for texts in reference_sets})
    if len(counts) != 1 or counts == [0]:
        raise InvalidValueError("the number of references per hypothesis", counts, "one number of at least 1")
    return [list(column) for column in zip(*reference_sets, strict=True)]


def perplexity(loss: float) -> float:
    """Return the perplexity exp(loss) of a mean loss in nats.

    >>> round(perplexity(math.log(8)), 6), perplexity(1000.0)
    (8.0, inf)
    """
    return math.inf if loss > 700 else math.exp(loss)  # exp(710) overflows a float


@dataclass
class Perplexity:
    """Accumulate the summed loss of a text in nats, and its number of tokens, characters and bytes.

    Perplexity depends on the vocabulary. Bits per character or byte do not, so they can be compared between
    tokenizers.

    >>> metrics = Perplexity()
    >>> metrics.add(loss=4 * math.log(8), tokens=4, characters=6)
    >>> round(metrics.perplexity, 6), round(metrics.bits_per_character, 6)
    (8.0, 2.0)
    """

    loss: float = 0.0
    tokens: int = 0
    characters: int = 0
    bytes: int = 0

    def add(self, *, loss: float, tokens: int, characters: int = 0, bytes: int = 0) -> None:
        """Add a batch. loss: summed over its tokens, in nats."""
        self.loss += float(loss)
        self.tokens += int(tokens)
        self.characters += int(characters)
        self.bytes += int(bytes)

    @property
    def loss_per_token(self) -> float:
        """The mean loss per token in nats; NaN if nothing was added."""
        return self.loss / self.tokens if self.tokens else math.nan

    @property
    def perplexity(self) -> float:
        """The perplexity, exp of the mean loss per token."""
        return perplexity(self.loss_per_token)

    @property
    def bits_per_character(self) -> float | None:
        """The loss in bits per character; None if no characters were counted."""
        return self.loss / math.log(2) / self.characters if self.characters else None

    @property
    def bits_per_byte(self) -> float | None:
        """The loss in bits per byte; None if no bytes were counted."""
        return self.loss / math.log(2) / self.bytes if self.bytes else None
