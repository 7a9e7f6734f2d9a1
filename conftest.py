"""What pytest leaves out in its search for examples: files that need what is not on this machine."""

from importlib.util import find_spec

_ON_GPUS = [
    "glassformer/training/cross_entropy_triton.py",
    "glassformer/inference/gpu",
    "glassformer/generation/cuda_graph_decoder.py",
]
collect_ignore = [] if find_spec("triton") else _ON_GPUS
if not find_spec("fastapi"):
    collect_ignore.append("glassformer/server")
