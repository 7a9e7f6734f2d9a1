"""The models and runs that can be explored, their descriptions, and the traces taken of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Final, Literal

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.errors import GlassformerError
from glassformer.interpret.examples import column_names, example_inputs
from glassformer.interpret.outline import describe_stacks, model_kind
from glassformer.interpret.runs import describe_run, run_of
from glassformer.interpret.schema import (
    ImageInfo,
    Intervention,
    ItemNotFoundError,
    Kind,
    ModelInfo,
    ModelOutline,
    OutputHeadInfo,
    RunInfo,
    SeriesInfo,
    TraceInput,
)
from glassformer.interpret.trace import Trace, trace_id, trace_model
from glassformer.tasks.base import max_input_tokens
from glassformer.tasks.classification import label_names
from glassformer.tasks.text_generation import max_source_tokens, target_languages

MAX_TRACES: Final = 48
MAX_BYTES: Final = 1 << 30


class TraceStore:
    """Traces by id; the least recently used are dropped when there are too many or they are too large.

    The newest is always kept, however large it is. Thread-safe.
    """

    def __init__(self, *, max_traces: int = MAX_TRACES, max_bytes: int = MAX_BYTES) -> None:
        self._max_traces, self._max_bytes = max_traces, max_bytes
        self._traces: OrderedDict[str, tuple[Trace, int]] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._traces)

    @property
    def bytes(self) -> int:
        """The memory that all traces use."""
        with self._lock:
            return sum(size for _, size in self._traces.values())

    def put(self, trace: Trace, *, weight_bytes: int = 0) -> None:
        """Add a trace. weight_bytes: size of weights that only this trace keeps alive."""
        size = trace.bytes + weight_bytes
        with self._lock:
            self._traces.pop(trace.id, None)
            self._traces[trace.id] = trace, size
            total = sum(size for _, size in self._traces.values())
            while len(self._traces) > 1 and (len(self._traces) > self._max_traces or total > self._max_bytes):
                _, (_, size) = self._traces.popitem(last=False)
                total -= size

    def find(self, id: str) -> Trace | None:
        """The trace, now the most recently used; None if it was dropped or never existed."""
        with self._lock:
            if id not in self._traces:
                return None
            self._traces.move_to_end(id)
            return self._traces[id][0]

    def get(self, id: str) -> Trace:
        """Like `find`, but raises ItemNotFoundError."""
        trace = self.find(id)
        if trace is None:
            raise ItemNotFoundError("trace", id, hint="it may have been dropped; request it again")
        return trace


class Catalog:
    """Models and runs by id, with a store of traces. Thread-safe.

    A repeated request is answered from the store; new traces are computed one at a time.
    """

    def __init__(
        self,
        bundles: Mapping[str, Bundle],
        runs: Mapping[str, Path] | None = None,
        *,
        store: TraceStore | None = None,
    ) -> None:
        self.bundles, self.run_folders = dict(bundles), dict(runs or {})
        self.store = store or TraceStore()
        self._infos: dict[str, ModelInfo | None] = {}
        self._trace_lock, self._info_lock = Lock(), Lock()

    def bundle(self, id: str) -> Bundle:
        """The model with this id."""
        if id not in self.bundles:
            raise ItemNotFoundError("model", id, self.bundles)
        return self.bundles[id]

    def models(self) -> list[ModelInfo]:
        """The models that can be traced; baselines cannot."""
        with self._info_lock:
            for id, bundle in self.bundles.items():
                if id not in self._infos:
                    try:
                        self._infos[id] = describe_model(bundle, id)
                    except GlassformerError:
                        self._infos[id] = None
            return [info for id in self.bundles if (info := self._infos[id]) is not None]

    def run_folder(self, id: str) -> Path:
        """The folder of the run with this id."""
        if id not in self.run_folders:
            raise ItemNotFoundError("run", id, self.run_folders)
        return self.run_folders[id]

    def runs(self) -> list[RunInfo]:
        """All runs without their curves; a folder that is gone or still empty is left out."""
        infos = []
        for id, folder in self.run_folders.items():
            try:
                infos.append(describe_run(folder, id=id, curves=False))
            except GlassformerError:
                continue
        return infos

    def take(self, model: str, input: TraceInput, interventions: Sequence[Intervention] = ()) -> Trace:
        """The trace of an input, computed unless it is in the store."""
        bundle, id = self.bundle(model), trace_id(model, input, interventions)
        if (known := self.store.find(id)) is not None:
            return known
        with self._trace_lock:
            if (known := self.store.find(id)) is not None:
                return known  # computed while this request waited
            trace = trace_model(bundle, input, interventions, model=model)
            self.store.put(trace)
        return trace


_SHAPES: dict[type, Literal["encoder-decoder", "encoder-only", "decoder-only"]] = {
    specs.EncoderDecoder: "encoder-decoder",
    specs.EncoderOnly: "encoder-only",
    specs.DecoderOnly: "decoder-only",
}


def describe_model(bundle: Bundle, id: str) -> ModelInfo:
    """The model's outline, its sizes, and inputs to start with."""
    kind, spec = model_kind(bundle), bundle.spec
    stacks = describe_stacks(bundle)
    parameters = list(bundle.model.parameters())
    labels = getattr(spec.head, "num_labels", None)
    examples = example_inputs(bundle)
    read = spec.source if isinstance(spec, specs.EncoderDecoder) else spec.input
    return ModelInfo(
        id=id,
        name=_display_name(bundle, id),
        family=bundle.family,
        shape=_SHAPES[type(spec)],
        kind=kind,
        parameters=sum(one.numel() for one in parameters),
        bytes=sum(one.numel() * one.element_size() for one in parameters),
        max_length=_max_length(bundle, kind),
        labels=None if labels is None else tuple(label_names(bundle, labels)),
        languages=(tuple(target_languages(bundle)) or None) if kind == "translate" else None,
        outline=ModelOutline(
            d_model=getattr(spec, stacks[-1].name).d_model,
            stacks=stacks,
            head=OutputHeadInfo(
                kind=type(spec.head).__name__,
                vocab=getattr(spec.head, "vocab_size", None),
                labels=labels,
                tied="head" in spec.tied,
                bias=getattr(spec.head, "bias", True),  # heads without the option have one
            ),
        ),
        example=examples[0],
        examples=tuple(examples) if len(examples) > 1 else (),
        image=_describe_image(read),
        series=_describe_series(bundle, read),
    )


def _display_name(bundle: Bundle, id: str) -> str:
    """The name of the model's folder, or of the run that trained it."""
    if bundle.folder is None:
        return id
    folder = bundle.folder.resolve()
    return (run_of(folder) or folder).name


def _max_length(bundle: Bundle, kind: Kind) -> int | None:
    """The most tokens a text model reads."""
    if bundle.tokenizer is None or kind in ("image", "forecast"):
        return None
    if kind in ("translate", "generate"):
        return max_source_tokens(bundle)
    read = getattr(bundle.spec, "source", None) or getattr(bundle.spec, "input", None)
    limit = max_input_tokens(bundle) if isinstance(read, specs.Tokens) else 1 << 30
    return None if limit >= 1 << 30 else limit


def _describe_image(read: specs.Input) -> ImageInfo | None:
    if not isinstance(read, specs.ImagePatches):
        return None
    (height, width), (patch_height, patch_width) = read.image_size, read.patch_size
    return ImageInfo(
        height=height,
        width=width,
        channels=read.channels,
        patch=(patch_height, patch_width),
        grid=(height // patch_height, width // patch_width),
    )


def _describe_series(bundle: Bundle, read: specs.Input) -> SeriesInfo | None:
    if not isinstance(read, specs.SeriesPatches):
        return None
    return SeriesInfo(
        context=read.context_length,
        horizon=getattr(bundle.spec.head, "prediction_length", 0),
        channels=column_names(bundle),
        patch=read.patch_length,
        stride=read.stride,
        scaling=read.scaling,
    )
