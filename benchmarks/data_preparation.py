"""Time data preparation: python benchmarks/data_preparation.py TRAIN.tsv DEV.tsv [--tokenizer DIR]

Trains a tiny translator for one step, then resumes it for one more, and reports the time until the first
step: first with all data to read and encode, then resumed. Also reports how long it takes to plan and build
one batch of 65,536 tokens. `--against` names another checkout to measure in turns with this one. On a busy
machine, compare the CPU seconds.
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

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.recording import add_samples, recorded

HERE = Path(__file__).resolve().parent.parent
START_MESSAGES = ("parameters,", "resuming from")  # logged just before the first step
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


class Elapsed(NamedTuple):
    """Wall-clock seconds and CPU seconds."""

    wall: float
    cpu: float


def time_to_first_step(tree: Path, command_args: Sequence[str], steps: int, threads: int) -> Elapsed:
    """Run the command and measure the time until its first step; wait for the run to end."""
    command = [sys.executable, "-m", "glassformer", "train", "translate", *command_args]
    command += ["--set", f"training.max_steps={steps}"]
    environment = {**os.environ, "RAYON_NUM_THREADS": str(threads), "OMP_NUM_THREADS": "1"}
    start, elapsed = time.perf_counter(), None
    run = subprocess.Popen(command, cwd=tree, env=environment, stderr=subprocess.PIPE, text=True)
    assert run.stderr is not None
    output = []
    for line in run.stderr:
        output.append(line)
        if elapsed is None and any(message in line for message in START_MESSAGES):
            elapsed = Elapsed(time.perf_counter() - start, _cpu_seconds(run.pid))
    if run.wait() or elapsed is None:
        raise SystemExit("".join(output))
    return elapsed


def _cpu_seconds(process: int) -> float:
    """Return the CPU seconds of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def batch_times(store: Path) -> dict[str, float]:
    """Return the CPU milliseconds per batch, packed into rows or bucketed by length."""
    from glassformer.data import Store
    from glassformer.data.examples import PairExamples
    from glassformer.training.data_loader import make_batches
    from glassformer.training.recipe import BatchLimits

    pairs = PairExamples(Store(store), pad_id=0, start_id=3)
    task: Any = SimpleNamespace(train=pairs, row_width=WIDTH)
    milliseconds = {}
    for name in ("rows", "lengths"):
        limits = BatchLimits(batch_tokens=TOKENS)
        options: Any = SimpleNamespace(batch_limits=lambda limits=limits: limits, packing=name == "rows")
        batches, source = make_batches(task.train, options, seed=1, row_width=task.row_width)
        times = []
        for pool in range(3):
            start = time.process_time()
            plan = batches.plan(0, pool % max(1, len(pairs) // batches.pool))
            for rows in plan:
                source.batch(rows, epoch=0)
            times.append((time.process_time() - start) / len(plan))
        milliseconds[name] = median(times) * 1e3
    return milliseconds


def measure(trees: dict[str, Path], command_args: Sequence[str], rounds: int) -> dict[str, dict[str, str]]:
    """Measure all checkouts in turns; return the table cells by measurement and checkout."""
    times: dict[str, dict[str, list[Elapsed]]] = {}
    batches: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for threads in (1, len(os.sched_getaffinity(0))):
            for name, tree in trees.items():
                with tempfile.TemporaryDirectory() as temporary:
                    run_args = [*command_args, "--out", f"{temporary}/run"]
                    first = time_to_first_step(tree, run_args, 1, threads)
                    resumed = time_to_first_step(tree, run_args, 2, threads)
                    part = f"to the first step, {threads} thread{'s' * (threads > 1)}"
                    times.setdefault(part, {}).setdefault(name, []).append(first)
                    times.setdefault("to resume", {}).setdefault(name, []).append(resumed)
                    child = [sys.executable, __file__, "--batches", f"{temporary}/run/data/train"]
                    done = subprocess.run(
                        child, env={**os.environ, "TREE": str(tree)}, capture_output=True, check=True
                    )
                    batches[name] = json.loads(done.stdout)
    for part, by_tree in times.items():
        add_samples({f"{name}, {part}": [run.wall for run in runs] for name, runs in by_tree.items()})
    cells = {
        part: {
            name: f"{median(run.wall for run in runs):.1f} s ({median(run.cpu for run in runs):.1f})"
            for name, runs in by_tree.items()
        }
        for part, by_tree in times.items()
    }
    for kind in ("rows", "lengths"):
        cells[f"one batch, {'packed' if kind == 'rows' else 'by length'}"] = {
            name: f"{result[kind]:.1f} ms" for name, result in batches.items()
        }
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("train", nargs="?")
    parser.add_argument("valid", nargs="?")
    parser.add_argument("--tokenizer", help="a trained tokenizer's folder; by default one is trained")
    parser.add_argument("--to", help="the column with the target language, if there is one")
    parser.add_argument("--against", type=Path, help="another checkout to compare with")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--batches", type=Path, help=argparse.SUPPRESS)  # for the child process
    args = parser.parse_args()
    if args.batches is not None:
        sys.path.insert(0, os.environ["TREE"])
        print(json.dumps(batch_times(args.batches)))
        return
    if args.train is None or args.valid is None:
        parser.error("the training and validation files are required")
    command_args = [f"--train={Path(args.train).resolve()}", f"--valid={Path(args.valid).resolve()}"]
    settings: dict[str, object] = dict(TINY)
    if args.tokenizer:
        settings["tokenizer.folder"] = Path(args.tokenizer).resolve()
    if args.to:
        settings |= {"data.language_column": args.to, "data.columns": "[source,target]"}
    for name, value in settings.items():
        command_args += ["--set", f"{name}={value}"]
    trees = {"this checkout": HERE}
    if args.against:
        trees["other checkout"] = args.against.resolve()
    table = Table(title="seconds (CPU seconds)", title_justify="left")
    for name in ("what", *trees):
        table.add_column(name, justify="left" if name == "what" else "right")
    for part, cells in measure(trees, command_args, args.rounds).items():
        table.add_row(part, *cells.values())
    Console(width=100).print(table)
    print(f"load average: {os.getloadavg()[0]:.1f}; peak memory of a run: {_peak_memory():.0f} MB")


def _peak_memory() -> float:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


if __name__ == "__main__":
    with recorded():
        main()
