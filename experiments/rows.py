"""The rows of the scoreboard, in the order of the page: names, titles, and the runs each is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Row:
    """title: what is measured; module: the file of experiments/ whose `run(place, name)` makes one run
    arguments: passed to its `run`, if a module serves several rows
    runs: the names of its runs, as "1" for a seed or "etth1/96/1"
    takes: which of the options `seconds` and `most` mean something to it
    """

    title: str
    module: str
    arguments: tuple[str, ...] = ()
    runs: tuple[str, ...]
    takes: tuple[Literal["seconds", "most"], ...] = ()


def seeds(*kinds: str, count: int = 3) -> tuple[str, ...]:
    """Names of runs: each kind with each seed.

    >>> seeds("en-de", count=2)
    ('en-de/1', 'en-de/2')
    """
    return tuple(
        f"{kind}/{seed}" if kind else str(seed) for kind in kinds or ("",) for seed in range(1, count + 1)
    )


ROWS: dict[str, Row] = {
    "multi30k": Row(
        title="captions from English into German and French, at most 2.7M parameters",
        module="multi30k",
        runs=(
            *seeds("en-de", "en-fr", "en-de-cased", "en-fr-cased", "en-de-heavy", "en-fr-heavy"),
            *seeds("en-de-plain", "en-de-weak", "en-de-dropout15", "en-de-dropout3", count=1),
            *seeds("en-de-dropout3weak", "en-de-deep", count=1),
            *seeds("en-de-deepweak", "en-de-recut", "en-de-recutweak"),
        ),
    ),
    "ett": Row(
        title="power transformers' loads and oil temperatures, 96 to 720 steps ahead",
        module="ett",
        runs=tuple(
            f"{which}/{horizon}/{kind}"
            for which in ("etth1", "etth2", "ettm1", "ettm2")
            for horizon in (96, 192, 336, 720)
            for kind in ("1", "2", "3", "linear", "repeat")
        ),
    ),
    "pocket-series": Row(
        title="a small forecaster for any series, learned from made ones",
        module="pocket_series",
        runs=("1",),
    ),
    "recall": Row(
        title="strings to copy and values to recall: Transformer, LSTM with attention, LSTM alone",
        module="recall",
        runs=(
            *seeds("copy-transformer", "copy-lstm", "copy-lstm-alone"),
            *seeds("recall-transformer", "recall-lstm", "recall-lstm-alone"),
            *seeds("few-transformer", "few-lstm", "few-lstm-alone"),
            *seeds("many-transformer", "many-lstm", "many-lstm-alone"),
            "speed/1",
        ),
    ),
    "restore": Row(
        title="trimmed, gapped and shuffled sentences made whole: Transformer and LSTM",
        module="restoration",
        runs=seeds("transformer", "lstm"),
    ),
    "shakespeare": Row(
        title="tiny-shakespeare letter by letter, on a GPU in a minute and on a CPU in three",
        module="shakespeare",
        runs=(
            *seeds("gpu", "cpu"),
            *seeds("tried-learned-positions", "tried-less-dropout", "tried-more-dropout", count=1),
        ),
    ),
    "wikitext2": Row(
        title="WikiText-2 against nanoGPT of the same size, for about the same seconds",
        module="language",
        arguments=("wikitext2",),
        runs=(*seeds("ours", "nanogpt"), "tried-learned-positions/1"),
        takes=("seconds",),
    ),
    "enwik8": Row(
        title="10 MB of Wikipedia byte by byte against nanoGPT of the same size, for about the same seconds",
        module="language",
        arguments=("enwik8",),
        runs=(*seeds("ours", "nanogpt"), "tried-learned-positions/1"),
        takes=("seconds",),
    ),
    "pocket-lm": Row(
        title="the language model that comes with the package",
        module="pocket_lm",
        runs=("1",),
    ),
    "nsmc": Row(
        title="Korean film reviews, good or bad, from scratch (not the published split)",
        module="reviews",
        runs=(
            *seeds("recipe"),
            *seeds(
                "plain",
                "no-recut",
                "more-recut",
                "no-guess",
                "no-hide",
                "no-twice",
                "more-guess",
                "unigram",
                count=1,
            ),
            *seeds("vocab16k", "vocab4k", "wide", "shallow", "long", "ngrams", count=1),
            *seeds("after-guessing"),
        ),
    ),
    "mnist": Row(
        title="handwritten digits by a Vision Transformer from scratch",
        module="digits",
        arguments=("mnist", "images-digits"),
        runs=seeds(),
    ),
    "cifar": Row(
        title="8,000 photographs: a Vision Transformer and a residual network, seen as often (own split)",
        module="pictures",
        runs=seeds("vit", "convolution"),
    ),
    "pocket-digits": Row(
        title="digits by at most 300,000 weights, for the explorer",
        module="digits",
        arguments=("pocket-digits", "pocket-digits"),
        runs=("1",),
    ),
    "pocket": Row(
        title="the default translator, English to and from German, French and Korean",
        module="pocket",
        runs=("base/1", "small/1", "student/1", "graduate/1", "polished/1"),
        takes=("most",),
    ),
}
