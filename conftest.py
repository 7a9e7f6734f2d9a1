"""What pytest leaves out in its search for examples: files for GPUs where there is no Triton."""

from importlib.util import find_spec

_ON_GPUS = ["glassformer/training/slopes.py", "glassformer/quick/gpu", "glassformer/decoding/captured.py"]
collect_ignore = [] if find_spec("triton") else _ON_GPUS
