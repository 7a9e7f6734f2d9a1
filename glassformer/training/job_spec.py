"""The declaration of a training job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from glassformer.errors import UnknownNameError

if TYPE_CHECKING:
    from glassformer.training.job import Job
    from glassformer.training.sections import DataSection


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """The declaration of a training job; recipes, commands and the reference are derived from it.

    input: the kind of input, if the job has variants.
    factory: the class that prepares the data and builds the model. data: the data section of a recipe.
    metrics: of a validation. metric: the one that selects the best model, unless the data decides.
    preset: the model that is trained by default.
    batch_unit: what limits a batch by default; only tokens of text are counted.
    defaults: training settings of this job that are used if the recipe leaves them open.
    r_drop: whether R-Drop is supported.
    reads: whether a training file looks like the input of this variant.
    variants: the job for each kind of input, if it has several. old_names: names of former versions, with
    the data settings they stand for.
    """

    name: str
    summary: str
    factory: type[Job[Any]]
    data: type[DataSection]
    metrics: tuple[str, ...]
    metric: str
    preset: str
    batch_unit: Literal["tokens", "examples"] = "tokens"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    r_drop: bool = True
    input: str | None = None
    reads: Callable[[str], bool] = lambda path: False
    variants: tuple[JobSpec, ...] = ()
    old_names: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def tokenizer(self) -> bool:
        """Whether texts are tokenized."""
        return self.factory.template is not None

    @property
    def batch_key(self) -> str:
        """The key of a recipe that limits a batch by default."""
        return "batch_tokens" if self.batch_unit == "tokens" else "batch_size"

    @property
    def title(self) -> str:
        """The name, with the kind of input if there are several."""
        return f"{self.name} ({self.input})" if self.input else self.name

    def variant(self, data: object) -> JobSpec:
        """Return the variant for a data section: for its `input`, else for the first training file."""
        if not self.variants or not isinstance(data, Mapping):
            return self
        kind, files = data.get("input"), data.get("train") or ""
        if kind is not None:
            known = {variant.input: variant for variant in self.variants}
            if kind not in known:
                raise UnknownNameError("input", str(kind), [str(name) for name in known], where="data.input")
            return known[kind]
        first = files[0] if isinstance(files, list | tuple) else files
        return next((variant for variant in self.variants if variant.reads(str(first))), self)
