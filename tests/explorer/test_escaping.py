"""What a folder or a person names is text to the page, never markup or script."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

import glassformer
from glassformer.core import spec
from glassformer.families.sidecars import JobInfo
from glassformer.tokenization import TokenizerPlan, train_tokenizer
from tests.explorer.conftest import wait_until_idle
from tests.server.harness import Server, serving

_CALLS = (
    "</script><script>{}</script>",
    "<img src=x onerror={}>",
    "<svg onload={}>",
    "<iframe srcdoc='<script>parent.{}</script>'></iframe>",
    "<a href='javascript:{}' autofocus onfocus={}>x</a>",
    "<math><mtext></math><img src=x onerror={}>",
    "javascript:{}",
    '"onmouseover={} x="',
    "\\\\href{{javascript:{}}}{{x}}",
    "<base href='//elsewhere.invalid/'>",
    "<meta http-equiv=refresh content='0;url=//elsewhere.invalid'>",
    "<form action='//elsewhere.invalid'><button autofocus>{}</button></form>",
)
PAYLOADS = [one.format(*["window.harmed=1"] * one.count("{}")) for one in _CALLS]
PAYLOADS += [f"""x"'>{one}""" for one in PAYLOADS]  # out of an attribute, should one hold them


def _unharmed(page: Page) -> None:
    assert page.evaluate("window.harmed === undefined")
    strange = "script:not([src]), iframe, object, base, meta[http-equiv], link[href*=elsewhere], [onerror]"
    assert page.locator(strange).count() == 0


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model whose labels, tokens and folder are payloads, served."""
    folder = tmp_path_factory.mktemp("hostile")
    lines = [f"{one} the cat" for one in PAYLOADS]
    tokenizer = train_tokenizer(lines, TokenizerPlan(kind="byte", vocab_size=900, template="cls_sep"))
    head = spec.ClassifySpec(num_labels=len(PAYLOADS), hidden="tanh")
    made = glassformer.Pipeline(
        model=glassformer.tiny("bert", vocab_size=tokenizer.vocab_size, max_len=256, head=head).eval(),
        tokenizer=tokenizer,
        family="bert",
    )
    made.job = JobInfo(classes=tuple(PAYLOADS))
    named: Path = folder / "<img src=x onerror=window.harmed=1>"
    glassformer.save(made, named)
    with serving([named]) as running:
        yield running


def test_labels_tokens_and_names_are_escaped(hostile: Server, browser: Browser) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    for view in ("model", "heads", "change"):
        page.goto(f"{hostile.url}/#//{view}?in=the%20cat%20{PAYLOADS[0]}")
        wait_until_idle(page)
        _unharmed(page)
    page.goto(f"{hostile.url}/#//model?in=the%20cat&at=head")
    wait_until_idle(page)
    _unharmed(page)
    shown = page.inner_text("body")
    assert sum(payload in shown for payload in PAYLOADS) >= 5, (
        "the labels stand on the page, letter for letter"
    )
    context.close()
