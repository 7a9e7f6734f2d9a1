"""The explorer in a notebook: a page with its trace in a sandboxed frame, without a server or the internet.

The frame has no access to the notebook: its origin is unique, and its policy allows only its own script.
"""

from __future__ import annotations

import base64
import html
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.observe import Record
from glassformer.errors import ShapeError, UnknownNameError, UnsupportedError
from glassformer.explorer import single_file, trace_to_store
from glassformer.explorer.stored_trace import store_trace
from glassformer.interpret import schema
from glassformer.interpret.outline import describe_stacks, stack_output
from glassformer.interpret.prepared_input import PreparedInput
from glassformer.interpret.trace import Trace
from glassformer.weights.atomic_write import write_file

if TYPE_CHECKING:
    from glassformer.interpret.schema import TraceInput

MAX_BYTES = 1_700_000  # of compressed tensors, so that the page stays below 3 MB
VIEWS = ("model", "heads", "decoding", "change", "learning")
FRAME = (
    '<iframe sandbox="allow-scripts allow-downloads" loading="lazy" title="{title}" srcdoc="{page}" '
    'style="width: 100%; height: {height}px; border: 1px solid #8884; border-radius: 6px"></iframe>'
)


@dataclass(frozen=True, repr=False)
class ExplorerPage:
    """A page of the explorer; the last value of a notebook's cell is displayed.

    html: the page, which also works as a file. height: of the frame, in pixels.
    """

    html: str
    title: str
    height: int = 720

    def __repr__(self) -> str:
        return f"ExplorerPage({self.title!r}, {len(self.html) / 1e6:.1f} MB; .save(path) writes it)"

    def _repr_html_(self) -> str:
        return FRAME.format(title=html.escape(self.title), page=html.escape(self.html), height=self.height)

    def save(self, path: str | Path) -> None:
        """Write the page as an HTML file."""
        write_file(Path(path), self.html.encode())


def explore(
    bundle: Bundle, input: TraceInput | None = None, *, view: str = "model", height: int = 720
) -> ExplorerPage:
    """Trace an input, by default the model's example, and return the page. view: the view to open."""
    name = "model" if bundle.folder is None else bundle.folder.resolve().name
    stored = trace_to_store(bundle, input, name=name, max_bytes=MAX_BYTES, start=_address(name, view))
    return ExplorerPage(single_file(stored, title=f"Glassformer: {name}"), name, height)


def show_record(
    record: Record,
    tokens: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    *,
    view: str = "heads",
    height: int = 720,
) -> ExplorerPage:
    """Return the page of a record of `glassformer.observe`, whose model and inputs it names.

    tokens: the token at each position, by default its id or number; of an encoder-decoder, a dict with
    "source" and "target".
    """
    if record.model is None or not hasattr(record.model, "spec") or not record.attentions():
        hint = "observe(model, inputs) records them for the models of this library"
        raise UnsupportedError("a record without a model and attention", "the explorer", hint=hint)
    bundle = Bundle(model=record.model)  # type: ignore[arg-type]
    stacks = describe_stacks(bundle)
    _check_record(record, stacks)
    trace = _trace_of(bundle, record, tokens)
    parameters = list(bundle.model.parameters())
    name = type(bundle.model).__name__
    model = schema.ModelInfo(
        id=name,
        name=name,
        load=name,
        family=None,
        architecture="encoder-decoder" if len(stacks) > 1 else f"{stacks[0].name}-only",  # type: ignore[arg-type]
        kind=trace.kind,
        parameters=sum(parameter.numel() for parameter in parameters),
        bytes=sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        labels=None,
        languages=None,
        outline=schema.ModelOutline(
            d_model=stacks[-1].d_model,
            stacks=stacks,
            head=schema.OutputHeadInfo(kind="", vocab_size=None, num_labels=None, tied=False, bias=False),
        ),
        example=trace.prepared.input,
        examples=(),
        image=None,
        series=None,
    )
    stored = store_trace(trace, model, MAX_BYTES)
    stored.index["start"] = _address(name, view)
    return ExplorerPage(single_file(stored, title=f"Glassformer: {name}"), name, height)


def _address(name: str, view: str) -> str:
    if view not in VIEWS:
        raise UnknownNameError("view", view, VIEWS)
    return f"#/{name}/{view}?"


def _check_record(record: Record, stacks: Sequence[schema.StackInfo]) -> None:
    """Raise if the page cannot show a record: it lacks residuals, or its patches have no positions."""
    if not stacks or any(stack.merging for stack in stacks):
        hint = "use explore() of its pipeline"
        raise UnsupportedError(f"a record of {type(record.model).__name__}", "the explorer", hint=hint)
    layers = {name.rpartition(".")[0] for name in record.attentions()}
    for stack in stacks:
        blocks = {f"{stack.path}.blocks.{n}" for n in range(stack.layers)}
        residuals = {f"{block}.{end}" for block in blocks for end in ("resid_in", "resid_out")}
        if not blocks <= layers or not {*residuals, stack_output(stack)} <= record.tensors.keys():
            hint = "call observe without want=, which records all of them"
            raise UnsupportedError(f"a record without all tensors of {stack.path}", "the explorer", hint=hint)


def _forward_arguments(record: Record) -> dict[str, Any]:
    """Return the inputs that `observe` passed to the model, by the names of its forward."""
    assert record.model is not None
    inputs = record.inputs
    if isinstance(inputs, Mapping):
        return dict(inputs)
    values = inputs if isinstance(inputs, list | tuple) else (inputs,)
    return inspect.signature(record.model.forward).bind_partial(*values).arguments


def _trace_of(
    bundle: Bundle, record: Record, tokens: Sequence[str] | Mapping[str, Sequence[str]] | None
) -> Trace:
    """Wrap a record as a trace whose sequences have the given tokens; a batch has several rows."""
    stacks = describe_stacks(bundle)
    lengths = {stack.sequence: _length(record, stack.path) for stack in stacks}
    given = tokens if isinstance(tokens, Mapping) else {} if tokens is None else {stacks[-1].sequence: tokens}
    sequences = []
    for (name, length), ids in zip(lengths.items(), _token_ids(record, len(lengths)), strict=True):
        numbers = ids if len(ids) == length else [str(n) for n in range(length)]
        names = given.get(name) or numbers
        if len(names) != length:
            raise ShapeError(f"tokens of {name!r}", (len(names),), f"{length} tokens, one for each position")
        pieces = tuple(schema.TraceToken(piece=piece) for piece in names)
        sequences.append(schema.TokenSequence(name=name, kind="text", tokens=pieces))
    rows = record[f"{record.attentions()[0]}.q"].shape[0]
    outcome: schema.FillOutcome | schema.TextOutcome = schema.FillOutcome(masks=())
    if len(stacks) > 1 or stacks[0].causal:
        kind: Any = "translate" if len(stacks) > 1 else "generate"
        outcome = schema.TextOutcome(kind=kind, text="", num_tokens=0, finish_reason=None)
    return Trace(
        id="record",
        model=type(bundle.model).__name__,
        bundle=bundle,
        prepared=PreparedInput(
            kind=outcome.kind,
            input=schema.TraceInput(text=" ".join(token.piece for token in sequences[0].tokens)),
            sequences=tuple(sequences),
            inputs=_forward_arguments(record),
            rows=tuple(str(n) for n in range(rows)) if rows > 1 else None,
        ),
        interventions=(),
        record=record,
        outcome=outcome,
        forward_seconds=0.0,
    )


def _length(record: Record, path: str) -> int:
    name = next(one for one in record.attentions() if one.startswith(f"{path}.blocks."))
    return int(record[f"{name}.q"].shape[2])


def _token_ids(record: Record, count: int) -> list[list[str]]:
    """Return the ids of the first row of each input as texts; empty if an input has none."""
    inputs = record.inputs
    values = list(inputs.values()) if isinstance(inputs, Mapping) else inputs
    values = list(values) if isinstance(values, list | tuple) else [values]
    found = []
    for value in values[:count]:
        tensor: Any = value if isinstance(value, Tensor) else getattr(value, "ids", None)
        is_ids = tensor is not None and tensor.dim() == 2 and not tensor.is_floating_point()
        found.append([str(id) for id in tensor[0].tolist()] if is_ids else [])
    return found + [[] for _ in range(count - len(found))]


def image_input(image: str | Path | bytes) -> str:
    """Return an image file as base64."""
    data = image if isinstance(image, bytes) else Path(image).read_bytes()
    return base64.b64encode(data).decode()
