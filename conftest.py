"""What pytest leaves out when it looks for examples in docstrings: a file for GPUs where there is no Triton."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("triton") else ["glassformer/training/slopes.py"]
