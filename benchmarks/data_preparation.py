"""What comes before the first step: python benchmarks/data_preparation.py TRAIN.tsv DEV.tsv [--tokenizer DIR]

Trains a tiny translator on the pairs for one step, and then for one more, and tells how long the command took
until it was about to step: first with everything to be read and encoded, then going on. Then how long one
batch of 65,536 tokens takes to be planned and made. `--against` names another checkout, measured turn by turn
with this one. On a busy machine look at the seconds of a processor.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent.parent
READY = ("parameters,", "resuming from")  # what a run says just before it steps
TINY = {
    "model.d_model": 32,
    "model.num_heads": 2,
    "model.d_ff": 64,
    "model.num_layers": 1,
    "training.device": "cpu",
    "training.batch_tokens": 2048,
    "training.max_generate_samples": 2,
    "training.log_samples": 0,
}
TOKENS, WIDTH = 65_536, 128


class Spent(NamedTuple):
    """Seconds on the clock, and of processors."""

    wall: float
    cpu: float


def until_ready(tree: Path, words: Sequence[str], steps: int, threads: int) -> Spent:
    """From the command to its first step; the rest of the run is waited for."""
    command = [sys.executable, "-m", "glassformer", "train", "translate", *words]
    command += ["--set", f"training.max_steps={steps}"]
    environment = {**os.environ, "RAYON_NUM_THREADS": str(threads), "OMP_NUM_THREADS": "1"}
    begun, spent = time.perf_counter(), None
    run = subprocess.Popen(command, cwd=tree, env=environment, stderr=subprocess.PIPE, text=True)
    assert run.stderr is not None
    told = []
    for line in run.stderr:
        told.append(line)
        if spent is None and any(sign in line for sign in READY):
            spent = Spent(time.perf_counter() - begun, _processor_seconds(run.pid))
    if run.wait() or spent is None:
        raise SystemExit("".join(told))
    return spent


def _processor_seconds(process: int) -> float:
    """What a process has had of processors so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def batch_times(store: Path) -> dict[str, float]:
    """Processor milliseconds for a batch of each kind, of the tree that this process imports from."""
    from glassformer.data import Store
    from glassformer.data.examples import PairExamples
    from glassformer.training.data_loader import make_batches

    pairs = PairExamples(Store(store), pad_id=0, start_id=3)
    task: Any = SimpleNamespace(train=pairs, row_width=WIDTH)
    found = {}
    for name in ("rows", "lengths"):
        words: Any = SimpleNamespace(batch=TOKENS, packing=name == "rows")
        batches, source = make_batches(task, words, 1)
        seen = []
        for pool in range(3):
            begin = time.process_time()
            plan = batches.plan(0, pool % max(1, len(pairs) // batches.pool))
            for each in plan:
                source.batch(each, epoch=0)
            seen.append((time.process_time() - begin) / len(plan))
        found[name] = median(seen) * 1e3
    return found


def measured(trees: dict[str, Path], words: Sequence[str], rounds: int) -> dict[str, dict[str, str]]:
    """Cells by what is measured and by tree."""
    times: dict[str, dict[str, list[Spent]]] = {}
    batches: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for threads in (1, len(os.sched_getaffinity(0))):
            for name, tree in trees.items():
                with tempfile.TemporaryDirectory() as place:
                    here = [*words, "--out", f"{place}/run"]
                    first = until_ready(tree, here, 1, threads)
                    again = until_ready(tree, here, 2, threads)
                    part = f"to the first step, {threads} thread{'s' * (threads > 1)}"
                    times.setdefault(part, {}).setdefault(name, []).append(first)
                    times.setdefault("to go on", {}).setdefault(name, []).append(again)
                    child = [sys.executable, __file__, "--batches", f"{place}/run/data/train"]
                    found = subprocess.run(
                        child, env={**os.environ, "TREE": str(tree)}, capture_output=True, check=True
                    )
                    batches[name] = json.loads(found.stdout)
    cells = {
        part: {
            name: f"{median(one.wall for one in seen):.1f} s ({median(one.cpu for one in seen):.1f})"
            for name, seen in of.items()
        }
        for part, of in times.items()
    }
    for kind in ("rows", "lengths"):
        cells[f"a batch of {kind}"] = {name: f"{found[kind]:.1f} ms" for name, found in batches.items()}
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("train", nargs="?")
    parser.add_argument("valid", nargs="?")
    parser.add_argument("--tokenizer", help="a trained tokenizer's folder; without it one is learnt")
    parser.add_argument("--to", help="the column that names the language, where there is one")
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--batches", type=Path, help=argparse.SUPPRESS)  # what a child measures
    given = parser.parse_args()
    if given.batches is not None:
        sys.path.insert(0, os.environ["TREE"])
        print(json.dumps(batch_times(given.batches)))
        return
    if given.train is None or given.valid is None:
        parser.error("name the pairs to learn from, and those to validate with")
    words = [f"--train={Path(given.train).resolve()}", f"--valid={Path(given.valid).resolve()}"]
    settings: dict[str, object] = dict(TINY)
    if given.tokenizer:
        settings["tokenizer.folder"] = Path(given.tokenizer).resolve()
    if given.to:
        settings |= {"data.language_column": given.to, "data.columns": "[source,target]"}
    for name, value in settings.items():
        words += ["--set", f"{name}={value}"]
    trees = {"this checkout": HERE}
    if given.against:
        trees["the other"] = given.against.resolve()
    table = Table(title="seconds (of processors)", title_justify="left")
    for name in ("what", *trees):
        table.add_column(name, justify="left" if name == "what" else "right")
    for part, cells in measured(trees, words, given.rounds).items():
        table.add_row(part, *cells.values())
    Console(width=100).print(table)
    print(f"load of the machine: {os.getloadavg()[0]:.1f}; peak memory of a run: {_peak():.0f} MB")


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


if __name__ == "__main__":
    main()
