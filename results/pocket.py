"""The translator that comes with the package: English to and from German, French and Korean.

Runs: "base/1", the paper's base model on the pairs as they are, for as long as the small one takes;
"small/1", the size that is shipped, on the same pairs; "student/1" goes on from the small one, on the pairs
and on what the small one wrote (results/pocket_made.py); "graduate/1" does the same with the student;
"polished/1" ends with the graduate on set phrases (results/pocket_polish.py), which two CPU cores can do.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from results import pocket_data, pocket_made, pocket_polish, pocket_tokenizer
from results.noted import note
from results.place import Place
from results.pocket_measure import measure
from results.trained import train

ROW = "pocket"
WRITING = 120.0  # seconds in which one writes for the next


@dataclass(frozen=True, kw_only=True)
class Way:
    """recipe: what is trained; changes: of it; after: the run whose model is gone on from
    learns: the pairs; these and what that model wrote for them; or what it is polished with
    """

    recipe: str
    changes: tuple[str, ...] = ()
    after: str | None = None
    learns: Literal["pairs", "written", "polish"] = "pairs"


FURTHER = ("training.lr=0.0008", "training.warmup=300")
POLISH = (
    *("training.steps=280", "training.lr=0.0003", "training.warmup=20", "training.ema=0.98"),
    *(
        "training.batch=8192",
        "training.batching=lengths",
        "training.validate_every=70",
        "training.log_every=10",
    ),
)
WAYS = {
    "base": Way(recipe="pocket-base"),
    "small": Way(recipe="pocket"),
    "student": Way(
        recipe="pocket", changes=("training.steps=6000", *FURTHER), after="small/1", learns="written"
    ),
    "graduate": Way(
        recipe="pocket", changes=("training.steps=10000", *FURTHER), after="student/1", learns="written"
    ),
    "polished": Way(recipe="pocket", changes=POLISH, after="graduate/1", learns="polish"),
}


def run(place: Place, name: str) -> None:
    """Train one run and measure it; where it learns from what another wrote, let that one write before."""
    kind, seed = name.split("/")
    way, tables = WAYS[kind], prepared(place)
    files, changes = [tables / "train.tsv.gz"], list(way.changes)
    if way.after is not None:
        before = place.run(ROW, way.after) / "model"
        changes.append(f"model.folder={before}")
        if way.learns == "written":
            files.append(written_by(before, tables, tables / f"made-by-{way.after.replace('/', '-')}", place))
        elif way.learns == "polish":
            files = [pocket_polish.polish(tables)]
    changes += [
        f"data.train=[{','.join(map(str, files))}]",
        f"data.valid=[{tables / 'dev.tsv.gz'}]",
        f"tokenizer.folder={tables / 'tokenizer'}",
    ]
    trained = train(place, ROW, name, way.recipe, seed=int(seed), of="loss", changes=changes)
    written = trained.folder / "written.tsv.gz"
    figures = measure(trained.model, tables, place.data, device=place.device, most=place.most, out=written)
    note(place, ROW, name, seed=int(seed), trained=trained, figures=figures)


def written_by(model: Path, tables: Path, made: Path, place: Place) -> Path:
    """The table of what a model wrote, which it does first where it has not."""
    if not list(made.glob("answers*.tsv.gz")):
        pocket_made.make(model, tables, made, seconds=WRITING, shards=4, device=place.device, beams=2)
    return pocket_made.expand(tables, made)


def prepared(place: Place) -> Path:
    """The folder of the tables and the tokenizer, made where they are not there."""
    tables = place.prepared(ROW)
    if not (tables / "english.tsv.gz").is_file():
        pocket_data.prepare(place.data, tables)
    if not (tables / "tokenizer" / "tokenizer.json").is_file():
        pocket_tokenizer.learn(pocket_data.read(tables / "train.tsv.gz"), tables / "tokenizer")
    return tables
