"""The explorer: the files of the built page, and the export of a trace as a single HTML file."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import math
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.errors import FileMissingError, UnsupportedError

if TYPE_CHECKING:
    from glassformer.bundle import Bundle
    from glassformer.interpret.schema import AttentionInfo, ModelInfo, TraceInfo, TraceInput
    from glassformer.interpret.trace import Trace

FOLDER = Path(__file__).parent / "page"
SINGLE = "single"  # the page as one script and one style, for exports
MAX_BYTES = 96 * 2**20  # of tensors in one page; browsers can open twice as much
NEXT_TOKENS = 50
SCORES = ("dot", "scaled", "masked")  # of attention, before the softmax

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
<script type="text/plain" id="trace-data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def page_files() -> dict[str, Path]:
    """Return the served files by URL path (`index.html`, `assets/...`), without those for exports."""
    if not (FOLDER / "index.html").is_file():
        hint = "run 'make page' in a checkout, which needs npm, or install a wheel, which contains it"
        raise FileMissingError(FOLDER / "index.html", "the explorer's page", hint=hint)
    files = {path.relative_to(FOLDER).as_posix(): path for path in FOLDER.rglob("*") if path.is_file()}
    hidden = (f"{SINGLE}/", "built-from.txt")
    return {name: path for name, path in files.items() if not name.startswith(hidden)}


def single_page() -> tuple[str, str]:
    page_files()  # fails if the page is not built
    script, style = (FOLDER / SINGLE / name for name in ("page.js", "page.css"))
    return script.read_text("utf-8"), style.read_text("utf-8")


def export_page(
    bundle: Bundle,
    input: TraceInput | None = None,
    *,
    name: str = "model",
    log: Callable[[str], None] = lambda text: None,
) -> str:
    """Return a page that contains a trace of the input, by default of the model's example.

    log: called with a note if large tensors are left out to limit the size of the page.
    """
    from glassformer.interpret.catalog import describe_model
    from glassformer.interpret.schema import to_json
    from glassformer.interpret.trace import trace_model

    script, style = single_page()
    model = describe_model(bundle, name)
    trace = trace_model(bundle, input or model.example, model=name)
    model = replace(model, example=trace.prepared.input, examples=())  # what the page shows
    content = to_json(_page_data(bundle, trace, model, log))
    data = json.dumps(content, ensure_ascii=False, allow_nan=False)
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


def _page_data(bundle: Bundle, trace: Trace, model: ModelInfo, log: Callable[[str], None]) -> dict[str, Any]:
    """Collect all data that the page may request about this trace."""
    from glassformer.interpret.head_patterns import describe_heads
    from glassformer.interpret.logit_lens import logit_lens, next_tokens
    from glassformer.interpret.search_view import search_tree
    from glassformer.interpret.views import view_of

    info = trace.info()
    scales = {one.name: one.scale for one in info.attentions if _only_scaled(trace, one)}
    names = dict.fromkeys((*_tensor_names(info, model, scales), *trace.derived))
    if trace.film is not None:
        names |= dict.fromkeys(trace.film.names())
    tensors, left_out = _stored_tensors(trace, info, names)
    if left_out:
        log(f"tensors left out to limit the page's size: {left_out}; without --export, all are shown")
    lens: list[Any] = []
    following: list[Any] = []
    with suppress(UnsupportedError):  # a model that predicts neither tokens nor labels
        positions = range(len(info.sequences[-1]))
        lens = [logit_lens(trace, at) for at in positions]
        following = [next_tokens(trace, at, NEXT_TOKENS) for at in positions]
    search, input = None, trace.prepared.input
    if view_of(bundle).generates:
        search = search_tree(bundle, text=input.text, image=input.image, to=input.to)
    return {
        **{"model": model, "trace": info, "heads": describe_heads(trace), "lens": lens, "next": following},
        **{"search": search, "scales": scales, "tensors": tensors},
    }


def _stored_tensors(
    trace: Trace, info: TraceInfo, names: Iterable[str]
) -> tuple[dict[str, dict[str, Any]], int]:
    """Return the tensors that fit into the page, and how many do not.

    Small tensors are stored first, and attention scores last, because few figures show them.
    """
    from glassformer.interpret.schema import ItemNotFoundError, TooLargeError
    from glassformer.interpret.tensors import read_tensor

    sizes = {name: 4 * math.prod(shape) for name, shape in info.tensors.items()}
    matrices: dict[str, int] = {}
    for one in info.attentions:
        q, k = (info.tensors[f"{one.name}.{part}"] for part in "qk")
        matrices |= {f"{one.name}.{tail}": 4 * math.prod(q[:3]) * k[2] for tail in (*SCORES, "weights")}
    sizes |= matrices
    tensors: dict[str, dict[str, Any]] = {}
    left_out, space = 0, MAX_BYTES
    for name in sorted(names, key=lambda name: (name.endswith(SCORES), sizes.get(name, 0))):
        try:
            if matrices.get(name, 0) > space:  # saves the time to compute it
                raise TooLargeError(name, matrices[name], space, "bytes")
            part = read_tensor(trace, name)
            if (size := part.values.nbytes) > space:
                raise TooLargeError(name, size, space, "bytes")
        except TooLargeError:
            left_out += 1
            continue
        except (ItemNotFoundError, UnsupportedError):
            continue  # this model has no such tensor
        space -= size
        encoded = base64.b64encode(part.data()).decode()
        tensors[name] = {"shape": part.shape, "dtype": part.dtype, "data": encoded}
    return tensors, left_out


def _only_scaled(trace: Trace, attention: AttentionInfo) -> bool:
    """Whether the page can compute the weights of an attention layer from queries, keys and scale alone."""
    context = trace.record.attention_contexts[attention.name]
    if context.bias is not None or context.softcap is not None or context.windows is not None:
        return False
    q, k = (trace.record[f"{attention.name}.{part}"] for part in "qk")
    allowed = context.mask.to_dense(q.shape[2], k.shape[2], q.device)
    return allowed is None or bool(allowed.all())


def _tensor_names(info: TraceInfo, model: ModelInfo, computed: Container[str]) -> Iterator[str]:
    """List the tensors to store. computed: attention layers whose matrices the page computes."""
    yield from info.tensors
    yield "head.confidence"
    for attention in info.attentions:
        yield f"{attention.name}.thumbnails"
        if attention.name not in computed:
            yield from (f"{attention.name}.{tail}" for tail in (*SCORES, "weights"))
        if attention.bias_table is not None:
            yield attention.bias_table
    for stack in model.outline.stacks:
        for tail in ("growth", "lens.top", "lens.prob"):
            yield f"{stack.name}.{tail}"
        if stack.position.name:
            for tail in ("table", "table_ahead", "similarity"):
                yield f"{stack.position.name}.{tail}"
