"""Settings every test shares; they are made before torch is first imported."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# The suite runs as several processes, so one thread each is faster than all of them on every core.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
# No test may depend on a download; the reference library then fails at once instead of waiting.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# A busy machine makes a slow example, not a wrong one.
settings.register_profile("glassformer", deadline=None)
settings.load_profile("glassformer")

# Folders whose tests share a server, or a server and a browser: one process has them all.
SHARING = ("explorer", "serve")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        folder = item.path.relative_to(here).parts[0] if item.path.is_relative_to(here) else ""
        if folder in SHARING:
            item.add_marker(pytest.mark.xdist_group(folder))
