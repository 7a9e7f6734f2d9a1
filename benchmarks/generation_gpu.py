"""Compare generation on a GPU with other libraries: python benchmarks/generation_gpu.py [--only llama1]

A LLaMA with 1.1 billion parameters in bfloat16 generates 200 tokens after a prompt of 32, greedily, for 1
and 32 texts. It is compared with gpt-fast as its command-line script runs it, and with gpt-fast's decode
steps without prefill; Glassformer's time includes prefill. gpt-fast is skipped unless its model.py,
generate.py and tokenizer.py are in peers/gpt_fast. The base encoder-decoder with 4 beams, for 64 and 512
sentences, is compared with transformers' `generate`. `--profile` shows Glassformer's most expensive
kernels.
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
from benchmarks.recording import recorded
from benchmarks.timing import Rate, show_rates, time_in_turns
from glassformer.core.build import build_model
from glassformer.families.llama import FAMILY as LLAMA
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


# ---- decoder-only -----------------------------------------------------------------------------------


class GlassformerRun:
    """Generate with Glassformer, as a user's `generate` does."""

    def __init__(self, batch: int) -> None:
        with torch.device(DEVICE):
            model = build_model(
                LLAMA.build(**(TINY if reference_models.is_tiny() else {**SHAPE, "num_layers": LAYERS}))
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


class GptFastRun:
    """Generate with gpt-fast as its command-line script does, greedily (top_k=1)."""

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
        outputs, _ = self.generate.generate(
            self.model,
            self.prompt,
            LENGTH,
            batch_size=self.batch,
            interactive=False,
            draft_model=None,
            temperature=1.0,
            top_k=1,
        )
        return outputs[:, PROMPT:]

    @torch.no_grad()
    def steps(self) -> None:
        token = torch.zeros(self.batch, 1, dtype=torch.int32, device=DEVICE)
        position = torch.tensor([PROMPT], device=DEVICE, dtype=torch.int)
        self.generate.decode_n_tokens(self.model, token, position, LENGTH, temperature=1.0, top_k=1)


def decoder(batch: int, args: argparse.Namespace) -> None:
    ours = GlassformerRun(batch)
    runs: dict[str, Callable[[], object]] = {OURS: ours.generate_all}
    if (PEER / "generate.py").is_file():
        fast = GptFastRun(batch)
        runs |= {FAST: fast.generate_all, f"{FAST}, decode steps only": fast.steps}
    else:
        print(f"gpt-fast is not in {PEER.relative_to(HOME)} and is skipped")
    times = time_in_turns({name: synchronized(run) for name, run in runs.items()}, rounds=args.rounds, warm=2)
    speeds = {name: Rate(batch * LENGTH, seconds, LENGTH) for name, seconds in times.items()}
    title = f"LLaMA 1.1B, bfloat16, {batch} texts, {device_name()}"
    show_rates(title, speeds, ours=OURS, unit="tokens")
    if args.profile:
        profile(ours.generate_all)


def profile(run: Callable[[], object]) -> None:
    """Print the kernels with the largest self time."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        run()
        synchronize()
    print(
        profiler.key_averages().table(
            sort_by="self_device_time_total", row_limit=14, max_name_column_width=60
        )
    )


# ---- encoder-decoder ----------------------------------------------------------------------------------


def translator(sentences: int, args: argparse.Namespace) -> None:
    """Compare a Marian model; the last id is both padding and decoder start token."""
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
    parser.add_argument("--rounds", type=int, default=3, help="number of timed runs per library")
    parser.add_argument("--profile", action="store_true", help="profile Glassformer too")
    parser.add_argument(
        "--tiny", action="store_true", help="use tiny models, only to check that the script runs"
    )
    args = parser.parse_args()
    if args.tiny:
        reference_models.shrink()
        SHAPE.update(vocab_size=100, d_model=32, num_heads=4, num_kv_heads=2, d_ff=64)
    elif DEVICE == "cpu":
        parser.error("this benchmark needs a CUDA GPU; use benchmarks/generation.py on a CPU")
    for name in [name for name in args.only.split(",") if name] or list(JOBS):
        if name not in JOBS:
            parser.error(f"there is no benchmark '{name}'; there are {', '.join(JOBS)}")
        start = time.perf_counter()
        JOBS[name](args)
        print(f"({name}: {time.perf_counter() - start:.0f} s including compilation)", flush=True)


if __name__ == "__main__":
    with recorded():
        main()
