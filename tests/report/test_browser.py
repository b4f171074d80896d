"""Reports in a real browser: they show, answer, sort and switch, call nowhere and complain of nothing."""

import json
import shutil
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest
import torch
from page_samples import HOSTILE, balcal_run, hostile_story, small_arena

from balcal.arena.tables import rows
from balcal.evaluation.promises import held_out_and_test
from balcal.report import write_report
from balcal.report.arena import scatter
from balcal.report.page import run_page
from balcal.runs import Run

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no browser is installed: apt-get install chromium")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield opened
        opened.close()


@pytest.fixture
def opened(browser):
    """Opens a page, and in the end makes sure that nothing left it and nothing went wrong."""
    calls, troubles, contexts = [], [], []

    def visit(path, **settings):
        context = browser.new_context(**{"viewport": {"width": 1100, "height": 900}} | settings)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: calls.append(request.url))
        page.on("console", lambda said: troubles.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", lambda dialog: (troubles.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.goto(path.as_uri())
        return page

    yield visit
    for context in contexts:
        context.close()
    assert troubles == []
    assert [url for url in calls if not url.startswith(("data:", "file:"))] == []
    assert len([url for url in calls if url.startswith("file:")]) == len(contexts), "the page and no other file"


@pytest.fixture(scope="module")
def run_report(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "run.html"
    write_report(balcal_run(), path)
    return path


def bring_into_view(page, target):
    """And wait until the page knows that it was scrolled, which hides tips: it is told before it paints again."""
    target.scroll_into_view_if_needed()
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def point_at(page, target):
    """Hover until the tip is there."""
    bring_into_view(page, target)
    for _ in range(50):
        page.wait_for_timeout(100)
        page.mouse.move(2, 2)
        target.hover()
        if page.locator("#tip").is_visible():
            return page.locator("#tip")
    raise AssertionError("no tip is shown")


def test_a_run_hovered_switched_and_turned_dark(opened, run_report):
    page = opened(run_report, color_scheme="light")
    tip = page.locator("#tip")
    assert tip.is_hidden()
    assert "mean confidence" in point_at(page, page.locator("svg .column:visible").last).inner_text()
    page.mouse.move(2, 2)
    tip.wait_for(state="hidden")

    headline = page.locator("h1:visible")
    before = page.locator(".figures:visible").inner_text()
    assert headline.count() == 1
    page.get_by_role("button", name="after temperature scaling").click()
    assert headline.count() == 1
    assert page.locator(".figures:visible").inner_text() != before
    assert page.locator("[data-view-to=after]").get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="as trained").click()
    assert page.locator(".figures:visible").inner_text() == before

    def paper():
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light = paper()
    page.locator("#theme").click()
    assert paper() != light
    page.locator("#theme").click()
    assert paper() == light
    assert opened(run_report, color_scheme="dark").evaluate("getComputedStyle(document.body).backgroundColor") != light


def test_the_threshold_is_moved(opened, run_report):
    """Its figures are those of the predictions, at every place of the slider."""
    page = opened(run_report)
    act = page.locator(".act:visible")
    slider, last = act.locator("input[type=range]"), int(act.locator("input").get_attribute("max"))
    _, test = held_out_and_test(Run.at(balcal_run()), Run.at(balcal_run()).recipe.method, torch.device("cpu"))
    conf, right = test.probs.amax(1).numpy(), (test.log_probs.argmax(1) == test.labels).numpy()

    def shown(name):
        return act.locator(f"[data-part={name}]").inner_text()

    for step in (last, last // 2, 3):
        slider.fill(str(step))
        limit = np.sort(conf)[::-1][round(float(shown("coverage").rstrip(" %\u00a0")) / 100 * len(conf)) - 1]
        assert shown("threshold") == f"{limit:.3f}"
        taken = conf >= limit
        assert float(shown("accuracy").rstrip(" %\u00a0")) == pytest.approx(100 * right[taken].mean(), abs=0.06)
        assert shown("wrong") == f"{(~right[taken]).sum():,}"
        low, high = json.loads(shown("interval"))
        assert low <= 100 * right[taken].mean() <= high
    everything = act.locator(".now").get_attribute("x1")
    slider.fill(str(last))
    assert shown("coverage") == "100.0\u00a0%"
    assert float(act.locator(".now").get_attribute("x1")) > float(everything)
    slider.press("ArrowLeft")
    assert shown("coverage") != "100.0\u00a0%"
    promised = act.locator("[data-step]")
    if promised.count():
        promised.first.click()
        assert slider.input_value() == promised.first.get_attribute("data-step")
    page.get_by_role("button", name="after temperature scaling").click()
    assert page.locator(".act:visible").count() == 1


def test_a_phone_does_not_scroll_sideways(opened, run_report):
    page = opened(run_report, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    column = page.locator("svg .column:visible").last
    bring_into_view(page, column)
    column.tap()
    page.locator("#tip").wait_for(state="visible")
    box = page.locator("#tip").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 360


OUTSIDE = """() => [...document.querySelectorAll('.card')].flatMap(card => {
  const room = card.getBoundingClientRect();
  return [...card.querySelectorAll('text, figcaption, figcaption *')].filter(each => {
    const box = each.getBoundingClientRect();
    return !each.closest('.scroll') && box.width && (box.left < room.left || box.right > room.right);
  }).map(each => each.textContent);
})"""


@pytest.mark.parametrize("width", [360, 500, 760])
def test_captions_stay_inside_their_cards(opened, run_report, width):
    page = opened(run_report, viewport={"width": width, "height": 900})
    assert page.evaluate("document.querySelectorAll('.card text').length") > 50
    assert page.evaluate(OUTSIDE) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_print_leaves_the_controls_out(opened, run_report):
    page = opened(run_report, color_scheme="dark")
    page.emulate_media(media="print")
    assert page.locator(".top").is_hidden()
    assert page.locator("svg .column .bar:visible").count() > 0
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_an_arena_is_sorted_by_a_click(opened, tmp_path):
    runs, result = small_arena()
    path = tmp_path / "arena.html"
    write_report(next((runs / "arena").glob("*.json")), path)
    page = opened(path)
    table = page.locator("table.arena")

    def names():
        return [row.strip() for row in table.locator("tbody td:first-child").all_inner_texts()]

    assert names() == list(result.entries)
    means = {row["entry"]: row["nll"]["mean"] for row in result.rows()}
    head = table.get_by_role("columnheader", name="NLL")
    head.click()
    assert names() == sorted(means, key=means.get)
    assert head.get_attribute("aria-sort") == "ascending"
    head.press("Enter")
    assert [means[name] for name in names()] == sorted(means.values(), reverse=True)
    assert "accuracy" in point_at(page, page.locator(".point").first).inner_text()


OVERLAPS = """() => {
  const boxes = [...document.querySelectorAll('svg .label')].map(e => [e.textContent, e.getBoundingClientRect()]);
  const dots = [...document.querySelectorAll('svg circle.entry')].map(e => ['a dot', e.getBoundingClientRect()]);
  const meet = (a, b) => a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom;
  return boxes.flatMap(([name, box], i) => [...boxes.slice(i + 1), ...dots]
    .filter(([_, other]) => meet(box, other)).map(([other]) => name + ' on ' + other));
}"""


def test_names_in_the_scatter_do_not_collide(opened, tmp_path):
    """Fourteen entries in a heap, and every one is named."""
    _, result = small_arena()
    row, rng = rows(result)[0], np.random.default_rng(0)
    heap = []
    for number in range(14):
        at = {"accuracy": 0.8 + 0.004 * rng.random(), "ece": 0.05 + 0.004 * rng.random()}
        columns = {name: replace(found, mean=at.get(name, found.mean)) for name, found in row.columns.items()}
        heap.append(replace(row, entry=f"method-{number}+ts", columns=columns))
    far = {name: replace(found, mean=0.5 if name == "accuracy" else 0.3) for name, found in row.columns.items()}
    path = tmp_path / "scatter.html"
    style = files("balcal.report").joinpath("templates", "style.css").read_text()
    path.write_text(f"<style>{style}</style><main>{scatter([*heap, replace(row, entry='far', columns=far)])}</main>")
    page = opened(path)
    assert page.locator("svg .label").count() == 15
    assert page.evaluate(OVERLAPS) == []


def test_hostile_names_do_nothing(opened, tmp_path):
    path = tmp_path / "hostile.html"
    path.write_text(run_page(hostile_story()))
    page = opened(path)
    assert page.title().startswith(HOSTILE[0])
    assert page.locator(".kicker b").inner_text() == HOSTILE[0]
    assert page.evaluate("document.scripts.length") == 1
    assert page.locator("img[src=x]").count() == 0
    point_at(page, page.locator("svg .row:visible").first)
    assert page.locator("#tip *").count() == 0, "tips are text"
