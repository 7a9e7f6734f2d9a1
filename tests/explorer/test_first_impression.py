"""What the page shows before the user chooses anything, for the shipped translator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

import glassformer
from glassformer.interpret.head_ablation import ablate_heads
from glassformer.interpret.schema import TraceInput
from glassformer.interpret.tensors import read_tensor
from glassformer.interpret.trace import Trace, trace_model
from glassformer.pretrained import folder_of
from tests.server.harness import serving

KOREAN = "나는 어제 친구와 영화를 봤어요"
TIRED = "The animal did not cross the street because it was too tired."
WIDE = TIRED.replace("tired", "wide")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving([folder_of("pocket"), folder_of("pocket-lm")]) as server:
        yield server.url


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-US")
    context.set_default_timeout(30_000)
    yield context.new_page()
    context.close()


@pytest.fixture(scope="module")
def trace() -> Trace:
    """The example that the page opens with."""
    bundle = glassformer.load("pocket")
    return trace_model(bundle, TraceInput.from_json(bundle.job.example or {}))


def test_ribbons_show_the_layer_that_links_words_and_fit_the_page(page: Page, url: str) -> None:
    page.goto(f"{url}/#/pocket/model?in={KOREAN}&to=en")
    figure = page.locator("[data-figure='decoder.blocks.2.cross_attn-ribbons']")
    links = figure.locator("[data-link]")
    expect(links.first).to_be_visible()
    words = [text.strip() for text in figure.locator("svg text").all_text_contents()]
    source, target = words.index("어제"), words.index("yesterday") - words.index("I")
    share = figure.locator(f"[data-link='{target} {source}']").get_attribute("data-value")
    assert float(share or 0) > 0.7
    page.goto(f"{url}/#/pocket/model?in={KOREAN}&to=en&at=decoder.2.cross&tab=weights&pos={target}")
    expect(page.get_by_role("heading", name="What “yesterday” attends to")).to_be_visible()
    page.goto(f"{url}/#/pocket/model?in={TIRED}&to=fr&in_b={WIDE}&to_b=fr")
    ribbons = page.locator("svg:has([data-link])").locator("xpath=..")
    expect(ribbons).to_have_count(2, timeout=30_000)
    for n in range(2):
        assert ribbons.nth(n).evaluate("box => box.scrollWidth <= box.clientWidth")
    marked = [set(page.locator(f"[data-beside={which}] mark").all_inner_texts()) for which in "AB"]
    assert [{text.strip() for text in texts} for texts in marked] == [
        {"tired.", "qu'il", "fatigué."},
        {"wide.", "qu'elle", "large."},
    ]


def test_the_walk_begins_with_the_arrow_keys_alone(page: Page, url: str) -> None:
    page.goto(f"{url}/#/pocket/model")
    page.get_by_role("link", name="Start at the first stage").click()
    for stage in ("encoder.embed", "encoder.position", "encoder.0.norm_self", "encoder.0.self"):
        page.keyboard.press("ArrowRight")
        expect(page.locator(f"[data-open='{stage}']")).to_be_visible()


def test_stages_open_on_a_word_and_on_the_least_certain_step(page: Page, url: str, trace: Trace) -> None:
    page.goto(f"{url}/#/pocket/model?at=encoder.embed")
    row = page.locator("[data-figure='encoder.embed-sum'] [data-role=sum] td")
    expect(row.first).to_be_visible()
    hot = [token.piece for token in trace.sequence("source").tokens].index(" hot")
    total = trace.record["src_embed.out"][0, hot]
    values = [float(cell.get_attribute("data-value") or 0) for cell in row.all()]
    assert values == pytest.approx([float(total.mean()), float(total.std(correction=0)), float(total.norm())])
    page.goto(f"{url}/#/pocket/model?at=head")
    step = int(read_tensor(trace, "head.confidence").values.argmin())
    piece = trace.sequence("target").tokens[step].piece.strip()
    expect(page.get_by_text(f"“{piece}”").first).to_be_visible()


def test_the_first_suggestion_is_the_head_with_the_largest_effect(page: Page, url: str, trace: Trace) -> None:
    ablations = [ablate_heads(trace, attention.name) for attention in trace.attentions()]
    best = max(ablations, key=lambda ablation: max(ablation.effects))
    page.goto(f"{url}/#/pocket/change")
    expect(page.locator("[data-offer=ablate_head]")).to_be_visible()  # once the heads are ranked
    page.locator("[data-offer]").first.click()
    change = page.locator("[data-change]").get_attribute("data-change") or ""
    assert f'"{best.attention}"' in change
    assert f'"head":{best.effects.index(max(best.effects))}' in change


def test_values_of_an_earlier_trace_are_cleared(page: Page, url: str) -> None:
    page.goto(f"{url}/#/pocket/heads")
    roles = page.locator("button[data-role]")
    expect(roles.first).to_be_visible()
    page.evaluate("""() => {
        const send = window.fetch;
        const never = new Promise(() => {});
        window.fetch = (...args) => String(args[0]).endsWith('/heads') ? never : send(...args);
    }""")
    page.locator("[data-input=_a]").fill("Where is the nearest station?")
    page.locator("[data-input=_a]").press("Enter")
    expect(page.get_by_text("Bahnhof").first).to_be_visible()
    expect(roles).to_have_count(0)


def test_addresses_name_their_model_and_symbols_not_read_are_listed(page: Page, url: str) -> None:
    page.goto(f"{url}/")
    page.wait_for_url("**/#/pocket/model")
    page.goto(f"{url}/#/nothing/model")
    note = page.get_by_text("nothing")
    expect(note).to_be_visible()
    page.locator("select.models").select_option("pocket-lm")
    page.locator("select.models").select_option("pocket")
    expect(note).to_have_count(0)
    page.goto(f"{url}/#/pocket/model?in=I love 🍕.&to=de")
    expect(page.locator("[data-unread]")).to_contain_text("🍕")


def test_training_shows_a_recorded_example_for_a_model_without_a_run(page: Page, url: str) -> None:
    page.goto(f"{url}/#/pocket/learning")
    expect(page.get_by_text("was not recorded")).to_be_visible()
    expect(page.locator("input[type=range]").first).to_be_visible()
