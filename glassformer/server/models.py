"""The served models by name; each has a thread for the tasks that read and a scheduler for generation."""

from __future__ import annotations

import asyncio
import re
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from glassformer.bundle import Bundle
from glassformer.errors import GlassformerError
from glassformer.interpret.runs import run_of
from glassformer.pretrained import is_run, result_of
from glassformer.server.errors import ModelNotFoundError
from glassformer.server.generation import GenerationService
from glassformer.tasks.base import require_tokenizer
from glassformer.tasks.text_generation import generation_architecture, target_language

T = TypeVar("T")
Predicate = Callable[[Bundle], bool]


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """A model behind the server. generation: None if the model does not generate text."""

    id: str
    bundle: Bundle
    generation: GenerationService | None
    created: int
    thread: ThreadPoolExecutor = field(repr=False)

    async def run(self, work: Callable[[Bundle], T]) -> T:
        """Run `work` in the model's thread; if the caller is cancelled while it waits, it does not start."""
        return await asyncio.wrap_future(self.thread.submit(work, self.bundle))

    def close(self) -> None:
        """Finish the work in progress and end the threads."""
        if self.generation is not None:
            self.generation.close()
        self.thread.shutdown(wait=True, cancel_futures=True)


class ModelRegistry(Mapping[str, ServedModel]):
    """The models by name, in the order they were given."""

    def __init__(self, bundles: Mapping[str, Bundle], *, slots: int = 32) -> None:
        self._models = {
            name: ServedModel(
                id=name,
                bundle=bundle,
                generation=GenerationService(bundle, slots=slots) if generates(bundle) else None,
                created=int(time.time()),
                thread=ThreadPoolExecutor(1, thread_name_prefix=f"read-{name}"),
            )
            for name, bundle in bundles.items()
        }

    def __getitem__(self, name: str) -> ServedModel:
        return self._models[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    def select(self, name: str | None, *preferences: Predicate) -> ServedModel:
        """The model of that name; without a name, the first model that meets the earliest preference."""
        if name is None:
            models = self._models.values()
            fitting = (model for test in preferences for model in models if test(model.bundle))
            return next(fitting, next(iter(models)))
        if name not in self._models:
            raise ModelNotFoundError(name, list(self._models))
        return self._models[name]

    def close(self) -> None:
        """Finish with all of them."""
        for model in self._models.values():
            model.close()


def holds(check: Callable[[Bundle], object]) -> Predicate:
    """Whether a check is true of a model and raises nothing."""

    def test(bundle: Bundle) -> bool:
        try:
            return bool(check(bundle))
        except GlassformerError:
            return False

    return test


def check_generates(bundle: Bundle) -> None:
    """Raise an error if a model does not generate text, or has no tokenizer."""
    generation_architecture(bundle)
    require_tokenizer(bundle)


def generates(bundle: Bundle) -> bool:
    """Whether a model generates text."""
    return holds(lambda one: generation_architecture(one) and require_tokenizer(one) is not None)(bundle)


def continues(bundle: Bundle) -> bool:
    """Whether a model continues a prompt, as a language model does."""
    return generates(bundle) and generation_architecture(bundle) == "decoder-only"


def rewrites(bundle: Bundle) -> bool:
    """Whether a model maps a source to a target, as a translator does."""
    return generates(bundle) and generation_architecture(bundle) == "encoder-decoder"


def translates(to: str | None) -> Predicate:
    """Whether a model translates into this language; None: it needs no language."""
    return holds(lambda bundle: target_language(bundle, to) is not None and rewrites(bundle))


def load_models(
    folders: Sequence[str], load: Callable[[str], Bundle]
) -> tuple[dict[str, Bundle], dict[str, Path]]:
    """The models of these folders by unique name, and the folders of those that are training runs."""
    bundles: dict[str, Bundle] = {}
    runs: dict[str, Path] = {}
    for folder in folders:
        name = unique_name(Path(folder), bundles)
        if is_run(Path(folder)):
            runs[name] = Path(folder)
        bundles[name] = load(str(result_of(folder)))
    return bundles, runs


def unique_name(folder: Path, taken: Mapping[str, object]) -> str:
    """A name for a folder's model: that of the folder or its run, numbered if it is taken.

    >>> unique_name(Path("/models/my model"), {}), unique_name(Path("a/model"), {"model": 1})
    ('my-model', 'model-2')
    """
    path = folder.absolute() if folder.name not in ("", "..") else folder.resolve()
    stem = unicodedata.normalize("NFC", (run_of(path) or path).name)
    stem = re.sub(r"[^\w.-]+", "-", stem).strip("-.") or "model"
    name, count = stem, 1
    while name in taken:
        count += 1
        name = f"{stem}-{count}"
    return name
