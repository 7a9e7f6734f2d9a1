"""The look of a report: one page without scripts, light or dark as the reader's system is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Literal

# Nothing may be fetched from anywhere, whatever a text in the page says.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --soft: #616e7c; --paper: #ffffff; --card: #f5f7fa;
  --rule: #dde3ea; --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #cc79a7; }
@media (prefers-color-scheme: dark) { :root {
  --ink: #e4e9ef; --soft: #9aa5b1; --paper: #14181d; --card: #1d232a;
  --rule: #323b45; --c0: #56b4e9; --c1: #f0914a; --c2: #3fc79a; --c3: #e39cc4; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Noto Sans KR", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 44px 0 14px; }
.sub { color: var(--soft); margin: 6px 0 28px; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(190px, 1fr)); gap: 12px; }
.tile { background: var(--card); border-radius: 10px; padding: 14px 16px; }
.tile b { display: block; font-size: 26px; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
.tile .name { font-size: 14px; color: var(--ink); }
.charts { display: grid; gap: 22px 32px;
  grid-template-columns: repeat(auto-fit, minmax(min(430px, 100%), 1fr)); }
figure { margin: 0; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--ink); font-size: 12px; }
svg .title { font-size: 14px; font-weight: 600; }
svg .tick { fill: var(--soft); font-variant-numeric: tabular-nums; }
svg .grid { stroke: var(--rule); }
svg .curve { fill: none; stroke-width: 1.9; stroke-linejoin: round; }
.curve.c0 { stroke: var(--c0); } .curve.c1 { stroke: var(--c1); }
.dot.c0 { fill: var(--c0); } .dot.c1 { fill: var(--c1); }
.scroll { overflow: auto; max-height: 520px; }
table { border-collapse: collapse; width: 100%; }
th { text-align: left; color: var(--soft); font-weight: 500; font-size: 13px; background: var(--paper);
  position: sticky; top: 0; }
th, td { padding: 7px 18px 7px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
.numbers { width: auto; min-width: 50%; }
.numbers th, .numbers td { text-align: right; padding: 5px 0 5px 28px; }
.numbers td { font-variant-numeric: tabular-nums; } .numbers strong { color: var(--c2); }
.texts td { overflow-wrap: anywhere; white-space: pre-wrap; }
.right { color: var(--c2); font-weight: 700; }
.rows th { width: 220px; font-size: 15px; position: static; } .rows td { overflow-wrap: anywhere; }
.note { color: var(--soft); font-size: 13px; overflow-wrap: anywhere; }
code, pre { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
pre { background: var(--card); border-radius: 10px; padding: 14px 16px; margin: 0;
  overflow: auto; max-height: 560px; }
footer { color: var(--soft); font-size: 13px; margin-top: 48px; }
@media print { .scroll, pre { max-height: none; overflow: visible; } }
"""


def page(*, title: str, subtitle: str, parts: Iterable[str]) -> str:
    """The whole document. `parts` are HTML already; everything else is text."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body><main>
<h1>{escape(title)}</h1>
<p class="sub">{escape(subtitle)}</p>
{"".join(parts)}
<footer>Made by Glassformer from metrics.jsonl and recipe.yaml in this folder.</footer>
</main></body>
</html>
"""


def section(title: str, body: str) -> str:
    """A headed part; the body is HTML."""
    return f"<section><h2>{escape(title)}</h2>\n{body}</section>\n"


def tiles(content: Iterable[tuple[str, str, str]]) -> str:
    """Figures side by side: name, value, remark."""
    made = [
        f'<div class="tile"><span class="name">{escape(name)}</span><b>{escape(value)}</b>'
        f"<span>{escape(remark)}</span></div>"
        for name, value, remark in content
    ]
    return f'<div class="tiles">{"".join(made)}</div>\n'


def table(head: Sequence[str], cells: Iterable[Sequence[str]], *, kind: Literal["numbers", "texts"]) -> str:
    """A table; head and cells are HTML."""
    top = "".join(f'<th scope="col">{name}</th>' for name in head)
    body = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in cells)
    inside = f"<thead><tr>{top}</tr></thead><tbody>\n{body}</tbody>"
    return f'<div class="scroll"><table class="{kind}">{inside}</table></div>\n'


def rows(content: Iterable[tuple[str, str]]) -> str:
    """Names and what they are, as text."""
    body = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in content
    )
    return f'<table class="rows"><tbody>\n{body}</tbody></table>\n'


def preformatted(text: str) -> str:
    return f"<pre>{escape(text)}</pre>\n"
