"""Multi30k captions from English to German and French, with a Transformer of at most 2.7M parameters.

A run is a language pair, a variant and a seed: "en-de/1" is the published protocol, trained and scored on
lowercase Moses tokens (`experiments.moses`); "en-de-cased/1" uses plain text, scored by sacreBLEU's tokenizer
and chrF; the others change one setting of the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import glassformer
from experiments import moses
from experiments.paths import Workspace
from experiments.records import note
from experiments.training_runs import train
from glassformer.metrics.text import bleu, chrf
from glassformer.training.hardware import device_for

RECIPE, LANGUAGES = "multi30k-en-de", ("en", "de", "fr")
TESTS = {"val": "val", "2016": "test_2016_flickr", "2017": "test_2017_flickr", "coco": "test_2017_mscoco"}
LEAN = (  # validation outputs are not used here
    "training.metric_for_best_model=loss",
    "training.max_generate_samples=16",
    "training.log_samples=0",
    "training.save_steps=2000",
)
DEEP = ("tokenizer.vocab_size=5000", "model.num_layers=6")  # shorter pieces pay for two more layers
RECUT = (
    "data.bpe_dropout=0.1",
    "training.max_steps=11000",
)  # longer rows: the same number of epochs takes more steps
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
class RunName:
    """The parsed name of a run.

    >>> read_name("en-fr-cased/2")
    RunName(source='en', target='fr', way='cased', seed=2)
    """

    source: str
    target: str
    way: str
    seed: int


def read_name(name: str) -> RunName:
    kind, seed = name.split("/")
    source, target, *way = kind.split("-")
    return RunName(source=source, target=target, way="".join(way), seed=int(seed))


def run(workspace: Workspace, name: str) -> None:
    """Train one run and measure it on the validation and test sets."""
    run_name = read_name(name)
    data = folder_of(workspace, run_name)

    def files(part: str) -> str:
        return f"[{data / f'{part}.{run_name.source}.gz'},{data / f'{part}.{run_name.target}.gz'}]"

    overrides = (f"data.train={files('train')}", f"data.valid={files('val')}", *LEAN, *WAYS[run_name.way])
    trained = train(workspace, "multi30k", name, RECIPE, seed=run_name.seed, of="loss", changes=overrides)
    figures = measured(trained.model, data, run_name, device=str(device_for(workspace.device)))
    note(workspace, "multi30k", name, seed=run_name.seed, trained=trained, figures=figures)


def folder_of(workspace: Workspace, run_name: RunName) -> Path:
    """The folder of a run's texts: as published, or as lowercase tokens."""
    data = workspace.data / "multi30k"
    if run_name.way == "cased":
        return data
    folder = workspace.prepared("multi30k")
    moses.prepare(data, folder, ("train", *TESTS.values()), LANGUAGES)
    return folder


def measured(model: Path, data: Path, run_name: RunName, *, device: str) -> dict[str, float]:
    """BLEU, and for plain text chrF, of beam search with five beams on each test set."""
    bundle = glassformer.load(model, device=device)
    figures = {}
    for short, part in TESTS.items():
        sources, expected = (
            moses.read(data / f"{part}.{side}.gz") for side in (run_name.source, run_name.target)
        )
        got = bundle.translate(sources, num_beams=5, length_penalty=1.0)
        moses.write(model.parent / f"{part}.{run_name.target}.gz", got)
        if run_name.way == "cased":
            figures[f"bleu_{short}"] = bleu(got, expected).score
            figures[f"chrf_{short}"] = chrf(got, expected).score
        else:  # both are words already
            figures[f"bleu_{short}"] = bleu(got, expected, tokenize="none", case="lower").score
    return figures
