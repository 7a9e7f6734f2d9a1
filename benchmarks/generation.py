"""Writing beside the peers, on the same weights in one run: python benchmarks/generation.py [--only base4]

On a CPU: output tokens a second of the base encoder-decoder (32 sentences of 12 to 24 tokens; greedy, and by
4 beams) and of GPT-2 124M (1 and 8 prompts of 16 tokens, greedy), ours beside transformers' `generate` and
CTranslate2 in float32, whose outputs must first equal ours; and ours in int8 beside CTranslate2 in int8.
Every text has the same length. Each runs in a process of its own, in turns. Above 1 in the last column, we
are the faster. `--profile` shows where our time goes instead.
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
from benchmarks.timing import Rate, show_rates
from glassformer.generation import GenerationConfig, GenerationParams, generate_batched
from glassformer.generation.inference_model import prepare_for_inference

OURS, THEIRS, CT2 = "glassformer", "transformers", "CTranslate2"
OURS_INT8, CT2_INT8 = "glassformer int8", "CTranslate2 int8"
Texts = list[list[int]]
CASE = "benchmark.json"


class Job(NamedTuple):
    """One comparison: what is read, how it is written, and how long every text is."""

    title: str
    examples: Texts
    length: int
    beams: int = 1


class Names:
    """The tokenizer that CTranslate2's converter asks for: each token is called by its number."""

    eos_token = bos_token = unk_token = "0"

    def __init__(self, size: int, pad_id: int | None = None) -> None:
        self.names = {"<pad>" if number == pad_id else str(number): number for number in range(size)}

    def get_vocab(self) -> dict[str, int]:
        return self.names


def converted(folder: Path, names: Names) -> Path:
    """A folder in CTranslate2's format, made from one in the reference library's."""
    from ctranslate2.converters import TransformersConverter

    class Converter(TransformersConverter):  # type: ignore[misc]
        def load_tokenizer(self, *_: Any, **__: Any) -> Names:
            return names

    return Path(Converter(str(folder)).convert(str(folder / "ctranslate2")))


def run_ours(model: torch.nn.Module, job: Job, *, eos_id: int, pad_id: int, never: tuple[int, ...]) -> Any:
    config = GenerationConfig(
        max_new_tokens=job.length,
        min_new_tokens=job.length,
        num_beams=job.beams,
        suppress_tokens=never,
    )

    def write() -> Texts:
        outputs = generate_batched(
            model, job.examples, GenerationParams(config=config, eos_token_id=eos_id, pad_token_id=pad_id)
        )
        return [texts[0].ids for texts in outputs]

    return write


def run_theirs(model: Any, job: Job, *, pad_id: int, never: tuple[int, ...]) -> Any:
    width = max(map(len, job.examples))
    ids = torch.tensor([[*one, *[pad_id] * (width - len(one))] for one in job.examples])
    real = torch.tensor([[n < len(one) for n in range(width)] for one in job.examples]).long()
    options = {
        "max_new_tokens": job.length,
        "min_new_tokens": job.length,
        "num_beams": job.beams,
        "do_sample": False,
        "suppress_tokens": list(never) or None,
    }

    def write() -> Texts:
        with torch.inference_mode():
            outputs = model.generate(input_ids=ids, attention_mask=real, **options)
        return [row[-job.length :] for row in outputs.tolist()]

    return write


def run_translator(folder: Path, kind: str, job: Job) -> Any:
    import ctranslate2

    threads = torch.get_num_threads()
    peer = ctranslate2.Translator(str(folder), compute_type=kind, inter_threads=1, intra_threads=threads)
    examples = [[str(token) for token in one] for one in job.examples]
    options = {"beam_size": job.beams, "max_decoding_length": job.length, "min_decoding_length": job.length}

    def write() -> Texts:
        outputs = peer.translate_batch(examples, **options)
        return [[int(token) for token in one.hypotheses[0]] for one in outputs]

    return write


def run_generator(folder: Path, kind: str, job: Job) -> Any:
    import ctranslate2

    threads = torch.get_num_threads()
    peer = ctranslate2.Generator(str(folder), compute_type=kind, inter_threads=1, intra_threads=threads)
    examples = [[str(token) for token in one] for one in job.examples]
    options = {"max_length": job.length, "min_length": job.length, "include_prompt_in_result": False}

    def write() -> Texts:
        return [one.sequences_ids[0] for one in peer.generate_batch(examples, beam_size=job.beams, **options)]

    return write


def contender(name: str, folder: Path, job: Job, never: tuple[int, ...]) -> Callable[[], Texts]:
    """One who writes, on the weights in the folder."""
    pad_id = never[0] if never else 0
    if name in (OURS, OURS_INT8):
        model = prepare_for_inference(glassformer.load(folder).model, "int8" if name == OURS_INT8 else "own")
        run = run_ours(model, job, eos_id=0, pad_id=pad_id, never=never)
    elif name == THEIRS:
        import transformers

        kind = transformers.AutoModelForSeq2SeqLM if never else transformers.AutoModelForCausalLM
        run = run_theirs(kind.from_pretrained(folder).eval(), job, pad_id=pad_id, never=never)
    else:
        runner = run_translator if never else run_generator
        run = runner(folder / "ctranslate2", "int8" if name == CT2_INT8 else "float32", job)
    return cast(Callable[[], Texts], run)


class Apart:
    """A contender in a process of its own: two runtimes in one process slow each other down."""

    def __init__(self, name: str, folder: Path) -> None:
        command = [sys.executable, __file__, "--as", name, "--folder", str(folder)]
        pipe = subprocess.PIPE
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self.errors, text=True)

    def write(self) -> tuple[float, Texts]:
        """Seconds, and what was written."""
        assert self.child.stdin is not None and self.child.stdout is not None
        print(file=self.child.stdin, flush=True)
        line = self.child.stdout.readline()
        if not line:
            self.errors.seek(0)
            raise SystemExit(f"{self.child.args} failed:\n{self.errors.read()[-2000:]}")
        seconds, texts = json.loads(line)
        return seconds, texts

    def leave(self) -> None:
        self.child.communicate()


def play(name: str, folder: Path) -> None:
    """The child's side: a line in, a line out."""
    about = json.loads((folder / CASE).read_text())
    write = contender(name, folder, Job(**about["job"]), tuple(about["never"]))
    for _ in sys.stdin:
        start = time.perf_counter()
        texts = write()
        print(json.dumps([time.perf_counter() - start, texts]), flush=True)


def compare(job: Job, folder: Path, names: list[str], rounds: int) -> None:
    """Equal outputs first, then the times in turn."""
    apart = {name: Apart(name, folder) for name in names}
    texts = {name: one.write()[1] for name, one in apart.items()}
    for name, written in texts.items():
        if [len(one) for one in written] != [job.length] * len(job.examples):
            raise SystemExit(f"{job.title}: {name} did not write {job.length} tokens for every text")
        same = sum(one == other for one, other in zip(written, texts[OURS], strict=True))
        if name not in (OURS_INT8, CT2_INT8) and same < len(written):
            raise SystemExit(f"{job.title}: {same} of {len(written)} texts of {name} equal ours")
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds + 1):
        for name, one in apart.items():
            time.sleep(0.3)  # threads spin for a while after their work, which the others must not pay for
            times[name].append(one.write()[0])
    for one in apart.values():
        one.leave()
    work = job.length * len(job.examples)
    rates = {name: Rate(work, median(outputs[1:]), job.length) for name, outputs in times.items()}
    rounded = {OURS_INT8, CT2_INT8}
    exact = {name: rate for name, rate in rates.items() if name not in rounded}
    show_rates(job.title, exact, ours=OURS, unit="output tokens")
    rest = {name: rate for name, rate in rates.items() if name in rounded}
    show_rates(f"{job.title}, int8", rest, ours=OURS_INT8, unit="output tokens")


def profile(write: Callable[[], Texts], title: str) -> None:
    """The operators that take most of our time, themselves without what they call."""
    write()
    start = time.perf_counter()
    write()
    plain = time.perf_counter() - start
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        write()
    events = seen.key_averages()
    inside = sum(event.self_cpu_time_total for event in events) / 1e6
    print(f"{title}: {plain:.2f} s; under the profiler {inside:.2f} s in operators")
    print(events.table(sort_by="self_cpu_time_total", row_limit=14, max_name_column_width=40))


def base(title: str, beams: int, args: argparse.Namespace) -> None:
    """The Marian shape, whose padding is the last token and starts the target."""
    vocab = 8000
    torch.manual_seed(0)
    lengths = torch.randint(12, 25, (32,)).tolist()
    examples = [torch.randint(1, vocab - 1, (length,)).tolist() for length in lengths]
    job = Job(title, examples, args.length, beams)
    reference = reference_models.marian(vocab, 256, pad_id=vocab - 1, eos_id=0, start_id=vocab - 1)
    reference.generation_config.forced_eos_token_id = reference.config.forced_eos_token_id = None
    measure(job, reference, Names(vocab, vocab - 1), (vocab - 1,), args)


def gpt(title: str, count: int, args: argparse.Namespace) -> None:
    import transformers

    torch.manual_seed(0)
    config = reference_models.gpt2_config(bos_token_id=0, eos_token_id=0, pad_token_id=0)
    examples = torch.randint(1, config.vocab_size, (count, 16)).tolist()
    reference = transformers.GPT2LMHeadModel(config)
    measure(Job(title, examples, args.length), reference, Names(config.vocab_size), (), args)


def measure(job: Job, reference: Any, names: Names, never: tuple[int, ...], args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        reference.eval().save_pretrained(folder)
        (folder / CASE).write_text(json.dumps({"job": job._asdict(), "never": never}))
        running = [OURS, OURS_INT8, THEIRS]
        if importlib.util.find_spec("ctranslate2") is not None:
            converted(folder, names)
            running += [CT2, CT2_INT8]
        else:
            print("CTranslate2 is not installed: left out")
        if not args.profile:
            compare(job, folder, running, args.rounds)
        for name in (OURS, OURS_INT8) if args.profile else ():
            profile(contender(name, folder, job, never), f"{job.title}, {name}")


JOBS: dict[str, Callable[[argparse.Namespace], None]] = {
    "base": lambda args: base("base encoder-decoder, 32 sentences, greedy, CPU", 1, args),
    "base4": lambda args: base("base encoder-decoder, 32 sentences, 4 beams, CPU", 4, args),
    "gpt": lambda args: gpt("GPT-2 124M, 1 prompt, greedy, CPU", 1, args),
    "gpt8": lambda args: gpt("GPT-2 124M, 8 prompts, greedy, CPU", 8, args),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help=", ".join(JOBS))
    parser.add_argument("--rounds", type=int, default=5, help="turns of each")
    parser.add_argument("--length", type=int, default=32, help="tokens to write")
    parser.add_argument("--profile", action="store_true", help="where our own time goes")
    parser.add_argument("--tiny", action="store_true", help="tiny models: only checks that this runs")
    parser.add_argument("--as", dest="name", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.name:
        play(args.name, args.folder)
        return
    if args.tiny:
        reference_models.shrink()
    for name in [name for name in args.only.split(",") if name] or list(JOBS):
        if name not in JOBS:
            parser.error(f"there is no benchmark '{name}'; there are {', '.join(JOBS)}")
        JOBS[name](args)


if __name__ == "__main__":
    main()
