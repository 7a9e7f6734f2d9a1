"""glassformer env: versions, devices and supported dtypes."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from glassformer.cli.console import console, format_bytes, print_json
from glassformer.cli.options import Json

PACKAGES = (
    *("torch", "numpy", "safetensors", "tokenizers", "sentencepiece"),
    *("typer", "rich", "matplotlib", "transformers"),
)


def env(as_json: Json = False) -> None:
    """Show versions, devices, attention kernels and supported dtypes.

    bfloat16 and float16 on the CPU are tested in a child process, because
    they crash the process on some machines.
    """
    facts = environment()
    if as_json:
        print_json(facts)
        return
    from rich.table import Table

    screen = console()
    for title, rows in facts.items():
        table = Table(title=title, title_justify="left", title_style="bold", box=None, show_header=False)
        table.add_column(style="cyan", min_width=14)
        table.add_column(overflow="fold")
        for name, value in rows.items():
            table.add_row(name, _text(value))
        screen.print(table, "", sep="\n")


def environment() -> dict[str, dict[str, Any]]:
    """Collect versions, system, devices, kernels and dtypes."""
    import torch

    import glassformer
    from glassformer.core.precision import cpu_supports

    devices: dict[str, Any] = {"cpu": _cpu_name()}
    for n in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(n)
        devices[f"cuda:{n}"] = f"{gpu.name}, {format_bytes(gpu.total_memory)}"
    if torch.backends.mps.is_available():
        devices["mps"] = "Apple GPU"
    on_gpu = torch.cuda.is_available()
    return {
        "versions": {
            "python": platform.python_version(),
            "glassformer": glassformer.__version__,
            **{name: version(name) if find_spec(name) else None for name in PACKAGES},
        },
        "system": {
            "os": platform.platform(),
            "machine": platform.machine(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "torch threads": torch.get_num_threads(),
        },
        "devices": devices,
        "attention kernels": {
            "explicit": "reference implementation, one step per operation",
            "sdpa": "torch's fused attention" + (", on CPU and GPU" if on_gpu else ", on the CPU"),
            "flex": "torch's block-sparse attention" + ("" if on_gpu else ", without gradients on a CPU"),
        },
        "CPU dtypes": {"float32": True} | {name: cpu_supports(name) for name in ("bfloat16", "float16")},
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    match = re.search(r"model name\s*: (.*)", info.read_text(errors="replace")) if info.is_file() else None
    return match[1] if match else platform.processor() or platform.machine()


def _text(value: Any) -> str:
    if value is None:
        return "[dim]not installed[/]"
    if isinstance(value, bool):
        return "[green]supported[/]" if value else "[yellow]not supported on this machine[/]"
    return str(value)
