"""Verify real checkpoints, and keep their largest differences: python benchmarks/verification.py MODEL ...

Prints for each model how many checks passed and failed, the seconds, and the difference that comes nearest to
its tolerance, with the rounding error of float32 if it was measured. The published checkpoints are converted
by `python -m experiments.published_checkpoints`. Exits with status 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.recording import add_samples, recorded


def verify(model: str) -> tuple[list[dict[str, Any]], float]:
    """Return the results of the checks of a model, and the seconds."""
    start = time.monotonic()
    command = [sys.executable, "-m", "glassformer", "verify", model, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if not done.stdout:
        raise SystemExit(f"{model} cannot be verified")
    return json.loads(done.stdout)["checks"], time.monotonic() - start


def describe(check: dict[str, Any]) -> str:
    """Return the numbers of a check."""
    error = check["rounding_error"]
    noise = "" if error is None else f", rounding error of float32 {error:.1e}"
    return f"{check['name']}: {check['worst']:.1e} of {check['tolerance']:.1e}{noise}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+", help="model folders, GGUF files or shipped models")
    failed = 0
    for model in parser.parse_args().models:
        checks, seconds = verify(model)
        wrong = [check for check in checks if check["status"] == "failed"]
        exact = [check for check in checks if check["tolerance"] and "near" not in check["name"]]
        nearest = max(exact, key=lambda check: check["worst"] / check["tolerance"])
        passed = sum(check["status"] == "passed" for check in checks)
        name = Path(model).stem
        print(f"{name:28s} {passed:2d} passed, {len(wrong)} failed  {seconds:4.0f} s  {describe(nearest)}")
        for check in wrong:
            print(f"    failed: {describe(check)}")
        add_samples({f"{name}, s": [seconds]})
        add_samples({f"{name}: {c['name']}": [c["worst"]] for c in checks if c["worst"] is not None})
        failed += bool(wrong)
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    with recorded():
        main()
