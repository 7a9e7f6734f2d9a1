"""Export one trace as a single HTML file that works from disk: script, style and tensors inline."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from glassformer.errors import GlassformerError
from glassformer.explorer.page import single

if TYPE_CHECKING:
    from glassformer.bundle import Bundle
    from glassformer.interpret.schema import ModelInfo, SearchInfo, TraceInfo, TraceInput
    from glassformer.interpret.trace import Trace

MAX_BYTES = 96 * 2**20  # of tensors in one page; browsers open twice as much without trouble
NEXT_TOKENS = 50

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<div id="app"></div>
<script type="text/plain" id="kept">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def export_page(bundle: Bundle, input: TraceInput | None = None, *, name: str = "model") -> str:
    """The page with a trace of the input, by default the model's example."""
    from glassformer.interpret.catalog import describe_model
    from glassformer.interpret.schema import to_json
    from glassformer.interpret.trace import trace_model

    script, style = single()
    model = describe_model(bundle, name)
    if input is not None:
        model = replace(model, example=input)  # what the page shows first
    trace = trace_model(bundle, model.example, model=name)
    data = json.dumps(to_json(_page_data(bundle, trace, model)), ensure_ascii=False, allow_nan=False)
    script = script.replace("</script", "<\\/script")  # only a string literal can contain it
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )
    return PAGE.format(
        policy=html.escape(policy),
        title=html.escape(f"Glassformer: {name}"),
        style=style.replace("</style", "<\\/style"),
        data=base64.b64encode(gzip.compress(data.encode(), mtime=0)).decode(),
        script=script,
    )


def _page_data(bundle: Bundle, trace: Trace, model: ModelInfo) -> dict[str, Any]:
    """Everything that the page may request about this trace."""
    from glassformer.interpret.head_patterns import describe_heads
    from glassformer.interpret.logit_lens import logit_lens, next_tokens
    from glassformer.interpret.schema import TooLargeError
    from glassformer.interpret.tensors import read_tensor

    info = trace.info()
    tensors: dict[str, dict[str, Any]] = {}
    size = 0
    for name in dict.fromkeys((*_tensor_names(info, model), *trace.derived)):
        try:
            part = read_tensor(trace, name)
        except TooLargeError:
            raise
        except GlassformerError:
            continue  # this model has no such tensor
        size += len(data := part.data())
        if size > MAX_BYTES:
            hint = "export a shorter text or a smaller model"
            raise TooLargeError("the page", size, MAX_BYTES, "bytes of tensors", hint=hint)
        tensors[name] = {
            "shape": part.shape,
            "dtype": part.dtype,
            "data": base64.b64encode(data).decode(),
        }
    positions = range(len(info.sequences[-1]))
    return {
        "model": model,
        "trace": info,
        "heads": describe_heads(trace),
        "lens": _by_position(lambda at: logit_lens(trace, at), positions),
        "next": _by_position(lambda at: next_tokens(trace, at, NEXT_TOKENS), positions),
        "search": _search(bundle, trace),
        "tensors": tensors,
    }


def _tensor_names(info: TraceInfo, model: ModelInfo) -> Iterator[str]:
    """The tensors that views request: recorded and derived ones."""
    yield from info.tensors
    for attention in info.attentions:
        for tail in ("dot", "scaled", "masked", "weights", "thumbnails"):
            yield f"{attention.name}.{tail}"
    for stack in model.outline.stacks:
        for tail in ("growth", "lens.top", "lens.prob"):
            yield f"{stack.name}.{tail}"
        if stack.position.name:
            for tail in ("table", "table_ahead", "similarity"):
                yield f"{stack.position.name}.{tail}"


def _by_position(view: Callable[[int], Any], positions: range) -> list[Any]:
    """The view at every position; empty if the model predicts neither tokens nor labels."""
    try:
        return [view(at) for at in positions]
    except GlassformerError:
        return []


def _search(bundle: Bundle, trace: Trace) -> SearchInfo | None:
    """The beam search of a generating model."""
    if trace.kind not in ("translate", "generate"):
        return None
    from glassformer.interpret.search_view import search_tree

    input = trace.prepared.input
    return search_tree(bundle, text=input.text or "", to=input.to)
