"""Compare an exported model, run in its runtime, with the original."""

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
from glassformer.core.inputs import Masks
from glassformer.core.model import AnyModel, DecoderOnly, EncoderDecoder, EncoderOnly
from glassformer.errors import FileProblemError, GlassformerError, MissingDependencyError
from glassformer.export.ctranslate2 import SUPPRESSED, vocabulary_of
from glassformer.export.folder import end_tokens, read_metadata, start_tokens, suppressed_tokens
from glassformer.export.onnx import Graph, graphs_of
from glassformer.verify.comparison import CheckResult, Tolerance, check_result, relative_error
from glassformer.verify.inputs import RandomInputs, drop_padding, has_tokens, random_inputs

# Tolerances by the dtype of the exported weights: runtimes round differently, and quantized weights differ.
# The note of a check says how often the most likely token is the same.
TOLERANCES_BY_DTYPE = {"float32": 1e-4, "float16": 1e-2, "int8": 2e-1}
ROWS = 8  # enough rows to compare the most likely tokens
CHUNKS = (4, 1, 3, 1)  # tokens per step, repeated

# from a bundle to all differences and a note on what was compared
Measure = Callable[[Bundle], tuple[list[float], str]]


def argmax_agreement(ours: Tensor, theirs: Tensor) -> str:
    """Describe how many rows of two logits (N, V) have the same argmax.

    >>> import torch
    >>> argmax_agreement(torch.eye(3), torch.eye(3)[[0, 1, 1]])
    'same choice at 2 of 3'
    """
    if ours.shape != theirs.shape:
        return "shapes differ"
    same = (ours.cpu().argmax(-1) == theirs.cpu().argmax(-1)).sum()
    return f"same choice at {int(same)} of {len(ours)}"


@dataclass(eq=False)
class ExportMismatchError(GlassformerError):
    """The exported folder is not an export of this model."""

    problem: str
    hint: str = "export the model again"
    template: ClassVar[str] = "the exported folder belongs to another model: it {problem}"


@dataclass(frozen=True, kw_only=True)
class ExportedFolder:
    """An exported model, opened in its runtime."""

    dtype: str
    measure: Measure
    tolerance: Callable[[Bundle], float]


def open_exported(folder: str | Path) -> ExportedFolder:
    """Open an exported folder in its runtime."""
    about = read_metadata(folder)
    kind, dtype = about.get("format"), about.get("dtype")
    if kind not in OPENERS or dtype not in TOLERANCES_BY_DTYPE:
        raise FileProblemError(
            folder,
            f"unknown export format {kind!r} or dtype {dtype!r}",
            hint=f"export to {' or '.join(OPENERS)}",
        )
    limit = TOLERANCES_BY_DTYPE[dtype]

    def tolerance(bundle: Bundle) -> float:
        relative = (kind, dtype) == ("onnx", "int8")
        return min(limit, _int8_onnx_tolerance(bundle)) if relative else limit

    return ExportedFolder(dtype=dtype, measure=OPENERS[kind](Path(folder)), tolerance=tolerance)


def exported_equals_native(bundle: Bundle, name: str, *, exported: ExportedFolder) -> CheckResult:
    """Compare the exported with the native model on the same padded inputs, starting with an empty cache."""
    sample = random_inputs(bundle.model, "right" if has_tokens(bundle.model) else "none", batch=ROWS)
    with torch.no_grad():
        tolerance = Tolerance.of_model(bundle.model, sample, _outputs, exported.tolerance(bundle))
        differences, note = exported.measure(bundle)
        return check_result(name, differences, tolerance, f"{note}, {exported.dtype} weights")


def _outputs(model: AnyModel, sample: RandomInputs) -> list[Tensor]:
    return list(drop_padding(model, sample, sample.run(model)).values())


# ---- ONNX -------------------------------------------------------------------------------------------------


def open_onnx(folder: Path) -> Measure:
    """Open a folder in ONNX Runtime; return a function that compares a bundle with it."""
    try:
        runtime = import_module("onnxruntime")
    except ImportError:
        raise MissingDependencyError("onnxruntime", "export") from None
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # errors are raised below
    sessions: dict[str, Any] = {}
    for path in sorted(folder.glob("*.onnx")):
        try:
            sessions[path.stem] = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime raises many different classes
            reason = str(error).partition("\n")[0]
            raise FileProblemError(
                path, f"cannot be loaded ({reason})", hint="export the model again"
            ) from None

    def measure(bundle: Bundle) -> tuple[list[float], str]:
        graphs = graphs_of(bundle.model)
        for graph in graphs:
            _check_graph(graph, sessions)
        note = f"in ONNX Runtime {runtime.__version__}"
        if bundle.spec.yields == "next tokens":
            return _compare_decoding(bundle, graphs, sessions, note)
        return _compare_forward(bundle, graphs[0], sessions["model"], note)

    return measure


def _int8_onnx_tolerance(bundle: Bundle) -> float:
    """Return twice the error that the same rounding causes in PyTorch.

    The outputs of the two are not compared directly: a sum in another order can round the next input to
    another integer, and a few layers later nothing is equal but the size of the error.
    """
    from glassformer.export.onnx_int8 import RoundedInputs, round_matrices

    model = bundle.model
    sample = random_inputs(model, "right" if has_tokens(model) else "none", batch=ROWS)
    ours = drop_padding(model, sample, sample.run(model))
    with RoundedInputs():
        rounded = drop_padding(model, sample, sample.run(round_matrices(model)))
    return 2 * max(relative_error(rounded[key], ours[key]) for key in ours)


def _check_graph(graph: Graph, sessions: dict[str, Any]) -> None:
    """Raise unless the ONNX file has the inputs of the model's graph."""
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


def _run(session: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Run a session; return its outputs by name."""
    names = [port.name for port in session.get_outputs()]
    arrays = {name: np.asarray(value.cpu()) for name, value in inputs.items()}
    return dict(zip(names, map(torch.from_numpy, session.run(names, arrays)), strict=True))


def _compare_forward(bundle: Bundle, graph: Graph, session: Any, note: str) -> tuple[list[float], str]:
    """Compare one forward pass of a batch padded on the right."""
    model = bundle.model
    sample = random_inputs(model, "right" if has_tokens(model) else "none", batch=ROWS)
    inputs = _named_inputs(graph, sample)
    ours, outputs = sample.run(model), _run(session, inputs).values()
    theirs = {key: x.to(inputs[graph.inputs[0].name].device) for key, x in zip(ours, outputs, strict=True)}
    if any(theirs[key].shape != ours[key].shape for key in ours):
        return [float("inf")], "shapes differ"
    ours, theirs = drop_padding(model, sample, ours), drop_padding(model, sample, theirs)
    return [relative_error(theirs[key], ours[key]) for key in ours], f"{len(sample)} rows {note}"


def _named_inputs(graph: Graph, sample: RandomInputs) -> dict[str, Tensor]:
    """Return the inputs by the names of the graph; missing masks are filled so that nothing is masked."""
    inputs: dict[str, Tensor] = {}
    for name, x, mask in zip(("first", "target"), sample.inputs, sample.masks, strict=False):
        inputs[graph.inputs[0].name if name == "first" else name] = x.float() if mask is None else x
        if mask is not None:
            inputs["mask" if name == "first" else "target_mask"] = mask
    first = sample.inputs[0]
    for port in graph.inputs:
        if port.name not in inputs:  # token types, observed values, masked patches
            size = [
                len(first) if n == "batch" else first.shape[1] if isinstance(n, str) else n
                for n in port.shape
            ]
            dtype = torch.int64 if port.dtype == "int64" else torch.bool
            inputs[port.name] = torch.full(size, port.name == "observed", dtype=dtype)
    return inputs


def _compare_decoding(
    bundle: Bundle, graphs: list[Graph], sessions: dict[str, Any], note: str
) -> tuple[list[float], str]:
    """Compare cached decoding in uneven steps, with left padding, with a single forward pass."""
    model = bundle.model
    sample = random_inputs(model, "left", batch=ROWS)
    ids, mask = sample.inputs[-1], sample.masks[-1]
    assert mask is not None
    memory: dict[str, Tensor] = {}
    if isinstance(model, EncoderDecoder):
        memory_mask = sample.masks[0]
        assert memory_mask is not None
        outputs = _run(sessions["encoder"], {"ids": sample.inputs[0], "mask": memory_mask})
        memory = {**{name: x for name, x in outputs.items() if name != "memory"}, "memory_mask": memory_mask}
    step = graphs[-1]
    past = {
        port.name: torch.zeros(
            [len(ids) if n == "batch" else 0 if n == "past" else int(n) for n in port.shape]
        )
        for port in step.inputs
        if port.name.startswith("past_")
    }
    logits, done, steps = [], 0, 0
    while done < ids.shape[1]:
        end = min(done + CHUNKS[steps % len(CHUNKS)], ids.shape[1])
        inputs = {"ids": ids[:, done:end], "mask": mask[:, :end], **memory, **past}
        outputs = _run(sessions[step.name], inputs)
        logits.append(outputs.pop("logits"))
        past = {name.replace("present_", "past_"): x for name, x in outputs.items()}
        done, steps = end, steps + 1
    ours = sample.run(model)["output"][mask]
    theirs = torch.cat(logits, 1)[mask.cpu()]
    note = f"{argmax_agreement(ours, theirs)}, in {steps} steps with a cache {note}"
    return [relative_error(theirs, ours)], note


# ---- CTranslate2 ------------------------------------------------------------------------------------------


def open_ctranslate2(folder: Path) -> Measure:
    """Open a folder in CTranslate2; return a function that compares a bundle with it."""
    try:
        library = import_module("ctranslate2")
    except ImportError:
        raise MissingDependencyError("ctranslate2", "export") from None
    about = read_metadata(folder)
    kind = about.get("runtime")
    if kind not in ("Translator", "Generator", "Encoder"):
        raise FileProblemError(folder, f"unknown CTranslate2 runtime {kind!r}", hint="export the model again")
    try:
        # float32 checks only the stored weights: int8 matmuls differ between CPUs and backends
        runtime = getattr(library, kind)(
            str(folder), device="cpu", compute_type="float32", intra_threads=torch.get_num_threads()
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise FileProblemError(
            folder, f"cannot be loaded ({reason})", hint="export the model again"
        ) from None

    def measure(bundle: Bundle) -> tuple[list[float], str]:
        if (kind, type(bundle.model)) not in (
            ("Translator", EncoderDecoder),
            ("Generator", DecoderOnly),
            ("Encoder", EncoderOnly),
        ):
            name = type(bundle.model).__name__
            raise ExportMismatchError(f"needs the runtime {kind}, which cannot run a {name}")
        compare = _compare_translations if kind == "Translator" else _compare_scores
        differences, note = compare(bundle, runtime)
        return differences, f"{note}, in CTranslate2 {library.__version__}"

    return measure


def _rows(sample: RandomInputs, number: int = 0) -> list[list[int]]:
    """Return input `number` of the sample as lists of ids without padding."""
    masks = sample.masks[number]
    assert masks is not None
    return [row[mask].tolist() for row, mask in zip(sample.inputs[number].cpu(), masks.cpu(), strict=True)]


def _compare_scores(bundle: Bundle, runtime: Any) -> tuple[list[float], str]:
    """Compare logits, or an encoder's last hidden states, excluding padding and suppressed tokens."""
    model: Any = bundle.model
    sample = random_inputs(model, "right", batch=ROWS)
    mask = sample.masks[0]
    assert mask is not None
    output = runtime.forward_batch(_rows(sample))
    is_encoder = isinstance(model, EncoderOnly)
    theirs = torch.from_numpy(np.array(output.last_hidden_state if is_encoder else output))
    theirs = theirs[mask.cpu()] if theirs.shape[:2] == mask.shape else theirs
    if is_encoder:
        vectors, _ = model.hidden_states(*sample.inputs, *sample.masks)
        return [relative_error(theirs, vectors[mask])], f"the last hidden states of {len(sample)} rows"
    ours = sample.run(model)["output"][mask].cpu()
    if ours.shape != theirs.shape:
        return [float("inf")], "shapes differ"
    allowed = torch.ones(ours.shape[-1], dtype=torch.bool)
    allowed[suppressed_tokens(bundle)] = False
    ours, theirs = ours[:, allowed], theirs[:, allowed]
    return [relative_error(theirs, ours)], argmax_agreement(ours, theirs)


def _compare_translations(bundle: Bundle, runtime: Any) -> tuple[list[float], str]:
    """Compare the log-probabilities of random targets, end token included, in both runtimes."""
    model: Any = bundle.model
    sample = random_inputs(model, "right", batch=ROWS)
    ends, starts = end_tokens(bundle), start_tokens(bundle, model.spec)
    if len(starts) != 1 or not ends:
        raise ExportMismatchError("has start and end tokens")
    sources, targets = _rows(sample), _rows(sample, 1)
    source_tokens = vocabulary_of(bundle, model.spec.source, "source")
    target_tokens = vocabulary_of(bundle, model.spec.target, "target")
    scores = runtime.score_batch(
        [[source_tokens[n] for n in row] for row in sources],
        [[target_tokens[n] for n in row] for row in targets],
    )
    differences, same, count, device = [], 0, 0, sample.inputs[0].device
    for source, target, score in zip(sources, targets, scores, strict=True):
        inputs = [torch.tensor([ids], device=device) for ids in (source, [*starts, *target])]
        masks = Masks(*(torch.ones_like(x, dtype=torch.bool) for x in inputs))
        logits = model(*inputs, masks).float()
        logits[..., suppressed_tokens(bundle)] += SUPPRESSED  # as exported
        expected_ids = torch.tensor([*target, ends[0]], device=device)
        ours = logits.log_softmax(-1)[0].gather(1, expected_ids[:, None])[:, 0].cpu()
        theirs = torch.tensor(score.log_probs)
        differences.append(relative_error(theirs, ours))
        same, count = same + int((theirs - ours).abs().lt(0.1).sum()), count + len(ours)
    return differences, f"log-probabilities within 0.1 at {same} of {count}"


OPENERS: dict[str, Callable[[Path], Measure]] = {"onnx": open_onnx, "ctranslate2": open_ctranslate2}
