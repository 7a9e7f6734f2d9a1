"""The public facade: load a folder, build a model, save it, and run tasks on it.

pipeline = glassformer.load("path/to/folder")     # a published folder, or one we saved
pipeline = glassformer.load("pocket")             # or a model that ships with the package
model = glassformer.build("original", d_model=256, src_vocab_size=8000)
glassformer.save(pipeline, "path/to/other")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from glassformer import bundle as bundles
from glassformer.bundle import Bundle, save
from glassformer.core import spec
from glassformer.core.build import build as build_spec
from glassformer.core.model import AnyModel
from glassformer.errors import InvalidValueError
from glassformer.families.registry import spec_of
from glassformer.families.registry import tiny as tiny_spec
from glassformer.tasks.answer import Answer
from glassformer.tasks.forecast import Forecast

if TYPE_CHECKING:
    from glassformer.training.recipe import Recipe

__all__ = ["Pipeline", "build", "load", "save", "tiny", "train"]


class Pipeline(Bundle):
    """A loaded model with one method per task."""

    @classmethod
    def of(cls, bundle: Bundle) -> Pipeline:
        """The same model and settings, with the task methods."""
        return cls(**{one.name: getattr(bundle, one.name) for one in fields(bundle) if one.init})

    def classify(self, inputs: Any, **words: Any) -> Any:
        """The labels of texts or picture files with their probabilities: `verbs.classify`.

        One input gives its labels, a list a list, an iterator an iterator.
        """
        from glassformer.tasks.classify import classify
        from glassformer.tasks.reading import as_given

        return as_given(inputs, classify(self, inputs, **words))

    def embed(self, inputs: Any, **words: Any) -> Tensor:
        """A vector for each text or picture file (N, D): `verbs.embed`."""
        from glassformer.tasks.embed import embed

        return embed(self, inputs, **words)

    def similar(self, queries: Any, candidates: Any, **words: Any) -> Any:
        """The candidates nearest to each query, by the cosine of their vectors: `verbs.embed.similar`."""
        from glassformer.tasks.embed import similar
        from glassformer.tasks.reading import as_given

        return as_given(queries, similar(self, queries, candidates, **words))

    def fill(self, texts: Any, **words: Any) -> Any:
        """Guesses for every [MASK] of the texts: `verbs.fill`."""
        from glassformer.tasks.fill import fill
        from glassformer.tasks.reading import as_given

        return as_given(texts, fill(self, texts, **words))

    def answer(self, question: str, context: str, **words: Any) -> Answer:
        """The stretch of the context that answers the question, and how likely it is: `verbs.answer`."""
        from glassformer.tasks.answer import answer

        return answer(self, question, context, **words)

    def forecast(self, series: Any, **words: Any) -> Forecast:
        """How the series of a file, a data frame or a dict of columns go on: `verbs.forecast`."""
        from glassformer.tasks.forecast import forecast

        return forecast(self, series, **words)

    def translate(self, texts: str | Iterable[str], **settings: Any) -> Any:
        """Translate texts; see `glassformer.tasks.writing.translate`."""
        from glassformer.tasks.writing import translate

        return translate(self, texts, **settings)

    def summarize(self, texts: str | Iterable[str], **settings: Any) -> Any:
        """Summarise texts; see `glassformer.tasks.writing.summarize`."""
        from glassformer.tasks.writing import summarize

        return summarize(self, texts, **settings)

    def restore(self, texts: str | Iterable[str], **settings: Any) -> Any:
        """Mend damaged sentences; see `glassformer.tasks.writing.restore`."""
        from glassformer.tasks.writing import restore

        return restore(self, texts, **settings)

    def generate(self, prompts: str | Iterable[str], **settings: Any) -> Any:
        """Go on from prompts; see `glassformer.tasks.writing.generate`."""
        from glassformer.tasks.writing import generate

        return generate(self, prompts, **settings)

    def stream(self, prompt: str, **settings: Any) -> Iterator[str]:
        """Go on from a prompt, piece by piece; see `glassformer.tasks.writing.stream`."""
        from glassformer.tasks.writing import stream

        return stream(self, prompt, **settings)


def load(
    folder: str | Path, *, dtype: torch.dtype | str | None = None, device: str | torch.device = "cpu"
) -> Pipeline:
    """Load a model folder: a published one, one that `save` wrote, or a model that ships with the package.

    The folder of a training run stands for the model it trained; while it trains, for the best so far. The
    model is in evaluation mode.

    Weights are memory-mapped, and copied only if their layout requires it.
    dtype: float32 on a CPU by default; on a GPU weights keep the dtype they are stored in. "stored" keeps it
    on any device, for converting. With "int8" tasks multiply by weights quantized to int8; the model itself
    keeps its own.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     pipeline = load(save(tiny("gpt2"), folder))
    >>> pipeline.family, pipeline.model(torch.ones(2, 5).long()).shape          # (B, T, V)
    ('gpt2', torch.Size([2, 5, 101]))
    """
    if not isinstance(folder, str | PathLike):
        raise InvalidValueError("folder", folder, "the path of a folder, or the name of a model")
    return Pipeline.of(bundles.load(folder, dtype=dtype, device=device))


def train(
    recipe: Recipe | Mapping[str, Any] | str | Path,
    folder: str | Path,
    *,
    say: Callable[[str], None] | None = None,
) -> Pipeline:
    """Train in a run folder, as `glassformer train` does, and load the trained model.

    recipe: a recipe's file, or its contents; only `job` and `data` are required.
    folder: if it holds an unfinished run of the same recipe, the run is resumed.
    say: called with a message for each choice made on the way; by default they go to standard error.

    Ctrl-C saves a checkpoint and raises KeyboardInterrupt; another signal raises SystemExit.
    """
    from glassformer.training import run

    return Pipeline.of(run.train(recipe, folder, say=say or run.tell))


def build(what: str | spec.Model, **words: Any) -> AnyModel:
    """Build a fresh model from a preset's name and overrides, or from a spec.

    >>> build("original", d_model=32, num_heads=4, d_ff=64, num_layers=1, src_vocab_size=50).spec.tied
    ()
    """
    return build_spec(spec_of(what, **words) if isinstance(what, str) else what)


def tiny(family: str, **words: Any) -> AnyModel:
    """Build a fresh model of a few thousand parameters of the named family.

    >>> sum(p.numel() for p in tiny("gpt2").parameters()) < 100_000
    True
    """
    return build_spec(tiny_spec(family, **words))
