"""The model a recipe asks for: its size for the data and the hardware, and how it is built or loaded."""

from __future__ import annotations

import inspect
import math
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from glassformer.bundle import Bundle, load
from glassformer.core import spec as specs
from glassformer.core.build import build, canonical
from glassformer.core.init import initialise
from glassformer.core.model import AnyModel
from glassformer.core.schema import nearest
from glassformer.errors import GlassformerError
from glassformer.families.family import Config, Family
from glassformer.families.registry import families, family_for, presets, refuse_unknown, spec_of
from glassformer.training import recipe as recipes
from glassformer.training.hardware import best_speed

PATIENCE = 45 * 60.0  # seconds a person would wait for a first model
USED = 0.35  # the share of a machine's best that training reaches


@dataclass(frozen=True, kw_only=True)
class Size:
    """One rung: words of a model family, its weights about, and the fewest units it is worth training on."""

    name: str
    d_model: int
    num_heads: int
    d_ff: int
    num_layers: int
    worth: int
    dropout: float

    def weights(self, *, stacks: int = 1, cross: bool = False) -> float:
        """Weights of the layers: four squares for attention, two sheets for the feed-forward."""
        attention = 4 * self.d_model**2
        one = attention + 2 * self.d_model * self.d_ff
        return self.num_layers * (one * stacks + (attention if cross else 0))

    def words(self) -> dict[str, int | float]:
        names = ("d_model", "num_heads", "d_ff", "num_layers", "dropout")
        return {name: getattr(self, name) for name in names}


# The least data first. `worth` is in tokens to be learned.
LADDER: tuple[Size, ...] = (
    Size(name="nano", d_model=64, num_heads=4, d_ff=256, num_layers=2, worth=0, dropout=0.1),
    Size(name="tiny", d_model=128, num_heads=4, d_ff=512, num_layers=3, worth=50_000, dropout=0.2),
    Size(name="small", d_model=256, num_heads=4, d_ff=1024, num_layers=4, worth=300_000, dropout=0.2),
    Size(name="middle", d_model=384, num_heads=6, d_ff=1536, num_layers=6, worth=3_000_000, dropout=0.15),
    Size(name="base", d_model=512, num_heads=8, d_ff=2048, num_layers=6, worth=15_000_000, dropout=0.1),
    Size(name="big", d_model=768, num_heads=12, d_ff=3072, num_layers=12, worth=300_000_000, dropout=0.1),
)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What training runs on, and the operations a second it may be counted on for."""

    device: torch.device
    speed: float

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"


def look_at_machine(device: torch.device) -> Machine:
    """On a CPU a few products are timed; a GPU is known by its name, or taken for a modest one."""
    if device.type == "cuda":
        return Machine(device=device, speed=USED * (best_speed(device, torch.bfloat16) or 100e12))
    one = torch.randn(512, 512)
    best = math.inf
    for _ in range(6):
        began = time.perf_counter()
        one @ one
        best = min(best, time.perf_counter() - began)
    return Machine(device=device, speed=USED * 2 * 512**3 / best)


def passes_wanted(units: int) -> float:
    """How often data of this size is worth going through: little data often, much of it once.

    >>> [passes_wanted(n) for n in (5_000, 500_000, 50_000_000)]
    [200.0, 40.0, 1.0]
    """
    return min(200.0, max(1.0, 20_000_000 / max(units, 1)))


def fitting(
    machine: Machine,
    *,
    units: int,
    vocab_size: int,
    stacks: int = 1,
    passes: float | None = None,
    given: bool = False,
    ladder: Sequence[Size] = LADDER,
) -> tuple[Size, float, str]:
    """A size, how many passes over the data, and a sentence that says why.

    `units` are learned in a pass; `stacks` is 2 where an encoder reads about as much beside; `passes` are
    those wanted, where they do not follow from the units; where a recipe has `given` how long to train, the
    sentence says nothing of passes. A size is too large when the time a person waits
    gives it neither ten passes nor three units a weight.
    """
    wanted = passes_wanted(units) if passes is None else passes
    worthy = [size for size in ladder if units >= size.worth] or [ladder[0]]

    def weights(size: Size) -> float:
        return size.weights(stacks=stacks, cross=stacks > 1) + size.d_model * vocab_size

    def learned(size: Size) -> float:
        """Units that can be learned while a person waits."""
        return PATIENCE * machine.speed / (6 * weights(size))

    def enough(size: Size) -> bool:
        return learned(size) >= min(units * min(wanted, 10), 3 * weights(size))

    chosen = next((size for size in reversed(worthy) if enough(size)), worthy[0])
    done = min(float(f"{wanted:.2g}"), float(f"{learned(chosen) / units:.2g}"))
    why = f"the size '{chosen.name}' suits {units:,} units to learn"
    if chosen is not worthy[-1]:
        why += f" in the time this {machine.device.type} takes ('{worthy[-1].name}' would suit the data)"
    if given:
        return chosen, done, why
    about = done * units / learned(chosen) * PATIENCE
    return chosen, done, f"{why}; {done:g} passes over the data are reckoned at {told_time(about)}"


def told_time(seconds: float) -> str:
    """A time as one says it.

    >>> told_time(50), told_time(4000)
    ('under a minute', '67 minutes')
    """
    if seconds < 60:
        return "under a minute"
    minutes = seconds / 60
    return f"{minutes:.0f} minutes" if minutes < 100 else f"{minutes / 60:.1f} hours"


USUAL_WIDTH = 768
SIZED = frozenset(
    {"d_model", "num_heads", "num_kv_heads", "d_ff", "num_layers", "max_len", "dropout", "norm"}
)
BASELINES = ("lstm", "linear", "repeat", "seasonal")  # which have words of their own


def family_named(name: str) -> tuple[str, Family]:
    """A preset, or a family's first one, and its family."""
    known = presets()
    if name in known:
        return name, known[name]
    family = families().get(name)
    if family is None:
        names = {*known, *families(), "lstm"}
        raise GlassformerError(f"model.preset '{name}' is not known{nearest(name, names)}")
    return next(iter(family.presets)), family


def accepted(preset: str, words: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the words that a preset's family, or the recurrent baseline, has a setting for.

    >>> accepted("lstm", {"d_model": 64, "num_heads": 4, "dropout": 0.1})
    {'d_model': 64, 'dropout': 0.1}
    """
    if preset == "lstm":
        allowed: Collection[str] = ("d_model", "dropout")
    else:
        allowed = inspect.signature(family_named(preset)[1].build).parameters
    return {name: value for name, value in words.items() if name in allowed}


def is_sized(preset: str) -> bool:
    """Whether a preset is of a published size, as bert-base-cased, which the data does not change."""
    return preset in presets() and preset not in families()


def refuse_words(preset: str, words: Mapping[str, Any]) -> None:
    """A sentence where a recipe's words make no model with any of the sizes chosen for the rest."""
    if preset in BASELINES:
        return
    name, family = family_named(preset)
    refuse_unknown(family, words)
    given = {word: value for word, value in words.items() if word in SIZED - {"max_len"}}
    if not given:
        return
    trouble: GlassformerError | None = None
    for rest in [{}] if is_sized(preset) else _rests(preset):
        try:
            refuse_huge(spec_of(name, **{**rest, **given}))
            return
        except GlassformerError as error:
            trouble = trouble or error
    assert trouble is not None
    raise trouble


def _rests(preset: str) -> Iterator[dict[str, Any]]:
    """What may be chosen for the words that a recipe leaves open."""
    for size in LADDER:
        for more in ({}, {"num_kv_heads": None}):  # as many as heads, where a preset's own would not divide
            yield accepted(preset, {**size.words(), **more})


def refuse_huge(spec: specs.Model) -> None:
    """A sentence where the layers alone are more than the machine's memory."""
    stacks = [getattr(spec, name) for name in ("encoder", "decoder") if hasattr(spec, name)]
    weights = sum(
        stack.num_layers * 2 * stack.d_model * (stack.d_model + stack.block.feed_forward.d_ff)
        for stack in stacks
    )
    there = memory()
    if there is not None and 4 * weights > there:
        widest = max(stacks, key=lambda stack: stack.d_model)
        raise GlassformerError(
            f"a model with d_model {widest.d_model:,}, d_ff {widest.block.feed_forward.d_ff:,} and "
            f"num_layers {widest.num_layers:,} has {4 * weights / 1e9:,.0f} GB of weights or more, and "
            f"this machine {there / 1e9:,.0f} GB of memory; make it smaller"
        )


def memory() -> int | None:
    """Bytes of memory that the machine has, where it tells."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def fresh_spec(words: recipes.Model, fixed: Mapping[str, Any]) -> specs.Model:
    """The spec of a preset or family with the recipe's words, and those that the data fixes."""
    name, _ = family_named(words.preset or "")
    return spec_of(name, **{**words.words, **fixed})


def fresh(spec: specs.Model) -> AnyModel:
    """A fresh model, whose signals are as large as those of the published widths, and so learns as soon.

    The published spread of 0.02 goes with a width of 768; in a narrow model it would leave little of them.
    """
    model = build(spec)
    width = spec.decoder.d_model if isinstance(spec, specs.DecoderOnly) else spec.encoder.d_model
    if isinstance(spec.init, specs.Normal) and width < USUAL_WIDTH:
        initialise(model, replace(spec.init, std=spec.init.std * math.sqrt(USUAL_WIDTH / width)))
    return model


def loaded(folder: str, head: specs.Head | None = None) -> Bundle:
    """A model to go on from, in float32; with another head where one is given, which is drawn fresh."""
    bundle = load(folder, dtype="float32")
    return bundle if head is None else with_head(bundle, head)


def with_head(bundle: Bundle, head: specs.Head) -> Bundle:
    """The model under another head, which is drawn fresh; where it has this very head, as it is."""
    if bundle.spec.head == head:
        return bundle
    tied: Any = tuple(name for name in bundle.spec.tied if name != "head")
    model = build(replace(bundle.spec, head=head, tied=tied))
    kept = {name: t for name, t in canonical(bundle.model).items() if not name.startswith("head.")}
    model.load_state_dict(kept, strict=False)
    return replace(bundle, model=model, family=None, config={})


def labelling_head(spec: specs.EncoderOnly, count: int) -> specs.Head:
    """The head with which the published layout of this encoder of text tells `count` labels apart."""
    plain = replace(spec, head=specs.Features(), tied=())
    family = family_for(plain)
    if family is not None:
        config = family.to_config(plain)
        name = config["architectures"][0].removesuffix("Model") + "ForSequenceClassification"
        if name in family.architectures:
            labels = {str(n): str(n) for n in range(count)}
            return family.from_config(Config({**config, "architectures": [name], "id2label": labels})).head
    return specs.Classify(num_labels=count)


def room(spec: Any) -> int:
    """The most tokens that a model reads at once; a very large number where nothing bounds it."""
    places = [getattr(spec, "max_len", None)]
    for name in ("input", "source", "target"):
        position = getattr(getattr(spec, name, None), "position", None)
        places.append(getattr(position, "max_len", None))
    return min((most for most in places if most is not None), default=1 << 30)
