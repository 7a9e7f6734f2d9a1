"""The translator that comes with the package: English to and from German, French and Korean.

Runs: "base/1", the paper's base model on the pairs as they are; "small/1", the shipped size on the same;
"teacher/1", base size held back by dropout; "student/1" goes on from the small one, on the pairs and on
what the teacher wrote (results/pocket_made.py); "student-again/1" goes on from that. Each trains
for a time, preparing counted in. The teacher then writes for a part of it more.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from results import pocket_data, pocket_made, pocket_tokenizer
from results.noted import note
from results.place import Place
from results.pocket_measure import measure
from results.timed import train_for

ROW = "pocket"
SECONDS = 420.0  # of training
WRITING = 0.3  # of the time of training, for the teacher to write


@dataclass(frozen=True, kw_only=True)
class Way:
    """recipe: what is trained; changes: of it; made: whether the teacher's tables are learnt from too
    after: the run whose model is gone on from"""

    recipe: str
    changes: tuple[str, ...] = ()
    made: bool = False
    after: str | None = None


WAYS = {
    "base": Way(
        recipe="pocket-teacher", changes=("model.dropout=0.1", "training.ema=0", "training.final=last")
    ),
    "teacher": Way(recipe="pocket-teacher"),
    "small": Way(recipe="pocket"),
    "student": Way(
        recipe="pocket",
        changes=("training.lr=0.0008", "training.warmup=300"),
        made=True,
        after="small/1",
    ),
    "student-again": Way(
        recipe="pocket",
        changes=("training.lr=0.0004", "training.warmup=200"),
        made=True,
        after="student/1",
    ),
}


def run(place: Place, name: str) -> None:
    """Train one run for its time, let a teacher write, and measure."""
    kind, seed = name.split("/")
    way, tables = WAYS[kind], prepared(place)
    train = [tables / "train.tsv.gz"]
    if way.made:
        train += pocket_made.expand(tables)
    changes = [
        f"data.train=[{','.join(map(str, train))}]",
        f"data.valid=[{tables / 'dev.tsv.gz'}]",
        f"tokenizer.folder={tables / 'tokenizer'}",
        *way.changes,
    ]
    if way.after is not None:
        changes.append(f"model.folder={place.run(ROW, way.after) / 'model'}")
    seconds = place.seconds or SECONDS
    trained = train_for(
        place, ROW, name, way.recipe, seconds=seconds, seed=int(seed), of="loss", changes=changes
    )
    if kind == "teacher":
        writing = WRITING * seconds
        pocket_made.make(
            trained.model, tables, tables, seconds=writing, shards=4, device=place.device, beams=4
        )
    written = trained.folder / "written.tsv.gz"
    figures = measure(trained.model, tables, place.data, device=place.device, most=place.most, out=written)
    note(place, ROW, name, seed=int(seed), trained=trained, figures=figures)


def prepared(place: Place) -> Path:
    """The folder of the tables and the tokenizer, made where they are not there."""
    tables = place.prepared(ROW)
    if not (tables / "test.tsv.gz").is_file():
        pocket_data.prepare(place.data, tables)
    if not (tables / "tokenizer" / "tokenizer.json").is_file():
        pocket_tokenizer.learn(pocket_data.read(tables / "train.tsv.gz"), tables / "tokenizer")
    return tables
