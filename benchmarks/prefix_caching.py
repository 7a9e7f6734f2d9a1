"""Measure the time to the first token with a shared system prompt: python benchmarks/prefix_caching.py

Requests with the same 1,000 tokens and 20 tokens of their own run one after another through the scheduler of
the server, with and without prefix caching, on a random LLaMA with 8 layers and d_model 512. Reported are
medians over all requests but the first, which fills the cache.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from statistics import median

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.recording import add_samples, recorded
from benchmarks.timing import clock
from glassformer.core.build import build_model
from glassformer.families.llama import FAMILY as LLAMA
from glassformer.generation import GenerationConfig, GenerationParams
from glassformer.generation.continuous import Scheduler
from glassformer.generation.inference_model import prepare_for_inference

SHAPE = {"vocab_size": 8000, "d_model": 512, "num_heads": 8, "num_kv_heads": 4, "d_ff": 1408, "num_layers": 8}
TINY = {"vocab_size": 500, "d_model": 64, "num_heads": 8, "num_kv_heads": 4, "d_ff": 128, "num_layers": 1}
SHARED, OWN, REQUESTS = 1000, 20, 12


def first_token_seconds(model: torch.nn.Module, prompts: list[list[int]], *, caching: bool) -> list[float]:
    scheduler = Scheduler(model, enable_prefix_caching=caching)
    seconds, (now, _) = [], clock()
    for prompt in prompts:
        start, first = now(), []
        params = GenerationParams(
            config=GenerationConfig(max_new_tokens=2),
            on_token=lambda _, start=start, first=first: first.append(now() - start),
        )
        scheduler.submit(prompt, params).result()
        seconds.append(first[0])
    scheduler.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a small model")
    shape = TINY if parser.parse_args().tiny else SHAPE
    torch.manual_seed(0)
    model = prepare_for_inference(build_model(LLAMA.build(**shape)).eval())
    draw = random.Random(0)
    ids = lambda count: [draw.randrange(shape["vocab_size"]) for _ in range(count)]  # noqa: E731
    shared = ids(SHARED)
    prompts = [[*shared, *ids(OWN)] for _ in range(REQUESTS)]
    first_token_seconds(model, prompts[:2], caching=False)  # warm-up
    times = {
        name: first_token_seconds(model, prompts, caching=name == "cache")[1:] for name in ("cache", "none")
    }
    add_samples(times)
    with_cache, without = median(times["cache"]), median(times["none"])
    for name, seconds in (("with", with_cache), ("without", without)):
        print(f"to the first token, {name} prefix caching: {1000 * seconds:.1f} {clock()[1]}")
    print(f"ratio: {without / with_cache:.1f}")


if __name__ == "__main__":
    with recorded():
        main()
