"""1-NN DTW and ROCKET on the sets of experiments/ucr.py, with aeon, and a table with our accuracies.

python experiments/ucr_baselines.py --out baselines.json [--ours ucr.json]

It needs numpy and aeon only, so that it runs in an environment of its own. Finished figures are kept in the
file and not computed again. ROCKET needs series of equal length: JapaneseVowels is filled with the last
value, filled with zeros, and stretched; the best of the three is counted.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(os.environ.get("GLASSFORMER_DATA", Path(__file__).parents[2] / "shared" / "data"))
SEEDS = (1, 2, 3)
KERNELS = 10_000
Arrays = Any  # (N, C, T)


def lengths(values: Arrays) -> list[int]:
    """The length of each series without missing values at its end."""
    return [int(np.flatnonzero(~np.isnan(one).all(0))[-1]) + 1 for one in values]


def fill_last(values: Arrays) -> Arrays:
    filled = values.copy()
    for one, length in zip(filled, lengths(values), strict=True):
        one[:, length:] = one[:, length - 1 : length]
    return filled


def stretch(values: Arrays) -> Arrays:
    steps = values.shape[2]
    return np.stack(
        [
            np.stack([np.interp(np.linspace(0, n - 1, steps), np.arange(n), row[:n]) for row in one])
            for one, n in zip(values, lengths(values), strict=True)
        ]
    )


FILLS: tuple[Callable[[Arrays], Arrays], ...] = (fill_last, np.nan_to_num, stretch)


@dataclass(frozen=True, kw_only=True)
class SplitSet:
    """One set with its published split: series (N, C, T), NaN after their end, and class numbers."""

    train: Arrays
    labels: Arrays
    test: Arrays
    truth: Arrays

    @classmethod
    def read(cls, path: Path) -> SplitSet:
        with np.load(path, allow_pickle=False) as arrays:
            train, labels, test, truth = (arrays[k] for k in ("X_train", "y_train", "X_test", "y_test"))
        return cls(train=train.astype(float), labels=labels, test=test.astype(float), truth=truth)

    @property
    def unequal(self) -> bool:
        return bool(np.isnan(self.train).any())

    def rocket(self, seed: int) -> float:
        """The accuracy of ROCKET; of several ways to fill series of unequal length, the best."""
        from aeon.classification.convolution_based import RocketClassifier

        accuracies = []
        for fill in FILLS if self.unequal else FILLS[:1]:
            model = RocketClassifier(n_kernels=KERNELS, random_state=seed, n_jobs=1)
            predicted = model.fit(fill(self.train), self.labels).predict(fill(self.test))
            accuracies.append(float((predicted == self.truth).mean()))
        return max(accuracies)

    def dtw(self) -> float:
        """The accuracy of the nearest neighbor with dynamic time warping over the whole window."""
        from aeon.classification.distance_based import KNeighborsTimeSeriesClassifier

        train, test = (
            [one[:, :n] for one, n in zip(part, lengths(part), strict=True)] if self.unequal else part
            for part in (self.train, self.test)
        )
        model = KNeighborsTimeSeriesClassifier(distance="dtw", n_neighbors=1).fit(train, self.labels)
        return float((model.predict(test) == self.truth).mean())


def measure(data: Path, out: Path) -> dict[str, float]:
    """Compute what is missing in the file: "SET/dtw" and "SET/rocket-SEED"."""
    found: dict[str, float] = json.loads(out.read_text()) if out.exists() else {}
    for path in sorted((data / "ucr-uea").glob("*.npz"), key=lambda one: one.stat().st_size):
        for kind in (*(f"rocket-{seed}" for seed in SEEDS), "dtw"):
            name = f"{path.stem}/{kind}"
            if name in found:
                continue
            one = SplitSet.read(path)
            found[name] = one.dtw() if kind == "dtw" else one.rocket(int(kind.split("-")[1]))
            print(f"{name}: {found[name]:.4f}", flush=True)
            out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return found


def table(found: dict[str, float], ours: dict[str, Any] | None) -> str:
    """The accuracies of all sets in percent, with their means, as Markdown."""
    sets = sorted({name.split("/")[0] for name in found})
    columns: dict[str, list[float]] = {
        "1-NN DTW": [found[f"{name}/dtw"] for name in sets],
        "ROCKET": [float(np.mean([found[f"{name}/rocket-{seed}"] for seed in SEEDS])) for name in sets],
    }
    if ours is not None:
        columns["PatchTST, ours"] = [ours["sets"][name]["mean"] for name in sets]
        if all("ensemble" in ours["sets"][name] for name in sets):
            columns["ours, three seeds together"] = [ours["sets"][name]["ensemble"] for name in sets]
    lines = [f"| set | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    for n, name in enumerate(sets):
        lines.append(f"| {name} | {' | '.join(f'{100 * c[n]:.1f}' for c in columns.values())} |")
    means = (f"**{100 * float(np.mean(column)):.1f}**" for column in columns.values())
    return "\n".join([*lines, f"| mean | {' | '.join(means)} |"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the baselines' accuracies")
    parser.add_argument("--ours", type=Path, help="JSON file that experiments/ucr.py wrote")
    parser.add_argument("--data", type=Path, default=DATA)
    options = parser.parse_args()
    found = measure(options.data, options.out)
    print(table(found, json.loads(options.ours.read_text()) if options.ours else None))


if __name__ == "__main__":
    main()
