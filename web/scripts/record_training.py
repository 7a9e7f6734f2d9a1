"""Record the small training that the explorer's Learning view shows for models without a run of their own.

python web/scripts/record_training.py

A Transformer with 44,000 parameters learns to write dates in words, the task of `glassformer demo`, in about
a minute on one CPU core. The curves, the samples and a few snapshots of the weights, rounded to float16, are
written to glassformer/interpret/example_run.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import glassformer
from glassformer.cli.demo import RECIPE, date_pairs
from glassformer.interpret.runs import EXAMPLE_RUN
from glassformer.training.recipe import with_overrides

SETTINGS = {
    **RECIPE,
    "model.d_model": 32,
    "model.d_ff": 64,
    "training.lr": 0.005,
    "training.steps": 800,
    "training.validate_every": 100,
    "training.samples": 3,
    "training.snapshots": 6,
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        files = {"train": root / "dates.tsv", "valid": root / "dates-valid.tsv"}
        for path, pairs in zip(files.values(), date_pairs(), strict=True):
            path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
        recipe = {"job": "translate", "data": {name: [str(path)] for name, path in files.items()}}
        glassformer.train(with_overrides(recipe, [f"{k}={v}" for k, v in SETTINGS.items()]), root / "run")
        shutil.rmtree(EXAMPLE_RUN, ignore_errors=True)
        for snapshot in sorted((root / "run" / "snapshots").iterdir()):
            bundle = glassformer.load(snapshot)
            bundle.model.half()
            glassformer.save(bundle, EXAMPLE_RUN / "snapshots" / snapshot.name)
        for name in ("recipe.yaml", "metrics.jsonl"):
            text = (root / "run" / name).read_text().replace(f"{root}/", "")
            (EXAMPLE_RUN / name).write_text(text)
    lines = [json.loads(line) for line in (EXAMPLE_RUN / "metrics.jsonl").read_text().splitlines()]
    for line in lines:  # of the machine, not of the training
        for key in ("command", "system", "python"):
            line.get("facts", {}).pop(key, None)
    (EXAMPLE_RUN / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


if __name__ == "__main__":
    main()
