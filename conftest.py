"""Files without doctests on this machine, because they need packages that are not installed."""

from importlib.util import find_spec

TRITON_FILES = [
    "glassformer/training/cross_entropy_triton.py",
    "glassformer/inference/gpu",
    "glassformer/generation/cuda_graph_decoder.py",
    "glassformer/generation/continuous/graph_batch.py",
]
collect_ignore = [] if find_spec("triton") else TRITON_FILES
if not find_spec("fastapi"):
    collect_ignore.append("glassformer/server")
