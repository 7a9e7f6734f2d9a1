"""Compare generation with other libraries on the same weights: python benchmarks/generation.py [--only base4]

Measures output tokens per second on a CPU: the base encoder-decoder (32 sentences of 12 to 24 tokens, greedy
and with 4 beams) and GPT-2 124M (1 and 8 prompts of 16 tokens, greedy). Glassformer is compared with
transformers' `generate` and CTranslate2 in float32, after checking that all outputs are equal, and with
CTranslate2 in int8. All outputs have the same length. Each library runs in its own process; they are timed in
turns. In the last column, a value above 1 means that Glassformer is faster. `--profile` shows the most
expensive operators of Glassformer instead.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, cast

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

import glassformer
from benchmarks import reference_models
from benchmarks.recording import add_samples, recorded
from benchmarks.timing import Rate, clock, show_rates
from glassformer.generation import GenerationConfig, GenerationParams, generate_batched
from glassformer.generation.inference_model import prepare_for_inference

OURS, THEIRS, CT2 = "glassformer", "transformers", "CTranslate2"
OURS_INT8, CT2_INT8 = "glassformer int8", "CTranslate2 int8"
Texts = list[list[int]]
CASE = "benchmark.json"


class Job(NamedTuple):
    """One comparison: token ids of the inputs, length of each output, and number of beams."""

    title: str
    examples: Texts
    length: int
    beams: int = 1


class NumberTokenizer:
    """The tokenizer for CTranslate2's converter; the text of each token is its id."""

    eos_token = bos_token = unk_token = "0"

    def __init__(self, size: int, pad_id: int | None = None) -> None:
        self.names = {"<pad>" if number == pad_id else str(number): number for number in range(size)}

    def get_vocab(self) -> dict[str, int]:
        return self.names


def convert_to_ctranslate2(folder: Path, names: NumberTokenizer) -> Path:
    """Convert a folder of transformers to CTranslate2's format; return the new folder."""
    from ctranslate2.converters import TransformersConverter

    class Converter(TransformersConverter):  # type: ignore[misc]
        def load_tokenizer(self, *_: Any, **__: Any) -> NumberTokenizer:
            return names

    return Path(Converter(str(folder)).convert(str(folder / "ctranslate2")))


def run_ours(
    model: torch.nn.Module, job: Job, *, eos_id: int, pad_id: int, suppressed: tuple[int, ...]
) -> Any:
    config = GenerationConfig(
        max_new_tokens=job.length,
        min_new_tokens=job.length,
        num_beams=job.beams,
        suppress_tokens=suppressed,
    )

    def generate_texts() -> Texts:
        outputs = generate_batched(
            model, job.examples, GenerationParams(config=config, eos_token_id=eos_id, pad_token_id=pad_id)
        )
        return [texts[0].ids for texts in outputs]

    return generate_texts


def run_theirs(model: Any, job: Job, *, pad_id: int, suppressed: tuple[int, ...]) -> Any:
    width = max(map(len, job.examples))
    ids = torch.tensor([[*ids, *[pad_id] * (width - len(ids))] for ids in job.examples])
    real = torch.tensor([[n < len(ids) for n in range(width)] for ids in job.examples]).long()
    options = {
        "max_new_tokens": job.length,
        "min_new_tokens": job.length,
        "num_beams": job.beams,
        "do_sample": False,
        "suppress_tokens": list(suppressed) or None,
    }

    def generate_texts() -> Texts:
        with torch.inference_mode():
            outputs = model.generate(input_ids=ids, attention_mask=real, **options)
        return [row[-job.length :] for row in outputs.tolist()]

    return generate_texts


def run_translator(folder: Path, kind: str, job: Job) -> Any:
    import ctranslate2

    threads = torch.get_num_threads()
    backend = ctranslate2.Translator(str(folder), compute_type=kind, inter_threads=1, intra_threads=threads)
    examples = [[str(token) for token in ids] for ids in job.examples]
    options = {"beam_size": job.beams, "max_decoding_length": job.length, "min_decoding_length": job.length}

    def generate_texts() -> Texts:
        outputs = backend.translate_batch(examples, **options)
        return [[int(token) for token in result.hypotheses[0]] for result in outputs]

    return generate_texts


def run_generator(folder: Path, kind: str, job: Job) -> Any:
    import ctranslate2

    threads = torch.get_num_threads()
    backend = ctranslate2.Generator(str(folder), compute_type=kind, inter_threads=1, intra_threads=threads)
    examples = [[str(token) for token in ids] for ids in job.examples]
    options = {"max_length": job.length, "min_length": job.length, "include_prompt_in_result": False}

    def generate_texts() -> Texts:
        results = backend.generate_batch(examples, beam_size=job.beams, **options)
        return [result.sequences_ids[0] for result in results]

    return generate_texts


def load_generator(name: str, folder: Path, job: Job, suppressed: tuple[int, ...]) -> Callable[[], Texts]:
    """Load the weights in a folder with a library; return a function that generates all outputs."""
    pad_id = suppressed[0] if suppressed else 0
    if name in (OURS, OURS_INT8):
        model = prepare_for_inference(glassformer.load(folder).model, "int8" if name == OURS_INT8 else "own")
        run = run_ours(model, job, eos_id=0, pad_id=pad_id, suppressed=suppressed)
    elif name == THEIRS:
        import transformers

        kind = transformers.AutoModelForSeq2SeqLM if suppressed else transformers.AutoModelForCausalLM
        run = run_theirs(kind.from_pretrained(folder).eval(), job, pad_id=pad_id, suppressed=suppressed)
    else:
        runner = run_translator if suppressed else run_generator
        run = runner(folder / "ctranslate2", "int8" if name == CT2_INT8 else "float32", job)
    return cast(Callable[[], Texts], run)


class WorkerProcess:
    """Run one library in its own process, since two runtimes in one process slow each other down."""

    def __init__(self, name: str, folder: Path) -> None:
        command = [sys.executable, __file__, "--as", name, "--folder", str(folder)]
        pipe = subprocess.PIPE
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self.errors, text=True)

    def generate_texts(self) -> tuple[float, Texts]:
        """Return the seconds taken and the generated texts."""
        assert self.child.stdin is not None and self.child.stdout is not None
        print(file=self.child.stdin, flush=True)
        line = self.child.stdout.readline()
        if not line:
            self.errors.seek(0)
            raise SystemExit(f"{self.child.args} failed:\n{self.errors.read()[-2000:]}")
        seconds, texts = json.loads(line)
        return seconds, texts

    def close(self) -> None:
        self.child.communicate()


def run_worker(name: str, folder: Path) -> None:
    """Generate once for each line of standard input, in the worker process; print seconds and texts."""
    case = json.loads((folder / CASE).read_text())
    generate_texts = load_generator(name, folder, Job(**case["job"]), tuple(case["suppressed"]))
    now, _ = clock()
    for _ in sys.stdin:
        start = now()
        texts = generate_texts()
        print(json.dumps([now() - start, texts]), flush=True)


def compare(job: Job, folder: Path, names: list[str], rounds: int) -> None:
    """Check that all outputs are equal, then time the libraries in turns."""
    workers = {name: WorkerProcess(name, folder) for name in names}
    texts = {name: worker.generate_texts()[1] for name, worker in workers.items()}
    for name, outputs in texts.items():
        if [len(ids) for ids in outputs] != [job.length] * len(job.examples):
            raise SystemExit(f"{job.title}: {name} did not generate {job.length} tokens for every text")
        same = sum(ids == ours for ids, ours in zip(outputs, texts[OURS], strict=True))
        if name not in (OURS_INT8, CT2_INT8) and same < len(outputs):
            raise SystemExit(f"{job.title}: {same} of {len(outputs)} texts of {name} equal ours")
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds + 1):
        for name, worker in workers.items():
            time.sleep(0.3)  # let the idle threads of the previous library stop spinning
            times[name].append(worker.generate_texts()[0])
    for worker in workers.values():
        worker.close()
    add_samples({name: outputs[1:] for name, outputs in times.items()})
    work = job.length * len(job.examples)
    rates = {name: Rate(work, median(outputs[1:]), job.length) for name, outputs in times.items()}
    quantized = {OURS_INT8, CT2_INT8}
    exact = {name: rate for name, rate in rates.items() if name not in quantized}
    show_rates(job.title, exact, ours=OURS, unit="output tokens")
    int8 = {name: rate for name, rate in rates.items() if name in quantized}
    show_rates(f"{job.title}, int8", int8, ours=OURS_INT8, unit="output tokens")


def profile(generate_texts: Callable[[], Texts], title: str) -> None:
    """Print the operators with the largest self time."""
    generate_texts()
    start = time.perf_counter()
    generate_texts()
    seconds = time.perf_counter() - start
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        generate_texts()
    events = profiler.key_averages()
    operator_seconds = sum(event.self_cpu_time_total for event in events) / 1e6
    print(f"{title}: {seconds:.2f} s; under the profiler {operator_seconds:.2f} s in operators")
    print(events.table(sort_by="self_cpu_time_total", row_limit=14, max_name_column_width=40))


def base(title: str, beams: int, args: argparse.Namespace) -> None:
    """Compare a Marian model of base size; the last id is both padding and decoder start token."""
    vocab = 8000
    torch.manual_seed(0)
    lengths = torch.randint(12, 25, (32,)).tolist()
    examples = [torch.randint(1, vocab - 1, (length,)).tolist() for length in lengths]
    job = Job(title, examples, args.length, beams)
    reference = reference_models.marian(vocab, 256, pad_id=vocab - 1, eos_id=0, start_id=vocab - 1)
    reference.generation_config.forced_eos_token_id = reference.config.forced_eos_token_id = None
    measure(job, reference, NumberTokenizer(vocab, vocab - 1), (vocab - 1,), args)


def gpt(title: str, count: int, args: argparse.Namespace) -> None:
    import transformers

    torch.manual_seed(0)
    config = reference_models.gpt2_config(bos_token_id=0, eos_token_id=0, pad_token_id=0)
    examples = torch.randint(1, config.vocab_size, (count, 16)).tolist()
    reference = transformers.GPT2LMHeadModel(config)
    measure(Job(title, examples, args.length), reference, NumberTokenizer(config.vocab_size), (), args)


def measure(
    job: Job, reference: Any, names: NumberTokenizer, suppressed: tuple[int, ...], args: argparse.Namespace
) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        reference.eval().save_pretrained(folder)
        (folder / CASE).write_text(json.dumps({"job": job._asdict(), "suppressed": suppressed}))
        running = [OURS, OURS_INT8, THEIRS]
        if importlib.util.find_spec("ctranslate2") is not None:
            convert_to_ctranslate2(folder, names)
            running += [CT2, CT2_INT8]
        else:
            print("CTranslate2 is not installed and is skipped")
        if not args.profile:
            compare(job, folder, running, args.rounds)
        for name in (OURS, OURS_INT8) if args.profile else ():
            profile(load_generator(name, folder, job, suppressed), f"{job.title}, {name}")


JOBS: dict[str, Callable[[argparse.Namespace], None]] = {
    "base": lambda args: base("base encoder-decoder, 32 sentences, greedy, CPU", 1, args),
    "base4": lambda args: base("base encoder-decoder, 32 sentences, 4 beams, CPU", 4, args),
    "gpt": lambda args: gpt("GPT-2 124M, 1 prompt, greedy, CPU", 1, args),
    "gpt8": lambda args: gpt("GPT-2 124M, 8 prompts, greedy, CPU", 8, args),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help=", ".join(JOBS))
    parser.add_argument("--rounds", type=int, default=5, help="number of timed runs per library")
    parser.add_argument("--length", type=int, default=32, help="tokens to generate")
    parser.add_argument("--profile", action="store_true", help="profile Glassformer instead")
    parser.add_argument(
        "--tiny", action="store_true", help="use tiny models, only to check that the script runs"
    )
    parser.add_argument("--as", dest="name", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.name:
        run_worker(args.name, args.folder)
        return
    if args.tiny:
        reference_models.shrink()
    for name in [name for name in args.only.split(",") if name] or list(JOBS):
        if name not in JOBS:
            parser.error(f"there is no benchmark '{name}'; there are {', '.join(JOBS)}")
        JOBS[name](args)


if __name__ == "__main__":
    with recorded():
        main()
