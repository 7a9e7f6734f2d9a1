"""Scores of image captions: BLEU-4 by sacreBLEU, and CIDEr-D, which needs no Java.

CIDEr-D (Vedantam et al., 2015) compares the n-grams of a caption with those of its references, weighted by
how rare they are among the references of all images.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from glassformer.errors import ConflictError, MissingValueError, UnknownNameError
from glassformer.metrics.text import Score

CaptionTokenize = Literal["words", "char", "none"]
MAX_N, SIGMA, SCALE = 4, 6.0, 10.0
Words = tuple[str, ...]


class _Vector(NamedTuple):
    """The weighted n-grams of a text by n, their norms, and the length of the text in pairs of words."""

    weights: list[dict[Words, float]]
    norms: list[float]
    length: int


def cider(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    *,
    tokenize: CaptionTokenize = "words",
) -> Score:
    """Compute CIDEr-D of captions, from 0 to 10; papers print it times 100.

    references: one per image, or any number for each. At least two images are needed: with one, no n-gram is
    rare. tokenize: "words" are runs of letters and digits in lower case; "char" are characters, for languages
    without spaces; "none" splits at spaces. The published scores use the PTB tokenizer, which gives others.

    >>> round(cider(["a cat sat on a mat", "a dog"], ["a cat sat on a mat", "two dogs ran"]).score, 6)
    5.0
    """
    if tokenize not in get_args(CaptionTokenize):
        raise UnknownNameError("CIDEr tokenizer", tokenize, get_args(CaptionTokenize))
    if len(hypotheses) != len(references):
        reason = f"there are {len(hypotheses)} captions and {len(references)} sets of references"
        raise ConflictError(("hypotheses", "references"), reason)
    if len(hypotheses) < 2:
        raise MissingValueError("a second image", "by CIDEr, which weighs n-grams by their rarity")
    texts = [[one] if isinstance(one, str) else list(one) for one in references]
    if not all(texts):
        raise MissingValueError("a reference", f"for caption {1 + [*map(bool, texts)].index(False)}")
    counts = [[_ngrams(text, tokenize) for text in group] for group in texts]
    frequencies = Counter(ngram for group in counts for ngram in set().union(*group))
    total = 0.0
    for hypothesis, group in zip(hypotheses, counts, strict=True):
        vector = _vector(_ngrams(hypothesis, tokenize), frequencies, len(counts))
        others = [_vector(one, frequencies, len(counts)) for one in group]
        total += sum(_similarity(vector, other) for other in others) / len(others)
    sizes = sorted({len(group) for group in texts})
    refs = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]}-{sizes[-1]}"
    signature = f"CIDEr-D|n:{MAX_N}|sigma:{SIGMA:g}|tok:{tokenize}|images:{len(texts)}|refs:{refs}"
    return Score(score=SCALE * total / len(texts), signature=signature)


def _ngrams(text: str, tokenize: CaptionTokenize) -> Counter[Words]:
    """Count the n-grams of a text for n from 1 to 4."""
    tokens: Sequence[str] = text.split()
    if tokenize == "words":
        tokens = re.findall(r"[^\W_]+", text.lower())
    elif tokenize == "char":
        tokens = "".join(tokens).lower()
    return Counter(
        tuple(tokens[start : start + n]) for n in range(1, MAX_N + 1) for start in range(len(tokens) - n + 1)
    )


def _vector(counts: Counter[Words], frequencies: Counter[Words], images: int) -> _Vector:
    """Weight n-grams by the logarithm of the number of images over the number that has them."""
    weights: list[dict[Words, float]] = [{} for _ in range(MAX_N)]
    for ngram, count in counts.items():
        weights[len(ngram) - 1][ngram] = count * math.log(images / max(1, frequencies[ngram]))
    norms = [math.sqrt(sum(weight**2 for weight in level.values())) for level in weights]
    return _Vector(weights, norms, sum(count for ngram, count in counts.items() if len(ngram) == 2))


def _similarity(hypothesis: _Vector, reference: _Vector) -> float:
    """Return the mean cosine over n; weights are clipped to the reference's, and lengths must be similar."""
    penalty = math.exp(-((hypothesis.length - reference.length) ** 2) / (2 * SIGMA**2))
    total = 0.0
    for n in range(MAX_N):
        wanted, norm = reference.weights[n], hypothesis.norms[n] * reference.norms[n]
        shared = sum(
            min(weight, wanted[ngram]) * wanted[ngram]
            for ngram, weight in hypothesis.weights[n].items()
            if ngram in wanted
        )
        total += shared / norm if norm else 0.0
    return penalty * total / MAX_N


def caption_metric(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    *,
    tokenize: CaptionTokenize = "words",
) -> dict[str, Score]:
    """Compute BLEU-4 and CIDEr-D of captions. references: one per image, or any number for each.

    >>> scores = caption_metric(["a red ball", "a dog"], [["a red ball", "one red ball"], ["a dog"]])
    >>> scores["cider"].signature
    'CIDEr-D|n:4|sigma:6|tok:words|images:2|refs:1-2'
    """
    from sacrebleu.metrics import BLEU

    scores = {"cider": cider(hypotheses, references, tokenize=tokenize)}
    texts = [[one] if isinstance(one, str) else list(one) for one in references]
    most = max(map(len, texts))
    padded = [[*group, *[group[0]] * (most - len(group))] for group in texts]  # repetition changes no BLEU
    metric = BLEU(tokenize="char" if tokenize == "char" else "13a")
    result = metric.corpus_score(list(hypotheses), [list(column) for column in zip(*padded, strict=True)])
    return {"bleu": Score(score=result.score, signature=str(metric.get_signature())), **scores}
