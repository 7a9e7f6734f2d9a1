"""Looking at the page: going somewhere in it, waiting until it stands, reading numbers off it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import Locator, Page

# Counts the questions that are under way, so that a test can wait until the page has all its answers.
COUNTING = """
  window.asking = 0; window.asked = 0;
  const ask = window.fetch;
  window.fetch = async (...words) => {
    window.asking += 1;
    try { return await ask(...words); } finally { window.asking -= 1; window.asked = performance.now(); }
  };
"""
QUIET = 50  # milliseconds after the last answer in which everything is drawn
_STANDS = """quiet => !window.asking && performance.now() - (window.asked ?? 0) > quiet
  && document.querySelector('[data-view]') && !document.querySelector('.busy.on')"""

# What is wrong with what is shown inside an element: nothing drawn, a canvas left empty, a complaint, or
# numbers that are none.
_WRONG = r"""one => {
  const wrong = [];
  const small = new OffscreenCanvas(8, 8).getContext('2d', { willReadFrequently: true });
  const figures = [...one.querySelectorAll('[data-figure]')];
  if (!figures.length) wrong.push('no figure');
  for (const figure of figures) {
    const body = figure.querySelector('svg, canvas, table, li, button:not(.save), p');
    if (!body || figure.getBoundingClientRect().height < 40) wrong.push(`empty: ${figure.dataset.figure}`);
    for (const canvas of figure.querySelectorAll('canvas')) {
      small.clearRect(0, 0, 8, 8);
      small.drawImage(canvas, 0, 0, 8, 8);
      const painted = small.getImageData(0, 0, 8, 8).data.some((x) => x);
      if (!painted) wrong.push(`unpainted: ${figure.dataset.figure}`);
    }
    for (const path of figure.querySelectorAll('path[d]'))
      if (/NaN|undefined|Infinity/.test(path.getAttribute('d'))) wrong.push(`path: ${figure.dataset.figure}`);
  }
  for (const alert of document.querySelectorAll('[role=alert]')) wrong.push(`alert: ${alert.textContent}`);
  const strange = one.innerText.match(/.{0,30}(\bNaN\b|undefined|\[object|\bnull\b).{0,30}/);
  if (strange) wrong.push(`text: ${strange[0]}`);
  return wrong;
}"""


def address(model: str, view: str = "model", **words: Any) -> str:
    """Where a view of a model is, with the words of the address; `text` is what the model is given."""
    if "text" in words:
        words["in"] = words.pop("text")
    return f"#/{model}/{view}" + (f"?{urlencode(words)}" if words else "")


def settled(page: Page) -> None:
    """Wait until the page has what it asked for, and has drawn it."""
    if page.evaluate("window.asking === undefined"):  # opened by someone who does not count
        page.wait_for_load_state("networkidle")
    page.wait_for_function(_STANDS, arg=QUIET)


def go(page: Page, to: str, until: str = "[data-view]") -> None:
    """Go to an address inside the page, as a link there would, until something stands there."""
    page.evaluate("to => { location.hash = to }", to)
    page.wait_for_selector(until, state="attached")
    settled(page)


def wrong(shown: Locator) -> list[str]:
    """What is wrong with what is shown there, in words."""
    found: list[str] = shown.evaluate(_WRONG)
    return found


def number(shown: Locator) -> float:
    """The exact number behind one that is shown rounded."""
    return float(str(shown.get_attribute("data-value")))


def numbers(shown: Locator) -> list[float]:
    """The exact numbers, in the page's order."""
    return [float(one) for one in shown.evaluate_all("all => all.map(one => one.dataset.value)")]


def texts(shown: Locator) -> list[str]:
    """The texts, in the page's order."""
    return [one.strip() for one in shown.all_inner_texts()]
