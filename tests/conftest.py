"""Settings every test shares; they are made before torch is first imported."""

import os
import signal
from typing import Any

import pytest
from hypothesis import settings

# The suite runs as several processes, so one thread each is faster than all of them on every core.
os.environ.setdefault("OMP_NUM_THREADS", "1")
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

# Tests that share what takes long to make, as a server, a browser or a training: one process has them all.
SHARING = (
    "tests/cli/test_evaluate.py",
    "tests/cli/test_going_on.py",
    "tests/explorer/",
    "tests/serve/",
    "tests/training/test_jobs_tags.py",
    "tests/training/test_parallel.py",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((shared for shared in SHARING if nodeid.startswith(shared)), nodeid)

    return Together(config, log)
