"""Store what a benchmark printed and every time it measured, with the machine, the versions and the date."""

from __future__ import annotations

import io
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import metadata
from pathlib import Path
from typing import TextIO

FOLDER = Path("runs/benchmarks")  # below the working directory
LIBRARIES = ("torch", "transformers", "ctranslate2", "triton", "numpy", "accelerate", "diffusers")
RECORDING = "GLASSFORMER_BENCHMARK"  # set in the environment of child processes, which do not record
samples: list[dict[str, object]] = []


def add_samples(measured: Mapping[str, Sequence[float]]) -> None:
    """Keep every measured value, mostly seconds, in the order of measurement."""
    samples.append({name: [round(value, 7) for value in values] for name, values in measured.items()})


def machine() -> dict[str, object]:
    """Describe this machine, and how busy it is with other programs."""
    import torch

    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "system": platform.platform(),
        "cpu": model or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "load": os.getloadavg() if hasattr(os, "getloadavg") else None,
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that are installed."""
    from glassformer import __version__

    found = {"python": platform.python_version(), "glassformer": __version__}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


class Tee(io.TextIOBase):
    """Writes to a stream, and keeps the text."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.text = stream, io.StringIO()

    def write(self, text: str) -> int:
        self.text.write(text)
        return self.stream.write(text)

    def flush(self) -> None:
        self.stream.flush()


@contextmanager
def recorded() -> Iterator[None]:
    """Record what is printed inside, in runs/benchmarks/SCRIPT-TIME.json."""
    if os.environ.get(RECORDING):
        yield
        return
    os.environ[RECORDING] = "1"
    began, before, output = time.gmtime(), machine(), Tee(sys.stdout)
    with redirect_stdout(output):
        yield
    record = {
        "command": ["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]],
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", began),
        "machine": before,
        "versions": versions(),
        "samples": samples,
        "output": output.text.getvalue().splitlines(),
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{Path(sys.argv[0]).stem}-{time.strftime('%Y%m%dT%H%M%SZ', began)}.json"
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"recorded in {path}", file=sys.stderr)
