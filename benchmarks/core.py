"""Compare the core with other libraries: python benchmarks/core.py [--only train,load]

On a CPU: a training step of the base encoder-decoder, forward passes of BERT-base and ViT-B/16, loading a
folder, and the overhead of observation points without an observer. On a GPU: compiled training steps
(`--nanogpt model.py` adds nanoGPT). In the last column, a value above 1 means that Glassformer is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent.parent))

import glassformer
from benchmarks import reference_models
from benchmarks.recording import add_samples, recorded
from benchmarks.timing import gpu_seconds, show, time_in_turns
from glassformer.core import observe
from glassformer.core.kernels import attend, prepare_mask

SAME_DROPOUT = {"attention_dropout": 0.1, "ffn_dropout": 0.1}  # as in torch.nn.Transformer


def base(vocab: int, length: int, **options: Any) -> nn.Module:
    return glassformer.build(
        "original", src_vocab_size=vocab, max_len=length, **reference_models.BASE, **options
    )


def train_step(model: nn.Module, src: Tensor, tgt: Tensor) -> Any:
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, fused=True)

    def step() -> None:
        loss = F.cross_entropy(model(src, tgt).flatten(0, 1), tgt.flatten(), ignore_index=0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def cpu_train(rounds: int) -> None:
    """Time a training step on 32 sentences of 32 tokens; a quarter of them have a quarter of padding."""
    vocab, size = 8000, (32, 32)
    torch.manual_seed(0)
    src, tgt = torch.randint(1, vocab, size), torch.randint(1, vocab, size)
    src[:8, 24:] = 0
    tgt[:8, 24:] = 0
    models = {
        "glassformer": base(vocab, 32),
        "glassformer, dropout as nn.Transformer": base(vocab, 32, **SAME_DROPOUT),
        "torch.nn.Transformer": reference_models.TorchTransformer(vocab, 32),
        "transformers MarianMT": reference_models.Marian(vocab, 32),
    }
    steps = {name: train_step(model, src, tgt) for name, model in models.items()}
    times = time_in_turns(steps, rounds=rounds)
    show("training step, base encoder-decoder, 32 x 32 tokens, CPU", times, ours="glassformer")
    ratio = times["torch.nn.Transformer"] / times["glassformer, dropout as nn.Transformer"]
    print(f"with the same dropout: {ratio:.2f} x torch.nn.Transformer\n")


def cpu_forward(rounds: int) -> None:
    """Time forward passes with the same random weights, and compare the outputs."""
    import transformers

    jobs = {
        "BERT-base 16 x 128": (
            transformers.BertModel(reference_models.bert_config()),
            "input_ids",
            torch.randint(1, 30000, (16, 128)),
        ),
        "ViT-B/16 8 images": (
            transformers.ViTForImageClassification(reference_models.vit_config()),
            "pixel_values",
            torch.randn(8, 3, 224, 224),
        ),
    }
    for title, (reference, name, values) in jobs.items():
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            reference.eval().save_pretrained(folder)
            ours = glassformer.load(folder).model
            mine, theirs = ours(values), reference(**{name: values})[0]
            mine = mine[0] if isinstance(mine, tuple) else mine
            steps = {
                "glassformer": lambda ours=ours, values=values: ours(values),
                "transformers": lambda r=reference, n=name, v=values: r(**{n: v}),
            }
            times = time_in_turns(steps, rounds=rounds)
            show(f"forward, {title}, CPU", times, ours="glassformer")
            print(f"largest difference between the outputs: {float((mine - theirs).abs().max()):.1e}\n")


PROBE = """
import json, sys, time
import torch
{setup}
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
before, start = peak(), time.perf_counter()
{load}
loaded = time.perf_counter() - start
total = sum(float(p.detach().sum()) for p in model.parameters())
print(json.dumps({{"seconds": loaded, "touched": time.perf_counter() - start, "peak": peak() - before}}))
"""
PROBES = {
    "glassformer": ("import glassformer, glassformer.api", "model = glassformer.load(sys.argv[1]).model"),
    "transformers": (
        "from transformers import GPT2LMHeadModel",
        "model = GPT2LMHeadModel.from_pretrained(sys.argv[1])",
    ),
}


def load(rounds: int) -> None:
    """Time loading a GPT-2 folder of 498 MB in a new process, with and without reading all parameters."""
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        transformers.GPT2LMHeadModel(reference_models.gpt2_config()).save_pretrained(folder)
        size = (Path(folder) / "model.safetensors").stat().st_size
        results: dict[str, list[dict[str, float]]] = {name: [] for name in PROBES}
        root = str(Path(__file__).parent.parent)
        compiled = {
            **os.environ,
            "PYTHONPATH": root,
            "PYTHONDONTWRITEBYTECODE": "",
        }  # compile to bytecode once, as an installation does
        for number in range(rounds + 1):
            for name, (setup, line) in PROBES.items():
                command = [sys.executable, "-c", PROBE.format(setup=setup, load=line), folder]
                done = subprocess.run(command, capture_output=True, text=True, check=True, env=compiled)
                if number:
                    results[name].append(json.loads(done.stdout.splitlines()[-1]))
    for key, what in (("seconds", "loading"), ("touched", "loading and reading every parameter")):
        add_samples({name: [run[key] for run in runs] for name, runs in results.items()})
        times = {n: sorted(r[key] for r in runs)[len(runs) // 2] for n, runs in results.items()}
        show(f"{what}, {size / 1e6:.0f} MB folder", times, ours="glassformer", unit="ms")
    for name, runs in results.items():
        print(f"{name}: peak memory {max(r['peak'] for r in runs) / size:.2f} x the weights")
    print()


def observer(rounds: int) -> None:
    """Estimate the overhead of the observation points in a forward pass without an observer."""
    size = reference_models.TINY if reference_models.is_tiny() else {}
    model = glassformer.build("bert-base-uncased", **size).eval()
    ids = torch.randint(1, 30000, (16, 128))
    recorder = glassformer.Observer()
    with torch.no_grad():
        model(ids, obs=recorder)
        forward = time_in_turns({"forward": lambda: model(ids)}, rounds=rounds)["forward"]
    x, loops = torch.zeros(1), 200_000
    start = time.perf_counter()
    for _ in range(loops):
        observe.tap(None, "name", x)
    cost = (time.perf_counter() - start) / loops
    calls = 2 * len(recorder.record.names())  # a tap and a scope for each name, at most
    print(f"no observer: {calls} checks of {cost * 1e9:.0f} ns in a forward of {forward * 1e3:.0f} ms")
    print(f"= {calls * cost / forward:.2e} of its time\n")


def gpu_step(model: nn.Module, loss: Any, mode: str | None) -> Any:
    """Return a compiled training step: forward and backward under bfloat16 autocast, and AdamW."""
    model.cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    compiled = torch.compile(loss, mode=mode)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            value = compiled()
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def gpu_times(jobs: dict[str, tuple[Any, str | None]]) -> dict[str, float]:
    times = {}
    for name, (make, mode) in jobs.items():
        torch._dynamo.reset()
        torch.manual_seed(0)
        times[name] = gpu_seconds(gpu_step(*make(), mode))
        print(f"{name}: {times[name] * 1e3:.2f} ms", flush=True)
        torch.cuda.empty_cache()
    return times


def gpu_language_model(nanogpt: Path | None) -> None:
    """Time training steps of GPT-2 124M on 32 x 1024 tokens."""
    vocab, size = 50304, (32, 1024)
    ids, labels = (torch.randint(0, vocab, size, device="cuda") for _ in range(2))

    def ours() -> Any:
        no_dropout = {"dropout": 0.0, "attention_dropout": 0.0, "embed_dropout": 0.0}
        model = glassformer.build("gpt2", vocab_size=vocab, **no_dropout)
        return model, lambda: F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())

    def theirs() -> Any:
        model = reference_models.nanogpt(nanogpt, vocab)  # type: ignore[arg-type]
        return model, lambda: model(ids, labels)[1]

    jobs: dict[str, Any] = {"glassformer": (ours, None)}
    if nanogpt is not None:
        jobs["nanoGPT"] = (theirs, None)
    jobs["glassformer, reduce-overhead"] = (ours, "reduce-overhead")
    if nanogpt is not None:
        jobs["nanoGPT, reduce-overhead"] = (theirs, "reduce-overhead")
    show("GPT-2 124M, 32 x 1024, compiled", gpu_times(jobs), ours="glassformer", work=ids.numel())


def gpu_kernels() -> None:
    """Time attention alone, forward and backward, with masks that leave most blocks empty."""
    for length in (1024, 2048, 4096, 8192):
        rows = 32768 // length
        q, k, v = (
            torch.randn(rows, 16, length, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            for _ in range(3)
        )
        documents = (torch.arange(length, device="cuda") // 512)[None].expand(rows, -1).contiguous()
        masks = {
            "window 256": glassformer.Mask(causal=True, window=256),
            "documents of 512": glassformer.Mask(causal=True, segments=documents),
        }
        for title, mask in masks.items():
            times = {}
            for kernel in ("flex", "sdpa"):
                torch._dynamo.reset()
                prepared_mask = prepare_mask(
                    mask,
                    batch=rows,
                    queries=length,
                    keys=length,
                    device=q.device,
                    dtype=q.dtype,
                    kernel=kernel,  # type: ignore[arg-type]
                )
                times[kernel] = gpu_seconds(
                    lambda q=q, k=k, v=v, prepared_mask=prepared_mask: (
                        attend(q, k, v, mask=prepared_mask).sum().backward()
                    ),
                    repeats=10,
                    warm=3,
                )
            show(f"attention {rows} x 16 x {length} x 64, {title}", times, ours="flex")


def gpu_encoder_decoder() -> None:
    """Time training steps of the base encoder-decoder on 256 x 64 tokens without padding."""
    vocab, size = 32000, (256, 64)
    src, tgt, labels = (torch.randint(1, vocab, size, device="cuda") for _ in range(3))

    def with_loss(model: nn.Module) -> Any:
        return model, lambda: F.cross_entropy(model(src, tgt).flatten(0, 1), labels.flatten())

    def ours(**options: Any) -> Any:
        return lambda: with_loss(base(vocab, 64, pad_id=None, **options))

    def theirs() -> Any:
        return with_loss(reference_models.TorchTransformer(vocab, 64, padded=False))

    fast = "reduce-overhead"
    jobs = {
        "glassformer": (ours(), None),
        "glassformer, reduce-overhead": (ours(), fast),
        "glassformer, dropout as nn.Transformer, reduce-overhead": (ours(**SAME_DROPOUT), fast),
        "torch.nn.Transformer": (theirs, None),
        "torch.nn.Transformer, reduce-overhead": (theirs, fast),
    }
    title = "base encoder-decoder, 256 x 64, compiled (target tokens)"
    show(title, gpu_times(jobs), ours="glassformer, reduce-overhead", work=src.numel())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="train, forward, load, observer; kernels, gpt, base")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each step")
    parser.add_argument("--nanogpt", type=Path, help="nanoGPT's model.py, to compare with it")
    parser.add_argument("--tiny", action="store_true", help="tiny models: only checks that this runs")
    args = parser.parse_args()
    if args.tiny:
        reference_models.shrink()
    cases = {
        "train": lambda: cpu_train(args.rounds),
        "forward": lambda: cpu_forward(args.rounds),
        "load": lambda: load(args.rounds),
        "observer": lambda: observer(args.rounds),
    }
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")
        cases = {
            "kernels": gpu_kernels,
            "gpt": lambda: gpu_language_model(args.nanogpt),
            "base": gpu_encoder_decoder,
        }
    requested = [name for name in args.only.split(",") if name] or list(cases)
    for name in requested:
        if name not in cases:
            parser.error(f"there is no benchmark '{name}' on this machine; there are {', '.join(cases)}")
        cases[name]()


if __name__ == "__main__":
    with recorded():
        main()
