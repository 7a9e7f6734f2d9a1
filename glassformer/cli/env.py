"""glassformer env: what this machine has and can do."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import typer

from glassformer.cli.screen import bytes_text, console, print_json

PACKAGES = (
    *("glassformer", "torch", "numpy", "safetensors", "tokenizers", "sentencepiece"),
    *("typer", "rich", "matplotlib", "transformers"),
)


def env(as_json: bool = typer.Option(False, "--json", help="Print one JSON document.")) -> None:
    """Show versions, devices, attention kernels, and which number formats work here.

    Whether the CPU multiplies bfloat16 and float16 is tried in a child process, since on some machines
    the attempt kills it.
    """
    found = facts()
    if as_json:
        print_json(found)
        return
    from rich.table import Table

    out = console()
    for title, rows in found.items():
        table = Table(title=title, title_justify="left", title_style="bold", box=None, show_header=False)
        table.add_column(style="cyan", min_width=14)
        table.add_column(overflow="fold")
        for name, value in rows.items():
            table.add_row(name, _text(value))
        out.print(table, "", sep="\n")


def facts() -> dict[str, dict[str, Any]]:
    """All that is known of this machine, grouped."""
    import torch

    from glassformer.core.precision import cpu_can

    devices: dict[str, Any] = {"cpu": _processor()}
    for n in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(n)
        devices[f"cuda:{n}"] = f"{card.name}, {bytes_text(card.total_memory)}"
    if torch.backends.mps.is_available():
        devices["mps"] = "Apple GPU"
    return {
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
        "system": {
            "os": platform.platform(),
            "machine": platform.machine(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "torch threads": torch.get_num_threads(),
        },
        "devices": devices,
        "attention kernels": _kernels(),
        "CPU number formats": {"float32": True} | {n: cpu_can(n) for n in ("bfloat16", "float16")},
    }


def _kernels() -> dict[str, str]:
    """Each kernel, and what it is here."""
    import torch

    on_gpu = torch.cuda.is_available()
    return {
        "explicit": "the definition, every step written out",
        "sdpa": "torch's fused attention" + (", on CPU and GPU" if on_gpu else ", on the CPU"),
        "flex": "torch's block-sparse attention" + ("" if on_gpu else ", without gradients on a CPU"),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        if package == "glassformer":  # run from a checkout that is not installed
            import glassformer

            return glassformer.__version__
        return None


def _processor() -> str:
    """The CPU's name, where the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _text(value: Any) -> str:
    if value is None:
        return "[dim]not installed[/]"
    if isinstance(value, bool):
        return "[green]works[/]" if value else "[yellow]does not work here[/]"
    return str(value)
