"""The models that a server has in hand, by their names; each with one thread for its reading."""

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
from glassformer.pretrained.run_folder import is_run, result_of
from glassformer.server.answers import NotFound
from glassformer.server.passage import Client, Left
from glassformer.server.writing import Writing
from glassformer.tasks.reading import tokenizer_of
from glassformer.tasks.writing.ends import shape_of
from glassformer.tasks.writing.sources import language

Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True)
class Served:
    """A model that is served: `writing` where it writes; what it reads, it reads in a thread of its own."""

    id: str
    bundle: Bundle
    writing: Writing | None
    created: int
    thread: ThreadPoolExecutor = field(repr=False)

    async def read(self, client: Client, work: Callable[[Bundle], Found]) -> Found:
        """What `work` makes of the model, in its turn; nothing is begun for a client that has left."""

        def run() -> Found:
            if client.gone:
                raise Left
            return work(self.bundle)

        return await asyncio.wrap_future(self.thread.submit(run))

    def close(self) -> None:
        """Finish, and let the threads go."""
        if self.writing is not None:
            self.writing.close()
        self.thread.shutdown(wait=True, cancel_futures=True)


class Models(Mapping[str, Served]):
    """The models by name, in the order in which they were given."""

    def __init__(self, bundles: Mapping[str, Bundle], *, slots: int = 32) -> None:
        self._models = {
            name: Served(
                id=name,
                bundle=bundle,
                writing=Writing(bundle, slots=slots) if writes(bundle) else None,
                created=int(time.time()),
                thread=ThreadPoolExecutor(1, thread_name_prefix=f"read-{name}"),
            )
            for name, bundle in bundles.items()
        }

    def __getitem__(self, name: str) -> Served:
        return self._models[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    def asked(self, name: str | None, *fits: Callable[[Bundle], bool]) -> Served:
        """The model of that name; where none is named, the first that fits, else the first.

        fits: the best reason to take a model first; the next counts where no model has that one.
        """
        if name is None:
            models = self._models.values()
            fitting = (one for test in fits for one in models if test(one.bundle))
            return next(fitting, next(iter(models)))
        if name not in self._models:
            known = ", ".join(self._models)
            raise NotFound(
                f"there is no model '{name[:100]}' here; there is {known}",
                param="model",
                code="model_not_found",
            )
        return self._models[name]

    def close(self) -> None:
        """Finish with all of them."""
        for one in self._models.values():
            one.close()


def check_writes(bundle: Bundle) -> None:
    """A sentence where a model writes no text, or has no tokenizer to spell it."""
    shape_of(bundle)
    tokenizer_of(bundle)


def writes(bundle: Bundle) -> bool:
    """Whether a model writes text, and has a tokenizer to spell it."""
    try:
        check_writes(bundle)
    except GlassformerError:
        return False
    return True


def goes_on(bundle: Bundle) -> bool:
    """Whether a model goes on from a prompt, as a language model does."""
    return writes(bundle) and shape_of(bundle) == "continues"


def rewrites(bundle: Bundle) -> bool:
    """Whether a model makes a target of a source, as a translator does."""
    return writes(bundle) and shape_of(bundle) == "rewrites"


def translates(to: str | None) -> Callable[[Bundle], bool]:
    """Whether a model translates into this language; None: it needs to be told none."""

    def fits(bundle: Bundle) -> bool:
        try:
            language(bundle, to)
        except GlassformerError:
            return False
        return rewrites(bundle)

    return fits


def opened(
    folders: Sequence[str], opening: Callable[[str], Bundle]
) -> tuple[dict[str, Bundle], dict[str, Path]]:
    """The models of some folders, and which of them are the results of runs, by the names they get."""
    bundles: dict[str, Bundle] = {}
    runs: dict[str, Path] = {}
    for folder in folders:
        name = unique(Path(folder), bundles)
        if is_run(Path(folder)):
            runs[name] = Path(folder)
        bundles[name] = opening(str(result_of(folder)))
    return bundles, runs


def unique(folder: Path, taken: Mapping[str, object]) -> str:
    """A name for a folder's model: the folder's, or its run's, with a number where it is taken.

    >>> unique(Path("/models/my model"), {}), unique(Path("a/model"), {"model": 1})
    ('my-model', 'model-2')
    """
    where = folder.absolute() if folder.name not in ("", "..") else folder.resolve()
    told = unicodedata.normalize("NFC", (run_of(where) or where).name)
    name = re.sub(r"[^\w.-]+", "-", told).strip("-.") or "model"
    found, count = name, 1
    while found in taken:
        count += 1
        found = f"{name}-{count}"
    return found
