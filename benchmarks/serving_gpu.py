"""Measure the scheduler on a GPU, with and without CUDA graphs: python benchmarks/serving_gpu.py

A LLaMA with 1.1 billion random parameters in bfloat16 generates 128 tokens for each of 1, 8 and 32
concurrent requests with prompts of 20 to 60 tokens, greedily, through the scheduler of the server (no HTTP).
First, it checks that captured steps choose the same tokens as the same steps without capture, and in float32
the same tokens as `generate` for each prompt alone. `--tiny` uses a small model; without a GPU, it runs only
the checks, in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is first imported
sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.recording import add_samples, recorded
from glassformer.core.build import build_model
from glassformer.families.llama import FAMILY as LLAMA
from glassformer.generation import GenerationConfig, GenerationOutput, GenerationParams, generate
from glassformer.generation.continuous import Scheduler
from glassformer.generation.inference_model import InferenceModel, prepare_for_inference

SHAPE = {"vocab_size": 32000, "d_model": 2048, "num_heads": 32, "num_kv_heads": 4, "d_ff": 5632}
SHAPE |= {"num_layers": 22}
TINY = {"vocab_size": 500, "d_model": 64, "num_heads": 8, "num_kv_heads": 4, "d_ff": 128, "num_layers": 1}
CONCURRENT, LENGTH, ROUNDS = (1, 8, 32), 128, 5
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def build(shape: dict[str, int], dtype: torch.dtype) -> torch.nn.Module:
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = build_model(LLAMA.build(**shape)).to(dtype).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:  # so that the most likely token is clear
                    parameter.mul_(2)
    if DEVICE == "cuda":
        return prepare_for_inference(model)
    from glassformer.inference.gpu.linear import TritonLinear

    return InferenceModel(model, TritonLinear)


def prompts(count: int, vocab_size: int) -> list[list[int]]:
    draw = random.Random(count)
    return [[draw.randrange(vocab_size) for _ in range(draw.randint(20, 60))] for _ in range(count)]


def params(length: int) -> GenerationParams:
    return GenerationParams(config=GenerationConfig(max_new_tokens=length), pad_token_id=0)


def run_all(scheduler: Scheduler, texts: list[list[int]], length: int) -> tuple[list[Any], float]:
    start = time.perf_counter()
    requests = [scheduler.submit(ids, params(length)) for ids in texts]
    outputs: list[GenerationOutput] = [request.result()[0] for request in requests]
    return [output.ids for output in outputs], time.perf_counter() - start


def check(model: torch.nn.Module, texts: list[list[int]], length: int, *, alone: bool) -> None:
    """Compare captured steps with the same steps without capture, and with `generate` for each prompt."""
    from glassformer.generation.continuous.graph_batch import CUDAGraphBatch

    scheduler = Scheduler(model)
    captured, _ = run_all(scheduler, texts, length)
    assert scheduler._runner.graph_batch is not None, "the model does not support CUDA graphs"  # type: ignore[union-attr]
    scheduler.close()
    graph = CUDAGraphBatch._graph
    CUDAGraphBatch._graph = lambda self, size: partial(self._step, size)  # type: ignore[assignment,method-assign,return-value]
    scheduler = Scheduler(model)
    eager, _ = run_all(scheduler, texts, length)
    scheduler.close()
    CUDAGraphBatch._graph = graph  # type: ignore[method-assign]
    equal = sum(a == b for a, b in zip(captured, eager, strict=True))
    print(f"captured = not captured: {equal} of {len(texts)} texts identical", flush=True)
    if alone:
        ids = [generate(model, torch.tensor([one], device=DEVICE), params(length))[0][0].ids for one in texts]
        equal = sum(a == b for a, b in zip(captured, ids, strict=True))
        print(f"captured = generate alone: {equal} of {len(texts)} texts identical", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a small model and short outputs")
    args = parser.parse_args()
    shape, length, rounds = (TINY, 6, 1) if args.tiny else (SHAPE, LENGTH, ROUNDS)
    print(torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU (Triton's interpreter)", flush=True)
    if DEVICE == "cpu":
        check(build(shape, torch.float32), prompts(2, shape["vocab_size"]), 2, alone=True)
        return
    check(build(shape, torch.float32), prompts(8, shape["vocab_size"]), length, alone=True)
    model = build(shape, torch.bfloat16)
    check(model, prompts(32, shape["vocab_size"]), length, alone=False)
    print(f"\n{'requests':>8} {'CUDA graphs':>12} {'without':>9} {'ratio':>6}   output tokens/s", flush=True)
    for count in CONCURRENT:
        rates = {}
        for graphs in (True, False):
            scheduler = Scheduler(model, cuda_graphs=graphs)
            texts = prompts(count, shape["vocab_size"])
            run_all(scheduler, texts, length)  # captures the graphs and compiles the kernels
            times = [run_all(scheduler, texts, length)[1] for _ in range(rounds)]
            add_samples({f"{count} requests, {'with' if graphs else 'without'} CUDA graphs": times})
            seconds = median(times)
            scheduler.close()
            rates[graphs] = count * length / seconds
        print(
            f"{count:>8} {rates[True]:>12.0f} {rates[False]:>9.0f} {rates[True] / rates[False]:>6.2f}",
            flush=True,
        )


if __name__ == "__main__":
    with recorded():
        main()
