"""The translator that comes with the package: English to and from German, French and Korean.

Runs: "base/1", the paper's base model on the pairs as they are, for as long as the small one takes;
"small/1", the size that is shipped, on the same pairs; "student/1" goes on from the small one, on the pairs
and on what the small one wrote (results/pocket_made.py); "graduate/1" does the same with the student.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from results import pocket_data, pocket_made, pocket_tokenizer
from results.noted import note
from results.place import Place
from results.pocket_measure import measure
from results.trained import train

ROW = "pocket"
WRITING = 120.0  # seconds in which one writes for the next


@dataclass(frozen=True, kw_only=True)
class Way:
    """recipe: what is trained; changes: of it; after: the run whose model writes, and is gone on from"""

    recipe: str
    changes: tuple[str, ...] = ()
    after: str | None = None


FURTHER = ("training.lr=0.0008", "training.warmup=300")
WAYS = {
    "base": Way(recipe="pocket-base"),
    "small": Way(recipe="pocket"),
    "student": Way(recipe="pocket", changes=("training.steps=6000", *FURTHER), after="small/1"),
    "graduate": Way(recipe="pocket", changes=("training.steps=10000", *FURTHER), after="student/1"),
}


def run(place: Place, name: str) -> None:
    """Train one run and measure it; where it learns from what another wrote, let that one write before."""
    kind, seed = name.split("/")
    way, tables = WAYS[kind], prepared(place)
    files, changes = [tables / "train.tsv.gz"], list(way.changes)
    if way.after is not None:
        writer = place.run(ROW, way.after) / "model"
        made = tables / f"made-by-{way.after.replace('/', '-')}"
        if not list(made.glob("answers*.tsv.gz")):
            pocket_made.make(writer, tables, made, seconds=WRITING, shards=4, device=place.device, beams=2)
        files.append(pocket_made.expand(tables, made))
        changes.append(f"model.folder={writer}")
    changes += [
        f"data.train=[{','.join(map(str, files))}]",
        f"data.valid=[{tables / 'dev.tsv.gz'}]",
        f"tokenizer.folder={tables / 'tokenizer'}",
    ]
    trained = train(place, ROW, name, way.recipe, seed=int(seed), of="loss", changes=changes)
    written = trained.folder / "written.tsv.gz"
    figures = measure(trained.model, tables, place.data, device=place.device, most=place.most, out=written)
    note(place, ROW, name, seed=int(seed), trained=trained, figures=figures)


def prepared(place: Place) -> Path:
    """The folder of the tables and the tokenizer, made where they are not there."""
    tables = place.prepared(ROW)
    if not (tables / "english.tsv.gz").is_file():
        pocket_data.prepare(place.data, tables)
    if not (tables / "tokenizer" / "tokenizer.json").is_file():
        pocket_tokenizer.learn(pocket_data.read(tables / "train.tsv.gz"), tables / "tokenizer")
    return tables
