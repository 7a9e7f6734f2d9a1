"""Occlusion: how much the scores of an input drop if one of its tokens, patches or words is hidden.

It shows what an output depends on, which need not be where attention goes. The scores are those of the view:
log-probabilities of tokens, log-odds of labels (a probability near 1 hardly moves), the logit of an image and
a text, the cosine with an embedding, or forecast values in standard deviations.

C channels, H x W pixels, L scores, N changed copies of the input, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal

import torch
from torch import Tensor

from glassformer.core.inputs import TextInputs, tensor_of
from glassformer.errors import UnsupportedError
from glassformer.interpret.interventions import IntervenedForward
from glassformer.interpret.outline import input_names
from glassformer.interpret.prepared_input import copies_per_batch
from glassformer.interpret.schema import ItemNotFoundError, TokenSequence, TooLargeError
from glassformer.interpret.trace import Trace
from glassformer.interpret.views import view_of

MAX_SIDE: Final = 14  # rows and columns of covered squares; those of finer grids have several patches
MAX_TOKENS: Final = 1 << 21  # tokens of all changed copies; 512 with an output of 512 are a quarter of it

Hide = Literal["replace", "mask"]


@torch.inference_mode()
def occlude(trace: Trace, sequence: str | None = None, *, hide: Hide | None = None, size: int = 1) -> Tensor:
    """Hide each token or patch in turn; return the drop of every score: (L, T), or (L, rows, columns).

    sequence: name of the sequence whose tokens are hidden; by default the first
    hide: how to hide a token of a text: "mask" it, so that no query attends to it, or "replace" it by the
    mask token, else the unknown token. By default, tokens are replaced if the tokenizer has a mask token, and
    in a decoder, where the token itself predicts the next one.
    size: rows and columns of patches of an image that are covered together

    Squares of an image are covered with its background color, the median of its border. A patch of a series
    takes the last value before it.

    >>> import glassformer
    >>> from glassformer.interpret.schema import TraceInput
    >>> from glassformer.interpret.trace import trace_model
    >>> trace = trace_model(glassformer.load("pocket"), TraceInput(text="I do not sleep.", to="de"))
    >>> drops = occlude(trace)                              # (generated tokens, source tokens)
    >>> words = [token.piece.strip() for token in trace.sequence("target").tokens[1:]]
    >>> trace.sequence("source").tokens[int(drops[words.index("nicht")].argmax())].piece
    ' not'
    """
    if trace.interventions:
        raise UnsupportedError("a trace with interventions", "occlusion")
    names = input_names(trace.bundle.model)
    if not names:
        raise UnsupportedError(trace.bundle.display_name, "occlusion")
    if sequence == "words" and trace.kind == "ask":
        return _occlude_tokens(trace, next(iter(names)), hide or "mask")
    if sequence is not None and sequence not in names:
        raise ItemNotFoundError("sequence", sequence, names)
    tokens = trace.sequences[0] if sequence is None else trace.sequence(sequence)
    match tokens.kind:
        case "text":
            return _occlude_tokens(trace, tokens.name, hide)
        case "series":
            return _occlude_series(trace, tokens)
        case "patches":
            return _occlude_patches(trace, tokens, size)
    raise UnsupportedError(f"the sequence {tokens.name}", "occlusion", hint="hide patches of the image")


def background(image: Tensor) -> Tensor:
    """Return the background color (1, C, 1, 1) of an image (1, C, H, W): the median of its border."""
    border = torch.cat((image[..., 0, :], image[..., -1, :], image[..., 0], image[..., -1]), -1)
    return border.median(-1).values[..., None, None]


def _occlude_patches(trace: Trace, patches: TokenSequence, size: int) -> Tensor:
    assert patches.grid is not None
    view = view_of(trace.bundle)
    image = view.image(trace.prepared)
    color = background(image)[0]
    step = -(-max(patches.grid) // MAX_SIDE)
    box = patches.tokens[patches.prefix].box
    assert box is not None
    high, wide = box[3] * step, box[2] * step
    rows, columns = (-(-side // step) for side in patches.grid)
    places = torch.tensor([(row, column) for row in range(rows) for column in range(columns)])

    def cover(part: Tensor) -> Mapping[str, Any]:
        batch = image.repeat(len(part), 1, 1, 1)
        for covered, place in zip(batch, part.tolist(), strict=True):
            top, left = (max(0, at - (size - 1) // 2) for at in place)
            bottom, right = (at + size // 2 + 1 for at in place)
            covered[:, top * high : bottom * high, left * wide : right * wide] = color
        return view.with_images(trace.prepared, batch)

    return _drops(trace, places, cover).reshape(-1, rows, columns)


def _occlude_tokens(trace: Trace, sequence: str, hide: Hide | None) -> Tensor:
    bundle = trace.bundle
    names, tokenizer = input_names(bundle.model)[sequence], bundle.tokenizer
    argument = names.argument
    ids = tensor_of(trace.prepared.inputs[argument])
    count = ids.shape[1]
    known = [] if tokenizer is None else [tokenizer.mask_id, tokenizer.unk_id]
    replacement = next((id for id in known if id is not None), None)
    if hide is None:
        replaced = replacement is not None and (known[0] is not None or names.stack == "decoder")
        hide = "replace" if replaced else "mask"
    if hide == "replace" and replacement is None:
        raise UnsupportedError(bundle.display_name, "replaced tokens", hint="hide='mask' masks them")

    def change(part: Tensor) -> Mapping[str, Any]:
        inputs = trace.prepared.repeated(len(part))
        hidden = part[:, None] == torch.arange(count)  # (N, T)
        if hide == "replace":
            text = inputs[argument]
            text = text if isinstance(text, TextInputs) else TextInputs(text)
            changed = text.ids.masked_fill(hidden.to(ids.device), int(replacement or 0))
            return inputs | {argument: replace(text, ids=changed)}
        forward = IntervenedForward(bundle.model, inputs, ())
        visible = torch.ones(len(part), forward.lengths[sequence], dtype=torch.bool)
        visible[:, :count] = ~hidden
        forward.mask(sequence, visible)
        return forward.inputs

    return _drops(trace, torch.arange(count), change)


def _occlude_series(trace: Trace, tokens: TokenSequence) -> Tensor:
    argument = input_names(trace.bundle.model)[tokens.name].argument
    spans = [token.span for token in tokens.tokens]

    def change(part: Tensor) -> Mapping[str, Any]:
        inputs = trace.prepared.repeated(len(part))
        values = tensor_of(inputs[argument])  # (N, time, C)
        for row, place in zip(values, part.tolist(), strict=True):
            if (span := spans[place]) is not None:
                row[span[0] : span[1]] = row[max(0, span[0] - 1)].clone()
        return inputs

    return _drops(trace, torch.arange(len(tokens)), change)


def _drops(trace: Trace, units: Tensor, change: Any) -> Tensor:
    """Return the drops of the scores (L, N) for each of the units (N, ...), in batches."""
    view, prepared, record = view_of(trace.bundle), trace.prepared, trace.record
    tokens = len(units) * len(prepared.rows or (0,)) * sum(map(len, trace.sequences))
    if tokens > MAX_TOKENS:
        raise TooLargeError("occlusion of this input", tokens, MAX_TOKENS, "tokens", "shorten the input")
    before = view.scores(prepared, record, prepared.inputs)  # (1, L)
    logits = [record["head.logits"]] if "head.logits" in record else []
    parts = units.split(copies_per_batch(*logits))
    after = [view.scores(prepared, record, change(part)) for part in parts]
    return (before - torch.cat(after)).T.cpu()
