"""An ONNX export in its runtime beside the model: all at once, or step by step where it writes."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core import spec
from glassformer.core.model import EncoderDecoder
from glassformer.errors import FileProblemError, MissingDependencyError
from glassformer.export.onnx_graphs import Graph, graphs_of
from glassformer.verify.claims import EXPORT_ROWS, ExportMismatchError, Measure, gap, same_choices
from glassformer.verify.inputs import Sample, at_real, has_tokens, sample_for

PIECES = (4, 1, 3, 1)  # how many tokens each step reads, over and over


def open_onnx(folder: Path) -> Measure:
    """The comparison with a folder, once its files are open in the runtime."""
    try:
        runtime = import_module("onnxruntime")
    except ImportError:
        raise MissingDependencyError("onnxruntime", "export") from None
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # what fails is said below
    sessions: dict[str, Any] = {}
    for path in sorted(folder.glob("*.onnx")):
        try:
            sessions[path.stem] = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime has a class of its own for every kind of damage
            raise FileProblemError(path, str(error).splitlines()[0], hint="export the model again") from None

    def measure(bundle: Bundle) -> tuple[list[float], str]:
        graphs = graphs_of(bundle.model)
        for graph in graphs:
            _check(graph, sessions)
        note = f"in ONNX Runtime {runtime.__version__}"
        if isinstance(bundle.spec.head, spec.LanguageModel):
            return _writing(bundle, graphs, sessions, note)
        return _reading(bundle, graphs[0], sessions["model"], note)

    return measure


def _check(graph: Graph, sessions: dict[str, Any]) -> None:
    """Whether a file takes what the model's graph takes."""
    if graph.name not in sessions:
        raise ExportMismatchError(f"has no {graph.name}.onnx")
    theirs = {port.name: tuple(port.shape) for port in sessions[graph.name].get_inputs()}
    for port in graph.inputs:
        fixed = [size for size in port.shape if isinstance(size, int)]
        if [size for size in theirs.get(port.name, ()) if isinstance(size, int)] != fixed:
            raise ExportMismatchError(
                f"reads {port.name} {theirs.get(port.name)} where this reads {port.shape}"
            )
    if len(theirs) != len(graph.inputs):
        raise ExportMismatchError(f"takes {len(theirs)} inputs where this takes {len(graph.inputs)}")


def _run(session: Any, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Its outputs by name."""
    names = [port.name for port in session.get_outputs()]
    fed = {name: np.asarray(value.cpu()) for name, value in given.items()}
    return dict(zip(names, map(torch.from_numpy, session.run(names, fed)), strict=True))


def _reading(bundle: Bundle, graph: Graph, session: Any, note: str) -> tuple[list[float], str]:
    """All rows at once, padded on the right."""
    model = bundle.model
    sample = sample_for(model, "right" if has_tokens(model) else "none", batch=EXPORT_ROWS)
    given = _named(graph, sample)
    ours, found = sample.run(model), _run(session, given).values()
    theirs = {key: x.to(given[graph.inputs[0].name].device) for key, x in zip(ours, found, strict=True)}
    if any(theirs[key].shape != ours[key].shape for key in ours):
        return [float("inf")], "other shapes"
    ours, theirs = at_real(model, sample, ours), at_real(model, sample, theirs)
    return [gap(theirs[key], ours[key]) for key in ours], f"{len(sample)} rows {note}"


def _named(graph: Graph, sample: Sample) -> dict[str, Tensor]:
    """A sample under the names of the graph's inputs; of what it does not tell, nothing is hidden."""
    given: dict[str, Tensor] = {}
    for name, x, real in zip(("first", "target"), sample.inputs, sample.real, strict=False):
        given[graph.inputs[0].name if name == "first" else name] = x.float() if real is None else x
        if real is not None:
            given["mask" if name == "first" else "target_mask"] = real
    first = sample.inputs[0]
    for port in graph.inputs:
        if port.name not in given:  # token types, which values are there, which patches are hidden
            size = [
                len(first) if n == "batch" else first.shape[1] if isinstance(n, str) else n
                for n in port.shape
            ]
            kind = torch.int64 if port.dtype == "int64" else torch.bool
            given[port.name] = torch.full(size, port.name == "observed", dtype=kind)
    return given


def _writing(
    bundle: Bundle, graphs: list[Graph], sessions: dict[str, Any], note: str
) -> tuple[list[float], str]:
    """Logits of rows padded on the left, in uneven steps from an empty cache, against ours at once."""
    model = bundle.model
    sample = sample_for(model, "left", batch=EXPORT_ROWS)
    ids, real = sample.inputs[-1], sample.real[-1]
    assert real is not None
    fixed: dict[str, Tensor] = {}
    if isinstance(model, EncoderDecoder):
        there = sample.real[0]
        assert there is not None
        found = _run(sessions["encoder"], {"ids": sample.inputs[0], "mask": there})
        fixed = {**{name: x for name, x in found.items() if name != "memory"}, "memory_mask": there}
    step = graphs[-1]
    past = {
        port.name: torch.zeros(
            [len(ids) if n == "batch" else 0 if n == "past" else int(n) for n in port.shape]
        )
        for port in step.inputs
        if port.name.startswith("past_")
    }
    logits, done, turn = [], 0, 0
    while done < ids.shape[1]:
        end = min(done + PIECES[turn % len(PIECES)], ids.shape[1])
        given = {"ids": ids[:, done:end], "mask": real[:, :end], **fixed, **past}
        found = _run(sessions[step.name], given)
        logits.append(found.pop("logits"))
        past = {name.replace("present_", "past_"): x for name, x in found.items()}
        done, turn = end, turn + 1
    ours = sample.run(model)["output"][real]
    theirs = torch.cat(logits, 1)[real.cpu()]
    return [gap(theirs, ours)], f"{same_choices(ours, theirs)}, in {turn} steps from a cache {note}"
