"""Compare training with other libraries, using the training loop of `glassformer train`:

    python benchmarks/training.py --data MULTI30K_FOLDER [--only sentences,memory] [--nanogpt model.py]

On a CPU: sentences per second at base size on real sentence pairs, compared with a plain torch.nn.Transformer
loop and with MarianMT in transformers' trainer; the cost per sentence in small and large batches; and memory
by corpus size. On a GPU: GPT-2 124M and the base encoder-decoder, compiled at the same time in separate
processes and then timed one after another. In the last column, above 1 means that Glassformer is faster.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import reference_loops, reference_models, training_setup
from benchmarks.recording import recorded
from benchmarks.timing import Rate, rates, show_rates

CPU, GPU = torch.device("cpu"), torch.device("cuda")
Step = Callable[[], tuple[float, int]]  # runs one step; returns its numbers of sentences and tokens


class CountingPrefetcher:
    """A prefetcher that records the number of units of the current step."""

    def __init__(self, prefetcher: Any) -> None:
        self.prefetcher, self.units = prefetcher, 0

    def __next__(self) -> Any:
        step = next(self.prefetcher)
        self.units = sum(batch.units for batch in step.batches)
        return step


def our_step(trainer: Any, prefetcher: Any) -> Step:
    """Return a function that runs one full step of the trainer, including data loading and logging."""
    length = float(trainer.plan.train.lengths(np.arange(len(trainer.plan.train)))[:, -1].mean())
    counter = CountingPrefetcher(prefetcher)

    def step() -> tuple[float, int]:
        trainer.run_step(counter)
        return counter.units / length, counter.units

    return step


# ---- on a CPU ----------------------------------------------------------------------------------------------


def sentences(args: argparse.Namespace) -> None:
    """Compare sentences per second with a plain loop and transformers' trainer, in turns."""
    import transformers

    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        job = training_setup.prepare(
            training_setup.translation_recipe(args.data, batch=args.batch, device=CPU), root / "run"
        )
        trainer = training_setup.trainer_of_job(job, CPU)
        plan = trainer.loader.batches.plan(0, 0)
        count = round(float(np.mean([len(rows) for rows in plan])))
        vocab, longest = job.corpus.tokenizer.vocab_size, 128
        sources, targets = training_setup.sentences(job.corpus.train)
        ids = {"pad_id": job.corpus.pad_id, "eos_id": job.corpus.tokenizer.eos_id, "start_id": job.start_id}
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(root / "run" / "tokenizer" / "tokenizer.json"), pad_token="<pad>"
        )
        marian = reference_loops.TrainerSteps(
            reference_models.marian(vocab, longest, **ids),
            sources,
            targets,
            count,
            tokenizer,
            root / "marian",
        )
        plain = reference_loops.plain_step(
            reference_models.TorchTransformer(vocab, longest, pad_id=job.corpus.pad_id),
            reference_loops.shuffled(sources, targets, count, pad_id=job.corpus.pad_id),
            CPU,
            pad_id=job.corpus.pad_id,
            start_id=job.start_id,
        )
        with training_setup.prefetching(trainer) as prefetcher:
            steps: dict[str, Step] = {
                "glassformer train": our_step(trainer, prefetcher),
                "torch.nn.Transformer, padded": plain,
                "MarianMT, Seq2SeqTrainer": marian,
            }
            results = rates(steps, rounds=args.rounds)
        marian.close()
    title = f"real sentences, base size, about {count} per batch, CPU"
    show_rates(title, results, ours="glassformer train", unit="sentences")


def linear(args: argparse.Namespace) -> None:
    """Measure the cost per sentence for growing batches; it is constant if the cost is linear."""
    results: dict[str, Rate] = {}
    for batch in (args.batch // 2, args.batch, args.batch * 2, args.batch * 4):
        with tempfile.TemporaryDirectory() as name:
            job = training_setup.prepare(
                training_setup.translation_recipe(args.data, batch=batch, device=CPU), Path(name) / "run"
            )
            trainer = training_setup.trainer_of_job(job, CPU)
            with training_setup.prefetching(trainer) as prefetcher:
                label = f"batches of {batch} tokens"
                results |= rates({label: our_step(trainer, prefetcher)}, rounds=max(3, args.rounds // 2))
    title = "cost per sentence, CPU"
    show_rates(title, results, ours=f"batches of {args.batch} tokens", unit="sentences")


MEMORY = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from benchmarks import training_setup
recipe = training_setup.translation_recipe(Path(sys.argv[2]), batch=1024, device=torch.device("cpu"))
run, store, steps = Path(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5])
print(json.dumps(training_setup.measure_memory(recipe, run, store, steps)))
"""


def memory(args: argparse.Namespace) -> None:
    """Measure memory while training on the corpus repeated 1, 10 and 100 times, each in a new process."""
    root = str(Path(__file__).parent.parent)
    print("memory by corpus size (private: memory of the process without mapped files)")
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run"
        job = training_setup.prepare(
            training_setup.translation_recipe(args.data, batch=1024, device=CPU), run
        )
        for times in args.scales:
            store = training_setup.repeat_store(job, times, Path(name) / f"{times}-times")
            command = [sys.executable, "-c", MEMORY, root, args.data, run, store, args.steps]
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(done.stderr[-2000:])
            result = json.loads(done.stdout.splitlines()[-1])
            print(
                f"  {times:4d} x  {result['rows']:>10,} pairs  store {result['bytes'] / 1e6:7.1f} MB  "
                f"private {result['private'] / 1e6:7.1f} MB  waited for data {result['waited']:.2%}",
                flush=True,
            )


# ---- on a GPU ----------------------------------------------------------------------------------------------


def gpu_ours_gpt(args: argparse.Namespace) -> Any:
    with tempfile.TemporaryDirectory() as name:
        size = {"tokens": 8_000_000, "vocab": 50304, "length": 1024, "rows": 32}
        yield from _our_gpu(training_setup.language_model_trainer(Path(name), device=GPU, **size))


def gpu_ours_pairs(args: argparse.Namespace) -> Any:
    with tempfile.TemporaryDirectory() as name:
        recipe = training_setup.translation_recipe(args.data, batch=args.batch, device=GPU)
        yield from _our_gpu(
            training_setup.trainer_of_job(training_setup.prepare(recipe, Path(name) / "run"), GPU)
        )


def _our_gpu(trainer: Any) -> Any:
    with training_setup.prefetching(trainer) as prefetcher:
        step = our_step(trainer, prefetcher)
        for _ in range(8):
            step()
        yield None
        yield gpu_rate(step, waited=lambda: trainer.data_seconds)


def gpu_nanogpt(args: argparse.Namespace) -> Any:
    """Time nanoGPT's compiled step: forward, backward, gradient clipping and fused AdamW."""
    torch.set_float32_matmul_precision("high")
    model = reference_models.nanogpt(args.nanogpt, 50304).cuda().train()
    ids, labels = (torch.randint(0, 50304, (32, 1024), device="cuda") for _ in range(2))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    compiled = torch.compile(model)

    def step() -> tuple[int, int]:
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(ids, labels)[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return 32, ids.numel()

    for _ in range(8):
        step()
    yield None
    yield gpu_rate(step)


def gpu_torch(args: argparse.Namespace, batching: Callable[..., Any]) -> Any:
    """Time torch.nn.Transformer, compiled with dynamic shapes, on batches that are already on the GPU."""
    torch.set_float32_matmul_precision("high")
    with tempfile.TemporaryDirectory() as name:
        recipe = training_setup.translation_recipe(args.data, batch=args.batch, device=CPU)
        job = training_setup.prepare(recipe, Path(name) / "run")
        sources, targets = training_setup.sentences(job.corpus.train)
    count = round(args.batch / np.mean([len(a) + len(b) for a, b in zip(sources, targets, strict=True)]))
    batches = batching(sources, targets, count, multiple=8, pad_id=job.corpus.pad_id)
    cached = [tuple(part.cuda() for part in next(batches)) for _ in range(24)]
    endless = (cached[n % len(cached)] for n in range(10**9))
    model = reference_models.TorchTransformer(job.corpus.tokenizer.vocab_size, 128, pad_id=job.corpus.pad_id)
    ids = {"pad_id": job.corpus.pad_id, "start_id": job.start_id}
    step = reference_loops.plain_step(model, endless, GPU, compiled={"dynamic": True}, **ids)
    for _ in range(26):
        step()
    yield None
    yield gpu_rate(step)


def gpu_rate(step: Step, *, seconds: float = 4.0, waited: Callable[[], float] = lambda: 0.0) -> Any:
    """Measure tokens per second three times; return the best, with the fraction of time waiting for data."""
    best: dict[str, float] = {}
    for _ in range(3):
        torch.cuda.synchronize()
        start, before, steps, tokens = time.perf_counter(), waited(), 0, 0
        while time.perf_counter() - start < seconds / 3:
            tokens += step()[1]
            steps += 1
        torch.cuda.synchronize()
        spent = time.perf_counter() - start
        if not best or tokens / spent > best["tokens"] / best["seconds"]:
            best = {"tokens": tokens, "seconds": spent, "steps": steps, "waited": (waited() - before) / spent}
    return best


WORKERS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "gpt: glassformer train": gpu_ours_gpt,
    "gpt: nanoGPT": gpu_nanogpt,
    "pairs: glassformer train": gpu_ours_pairs,
    "pairs: torch.nn.Transformer, random batches": lambda args: gpu_torch(args, reference_loops.shuffled),
    "pairs: torch.nn.Transformer, by length": lambda args: gpu_torch(args, reference_loops.sorted_by_length),
}


def work(args: argparse.Namespace) -> None:
    """Run one benchmark in the worker process: compile, wait for a line of input, then measure and print."""
    worker_steps = WORKERS[args.worker](args)
    next(worker_steps)
    torch.cuda.empty_cache()
    print("READY", flush=True)
    sys.stdin.readline()
    print("RESULT " + json.dumps(next(worker_steps)), flush=True)


def gpu(args: argparse.Namespace) -> None:
    """Compile all candidates at the same time, then time them one by one; skip those that are not ready."""
    names = [n for n in WORKERS if (args.nanogpt or "nano" not in n) and n.startswith(args.kind)]
    output: dict[str, list[str]] = {name: [] for name in names}
    running: dict[str, Any] = {}
    for name in names:
        command = [sys.executable, *sys.argv, "--worker", name]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        running[name] = subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload]

        def read(name: str = name) -> None:
            for line in running[name].stdout:
                output[name].append(line.rstrip())

        threading.Thread(target=read, daemon=True).start()
    until = time.monotonic() + args.compile_timeout
    ready: set[str] = set()
    while time.monotonic() < until and len(ready) < len(names):
        time.sleep(0.2)
        for name in set(names) - ready:
            if "READY" in output[name] or running[name].poll() is not None:
                ready.add(name)
                print(
                    f"{name}: ready after {args.compile_timeout - (until - time.monotonic()):.0f} s",
                    flush=True,
                )
    results: dict[str, Rate] = {}
    for name in names:
        if "READY" in output[name] and running[name].poll() is None:
            running[name].stdin.write("go\n")
            running[name].stdin.flush()
            running[name].wait(60)
            time.sleep(0.2)
        lines = [line for line in output[name] if line.startswith("RESULT ")]
        if lines:
            result = json.loads(lines[0].removeprefix("RESULT "))
            print(f"{name}: {result}", flush=True)
            results[name] = Rate(result["tokens"], result["seconds"], result["steps"])
        else:
            running[name].kill()
            print(
                f"{name}: not ready in {args.compile_timeout:.0f} s",
                *output[name][-8:],
                sep="\n  ",
                flush=True,
            )
    for kind in ("gpt", "pairs"):
        ours_name = f"{kind}: glassformer train"
        of_kind = {name: rate for name, rate in results.items() if name.startswith(kind)}
        if ours_name in of_kind:
            show_rates(
                f"training on {torch.cuda.get_device_name()}", of_kind, ours=ours_name, unit="target tokens"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of Multi30k (train.en.gz ...)")
    parser.add_argument("--only", default="", help="sentences, linear, memory; gpu")
    parser.add_argument("--kind", default="", help="run only one kind on the GPU: gpt or pairs")
    parser.add_argument("--batch", type=int, help="tokens per batch (default: 2048 on a CPU, 25000 on a GPU)")
    parser.add_argument("--rounds", type=int, default=12, help="timed steps per library")
    parser.add_argument("--steps", type=int, default=300, help="training steps of the memory benchmark")
    parser.add_argument(
        "--scales",
        type=int,
        nargs="+",
        default=[1, 10, 100],
        help="how often to repeat the corpus in the memory benchmark",
    )
    parser.add_argument("--nanogpt", type=Path, help="path of nanoGPT's model.py, to compare with it")
    parser.add_argument(
        "--compile-timeout", type=float, default=240, help="seconds allowed for compilation on a GPU"
    )
    parser.add_argument(
        "--tiny", action="store_true", help="use tiny models, only to check that the script runs"
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.tiny:
        reference_models.shrink()
    on_gpu = torch.cuda.is_available()
    args.batch = args.batch or (25_000 if on_gpu else 2048)
    if args.worker:
        work(args)
        return
    cases = {"gpu": gpu} if on_gpu else {}
    cases |= {"sentences": sentences, "linear": linear, "memory": memory}
    requested = [n for n in args.only.split(",") if n] or (["gpu"] if on_gpu else list(cases))
    for name in requested:
        if name not in cases:
            parser.error(f"there is no benchmark '{name}' on this machine; there are {', '.join(cases)}")
        cases[name](args)


if __name__ == "__main__":
    with recorded():
        main()
