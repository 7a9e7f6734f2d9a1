"""Settings every test shares; they are made before torch is first imported."""

import os

from hypothesis import settings

# The suite runs as several processes, so one thread each is faster than all of them on every core.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
# No test may depend on a download; the reference library then fails at once instead of waiting.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# A busy machine makes a slow example, not a wrong one.
settings.register_profile("glassformer", deadline=None)
settings.load_profile("glassformer")
