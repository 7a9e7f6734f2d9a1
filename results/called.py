"""What kinds of runs are called, in the tables and in the pictures alike."""

from __future__ import annotations

from collections.abc import Mapping

from results.why_attention import NAMES

TASKS = {
    "copy": "copying up to 60 symbols",
    "recall": "recalling, up to 32 keys at once",
    "few": "recalling, up to 8 keys",
    "many": "recalling, up to 32 keys after 8",
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

    >>> called("recall", "many-lstm-alone"), called("ett", "etth1/96"), called("cifar", "vit")
    (('recalling, up to 32 keys after 8', 'LSTM alone'), ('etth1', '96'), ('', 'ViT'))
    """
    task, _, model = kind.partition("-")
    if row == "recall" and task in TASKS:
        return TASKS[task], NAMES[model]
    among, _, name = kind.rpartition("/")
    return among, CALLED.get(row, {}).get(name, name)
