"""The translator that ships with the package: English to and from German, French and Korean.

Runs: "base/1", the paper's base model on the original pairs, half the steps of the small one; "small/1",
the shipped size on the same pairs; "student/1" continues the small one with its own translations added
(experiments/pocket_back_translation.py); "graduate/1" does the same with the student; "polished/1" with the
graduate, and with its phrasebook repeated (experiments/pocket_polish.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiments import pocket_back_translation, pocket_data, pocket_polish, pocket_tokenizer
from experiments.paths import Workspace
from experiments.pocket_measure import measure
from experiments.records import note
from experiments.training_runs import train

ROW = "pocket"
WRITING = 120.0  # seconds of back-translation for the next run


@dataclass(frozen=True)
class Pairs:
    """Train on the pairs from scratch."""


@dataclass(frozen=True)
class Written:
    """Continue from the model of another run, with the pairs and its back-translations."""

    after: str


@dataclass(frozen=True)
class Polish:
    """The same, with the phrasebook repeated."""

    after: str


@dataclass(frozen=True, kw_only=True)
class Way:
    """A kind of run: recipe, overrides, and the training data."""

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


def run(workspace: Workspace, name: str) -> None:
    """Train and measure one run; first generate the back-translations it needs."""
    kind, seed = name.split("/")
    way, tables = WAYS[kind], prepared(workspace)
    files, before = training_tables(way, tables, workspace)
    changes = [*way.changes, *([f"model.folder={before}"] if before else [])]
    changes += [
        f"data.train=[{','.join(map(str, files))}]",
        f"data.valid=[{tables / 'dev.tsv.gz'}]",
        f"tokenizer.folder={tables / 'tokenizer'}",
    ]
    trained = train(workspace, ROW, name, way.recipe, seed=int(seed), of="loss", changes=changes)
    written = trained.folder / "written.tsv.gz"
    figures = measure(
        trained.model, tables, workspace.data, device=workspace.device, most=workspace.most, out=written
    )
    note(workspace, ROW, name, seed=int(seed), trained=trained, figures=figures)


def training_tables(way: Way, tables: Path, workspace: Workspace) -> tuple[list[Path], Path | None]:
    """The training tables of a run, and the model it continues from."""
    pairs = tables / "train.tsv.gz"
    if isinstance(way.learns, Pairs):
        return [pairs], None
    before = workspace.run(ROW, way.learns.after) / "model"
    back_translations = back_translations_of(
        before, tables, tables / f"made-by-{way.learns.after.replace('/', '-')}", workspace
    )
    phrases = [pocket_polish.polish(tables)] if isinstance(way.learns, Polish) else []
    return [pairs, back_translations, *phrases], before


def back_translations_of(model: Path, tables: Path, back_translations: Path, workspace: Workspace) -> Path:
    """The back-translations of a model, generated if missing."""
    if not list(back_translations.glob("answers*.tsv.gz")):
        pocket_back_translation.make(
            model, tables, back_translations, seconds=WRITING, shards=4, device=workspace.device, beams=2
        )
    return pocket_back_translation.expand(tables, back_translations)


def prepared(workspace: Workspace) -> Path:
    """The folder of the tables and the tokenizer, created if missing."""
    tables = workspace.prepared(ROW)
    if not (tables / "english.tsv.gz").is_file():
        pocket_data.prepare(workspace.data, tables)
    if not (tables / "tokenizer" / "tokenizer.json").is_file():
        pocket_tokenizer.learn(pocket_data.read(tables / "train.tsv.gz"), tables / "tokenizer")
    return tables
