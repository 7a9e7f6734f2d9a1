"""Writing on a GPU beside the peers, in one process: python benchmarks/generation_gpu.py [--only llama1]

The LLaMA shape of 1.1 billion weights in bfloat16, for 1 and 32 texts: 200 tokens after a prompt of 32,
greedy, ours beside gpt-fast as its own command runs it (its model.py, generate.py and tokenizer.py in
peers/gpt_fast; without them ours alone), and beside its steps without the prompt. Ours counts the prompt.
The base encoder-decoder by 4 beams, for 64 and 512 sentences: ours beside transformers' `generate`.
`--profile` shows where our time goes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import reference_models
from benchmarks.timing import Rate, show_rates, time_in_turns
from glassformer.core.build import build_model
from glassformer.families.llama import llama
from glassformer.generation import GenerationConfig, GenerationParams, generate
from glassformer.generation.inference_model import prepare_for_inference

HOME = Path(__file__).parent.parent
OURS, FAST, THEIRS = "glassformer", "gpt-fast", "transformers"
PEER = HOME / "peers" / "gpt_fast"
SHAPE = {"vocab_size": 32000, "d_model": 2048, "num_heads": 32, "num_kv_heads": 4, "d_ff": 5632}
LAYERS, PROMPT, LENGTH = 22, 32, 200
TINY = {"vocab_size": 500, "d_model": 64, "num_heads": 8, "num_kv_heads": 4, "d_ff": 128, "num_layers": 1}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def device_name() -> str:
    return torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"


def synchronized(step: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        step()
        synchronize()

    return run


# ---- a decoder alone --------------------------------------------------------------------------------


class Ours:
    """What a user's `generate` runs."""

    def __init__(self, batch: int) -> None:
        with torch.device(DEVICE):
            model = build_model(
                llama(**(TINY if reference_models.is_tiny() else {**SHAPE, "num_layers": LAYERS}))
            )
        self.model = prepare_for_inference(model.to(DTYPE).eval())
        self.prompt = torch.randint(0, TINY["vocab_size"], (batch, PROMPT), device=DEVICE)

    def generate_all(self) -> object:
        config = GenerationConfig(max_new_tokens=LENGTH)
        real = torch.ones_like(self.prompt, dtype=torch.bool)
        return generate(
            self.model,
            self.prompt,
            GenerationParams(config=config, eos_token_id=None, pad_token_id=0),
            attention_mask=real,
        )


class Fast:
    """gpt-fast as its own command runs it, config for the most likely token."""

    def __init__(self, batch: int) -> None:
        sys.path.insert(0, str(PEER))
        import generate  # type: ignore[import-not-found]
        from model import ModelArgs, Transformer  # type: ignore[import-not-found]

        config = ModelArgs(
            block_size=2048,
            vocab_size=SHAPE["vocab_size"],
            n_layer=LAYERS,
            n_head=SHAPE["num_heads"],
            dim=SHAPE["d_model"],
            intermediate_size=SHAPE["d_ff"],
            n_local_heads=SHAPE["num_kv_heads"],
        )
        with torch.device(DEVICE):
            self.model = Transformer(config).to(DTYPE).eval()
        torch._dynamo.reset()
        self.batch, self.generate = batch, generate
        if not hasattr(generate, "plain_step"):
            generate.plain_step = generate.decode_one_token
        generate.decode_one_token = torch.compile(generate.plain_step, mode="reduce-overhead", fullgraph=True)
        self.prompt = torch.randint(0, SHAPE["vocab_size"], (PROMPT,), device=DEVICE, dtype=torch.int32)

    def generate_all(self) -> Tensor:
        written, _ = self.generate.generate(
            self.model,
            self.prompt,
            LENGTH,
            batch_size=self.batch,
            interactive=False,
            draft_model=None,
            temperature=1.0,
            top_k=1,
        )
        return written[:, PROMPT:]

    @torch.no_grad()
    def steps(self) -> None:
        token = torch.zeros(self.batch, 1, dtype=torch.int32, device=DEVICE)
        place = torch.tensor([PROMPT], device=DEVICE, dtype=torch.int)
        self.generate.decode_n_tokens(self.model, token, place, LENGTH, temperature=1.0, top_k=1)


def decoder(batch: int, args: argparse.Namespace) -> None:
    ours = Ours(batch)
    runs: dict[str, Callable[[], object]] = {OURS: ours.generate_all}
    if (PEER / "generate.py").is_file():
        fast = Fast(batch)
        runs |= {FAST: fast.generate_all, f"{FAST}, its steps alone": fast.steps}
    else:
        print(f"gpt-fast is not in {PEER.relative_to(HOME)}: left out")
    times = time_in_turns({name: synchronized(run) for name, run in runs.items()}, rounds=args.rounds, warm=2)
    speeds = {name: Rate(batch * LENGTH, seconds, LENGTH) for name, seconds in times.items()}
    title = f"LLaMA 1.1B, bfloat16, {batch} texts, {device_name()}"
    show_rates(title, speeds, ours=OURS, unit="tokens")
    if args.profile:
        profile(ours.generate_all)


def profile(run: Callable[[], object]) -> None:
    """The kernels that take most of our time."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        run()
        synchronize()
    print(
        profiler.key_averages().table(
            sort_by="self_device_time_total", row_limit=14, max_name_column_width=60
        )
    )


# ---- an encoder-decoder -------------------------------------------------------------------------------


def translator(sentences: int, args: argparse.Namespace) -> None:
    """The Marian shape, whose padding is the last token and starts the target; every text equally long."""
    import tempfile

    import glassformer

    vocab, length = (500, 8) if reference_models.is_tiny() else (32000, 64)
    torch.manual_seed(0)
    reference = reference_models.marian(vocab, 256, pad_id=vocab - 1, eos_id=0, start_id=vocab - 1)
    reference.generation_config.forced_eos_token_id = None
    with tempfile.TemporaryDirectory() as folder:
        reference.eval().save_pretrained(folder)
        model = prepare_for_inference(
            glassformer.load(folder, device=DEVICE, dtype=str(DTYPE).removeprefix("torch.")).model
        )
    reference = reference.to(DEVICE, DTYPE)
    lengths = torch.randint(12, 25, (sentences, 1), device=DEVICE)
    ids = torch.randint(1, vocab - 1, (sentences, 24), device=DEVICE)
    real = torch.arange(24, device=DEVICE) < lengths
    ids = ids.masked_fill(~real, vocab - 1)
    config = GenerationConfig(
        max_new_tokens=length, min_new_tokens=length, num_beams=4, suppress_tokens=(vocab - 1,)
    )

    def ours() -> object:
        return generate(
            model,
            ids,
            GenerationParams(config=config, eos_token_id=0, pad_token_id=vocab - 1),
            attention_mask=real,
        )

    @torch.inference_mode()
    def theirs() -> object:
        return reference.generate(
            input_ids=ids,
            attention_mask=real.long(),
            max_new_tokens=length,
            min_new_tokens=length,
            num_beams=4,
            do_sample=False,
            suppress_tokens=[vocab - 1],
        )

    times = time_in_turns({OURS: synchronized(ours), THEIRS: synchronized(theirs)}, rounds=args.rounds)
    speeds = {name: Rate(sentences * length, seconds, length) for name, seconds in times.items()}
    title = f"base encoder-decoder, bfloat16, {sentences} sentences, 4 beams, {device_name()}"
    show_rates(title, speeds, ours=OURS, unit="output tokens")
    if args.profile:
        profile(ours)


JOBS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "llama1": lambda args: decoder(1, args),
    "llama32": lambda args: decoder(32, args),
    "base64": lambda args: translator(64, args),
    "base512": lambda args: translator(512, args),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help=", ".join(JOBS))
    parser.add_argument("--rounds", type=int, default=3, help="turns of each")
    parser.add_argument("--profile", action="store_true", help="where our own time goes")
    parser.add_argument("--tiny", action="store_true", help="tiny models: only checks that this runs")
    args = parser.parse_args()
    if args.tiny:
        reference_models.shrink()
        SHAPE.update(vocab_size=100, d_model=32, num_heads=4, num_kv_heads=2, d_ff=64)
    elif DEVICE == "cpu":
        parser.error("this benchmark needs a CUDA GPU; benchmarks/generation.py is the one for a CPU")
    for name in [name for name in args.only.split(",") if name] or list(JOBS):
        if name not in JOBS:
            parser.error(f"there is no benchmark '{name}'; there are {', '.join(JOBS)}")
        start = time.perf_counter()
        JOBS[name](args)
        print(f"({name}: {time.perf_counter() - start:.0f} s, compiling counted)", flush=True)


if __name__ == "__main__":
    main()
