"""A CTranslate2 export in its runtime beside the model, by what each of its three runtimes can be asked."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core import spec
from glassformer.core.model import DecoderOnly, EncoderDecoder, EncoderOnly
from glassformer.errors import FileProblemError, MissingDependencyError
from glassformer.export.ctranslate2 import FORBIDDEN, vocabulary_of
from glassformer.export.folder import read_metadata
from glassformer.export.generation_metadata import end_tokens, start_tokens, suppressed_tokens
from glassformer.generation import GenerationConfig, GenerationRequest, generate
from glassformer.verify.claims import EXPORT_ROWS, ExportMismatchError, Measure, gap, same_choices
from glassformer.verify.inputs import Sample, sample_for

MOST = 16  # how many tokens both write


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
        note = f"in CTranslate2 {library.__version__}"
        model = bundle.model
        if kind == "Translator" and isinstance(model, EncoderDecoder):
            return _translating(bundle, model, runtime, note)
        if kind == "Generator" and isinstance(model, DecoderOnly):
            return _generating(bundle, model, runtime, note)
        if kind == "Encoder" and isinstance(model, EncoderOnly):
            return _encoding(model, runtime, note)
        raise ExportMismatchError(f"is for the {kind}, which runs no {type(model).__name__}")

    return measure


def _rows(sample: Sample, number: int = 0) -> list[list[int]]:
    """One input of the sample as lists of its real ids."""
    real = sample.real[number]
    assert real is not None
    return [row[kept].tolist() for row, kept in zip(sample.inputs[number].cpu(), real.cpu(), strict=True)]


def _tensor(view: Any) -> Tensor:
    return torch.from_numpy(np.array(view))


def _shifted(bundle: Bundle, logits: Tensor) -> Tensor:
    """Our scores as they are exported: what is never written is pushed far down."""
    logits = logits.clone()
    logits[..., suppressed_tokens(bundle)] += FORBIDDEN
    return logits


def _encoding(model: EncoderOnly, runtime: Any, note: str) -> tuple[list[float], str]:
    """The last layer's vectors of real tokens."""
    sample = sample_for(model, "right", batch=EXPORT_ROWS)
    found = _tensor(runtime.forward_batch(_rows(sample)).last_hidden_state)
    vectors, _ = model.hidden_states(*sample.inputs, *sample.real)
    real = sample.real[0]
    assert real is not None
    theirs = found[real.cpu()] if found.shape[:2] == real.shape else found
    return [gap(theirs, vectors[real])], f"the last layer's vectors of {len(sample)} rows {note}"


def _generating(bundle: Bundle, model: DecoderOnly, runtime: Any, note: str) -> tuple[list[float], str]:
    """Logits at real tokens."""
    sample = sample_for(model, "right", batch=EXPORT_ROWS)
    real = sample.real[0]
    assert real is not None
    ours = _shifted(bundle, sample.run(model)["output"])[real]
    found = _tensor(runtime.forward_batch(_rows(sample)))
    theirs = found[real.cpu()] if found.shape[:2] == real.shape else found
    return [_score_gap(bundle, ours, theirs)], f"{same_choices(ours, theirs)}, {note}"


def _score_gap(bundle: Bundle, ours: Tensor, theirs: Tensor) -> float:
    """The gap between scores that may win; what stands where none may is of no account."""
    if ours.shape != theirs.shape:
        return float("inf")
    kept = torch.ones(ours.shape[-1], dtype=torch.bool)
    kept[suppressed_tokens(bundle)] = False
    return gap(theirs[:, kept], ours[:, kept.to(ours.device)])


def _translating(bundle: Bundle, model: EncoderDecoder, runtime: Any, note: str) -> tuple[list[float], str]:
    """Log-probabilities of given targets and of their end, and how many texts are written the same."""
    sample = sample_for(model, "right", batch=EXPORT_ROWS)
    sources, targets = _rows(sample), _rows(sample, 1)
    read, spelled = (vocabulary_of(bundle, side, word) for side, word in _sides(model))
    ends, starts = end_tokens(bundle), start_tokens(bundle, model.spec)
    if len(starts) != 1 or not ends:
        raise ExportMismatchError("says where a text starts and ends")
    scored = runtime.score_batch(
        [[read[n] for n in row] for row in sources], [[spelled[n] for n in row] for row in targets]
    )
    gaps = []
    for source, target, found in zip(sources, targets, scored, strict=True):
        device = sample.inputs[0].device
        given, ids = torch.tensor([source], device=device), torch.tensor([[*starts, *target]], device=device)
        real = [torch.ones_like(x, dtype=torch.bool) for x in (given, ids)]
        logits = model(given, ids, *real)
        ours = _shifted(bundle, logits.float()).log_softmax(-1)[0]
        wanted = torch.tensor([*target, ends[0]], device=device)
        gaps.append(gap(torch.tensor(found.log_probs), ours.gather(1, wanted[:, None])[:, 0].cpu()))
    same = _same_texts(bundle, model, runtime, sources, (read, spelled))
    return gaps, f"{same} of {len(sources)} texts written the same, {note}"


def _sides(model: EncoderDecoder) -> tuple[tuple[spec.Input, Any], ...]:
    return (model.spec.source, "source"), (model.spec.target, "target")


def _same_texts(
    bundle: Bundle,
    model: EncoderDecoder,
    runtime: Any,
    sources: list[list[int]],
    words: tuple[list[str], list[str]],
) -> int:
    """How many of the sources both give the same greedy tokens."""
    read, spelled = words
    ends, starts = end_tokens(bundle), start_tokens(bundle, model.spec)
    found = runtime.translate_batch(
        [[read[n] for n in row] for row in sources],
        beam_size=1,
        max_decoding_length=MOST,
        min_decoding_length=0,
        end_token=[spelled[n] for n in ends],
    )
    settings = GenerationConfig(max_new_tokens=MOST, suppress_tokens=tuple(suppressed_tokens(bundle)))
    same = 0
    for source, theirs in zip(sources, found, strict=True):
        ids = torch.tensor([source], device=next(model.parameters()).device)
        real = torch.ones_like(ids, dtype=torch.bool)
        ((ours,),) = generate(
            model,
            ids,
            GenerationRequest(config=settings, eos_token_id=ends, pad_token_id=0, start_ids=starts),
            attention_mask=real,
        )
        same += [n for n in theirs.hypotheses[0] if n not in {spelled[e] for e in ends}] == [
            spelled[n] for n in ours.ids if n not in ends
        ]
    return same
