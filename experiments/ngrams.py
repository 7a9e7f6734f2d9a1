"""Two classes by a weighted sum of the pieces of one to four letters: the plainest good baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LONGEST, RARE, STRENGTH = 4, 3, 2.0


@dataclass(frozen=True, kw_only=True)
class Learned:
    """How pieces are counted, and their weights."""

    counts: Any
    weights: Any

    @property
    def parameters(self) -> int:
        return int(self.weights.coef_.size) + 1

    def accuracy(self, texts: Sequence[str], labels: Sequence[int]) -> float:
        """The share of texts whose label is said."""
        return float(self.weights.score(self.counts.transform(texts), labels))


def learn(texts: Sequence[str], labels: Sequence[int]) -> Learned:
    """Logistic regression over the pieces of words, each counting the more the fewer texts have it."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    counts = TfidfVectorizer(
        analyzer="char_wb", ngram_range=(1, LONGEST), min_df=RARE, sublinear_tf=True, lowercase=False
    )
    weights = LogisticRegression(C=STRENGTH, solver="liblinear")
    weights.fit(counts.fit_transform(texts), labels)
    return Learned(counts=counts, weights=weights)
