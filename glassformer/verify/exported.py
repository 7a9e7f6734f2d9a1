"""What an exported folder gives in its own runtime is what the model gives here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core import spec
from glassformer.core.model import DecoderOnly, EncoderDecoder, EncoderOnly
from glassformer.errors import FileProblemError, GlassformerError, MissingDependencyError
from glassformer.export.ctranslate2 import FORBIDDEN, vocabulary_of
from glassformer.export.folder import end_tokens, read_metadata, start_tokens, suppressed_tokens
from glassformer.export.onnx import Graph, graphs_of
from glassformer.verify.claims import Claim, gap, measured, tolerance_of
from glassformer.verify.inputs import RandomInputs, at_real, has_tokens, random_inputs

# Another runtime rounds on other ways, and smaller weights are other weights: what a number may differ by,
# by what the weights are stored in. What int8 moves is a cost, so its note says how many choices it changed.
ALLOWED = {"float32": 1e-4, "float16": 1e-2, "int8": 2e-1}
ROWS = 8  # enough that a share of choices means something
PIECES = (4, 1, 3, 1)  # how many tokens each step reads, over and over

# a bundle -> every difference found, and what was compared
Measure = Callable[[Bundle], tuple[list[float], str]]


def same_choices(ours: Tensor, theirs: Tensor) -> str:
    """How often two rows of scores (N, V) have the same highest one, as text.

    >>> import torch
    >>> same_choices(torch.eye(3), torch.eye(3)[[0, 1, 1]])
    'same choice at 2 of 3'
    """
    if ours.shape != theirs.shape:
        return "other shapes"
    same = (ours.cpu().argmax(-1) == theirs.cpu().argmax(-1)).sum()
    return f"same choice at {int(same)} of {len(ours)}"


@dataclass(eq=False)
class ExportMismatchError(GlassformerError):
    """An exported folder that cannot be an export of this model."""

    problem: str
    hint: str = "export the model again"
    template: ClassVar[str] = "the exported folder belongs to another model: it {problem}"


@dataclass(frozen=True, kw_only=True)
class ExportedFolder:
    """An export whose runtime is here and has read it."""

    dtype: str
    measure: Measure


def open_exported(folder: str | Path) -> ExportedFolder:
    """Open an exported folder with its own runtime."""
    about = read_metadata(folder)
    kind, dtype = about.get("format"), about.get("dtype")
    if kind not in OPENERS or dtype not in ALLOWED:
        raise FileProblemError(
            folder,
            f"unknown export format {kind!r} or dtype {dtype!r}",
            hint=f"export to {' or '.join(OPENERS)}",
        )
    return ExportedFolder(dtype=dtype, measure=OPENERS[kind](Path(folder)))


def exported_equals_native(bundle: Bundle, name: str, *, exported: ExportedFolder) -> Claim:
    """The same padded inputs through both, from an empty cache where there is one."""
    tolerance = max(ALLOWED[exported.dtype], tolerance_of(bundle.model))
    with torch.no_grad():
        gaps, note = exported.measure(bundle)
    return measured(name, gaps, tolerance, f"{note}, {exported.dtype} weights")


# ---- ONNX -------------------------------------------------------------------------------------------------


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
            _check_graph(graph, sessions)
        note = f"in ONNX Runtime {runtime.__version__}"
        if isinstance(bundle.spec.head, spec.LanguageModelSpec):
            return _writing(bundle, graphs, sessions, note)
        return _reading(bundle, graphs[0], sessions["model"], note)

    return measure


def _check_graph(graph: Graph, sessions: dict[str, Any]) -> None:
    """Whether a file takes what the model's graph takes."""
    if graph.name not in sessions:
        raise ExportMismatchError(f"has no {graph.name}.onnx")
    theirs = {port.name: tuple(port.shape) for port in sessions[graph.name].get_inputs()}
    for port in graph.inputs:
        fixed = [size for size in port.shape if isinstance(size, int)]
        if [size for size in theirs.get(port.name, ()) if isinstance(size, int)] != fixed:
            raise ExportMismatchError(
                f"reads {port.name} {theirs.get(port.name)} but this model reads {port.shape}"
            )
    if len(theirs) != len(graph.inputs):
        raise ExportMismatchError(f"takes {len(theirs)} inputs, but this model takes {len(graph.inputs)}")


def _run(session: Any, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Its outputs by name."""
    names = [port.name for port in session.get_outputs()]
    fed = {name: np.asarray(value.cpu()) for name, value in given.items()}
    return dict(zip(names, map(torch.from_numpy, session.run(names, fed)), strict=True))


def _reading(bundle: Bundle, graph: Graph, session: Any, note: str) -> tuple[list[float], str]:
    """All rows at once, padded on the right."""
    model = bundle.model
    sample = random_inputs(model, "right" if has_tokens(model) else "none", batch=ROWS)
    given = _named(graph, sample)
    ours, found = sample.run(model), _run(session, given).values()
    theirs = {key: x.to(given[graph.inputs[0].name].device) for key, x in zip(ours, found, strict=True)}
    if any(theirs[key].shape != ours[key].shape for key in ours):
        return [float("inf")], "other shapes"
    ours, theirs = at_real(model, sample, ours), at_real(model, sample, theirs)
    return [gap(theirs[key], ours[key]) for key in ours], f"{len(sample)} rows {note}"


def _named(graph: Graph, sample: RandomInputs) -> dict[str, Tensor]:
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
    sample = random_inputs(model, "left", batch=ROWS)
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


# ---- CTranslate2 ------------------------------------------------------------------------------------------


def open_ctranslate2(folder: Path) -> Measure:
    """The comparison with a folder, once it is open in the runtime that it was written for."""
    try:
        library = import_module("ctranslate2")
    except ImportError:
        raise MissingDependencyError("ctranslate2", "export") from None
    about = read_metadata(folder)
    kind = about.get("runtime")
    if kind not in ("Translator", "Generator", "Encoder"):
        raise FileProblemError(folder, f"unknown CTranslate2 runtime {kind!r}", hint="export the model again")
    try:
        # float32 checks the stored weights alone: int8 products differ between CPUs and backends
        runtime = getattr(library, kind)(
            str(folder), device="cpu", compute_type="float32", intra_threads=torch.get_num_threads()
        )
    except (RuntimeError, ValueError) as error:
        raise FileProblemError(folder, str(error).splitlines()[0], hint="export the model again") from None

    def measure(bundle: Bundle) -> tuple[list[float], str]:
        if (kind, type(bundle.model)) not in (
            ("Translator", EncoderDecoder),
            ("Generator", DecoderOnly),
            ("Encoder", EncoderOnly),
        ):
            raise ExportMismatchError(f"is for the {kind}, which runs no {type(bundle.model).__name__}")
        compare = _translating if kind == "Translator" else _scoring
        gaps, note = compare(bundle, runtime)
        return gaps, f"{note}, in CTranslate2 {library.__version__}"

    return measure


def _rows(sample: RandomInputs, number: int = 0) -> list[list[int]]:
    """One input of the sample as lists of its real ids."""
    real = sample.real[number]
    assert real is not None
    return [row[kept].tolist() for row, kept in zip(sample.inputs[number].cpu(), real.cpu(), strict=True)]


def _scoring(bundle: Bundle, runtime: Any) -> tuple[list[float], str]:
    """Logits, or an encoder's last hidden states, of real tokens; suppressed tokens are left out."""
    model: Any = bundle.model
    sample = random_inputs(model, "right", batch=ROWS)
    real = sample.real[0]
    assert real is not None
    found = runtime.forward_batch(_rows(sample))
    encodes = isinstance(model, EncoderOnly)
    theirs = torch.from_numpy(np.array(found.last_hidden_state if encodes else found))
    theirs = theirs[real.cpu()] if theirs.shape[:2] == real.shape else theirs
    if encodes:
        vectors, _ = model.hidden_states(*sample.inputs, *sample.real)
        return [gap(theirs, vectors[real])], f"the last hidden states of {len(sample)} rows"
    ours = sample.run(model)["output"][real].cpu()
    if ours.shape != theirs.shape:
        return [float("inf")], "other shapes"
    allowed = torch.ones(ours.shape[-1], dtype=torch.bool)
    allowed[suppressed_tokens(bundle)] = False
    ours, theirs = ours[:, allowed], theirs[:, allowed]
    return [gap(theirs, ours)], same_choices(ours, theirs)


def _translating(bundle: Bundle, runtime: Any) -> tuple[list[float], str]:
    """Log-probabilities of given targets and of their end."""
    model: Any = bundle.model
    sample = random_inputs(model, "right", batch=ROWS)
    ends, starts = end_tokens(bundle), start_tokens(bundle, model.spec)
    if len(starts) != 1 or not ends:
        raise ExportMismatchError("has start and end tokens")
    sources, targets = _rows(sample), _rows(sample, 1)
    read = vocabulary_of(bundle, model.spec.source, "source")
    spelled = vocabulary_of(bundle, model.spec.target, "target")
    scored = runtime.score_batch(
        [[read[n] for n in row] for row in sources], [[spelled[n] for n in row] for row in targets]
    )
    gaps, same, count, device = [], 0, 0, sample.inputs[0].device
    for source, target, found in zip(sources, targets, scored, strict=True):
        inputs = [torch.tensor([ids], device=device) for ids in (source, [*starts, *target])]
        logits = model(*inputs, *(torch.ones_like(x, dtype=torch.bool) for x in inputs)).float()
        logits[..., suppressed_tokens(bundle)] += FORBIDDEN  # as they are exported
        wanted = torch.tensor([*target, ends[0]], device=device)
        ours = logits.log_softmax(-1)[0].gather(1, wanted[:, None])[:, 0].cpu()
        theirs = torch.tensor(found.log_probs)
        gaps.append(gap(theirs, ours))
        same, count = same + int((theirs - ours).abs().lt(0.1).sum()), count + len(ours)
    return gaps, f"log-probabilities within 0.1 at {same} of {count}"


OPENERS: dict[str, Callable[[Path], Measure]] = {"onnx": open_onnx, "ctranslate2": open_ctranslate2}
