"""One run, from a recipe to a model folder: it begins, goes on where it stopped, or says that it is done.

runs/x/
  recipe.yaml   every setting, what was chosen for you filled in: this file runs the same training again
  asked.json    the recipe as it was given, by which the same command is known again
  data/ tokenizer/   the prepared examples       checkpoints/   to go on from
  prepared.json      what they were made of
  best/ kept/ film/  weights worth keeping       model/         the result, as `load` reads it
  train.log metrics.jsonl report.html curves.png
"""

from __future__ import annotations

import json
import math
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from glassformer.bundle import Bundle, load
from glassformer.errors import GlassformerError
from glassformer.pretrained.run_folder import BEST, MODEL, RECIPE, REQUEST, check_run_folder, is_run
from glassformer.training.activation_checkpointing import checkpoint_blocks
from glassformer.training.distributed import Parallel, parallel_from_environment
from glassformer.training.hardware import best_speed, device_for, precision_for, settle_machine
from glassformer.training.jobs import job_for
from glassformer.training.jobs.base import Job
from glassformer.training.lock import RunLock
from glassformer.training.logging.console import figure, hush
from glassformer.training.logging.report import write_report
from glassformer.training.logging.run_log import RunLog
from glassformer.training.model_folders import average_folders, mend_folder, replace_folder
from glassformer.training.model_setup import look_at_machine
from glassformer.training.recipe import Recipe, read_recipe, recipe_from
from glassformer.training.sharded_checkpoint import Saving
from glassformer.training.signals import Left, Stopping
from glassformer.training.text_encoding import Say, quiet
from glassformer.training.trainer import Ending, Loop
from glassformer.weights.replacing import replacing

# What may differ when a run goes on: how far, how fast and how loud, never what is learned.
FREE = frozenset(
    """
    steps epochs patience validate_every save_every log_every keep film samples
    device compile parallel checkpoint_activations max_bad_steps
    """.split()
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended; `exit_code` is 0, or 128 and the signal that stopped it."""

    ending: Ending
    folder: Path
    exit_code: int = 0


def run(asked: Recipe, folder: str | Path, *, say: Say) -> Outcome:
    """Train until the end, from wherever the folder stands."""
    root = Path(folder)
    device = device_for(asked.training.device)
    parallel = parallel_from_environment(asked.training.parallel, device)
    say = say if parallel.main else quiet
    try:
        if parallel.main:
            check_run_folder(root)
        with (
            RunLock(root) if parallel.main else nullcontext(),
            Stopping(main=parallel.main) as stopping,
        ):
            if parallel.main and not (root / REQUEST).is_file():
                _write_request(asked, root)
            outcome = _run(asked, root, parallel, stopping, say)
        parallel.meet()
        return outcome
    except Left:
        return Outcome(ending="asked", folder=root, exit_code=stopping.exit_code)
    finally:
        parallel.close()


def _run(asked: Recipe, root: Path, parallel: Parallel, stopping: Stopping, say: Say) -> Outcome:
    def prepare() -> Job:
        return begin(asked, root, parallel.device, say, ranks=parallel.ranks)

    begun = (root / "checkpoints").exists()
    left = "the checkpoints stand, and the same command goes on" if begun else "the same command begins again"
    job = _in_turn(parallel, stopping, f"stopped while preparing, before a step was done; {left}", prepare)
    recipe = job.recipe
    words = recipe.training
    if words.accumulate % parallel.ranks:
        raise GlassformerError(
            f"a step of this run has {words.accumulate} batches (training.accumulate), which "
            f"{parallel.ranks} processes cannot share evenly; take it up with a number that divides it"
        )
    settle_machine(words, parallel.device)
    torch.manual_seed(recipe.seed)
    task = job.task()
    if words.checkpoint_activations:
        checkpoint_blocks(task.learner)
    with _loop(job, task, root, parallel, stopping) as loop:
        ending: Ending = loop.run()
        if ending == "asked":
            loop.log.say(
                f"stopped at step {loop.standing.step:,} of {loop.steps:,}, as asked; "
                "the same command goes on"
            )
            return Outcome(ending=ending, folder=root, exit_code=stopping.exit_code)
        if ending == "patience":
            loop.log.say(
                f"nothing better by {loop.metric} since step {loop.standing.best_step:,}; "
                f"stopped before step {loop.steps:,}"
            )
        finish(loop, root)
        with torch.no_grad():
            tested = job.test(root / MODEL, parallel.device) if parallel.main else {}
        if tested:
            loop.log.facts({f"test {name}": value for name, value in tested.items()})
            told = ", ".join(f"{name} {value:.4g}" for name, value in tested.items())
            loop.log.say(f"on what was kept for the end: {told}")
        loop.log.facts({"steps skipped": loop.standing.skipped, "seconds waited for data": loop.waited})
    if parallel.main:
        try:
            say(write_report(root))
        except GlassformerError as error:  # the model is there; a page about it is not worth failing for
            say(str(error))
    return Outcome(ending=ending, folder=root)


def _in_turn(parallel: Parallel, stopping: Stopping, left: str, prepare: Callable[[], Job]) -> Job:
    """The first rank prepares the folder; the others then find everything there.

    left: what is said where a stop is asked for meanwhile, which is obeyed at once.
    """
    job = None
    try:
        if parallel.main:
            with stopping.at_once(left):
                made = prepare()
            job = made
    finally:
        failed = parallel.agree(parallel.main and job is None)
    if failed:
        if stopping.asked:
            raise Left
        raise GlassformerError("the first process could not prepare the run; what it says is the reason")
    return job or prepare()


def begin(asked: Recipe, root: Path, device: torch.device, say: Say, *, ranks: int = 1) -> Job:
    """The job with its data gathered and every setting filled in, kept in the folder for the next time."""
    for name in (BEST, MODEL, "tokenizer"):
        mend_folder(root / name)
    known = settled(asked, root)
    job = job_for(known or shared_evenly(asked, ranks, say), root, say)
    if known is None:
        job.check()
    job.gather()
    if known is None:
        reasons = job.choose(look_at_machine(device))
        for reason in reasons:
            say(reason)
        job.facts["chosen"] = reasons
        _write_request(asked, root)
        _write(root / RECIPE, job.recipe.to_yaml())
    elif known != read_recipe(root / RECIPE):  # it goes further, or on another device
        _write(root / RECIPE, known.to_yaml())
    return job


def shared_evenly(asked: Recipe, ranks: int, say: Say) -> Recipe:
    """With as many batches a step as the processes can share, at least one each."""
    training = asked.training
    batches = -(-training.accumulate // ranks) * ranks
    if batches != training.accumulate:
        say(f"a step has {batches} batches, to be shared by {ranks} processes")
    return replace(asked, training=replace(training, accumulate=batches))


def settled(asked: Recipe, root: Path) -> Recipe | None:
    """The recipe of the run that the folder holds, if it is the one asked for; None where there is none.

    Another run's folder is refused with the first setting that differs, unless nothing was saved of it yet.
    """
    if not is_run(root):
        return None
    kept = read_recipe(root / RECIPE)
    before = kept.to_dict()
    if (root / REQUEST).is_file():
        before = json.loads((root / REQUEST).read_text(encoding="utf-8"))
    now = asked.to_dict()
    differs = difference(now, before)
    if differs and difference(now, kept.to_dict()):
        if not any((root / name).exists() for name in ("checkpoints", MODEL)):
            return None  # it came to nothing, as where a setting turned out to be wrong
        name, new, old = differs
        raise GlassformerError(
            f"'{root}' holds another run, where {name} is {old!r:.60} and not {new!r:.60}; give another "
            "--out, or remove the folder to begin anew"
        )
    changed = kept.to_dict()
    further = changed["training"]
    for name in FREE:
        if now["training"][name] is not None:
            further[name] = now["training"][name]
    epochs = kept.training.epochs
    if epochs and now["training"]["steps"] is None and further["epochs"] != epochs:
        further["steps"] = math.ceil(further["steps"] * further["epochs"] / epochs)
    return recipe_from(changed, str(root / RECIPE))


def difference(now: Mapping[str, Any], before: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The first setting, not a free one, that differs: its name, what it is now, what it was."""
    for section in now:
        new, old = now[section], before.get(section)
        if not isinstance(new, Mapping) or not isinstance(old, Mapping):
            if new != old:
                return section, new, old
            continue
        for name in {**new, **old}:
            free = section == "training" and name in FREE
            if not free and new.get(name) != old.get(name):
                return f"{section}.{name}", new.get(name), old.get(name)
    return None


@contextmanager
def _loop(job: Job, task: Any, root: Path, parallel: Parallel, stopping: Stopping) -> Iterator[Loop]:
    """The loop where the run stands, with its log open."""
    recipe, words = job.recipe, job.recipe.training
    saved = Saving(root / "checkpoints", parallel, keep=words.keep).newest()
    step = saved.step if saved is not None else 0
    assert words.steps is not None
    best = best_speed(parallel.device, precision_for(words, parallel.device))
    with RunLog(
        root,
        total_steps=words.steps,
        from_step=step,
        unit=task.units,
        every=words.log_every or 1,
        peak_flops=best and best * parallel.ranks,  # a step's units are those of all ranks
        main=parallel.main,
    ) as log:
        weights = sum(p.numel() for p in task.learner.parameters())
        log.facts({"job": recipe.job, "parameters": weights, "device": str(parallel.device), **job.facts})
        loop = Loop(task, words, seed=recipe.seed, folder=root, parallel=parallel, log=log, stopping=stopping)
        if saved is None:
            log.say(f"{weights:,} parameters, {words.steps:,} steps on {parallel.device}")
        else:
            for told in saved.passed_over:
                log.say(f"passed over a damaged checkpoint: {told}; the one before it is taken")
            loop.restore(saved)
            done = step >= words.steps
            log.say(f"{'finished at' if done else 'going on from'} step {step:,} of {words.steps:,}")
        yield loop


def finish(loop: Loop, root: Path) -> None:
    """Write the model folder: an average, the best, or the last, as the recipe says."""
    words, standing = loop.words, loop.standing
    model = root / MODEL
    if words.average and standing.kept:
        steps = [step for step, _ in standing.kept]
        if loop.parallel.main:
            folders = [loop.kept_folder(step) for step in steps]
            replace_folder(model, lambda path: average_folders(folders, path))
        told = ", ".join(f"{step:,}" for step in sorted(steps))
        which = f", the best by {loop.metric}" if words.average_of == "best" else ""
        loop.log.say(f"the model is the average of steps {told}{which}: {model}")
    elif words.final == "best" and (root / BEST).is_dir():
        if loop.parallel.main:
            replace_folder(model, lambda path: shutil.copytree(root / BEST, path))
        score = "" if standing.best is None else f" {figure(standing.best)}"
        loop.log.say(
            f"the model is the best by {loop.metric},{score} at step {standing.best_step:,}: {model}"
        )
    else:
        with torch.no_grad(), loop.evaluating():
            if loop.parallel.main:
                replace_folder(model, loop.task.save)
        loop.log.say(f"the model is that of the last step: {model}")


def _write_request(asked: Recipe, root: Path) -> None:
    _write(root / REQUEST, json.dumps(asked.to_dict(), ensure_ascii=False, indent=2))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(text.encode())


def tell(sentence: str) -> None:
    """To standard error, where the progress is shown too."""
    try:
        print(sentence, file=sys.stderr, flush=True)
    except BrokenPipeError:  # a run goes on without its listeners
        hush()


def train(recipe: Recipe | Mapping[str, Any] | str | Path, folder: str | Path, *, say: Say = tell) -> Bundle:
    """Train in a run folder, as `glassformer train` does, and load the model that comes of it.

    recipe: a recipe's file, or what one holds; all but its job and data may be left out.
    folder: called again with the same recipe, a run goes on where it stopped, or is found finished.
    say: is given a sentence for each choice made on the way.

    Ctrl-C saves a checkpoint, once there are steps, and is raised as KeyboardInterrupt; another signal as
    SystemExit.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place:
    ...     _ = Path(place, "sea.txt").write_text("the old captain sang to the sea. " * 99)
    ...     recipe = {
    ...         "job": "lm",
    ...         "data": {"train": f"{place}/sea.txt"},
    ...         "tokenizer": {"kind": "char"},
    ...         "model": {"d_model": 16, "num_heads": 2, "d_ff": 32, "num_layers": 1},
    ...         "training": {"steps": 2, "device": "cpu"},
    ...     }
    ...     bundle = train(recipe, f"{place}/run", say=lambda sentence: None)
    >>> bundle.family, bundle.tokenizer.decode(bundle.tokenizer.encode("sea").ids)
    ('gpt2', 'sea')
    """
    if isinstance(recipe, str | Path):
        recipe = read_recipe(recipe)
    elif not isinstance(recipe, Recipe):
        recipe = recipe_from(recipe)
    outcome = run(recipe, folder, say=say)
    if outcome.exit_code == 128 + signal.SIGINT:
        raise KeyboardInterrupt
    if outcome.exit_code:
        raise SystemExit(outcome.exit_code)
    return load(outcome.folder / MODEL)
