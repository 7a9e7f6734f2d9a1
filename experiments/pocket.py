"""The translator that comes with the package: English to and from German, French and Korean.

Runs: "base/1", the paper's base model on the original pairs, half the steps of the small one; "small/1",
the shipped size on the same pairs; "student/1" continues the small one with its own translations added
(experiments/pocket_back_translation.py); "graduate/1" does the same with the student; "polished/1" with the
graduate, and with its phrasebook repeated (experiments/pocket_polish.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiments import pocket_back_translation, pocket_data, pocket_polish, pocket_tokenizer
from experiments.paths import Place
from experiments.pocket_measure import measure
from experiments.records import note
from experiments.training_runs import train

ROW = "pocket"
WRITING = 120.0  # seconds in which one writes for the next


@dataclass(frozen=True)
class Pairs:
    """Learn the pairs, from nothing."""


@dataclass(frozen=True)
class Written:
    """Go on from the model of another run, with the pairs and with what that one writes for them."""

    after: str


@dataclass(frozen=True)
class Polish:
    """The same, with the phrasebook many times more."""

    after: str


@dataclass(frozen=True, kw_only=True)
class Way:
    """recipe: what is trained; changes: of it; learns: from what"""

    recipe: str = "pocket"
    changes: tuple[str, ...] = ()
    learns: Pairs | Written | Polish = Pairs()


FURTHER = ("training.lr=0.0008", "training.warmup_steps=300")
WAYS = {
    "base": Way(recipe="pocket-base"),
    "small": Way(),
    "student": Way(changes=("training.max_steps=6000", *FURTHER), learns=Written("small/1")),
    "graduate": Way(changes=("training.max_steps=10000", *FURTHER), learns=Written("student/1")),
    "polished": Way(changes=("training.max_steps=8000", *FURTHER), learns=Polish("graduate/1")),
}


def run(place: Place, name: str) -> None:
    """Train one run and measure it; where it learns from what another wrote, let that one write before."""
    kind, seed = name.split("/")
    way, tables = WAYS[kind], prepared(place)
    files, before = learnt(way, tables, place)
    changes = [*way.changes, *([f"model.folder={before}"] if before else [])]
    changes += [
        f"data.train=[{','.join(map(str, files))}]",
        f"data.valid=[{tables / 'dev.tsv.gz'}]",
        f"tokenizer.folder={tables / 'tokenizer'}",
    ]
    trained = train(place, ROW, name, way.recipe, seed=int(seed), of="loss", changes=changes)
    written = trained.folder / "written.tsv.gz"
    figures = measure(trained.model, tables, place.data, device=place.device, most=place.most, out=written)
    note(place, ROW, name, seed=int(seed), trained=trained, figures=figures)


def learnt(way: Way, tables: Path, place: Place) -> tuple[list[Path], Path | None]:
    """The tables that a run learns from, and the model that it goes on from."""
    pairs = tables / "train.tsv.gz"
    if isinstance(way.learns, Pairs):
        return [pairs], None
    before = place.run(ROW, way.learns.after) / "model"
    back_translations = written_by(
        before, tables, tables / f"made-by-{way.learns.after.replace('/', '-')}", place
    )
    phrases = [pocket_polish.polish(tables)] if isinstance(way.learns, Polish) else []
    return [pairs, back_translations, *phrases], before


def written_by(model: Path, tables: Path, back_translations: Path, place: Place) -> Path:
    """The table of what a model wrote, which it does first where it has not."""
    if not list(back_translations.glob("answers*.tsv.gz")):
        pocket_back_translation.make(
            model, tables, back_translations, seconds=WRITING, shards=4, device=place.device, beams=2
        )
    return pocket_back_translation.expand(tables, back_translations)


def prepared(place: Place) -> Path:
    """The folder of the tables and the tokenizer, made where they are not there."""
    tables = place.prepared(ROW)
    if not (tables / "english.tsv.gz").is_file():
        pocket_data.prepare(place.data, tables)
    if not (tables / "tokenizer" / "tokenizer.json").is_file():
        pocket_tokenizer.learn(pocket_data.read(tables / "train.tsv.gz"), tables / "tokenizer")
    return tables
