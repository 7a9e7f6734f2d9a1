"""Settings every test shares; they are made before torch is first imported."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from glassformer.training.logging.curves import Curve, Panel

# The suite runs as several processes, so one thread each is faster than all of them on every core; and what
# is forked from one of them would wait for ever for threads that only its parent has.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("MPLBACKEND", "Agg")
# No test may depend on a download; the reference library then fails at once instead of waiting.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# A shell lets what it starts in the background ignore these; the tests send them to programs of their own.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# A busy machine makes a slow example, not a wrong one.
settings.register_profile("glassformer", deadline=None)
settings.load_profile("glassformer")


# The last two: what is opened next in a tab is opened in the same process, which has read the page's script.
FLAGS = (
    "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync "
    "--no-first-run --disable-dev-shm-usage --disable-site-isolation-trials --renderer-process-limit=1"
).split()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One real browser for a process, which cannot have two."""
    api = pytest.importorskip("playwright.sync_api")
    program = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
    if program is None:
        pytest.skip("there is no Chromium on this machine to open a page in")
    with api.sync_playwright() as playing:
        made = playing.chromium.launch(executable_path=program, args=FLAGS)
        yield made
        made.close()


@pytest.fixture(scope="session", autouse=True)
def alike_is_drawn_once() -> Iterator[None]:
    """Curves that look alike are drawn for the first run that has them, and copied for the others.

    To draw them takes longer than most trainings here. Tests of the drawing itself have the real one.
    """
    from glassformer.training.logging import curves, report

    known: dict[Any, bytes] = {}

    def write(drawn: Sequence[Panel], path: Path) -> None:
        looks = tuple((panel.title, panel.values, *map(_look, panel.curves)) for panel in drawn)
        if looks in known:
            path.write_bytes(known[looks])
            return
        curves.write_curves(drawn, path)
        known[looks] = path.read_bytes()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "write_curves", write)
        yield


def _look(curve: Curve) -> tuple[Any, ...]:
    """What of a curve could be drawn wrong: how it is marked, whether it is a point, how far it reaches."""
    reaches = any(y and not 1e-12 < abs(y) < 1e12 for _, y in curve.points)
    return curve.label, curve.style, len(curve.points) > 1, reaches


# What takes longest, in that order: it is begun first, so that no process is left alone with it at the end.
LONGEST = (
    "tests/explorer/",
    "tests/training/test_parallel.py",
    "tests/training/test_jobs_text.py",
    "tests/faults/test_kills.py",
    "tests/server/",
    "tests/cli/test_demo.py",
    "tests/cli/test_bad_texts.py",
    "tests/cli/test_going_on.py",
    "tests/docs/test_code.py",
)
PARITY = "tests/families/test_parity.py"


def unit(nodeid: str) -> str:
    """What one process has to itself: the tests that share what takes long to make.

    They are those of a file, or of the folders with a server and a browser; and those of one model, where a
    file makes one after the other.
    """
    folder_or_file = next((long for long in LONGEST if nodeid.startswith(long)), nodeid.split("::")[0])
    if folder_or_file == PARITY and "[" in nodeid:
        return "-".join(nodeid.split("[")[1].split("-")[:2])
    return folder_or_file


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, and last what comes in many small units."""
    ranks = {name: n for n, name in enumerate(LONGEST, -len(LONGEST))}
    items.sort(key=lambda item: ranks.get(unit(item.nodeid), int(item.nodeid.startswith(PARITY))))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit(nodeid)

    config.option.loadscopereorder = False  # by the number of tests, which says little
    return Units(config, log)
