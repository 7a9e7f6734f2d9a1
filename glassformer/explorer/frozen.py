"""One trace written into a single page that works from disk: script, style and numbers in one file."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from glassformer.errors import GlassformerError
from glassformer.explorer.page import single

if TYPE_CHECKING:
    from glassformer.bundle import Bundle
    from glassformer.interpret.taken import Trace

MOST_BYTES = 96 * 2**20  # of numbers in one page; browsers open twice as much without trouble
WORDS = 50  # of the next-token bars
_TOO_MUCH = (
    f"all that this trace shows is more than {MOST_BYTES // 2**20} MB, too much for one page; "
    "export a shorter text, or a smaller model"
)

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
<script type="text/plain" id="kept">{kept}</script>
<script>{script}</script>
</body>
</html>
"""


def single_page(bundle: Bundle, given: Mapping[str, Any] | None = None, *, name: str = "model") -> str:
    """The page, showing what the model makes of an input (by default an example of its kind)."""
    from glassformer.interpret.kinds import as_json
    from glassformer.interpret.models import model_info
    from glassformer.interpret.taken import take

    script, style = single()
    model = model_info(bundle, name)
    if given is not None:
        model["example"] = given  # what the page begins with
    trace = take(bundle, model["example"], model=name)
    kept = json.dumps(as_json(_kept(bundle, trace, model)), ensure_ascii=False, allow_nan=False)
    script = script.replace("</script", "<\\/script")  # inside a script only a string can hold it
    sum_of_script = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{sum_of_script}'; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )
    return PAGE.format(
        policy=html.escape(policy),
        title=html.escape(f"Glassformer: {name}"),
        style=style.replace("</style", "<\\/style"),
        kept=base64.b64encode(gzip.compress(kept.encode(), mtime=0)).decode(),
        script=script,
    )


def _kept(bundle: Bundle, trace: Trace, model: dict[str, Any]) -> dict[str, Any]:
    """Everything that the page may ask of this trace, under the names it asks by."""
    from glassformer.interpret.heads import heads_info
    from glassformer.interpret.kinds import TooLargeError
    from glassformer.interpret.lens import lens_info, next_info
    from glassformer.interpret.tensors import cut

    info = trace.info()
    tensors: dict[str, dict[str, Any]] = {}
    held = 0
    for name in dict.fromkeys((*_names(info, model), *trace.kept)):
        try:
            part = cut(trace, name)
        except TooLargeError:
            raise GlassformerError(_TOO_MUCH) from None
        except GlassformerError:
            continue  # a model without this
        held += len(data := part.data())
        if held > MOST_BYTES:
            raise GlassformerError(_TOO_MUCH)
        tensors[name] = {
            "shape": part.shape,
            "dtype": part.dtype,
            "data": base64.b64encode(data).decode(),
        }
    places = range(len(info["sequences"][-1]["tokens"]))
    return {
        "model": model,
        "trace": info,
        "heads": heads_info(trace),
        "lens": _where_told(lambda at: lens_info(trace, at), places),
        "next": _where_told(lambda at: next_info(trace, at, WORDS), places),
        "search": _search(bundle, trace),
        "tensors": tensors,
    }


def _names(info: Mapping[str, Any], model: Mapping[str, Any]) -> Iterator[str]:
    """The tensors that views ask for: those recorded, and those worked out of them."""
    yield from info["tensors"]
    for attention in info["attentions"]:
        for tail in ("dot", "scaled", "masked", "weights", "thumbnails"):
            yield f"{attention['name']}.{tail}"
    for stack in model["outline"]["stacks"]:
        for tail in ("growth", "lens.top", "lens.prob"):
            yield f"{stack['name']}.{tail}"
        if prefix := stack["position"]["name"]:
            for tail in ("table", "table_ahead", "similarity"):
                yield f"{prefix}.{tail}"


def _where_told(ask: Callable[[int], dict[str, Any]], places: range) -> list[dict[str, Any]]:
    """The answer for every place; none where the model gives neither words nor labels."""
    try:
        return [ask(at) for at in places]
    except GlassformerError:
        return []


def _search(bundle: Bundle, trace: Trace) -> dict[str, Any] | None:
    """The search of its verb, for models that write."""
    if trace.kind not in ("translate", "generate"):
        return None
    from glassformer.interpret.search import search_info

    given = trace.ready.given
    return search_info(bundle, text=given.text or "", to=given.to)
