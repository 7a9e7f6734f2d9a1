"""What kinds of runs are called, in the tables and in the pictures alike."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.why_attention import NAMES

TASKS = {
    "copy": "copying up to 60 symbols",
    "recall": "recalling, up to 32 keys at once",
    "few": "recalling, up to 8 keys",
    "many": "recalling, up to 32 keys after 8",
}
# of captions: what is other than in the recipe, in the order of the table
WAYS = {
    "": "the recipe",
    "dropout15": "dropout 0.15",
    "weak": "R-Drop 2",
    "dropout3": "dropout 0.3",
    "dropout3weak": "dropout 0.3, R-Drop 2",
    "heavy": "dropout 0.3, rate falls with the root of the steps",
    "deepweak": "5,000 pieces, 6 layers, R-Drop 2",
    "deep": "5,000 pieces, 6 layers",
    "recut": "recut 0.1",
    "recutweak": "recut 0.1, R-Drop 2",
    "plain": "no R-Drop",
    "cased": "plain text with capitals",
}
# by row: the name of each kind of run
CALLED: Mapping[str, Mapping[str, str]] = {
    "restore": {"transformer": "Transformer", "lstm": "LSTM"},
    "nsmc": {
        "recipe": "ours",
        "after-guessing": "ours after guessing hidden words",
        "ngrams": "linear, of letter n-grams",
    },
    "cifar": {"vit": "ViT", "convolution": "residual network"},
}


def called(row: str, kind: str) -> tuple[str, str]:
    """What a kind of run is shown among, and its name there.

    >>> called("recall", "many-lstm-alone"), called("multi30k", "en-de-weak"), called("cifar", "vit")
    (('recalling, up to 32 keys after 8', 'LSTM alone'), ('en-de', 'R-Drop 2'), ('', 'ViT'))
    """
    first, _, rest = kind.partition("-")
    if row == "recall" and first in TASKS:
        return TASKS[first], NAMES[rest]
    if row == "multi30k":
        into, _, way = rest.partition("-")
        return f"{first}-{into}", WAYS[way]
    among, _, name = kind.rpartition("/")
    return among, CALLED.get(row, {}).get(name, name)
