"""The models and training runs in the explorer, their descriptions and their traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.errors import GlassformerError
from glassformer.interpret import schema
from glassformer.interpret.corpus import CorpusPatterns
from glassformer.interpret.examples import example_inputs
from glassformer.interpret.outline import describe_stacks
from glassformer.interpret.patching import Patching, compare_answers
from glassformer.interpret.runs import EXAMPLE_RUN, describe_run, run_inputs, run_of
from glassformer.interpret.trace import Trace, TraceStore, trace_id, trace_model
from glassformer.interpret.views import view_of
from glassformer.interpret.views.series import column_names
from glassformer.tasks.classification import label_names
from glassformer.tasks.detection import Detector

MAX_PATCHINGS = 4  # pairs of traces that are kept


class Catalog:
    """Models and runs by id, with a store of traces. Thread-safe.

    A repeated request is answered from the store; new traces are computed one at a time. The example
    run, a recording of a small training run, is always included.
    """

    def __init__(self, bundles: Mapping[str, Bundle], runs: Mapping[str, Path] | None = None) -> None:
        self.bundles = dict(bundles)
        self.run_folders = {EXAMPLE_RUN.name: EXAMPLE_RUN, **(runs or {})}
        self.store = TraceStore()
        self._infos: dict[str, schema.ModelInfo | None] = {}
        self._patchings: dict[tuple[str, str], Patching] = {}
        self._corpora: dict[str, CorpusPatterns] = {}
        self._corpus_locks = {id: Lock() for id in self.bundles}
        self._trace_lock, self._info_lock, self._patching_lock = Lock(), Lock(), Lock()

    def bundle(self, id: str) -> Bundle:
        if id not in self.bundles:
            raise schema.ItemNotFoundError("model", id, list(self.bundles))
        return self.bundles[id]

    def models(self) -> list[schema.ModelInfo]:
        """Return the models that can be traced; baselines are left out."""
        with self._info_lock:
            for id, bundle in self.bundles.items():
                if id not in self._infos:
                    self._infos[id] = None
                    with suppress(GlassformerError):
                        self._infos[id] = describe_model(bundle, id)
            return [info for info in self._infos.values() if info is not None]

    def run_folder(self, id: str) -> Path:
        if id not in self.run_folders:
            raise schema.ItemNotFoundError("run", id, self.run_folders)
        return self.run_folders[id]

    def runs(self) -> list[schema.RunInfo]:
        """Return all runs without their curves; missing and empty folders are left out."""
        infos = []
        for id, folder in self.run_folders.items():
            with suppress(GlassformerError):
                infos.append(describe_run(folder, id=id, curves=False))
        return infos

    def patching(self, clean: str, corrupted: str) -> Patching:
        """Return the patching of two stored traces; their traces with a common target are stored, too."""
        key = clean, corrupted
        with self._patching_lock:
            if (patching := self._patchings.get(key)) is None:
                patching = compare_answers(self.store.get(clean), self.store.get(corrupted))
                for trace in (patching.clean, patching.corrupted):
                    self.store.put(trace)
                self._patchings[key] = patching
                while len(self._patchings) > MAX_PATCHINGS:
                    del self._patchings[next(iter(self._patchings))]
        return patching

    def corpus(self, model: str, count: int) -> schema.CorpusInfo | None:
        """Return the head patterns of a model over the first sentences of the corpus.

        While another thread measures the same model, return None.
        """
        bundle, lock = self.bundle(model), self._corpus_locks[model]
        if not lock.acquire(blocking=False):
            return None
        try:
            return self._corpora.setdefault(model, CorpusPatterns(bundle)).measure(count)
        finally:
            lock.release()

    def take(
        self, model: str, input: schema.TraceInput, interventions: Sequence[schema.Intervention] = ()
    ) -> Trace:
        """Return the trace of an input from the store, or compute it."""
        bundle, id = self.bundle(model), trace_id(model, input, interventions)
        if (trace := self.store.find(id)) is None:
            with self._trace_lock:  # another request may have computed it in the meantime
                trace = self.store.find(id) or trace_model(bundle, input, interventions, model=model)
                self.store.put(trace)
        return trace


def describe_model(bundle: Bundle, id: str) -> schema.ModelInfo:
    """Return the model's outline, its sizes, and example inputs."""
    view, stacks = view_of(bundle), describe_stacks(bundle)
    spec: Any = bundle.spec
    parts = list(dict.fromkeys(stack.path.split(".")[0] for stack in stacks))
    architecture: Any = "-".join(parts) if len(parts) > 1 else f"{parts[0]}-only" if parts else "promptable"
    parameters = list(bundle.model.parameters())
    labels = getattr(spec.head, "num_labels", None)
    folder = None if bundle.folder is None else bundle.folder.resolve()
    run = None if folder is None else run_of(folder)
    examples = (run and run_inputs(bundle, run)) or example_inputs(bundle)
    others = {
        "two towers": "two-tower",
        "diffusion model": "diffusion",
        "image tokens model": "image-tokens",
    }
    architecture = others.get(spec.architecture, architecture)
    read = spec.inputs()[0]
    images = spec.inputs() if "image" in view.needs else ()
    return schema.ModelInfo(
        id=id,
        name=id if folder is None else (run or folder).name,
        load=id if folder is None else folder.name,
        family=bundle.family,
        architecture=architecture,
        kind=view.kind,
        parameters=sum(parameter.numel() for parameter in parameters),
        bytes=sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        labels=None if labels is None else tuple(label_names(bundle, labels)),
        languages=view.languages(),
        outline=schema.ModelOutline(
            d_model=(stacks or list(spec.stacks().values()))[-1].d_model,
            stacks=stacks,
            head=schema.OutputHeadInfo(
                kind=spec.head.kind,
                vocab_size=getattr(spec.head, "vocab_size", None),
                num_labels=labels,
                tied="head" in spec.tied,
                bias=getattr(spec.head, "bias", True),  # heads without the option have one
            ),
        ),
        example=examples[0],
        examples=tuple(examples) if len(examples) > 1 else (),
        image=next(filter(None, (_describe_image(bundle, part) for part in images)), None),
        series=_describe_series(bundle, read) if isinstance(read, specs.SeriesPatchesSpec) else None,
    )


def _describe_image(bundle: Bundle, read: Any) -> schema.ImageInfo | None:
    """Describe the image input of a model; None if it reads something else."""
    match read:
        case specs.ImagePatchesSpec():
            (height, width), patch, channels = read.image_size, read.patch_size, read.channels
        case specs.ConvolutionStemSpec():  # of a promptable segmenter, whose image embedding has the cells
            (height, width), channels = read.image_size, read.channels
            encoder: Any = bundle.model.get_submodule("encoder")
            rows, columns = encoder.output_grid((height // 4, width // 4))  # the stem has stride 4
            patch = (height // rows, width // columns)
        case specs.FeatureMapSpec():  # reads images of any size; this is that of a square one
            height, width = Detector(bundle).processor.transform.scaled_size((1, 1))
            patch, channels = (read.stride,) * 2, read.backbone.channels
        case _:
            return None
    return schema.ImageInfo(
        height=height,
        width=width,
        channels=channels,
        patch=patch,
        grid=(-(-height // patch[0]), -(-width // patch[1])),
    )


def _describe_series(bundle: Bundle, read: specs.SeriesPatchesSpec) -> schema.SeriesInfo:
    return schema.SeriesInfo(
        context=read.context_length,
        horizon=getattr(bundle.spec.head, "prediction_length", 0),
        channels=column_names(bundle),
        patch=read.patch_length,
        stride=read.stride,
        scaling=read.scaling,
    )
