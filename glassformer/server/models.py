"""The served models; each has a scheduler for generation and a thread for all other tasks."""

from __future__ import annotations

import asyncio
import re
import threading
import time
import unicodedata
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from glassformer.bundle import Bundle
from glassformer.core.inputs import tensor_of
from glassformer.errors import GlassformerError, InputTooLongError, InvalidValueError
from glassformer.generation import GeneratedToken, GenerationOutput, GenerationParams
from glassformer.generation.continuous import Request, Scheduler, SchedulerFullError, Stats
from glassformer.generation.continuous.request import RequestCancelledError
from glassformer.generation.continuous.scheduler import PREFIX_SHARE
from glassformer.generation.inference_model import InferenceModel
from glassformer.generation.prompt import Prompt
from glassformer.generation.step_decoder import decoder_start_ids
from glassformer.inference.memory import available_memory, cache_bytes_per_token
from glassformer.interpret.runs import run_of
from glassformer.pretrained import is_run, model_folder
from glassformer.processors.text import require_tokenizer
from glassformer.server.errors import ContextLengthExceededError, ModelNotFoundError, UnavailableError
from glassformer.tasks.base import Callbacks
from glassformer.tasks.text_generation import (
    Architecture,
    context_length,
    decoding_architecture,
    generation_architecture,
    target_language,
)

T = TypeVar("T")
Source = list[int] | Prompt
Predicate = Callable[[Bundle], bool]
OnToken = Callable[[GeneratedToken], None]
MAX_SOURCE = 4096  # tokens of a source, which is encoded in one step while other requests wait
MAX_QUEUED = 16_384  # texts that wait for a slot
TOKEN_BYTES = 40  # of a waiting token
MAX_OPEN_TOKENS = 1 << 22  # of the sources and prompts of all requests to a model, images by their bytes
MAX_CACHED = 65_536  # tokens in the KV cache of a model, if memory allows
MIN_CACHED = 1024
CACHE_SHARE = 0.5  # of the free memory, for the KV caches of all models
MAX_STEP_SECONDS = 15.0  # of a step or a task, after which the model counts as not answering
MAX_CONCURRENT = 32  # texts of one request submitted at a time, so that other requests are not blocked


class GenerationTask:
    """A text that is being generated. tokens: those generated so far, if requested."""

    def __init__(self) -> None:
        self.tokens: list[GeneratedToken] = []
        self.outputs: asyncio.Future[list[GenerationOutput]] = asyncio.get_running_loop().create_future()
        self.request: Request | None = None

    @property
    def limit(self) -> int:
        """Maximum number of new tokens, in all rows."""
        return 0 if self.request is None else self.request.rows * self.request.limit

    def cancel(self) -> None:
        if self.request is not None:
            self.request.cancel()

    def finish(self, result: list[GenerationOutput] | Exception) -> None:
        """Store the result; called in the event loop."""
        if self.outputs.done():
            return
        if isinstance(result, list):
            self.outputs.set_result(result)
        else:
            self.outputs.set_exception(result)
        self.outputs.exception()  # mark it as retrieved: the client may have disconnected


class GenerationService:
    """Generation with one model.

    tokens: capacity of its KV cache in tokens. max_model_len: limit of its context, if below the model's own.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        slots: int = 32,
        tokens: int = MAX_CACHED,
        max_model_len: int | None = None,
        enable_prefix_caching: bool = True,
    ) -> None:
        self._scheduler = Scheduler(
            bundle.inference_model(),
            slots=slots,
            tokens=tokens,
            queue=MAX_QUEUED,
            enable_prefix_caching=enable_prefix_caching,
        )
        self._model = bundle.model
        self._reads_source = decoding_architecture(bundle) == "encoder-decoder"
        self._max_source = min(MAX_SOURCE, max_model_len or MAX_SOURCE)
        self.context = min(filter(None, (context_length(bundle), max_model_len, tokens)))
        self._open_tokens = 0  # of the sources and prompts that are waiting or running

    def room(self, length: int) -> int:
        """Return the maximum number of new tokens: what a prompt, but not a source, leaves of the context."""
        return self.context if self._reads_source else self.context - length

    def check_length(self, ids: Source, max_tokens: int | None) -> None:
        """Raise if the context is too short for these ids with `max_tokens` (by default 1) new tokens."""
        if (max_tokens or 1) > self.room(len(ids)):
            raise ContextLengthExceededError(len(ids), self.context, max_tokens=max_tokens or 0)

    def submit(
        self,
        params: GenerationParams,
        ids: Source,
        caller: Hashable,
        on_token: OnToken | None = None,
        *,
        top: int | None = None,
    ) -> GenerationTask:
        """Start generating from these ids, or from a prompt with images.

        caller: identifies the HTTP request; requests are scheduled fairly. on_token: called in the running
        event loop.
        top: number of most likely tokens to report at each step; None: no probabilities.
        """
        if self._reads_source and not isinstance(ids, Prompt) and len(ids) > self._max_source:
            raise InputTooLongError(len(ids), self._max_source, hint="split the text")
        size = len(ids) + _embedding_bytes(ids) // TOKEN_BYTES
        if self._open_tokens + size > MAX_OPEN_TOKENS:
            raise SchedulerFullError(self._scheduler.stats().waiting)
        task, loop = GenerationTask(), asyncio.get_running_loop()

        def receive(token: GeneratedToken) -> None:
            task.tokens.append(token)
            if on_token is not None:
                on_token(token)

        def finish(result: list[GenerationOutput] | Exception) -> None:
            self._open_tokens -= size
            task.finish(result)

        wants_tokens = on_token is not None or top is not None
        starts = len(decoder_start_ids(self._model, params.start_ids))
        params = replace(
            params,
            max_new_tokens=min(params.limit(len(ids), starts or len(ids)), self.room(len(ids))),
            top_logprobs=top or 0,
            on_token=(lambda token: loop.call_soon_threadsafe(receive, token)) if wants_tokens else None,
        )
        task.request = self._scheduler.submit(
            ids,
            params,
            caller=caller,
            on_done=lambda result: loop.call_soon_threadsafe(finish, result),
        )
        self._open_tokens += size
        return task

    async def generate_all(
        self, params: GenerationParams, sources: Sequence[Source]
    ) -> list[list[GenerationOutput]]:
        """Generate from all sources, a limited number at a time; if one fails, the others are canceled."""
        semaphore, caller = asyncio.Semaphore(MAX_CONCURRENT), object()

        async def generate(ids: Source) -> list[GenerationOutput]:
            async with semaphore:
                return (await wait_for([self.submit(params, ids, caller)]))[0]

        tasks = [asyncio.ensure_future(generate(ids)) for ids in sources]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    def stats(self) -> Stats:
        return self._scheduler.stats()

    def step_seconds(self) -> float:
        """Return for how long the current step has been running."""
        return self._scheduler.step_seconds()

    def close(self) -> None:
        self._scheduler.close()


def _embedding_bytes(ids: Source) -> int:
    """Return the size of the embeddings or the image that a prompt holds besides its ids."""
    prompt = Prompt.of(ids)
    source = 0 if prompt.source is None else tensor_of(prompt.source).nbytes
    return source + sum(span.embeddings.nbytes for span in prompt.spans)


async def wait_for(tasks: Sequence[GenerationTask]) -> list[list[GenerationOutput]]:
    try:
        return list(await asyncio.gather(*(task.outputs for task in tasks)))
    finally:
        for task in tasks:
            task.cancel()


class TaskThread(ThreadPoolExecutor):
    """A thread that knows for how long its current task has been running."""

    def __init__(self, name: str) -> None:
        super().__init__(1, thread_name_prefix=f"tasks-{name}")
        self._started: float | None = None

    def submit(self, work: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        def timed() -> T:
            self._started = time.monotonic()
            try:
                return work(*args, **kwargs)
            finally:
                self._started = None

        return super().submit(timed)

    def step(self) -> None:
        """Note that the current task has finished a step."""
        if self._started is not None:
            self._started = time.monotonic()

    def seconds(self) -> float:
        """Return for how long the current task, or its current step, has been running; 0 if there is none."""
        started = self._started
        return 0.0 if started is None else time.monotonic() - started


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """A model behind the server. generation: None if the model does not generate text.

    max_image_tokens: of an image in a conversation; None: as the model's folder says.
    """

    id: str
    bundle: Bundle
    generation: GenerationService | None
    created: int
    max_image_tokens: int | None = None
    thread: TaskThread = field(repr=False)

    async def run(self, work: Callable[[Bundle], T]) -> T:
        """Run `work` in the model's thread; it does not start if the caller is canceled while waiting."""
        return await asyncio.wrap_future(self.thread.submit(work, self.bundle))

    async def run_steps(self, work: Callable[[Bundle, Callbacks], T]) -> T:
        """Run `work` in the model's thread; it ends at the next step if the caller is canceled."""
        canceled = threading.Event()

        def check(_: int = 0) -> None:
            self.thread.step()
            if canceled.is_set():
                raise RequestCancelledError

        try:
            callbacks = Callbacks(on_done=check, on_step=check)
            return await self.run(lambda bundle: work(bundle, callbacks))
        finally:
            canceled.set()

    def is_stuck(self) -> bool:
        """Whether a step of the generation or a task has been running for too long."""
        busy = self.thread.seconds()
        if self.generation is not None:
            busy = max(busy, self.generation.step_seconds())
        return busy > MAX_STEP_SECONDS

    def close(self) -> None:
        if self.generation is not None:
            self.generation.close()
        self.thread.shutdown(wait=True, cancel_futures=True)


class ModelRegistry(dict[str, ServedModel]):
    """The served models by name. aliases: further names of models.

    tokens: capacity of each KV cache; None: as many as fit into memory. max_image_tokens: of an image.
    options: of each GenerationService.
    """

    def __init__(
        self,
        bundles: Mapping[str, Bundle],
        *,
        aliases: Mapping[str, str] | None = None,
        tokens: int | None = None,
        max_image_tokens: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.aliases = dict(aliases or {})
        count = sum(map(generates, bundles.values()))

        def service(bundle: Bundle) -> GenerationService:
            return GenerationService(bundle, tokens=tokens or cache_tokens(bundle, count), **options)

        for name, bundle in bundles.items():
            self[name] = ServedModel(
                id=name,
                bundle=bundle,
                generation=service(bundle) if generates(bundle) else None,
                created=int(time.time()),
                max_image_tokens=max_image_tokens,
                thread=TaskThread(name),
            )

    def select(self, name: str | None, *preferences: Predicate) -> ServedModel:
        """Return the model of that name; without a name, the first that meets the earliest preference."""
        name = self.aliases.get(name, name) if name is not None else None
        if name is None:
            matches = (model for test in preferences for model in self.values() if test(model.bundle))
            return next(matches, next(iter(self.values())))
        if name not in self:
            raise ModelNotFoundError(name, list(self))
        return self[name]

    def check_ready(self) -> None:
        """Raise if a model does not answer."""
        for model in self.values():
            if model.is_stuck():
                raise UnavailableError(f"the model {model.id!r} is busy with one step; try again later")

    def close(self) -> None:
        for model in self.values():
            model.close()


def cache_tokens(bundle: Bundle, models: int) -> int:
    """Return how many tokens the KV cache of a model may hold, if it shares the free memory with others."""
    model, free = bundle.inference_model(), available_memory(bundle.device)
    if free is None or not isinstance(model, InferenceModel):
        return MAX_CACHED
    layers = [*model.decoder.attentions, *model.decoder.cross_attentions]
    copies = 1 + PREFIX_SHARE + model.captures  # the slots, the prefix cache, and the cache of CUDA graphs
    fitting = CACHE_SHARE * free / models / cache_bytes_per_token(layers, model.dtype) / copies
    return min(MAX_CACHED, max(MIN_CACHED, int(fitting)))


def without_errors(check: Callable[[Bundle], object]) -> Predicate:
    """Return a predicate that is true if a check returns true without raising an error."""

    def test(bundle: Bundle) -> bool:
        try:
            return bool(check(bundle))
        except GlassformerError:
            return False

    return test


def architecture(bundle: Bundle) -> Architecture:
    """Return the architecture of a model that continues or translates text; raise for any other."""
    require_tokenizer(bundle)
    return generation_architecture(bundle)


generates = without_errors(lambda bundle: require_tokenizer(bundle) and decoding_architecture(bundle))
is_decoder_only = without_errors(lambda bundle: architecture(bundle) == "decoder-only")
is_encoder_decoder = without_errors(lambda bundle: architecture(bundle) == "encoder-decoder")


def translates(to: str | None) -> Predicate:
    """Return a predicate: whether a model translates into `to`, or needs no language if `to` is None."""
    return without_errors(
        lambda bundle: target_language(bundle, to) is not None and is_encoder_decoder(bundle)
    )


def load_models(
    folders: Sequence[str], load: Callable[[str], Bundle], names: Sequence[str] = ()
) -> tuple[dict[str, Bundle], dict[str, Path]]:
    """Load the models by unique name; also return the folders of those that are training runs.

    names: one for each model, or one and its aliases for a single model; by default those of the folders.
    """
    if names and (len(set(names)) < len(names) or len(folders) not in (1, len(names)) or not all(names)):
        expected = f"{len(folders)} different names, one for each model"
        raise InvalidValueError("served_model_name", ", ".join(names), expected)
    bundles: dict[str, Bundle] = {}
    runs: dict[str, Path] = {}
    for n, folder in enumerate(folders):
        name = names[n] if names else unique_name(Path(folder), bundles)
        if is_run(Path(folder)):
            runs[name] = Path(folder)
        bundles[name] = load(str(model_folder(folder)))
    return bundles, runs


def unique_name(folder: Path, existing: Mapping[str, object]) -> str:
    """Name a model after its folder or run, with a number if the name is already in use.

    >>> unique_name(Path("/models/my model"), {}), unique_name(Path("a/model"), {"model": 1})
    ('my-model', 'model-2')
    """
    path = folder.absolute() if folder.name not in ("", "..") else folder.resolve()
    stem = unicodedata.normalize("NFC", (run_of(path) or path).name)
    stem = re.sub(r"[^\w.-]+", "-", stem).strip("-.") or "model"
    name, count = stem, 1
    while name in existing:
        count += 1
        name = f"{stem}-{count}"
    return name
