"""Captions from English into German and French (Multi30k), by a Transformer of at most 2.7M parameters.

A run is a pair of languages, a way, and a seed: "en-de/1" is the published protocol, on words in small
letters (`experiments.moses`) and scored on them; "en-de-cased/1" learns and writes plain text, scored by
sacreBLEU's own words and by chrF; the others are the first with one thing changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import glassformer
from experiments import moses
from experiments.paths import Place
from experiments.records import note
from experiments.trained import train
from glassformer.metrics.text import bleu, chrf
from glassformer.training.hardware import device_for

RECIPE, LANGUAGES = "multi30k-en-de", ("en", "de", "fr")
TESTS = {"val": "val", "2016": "test_2016_flickr", "2017": "test_2017_flickr", "coco": "test_2017_mscoco"}
LEAN = (  # what a validation writes is not looked at here
    "training.metric_for_best_model=loss",
    "training.max_generate_samples=16",
    "training.log_samples=0",
    "training.save_steps=2000",
)
DEEP = ("tokenizer.vocab_size=5000", "model.num_layers=6")  # shorter pieces pay for two more layers
RECUT = ("data.bpe_dropout=0.1", "training.max_steps=11000")  # longer rows: as many passes in more steps
WAYS: dict[str, tuple[str, ...]] = {
    "": (),
    "cased": (),
    "plain": ("training.r_drop=0",),
    "weak": ("training.r_drop=2",),
    "dropout15": ("model.dropout=0.15",),
    "dropout3": ("model.dropout=0.3",),
    "dropout3weak": ("model.dropout=0.3", "training.r_drop=2"),
    "deep": DEEP,
    "deepweak": (*DEEP, "training.r_drop=2"),
    "recut": RECUT,
    "recutweak": (*RECUT, "training.r_drop=2"),
    "heavy": ("model.dropout=0.3", "training.lr_scheduler=inverse_sqrt"),
}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A run's name, read.

    >>> read_name("en-fr-cased/2")
    Asked(source='en', target='fr', way='cased', seed=2)
    """

    source: str
    target: str
    way: str
    seed: int


def read_name(name: str) -> Asked:
    kind, seed = name.split("/")
    source, target, *way = kind.split("-")
    return Asked(source=source, target=target, way="".join(way), seed=int(seed))


def run(place: Place, name: str) -> None:
    """Train one run and measure it on the validation and test sets."""
    asked = read_name(name)
    data = folder_of(place, asked)

    def files(part: str) -> str:
        return f"[{data / f'{part}.{asked.source}.gz'},{data / f'{part}.{asked.target}.gz'}]"

    words = (f"data.train={files('train')}", f"data.valid={files('val')}", *LEAN, *WAYS[asked.way])
    trained = train(place, "multi30k", name, RECIPE, seed=asked.seed, of="loss", changes=words)
    figures = measured(trained.model, data, asked, device=str(device_for(place.device)))
    note(place, "multi30k", name, seed=asked.seed, trained=trained, figures=figures)


def folder_of(place: Place, asked: Asked) -> Path:
    """Where the texts of a run are: as they come, or cut into words in small letters."""
    data = place.data / "multi30k"
    if asked.way == "cased":
        return data
    folder = place.prepared("multi30k")
    moses.prepare(data, folder, ("train", *TESTS.values()), LANGUAGES)
    return folder


def measured(model: Path, data: Path, asked: Asked, *, device: str) -> dict[str, float]:
    """BLEU, and of plain text chrF too, of what five beams write for each set."""
    bundle = glassformer.load(model, device=device)
    figures = {}
    for short, part in TESTS.items():
        sources, expected = (moses.read(data / f"{part}.{side}.gz") for side in (asked.source, asked.target))
        got = bundle.translate(sources, num_beams=5, length_penalty=1.0)
        moses.write(model.parent / f"{part}.{asked.target}.gz", got)
        if asked.way == "cased":
            figures[f"bleu_{short}"] = bleu(got, expected).score
            figures[f"chrf_{short}"] = chrf(got, expected).score
        else:  # both are words already
            figures[f"bleu_{short}"] = bleu(got, expected, tokenize="none", case="lower").score
    return figures
