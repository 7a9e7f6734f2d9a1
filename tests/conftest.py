"""Settings of all tests, applied before torch is first imported."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from glassformer.training.logging.report import Panels, Points

# The suite runs in several processes, so one thread each is fastest. A forked child would also wait forever
# for threads that exist only in its parent.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("MPLBACKEND", "Agg")
# No test may depend on a download: transformers then fails at once instead of waiting.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

# Without a GPU, Triton's interpreter runs the kernels; it must be chosen before Triton is first imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Background jobs of a shell ignore these signals, and the tests send them to child processes.
for name, handler in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
    number = getattr(signal, name, None)  # Windows has no SIGHUP
    if number is not None and signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# On a busy machine an example may be slow without being wrong.
settings.register_profile("glassformer", deadline=None)
settings.load_profile("glassformer")


# The last two keep one renderer process, which has the page's script compiled already.
FLAGS = (
    "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync "
    "--no-first-run --disable-dev-shm-usage --disable-site-isolation-trials --renderer-process-limit=1"
).split()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser per process; playwright cannot run two."""
    api = pytest.importorskip("playwright.sync_api")
    program = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
    if program is None:
        pytest.skip("needs Chromium")
    api.expect.set_options(timeout=30_000)  # a busy machine is slow without being wrong
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session", autouse=True)
def cached_training_curves() -> Iterator[None]:
    """Cache rendered training curves: rendering takes longer than most test runs."""
    from glassformer.training.logging import report

    cache: dict[Any, bytes] = {}
    render_curves = report.render_curves

    def render(panels: Panels) -> bytes:
        key = tuple((title, *map(_curve_key, lines.items())) for title, lines in panels.items())
        if key not in cache:
            cache[key] = render_curves(panels)
        return cache[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "render_curves", render)
        yield


def _curve_key(curve: tuple[str, Points]) -> tuple[Any, ...]:
    """The properties of a curve that affect rendering: markers, a single point, extreme values."""
    label, points = curve
    extreme = any(y and not 1e-12 < abs(y) < 1e12 for _, y in points)
    return label, len(points) > 50, len(points) > 1, extreme


# Slow folders and files, the slowest first. They start first, so that the processes finish at the same time;
# `make test-fast` skips them.
SLOW = (
    "tests/explorer/",
    "tests/benchmarks/",
    "tests/inference/test_gpu_",
    "tests/training/test_distributed.py",
    "tests/training/test_jobs_text.py",
    "tests/faults/",
    "tests/server/",
    "tests/docs/test_code_blocks.py",
    "tests/cli/",
    "tests/export/",
    "tests/training/test_jobs_",
    "tests/training/test_log.py",
    "tests/training/test_signals.py",
    "tests/pretrained/",
    "tests/recipes/",
    "tests/verify/",
    "tests/examples/",
    "experiments/tests/",
)
PARITY = "tests/families/test_parity.py"


def scope(nodeid: str) -> str:
    """The tests that one process runs: those of a file, of a slow folder, or of one parity case."""
    name = next((slow for slow in SLOW if nodeid.startswith(slow)), nodeid.split("::")[0])
    if name == PARITY and "[" in nodeid:
        return "-".join(nodeid.split("[")[1].split("-")[:2])
    return name


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: rank for rank, name in enumerate(SLOW, -len(SLOW))}
    items.sort(key=lambda item: order.get(scope(item.nodeid), int(item.nodeid.startswith(PARITY))))
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker("slow")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ScopeScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope(nodeid)

    config.option.loadscopereorder = False  # it would sort by the number of tests, not by their duration
    return ScopeScheduling(config, log)


# Why tests are skipped: a phrase of the reason, and how to enable them.
REQUIREMENTS = (
    ("Chromium", "install chromium, e.g. apt-get install chromium"),
    ("GPU", "run on a machine with a CUDA GPU"),
    ("GLASSFORMER_DATA", "set GLASSFORMER_DATA to the folder with the data sets"),
    ("could not import", "pip install -e '.[dev,docs]'"),
    ("not installed", "pip install the package the test names"),
)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Summarize which tests were skipped, why, and how to enable them."""
    reasons = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    groups = []
    for phrase, remedy in REQUIREMENTS:
        if count := sum(phrase in reason for reason in reasons):
            groups.append(f"{count} without {phrase} ({remedy})")
    if groups:
        terminalreporter.write_line(f"skipped: {'; '.join(groups)}", yellow=True)
