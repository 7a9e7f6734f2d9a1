"""What pytest leaves out in its search for examples: a file for GPUs where there is no Triton."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("triton") else ["glassformer/training/slopes.py"]
