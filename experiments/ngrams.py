"""A baseline for two classes: logistic regression on character n-grams of length 1 to 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LONGEST, RARE, STRENGTH = 4, 3, 2.0


@dataclass(frozen=True, kw_only=True)
class Learned:
    """The n-gram vectorizer and the weights."""

    counts: Any
    weights: Any

    @property
    def parameters(self) -> int:
        return int(self.weights.coef_.size) + 1

    def accuracy(self, texts: Sequence[str], labels: Sequence[int]) -> float:
        """Accuracy."""
        return float(self.weights.score(self.counts.transform(texts), labels))


def learn(texts: Sequence[str], labels: Sequence[int]) -> Learned:
    """Logistic regression on TF-IDF of character n-grams."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    counts = TfidfVectorizer(
        analyzer="char_wb", ngram_range=(1, LONGEST), min_df=RARE, sublinear_tf=True, lowercase=False
    )
    weights = LogisticRegression(C=STRENGTH, solver="liblinear")
    weights.fit(counts.fit_transform(texts), labels)
    return Learned(counts=counts, weights=weights)
