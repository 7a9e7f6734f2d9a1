"""Every script in benchmarks/ runs, at tiny size."""

import gzip
import json
import math
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "benchmarks"
LIBRARIES = {
    "page.py",
    "recording.py",
    "reference_loops.py",
    "reference_models.py",
    "timing.py",
    "training_setup.py",
}
WORDS = "the cat sat on a mat and then it ran far away".split()


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Path:
    """A corpus with the file layout of Multi30k, and the same pairs as tables."""
    folder = tmp_path_factory.mktemp("pairs")
    lines = [" ".join([*WORDS[n % 11 : n % 11 + 1 + n % 7], str(n)]) for n in range(400)]
    for split in ("train", "val"):
        for language in ("en", "de"):
            with gzip.open(folder / f"{split}.{language}.gz", "wt") as file:
                file.writelines(f"{line}\n" for line in lines)
        (folder / f"{split}.tsv").write_text("".join(f"{line}\t{line}\n" for line in lines))
    return folder


RUNS = {
    "captioning.py": ["--tiny", "--rounds", "1"],
    "core.py": ["--tiny", "--rounds", "1"],
    "diffusion.py": ["--tiny", "--rounds", "1", "--threads", "1"],
    "generation.py": ["--tiny", "--only", "base4,gpt", "--rounds", "1", "--length", "4"],
    "generation_gpu.py": ["--tiny", "--only", "llama1,base64", "--rounds", "1"],
    "serving.py": ["--tiny", "--only", "base4,gpt", "--rounds", "1"],
    "serving_gpu.py": ["--tiny"],
    "soak.py": ["--minutes", "0.1", "--clients", "2"],
    "prefix_caching.py": ["--tiny"],
    "explorer.py": ["--tiny", "--tokens", "16"],
    "training.py": ["--tiny", "--data", "{pairs}", "--rounds", "1", "--steps", "3", "--scales", "1"],
    "verification.py": ["tiny:gpt2"],
    "vision.py": ["--tiny", "--rounds", "1"],
    "data_preparation.py": ["{pairs}/train.tsv", "{pairs}/val.tsv"],
}


def test_every_script_has_a_test():
    assert {path.name for path in SCRIPTS.glob("[!_]*.py")} == set(RUNS) | LIBRARIES


@pytest.mark.parametrize("script", RUNS)
def test_benchmark_runs(script, pairs):
    if script == "explorer.py" and not shutil.which("chromium"):
        pytest.skip("needs Chromium")
    command = [sys.executable, str(SCRIPTS / script), *(arg.format(pairs=pairs) for arg in RUNS[script])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=pairs, timeout=400)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    assert done.stdout.strip()
    (path,) = (pairs / "runs" / "benchmarks").glob(f"{script.removesuffix('.py')}-*.json")
    record = json.loads(path.read_text())
    assert record["output"] == done.stdout.splitlines()
    assert record["machine"]["cores"] == os.cpu_count() and "torch" in record["versions"]
    assert datetime.fromisoformat(record["date"]) <= datetime.now(UTC)
    # a difference of two times may be negative on a busy machine
    assert all(
        times and all(map(math.isfinite, times)) for turn in record["samples"] for times in turn.values()
    )
