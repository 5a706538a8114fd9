"""The pages in a real Chromium: read, filtered, stepped through, and attacked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from localjudge.agreement.writing import Asked, agree_run
from localjudge.report.html import build
from localjudge.report.html.build import write_comparison, write_report
from tests.browser import Tab
from tests.report_html.runs import HOSTILE, KeptEngine, judged, pairs, with_findings
from tests.run.conftest import truth_rows


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty answers, read from probabilities and held against people."""
    rows = [
        {
            **row,
            "topic": ("law", "art", "中文")[i % 3],
            "human": ("yes", "no")[i % 2],
            "long": f"start {i} " + "y" * 30_000,
        }
        for i, row in enumerate(truth_rows(60))
    ]
    out = judged(tmp_path_factory.mktemp("truth"), "truthfulness", rows, mode="score", min_confidence=0.55)
    agree_run(out, Asked(["human"]), draw=False)
    return write_report(out)


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect as expecting

    return expecting(locator)


def shown(page: Any) -> int:
    """How many cases the list says it shows."""
    return int(page.locator(".list > .told").inner_text().split()[0].replace(",", ""))


def test_from_the_overview_to_the_cases_that_a_bar_stands_for(truth: Path, tab: Tab) -> None:
    page = tab.open(truth)
    assert page.get_by_role("heading", level=1).inner_text().startswith("truthfulness")
    assert "All 60 records judged" in page.locator(".opening").inner_text()
    for name in (
        "Scores",
        "Answers given",
        "How sure the judge is",
        "Slices",
        "Worst",
        "Least sure",
        "Agreement with people",
    ):
        assert page.get_by_role("heading", name=name, exact=True).count() == 1, name
    no = page.locator("button.bar", has_text="no")
    n = int(no.locator(".n").inner_text())
    no.click()
    page.wait_for_selector(".list")
    assert shown(page) == n
    # A range dragged over the plot of confidence.
    page.keyboard.press("o")
    plot = page.locator(".plot .u-over").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60, steps=4)
    page.mouse.up()
    page.wait_for_selector(".list")
    assert float(page.locator("[data-filter=surelow]").input_value()) == pytest.approx(0.5, abs=0.01)
    assert 0 < shown(page) < 60


def test_filters_hold_together_and_keys_step_through_what_is_left(truth: Path, tab: Tab) -> None:
    page = tab.open(truth, "#r0/cases")
    assert shown(page) == 60
    page.keyboard.press("/")
    page.keyboard.type("number 1")
    assert shown(page) == 15  # both words, wherever: 1, 10 to 19, 21, 31, 41, 51
    page.select_option("[data-filter=field]", "topic\tlaw")
    assert shown(page) == 5  # 12, 15, 18, 21, 51
    page.get_by_role("button", name="Clear").click()
    page.check("[data-filter=gold]")
    differing = shown(page)
    assert 0 < differing < 60
    page.get_by_role("button", name="Clear").click()
    page.select_option("[data-filter=sort]", "unsure")
    page.locator("body").press("j")
    page.wait_for_selector(".case h1")
    first = page.locator(".case h1").inner_text()
    page.keyboard.press("j")
    expect(page.locator(".case h1")).not_to_have_text(first)
    page.keyboard.press("k")
    expect(page.locator(".case h1")).to_have_text(first)
    assert page.locator("[role=option][aria-selected=true]").get_attribute("aria-posinset") == "1"
    assert page.locator(".judgement .likely .bar").count() == 2
    assert "People said" in page.locator(".judgement").inner_text()
    # Long texts come in parts.
    page.get_by_role("button", name="Show the other").first.click()
    assert page.locator(".field", has_text="long").last.inner_text().count("y") > 25_000
    page.keyboard.press("Escape")
    page.wait_for_selector(".keys")


def test_light_dark_chinese_narrow_and_printed(truth: Path, tab: Tab) -> None:
    page = tab.open(truth, "#r0/case/t3")
    page.wait_for_selector(".case")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.click("#theme")
    assert page.evaluate(paper) != light
    page.click("#language")
    expect(page.locator(".record h2")).to_have_text("记录")
    page.set_viewport_size({"width": 420, "height": 800})
    assert page.locator(".case").is_visible() and not page.locator(".list").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    page.emulate_media(media="print")
    assert page.evaluate(paper) == "rgb(255, 255, 255)"
    assert not page.locator("#bar").is_visible()


def test_records_that_attack_are_text(tmp_path: Path, tab: Tab) -> None:
    out = judged(tmp_path, "truthfulness", [HOSTILE, *truth_rows(2)])
    page = tab.open(write_report(out))
    page.keyboard.press("c")
    page.locator("[role=option]").first.click()
    page.wait_for_selector(".case h1")
    assert page.locator(".case h1").inner_text() == HOSTILE["id"]
    text = page.locator(".record").inner_text()
    for piece in ("<script>alert(1)</script></script><svg onload=alert(1)>", "[click](javascript:alert(1))"):
        assert piece in text
    assert "</script><script>alert(1)</script>" in text  # inside the JSON tree
    marks = page.locator(".record .mark").all_inner_texts()
    assert marks == ["U+202E", "U+2066", "U+2069", "U+200B", "U+0007"]
    page.get_by_role("button", name="Markdown", exact=True).click()
    shown = page.locator(".markdown").first
    assert shown.locator("h3").inner_text() == "Title" and shown.locator("li").count() == 2
    assert shown.locator("strong").inner_text() == "bold" and shown.locator("td.number").inner_text() == "2"
    assert "<img src=x onerror=alert(1)>" in shown.inner_text() and "<b>" in shown.inner_text()
    page.locator("details.section summary").click()  # the prompt
    page.locator(".message").nth(1).wait_for()
    for tag in (
        "a[href*=javascript]",
        "main img",
        "main svg[onload]",
        "main script",
        "iframe",
        "main b",
        "[onerror]",
        "[onload]",
    ):
        assert page.locator(tag).count() == 0, tag
    assert page.evaluate("({}).polluted") is None
    assert not [url for url in tab.requests if "tracker" in url]


def test_the_words_that_two_texts_do_not_share_are_marked(tmp_path: Path, tab: Tab) -> None:
    out = judged(tmp_path, "pairwise", pairs(12), KeptEngine(), judge_settings=["tie=true"])
    page = tab.open(write_report(out), "#r0/case/p1")
    page.wait_for_selector(".pair")
    names = page.locator(".record .field .name").all_inner_texts()
    assert names[:3] == ["instruction", "response_a", "response_b"]
    assert page.locator(".pair del").all_inner_texts() == ["light"]
    assert page.locator(".pair ins").all_inner_texts() == ["far"]
    page.uncheck(".record .check input")
    assert page.locator(".pair del").count() == 0
    assert page.locator("summary", has_text="The two orders").count() == 1
    page.get_by_text("Prompt and completion (2)").click()
    again = page.locator(".message", has_text="begins as in ask 1").last
    again.get_by_role("button", name="Show all").click()
    assert again.locator("pre").inner_text() == page.locator(".message pre").first.inner_text()
    assert "Why is the sky blue? (1)" in page.locator(".message pre").nth(1).inner_text()
    assert page.locator(".message", has_text="Raw completion").count() == 2
    page.keyboard.press("o")
    page.wait_for_selector("text=Bradley-Terry ranking")
    assert page.locator("section", has_text="Who wins against whom").locator("tbody tr").count() == 3


def test_quotes_are_marked_where_they_stand_and_struck_out_where_they_do_not(tmp_path: Path, tab: Tab) -> None:
    page = tab.open(write_report(with_findings(tmp_path)), "#r0/case/one")
    page.wait_for_selector(".findings")
    # White space and a ligature apart, as the judge's own check has it; and inside the JSON.
    assert page.locator(".record mark").all_inner_texts() == ["made\n of  ﬁne cheese", "rock and dust"]
    assert page.locator(".findings s").all_inner_texts() == ["the sun is cold"]
    page.locator(".findings .quote").first.click()
    assert page.evaluate("document.activeElement.tagName") == "MARK"
    lines = page.locator(".lines li").all_inner_texts()
    assert lines[0].startswith("R1") and "decided by: model" in lines[0]
    page.locator("details.section summary", has_text="Report").click()
    assert page.locator("details.section h3").first.inner_text() == "Report on one"


def test_what_lies_beside_the_file_is_one_step_away(
    tmp_path: Path, tab: Tab, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = judged(tmp_path, "truthfulness", truth_rows(40))
    monkeypatch.setattr(build, "BLOCK", 8_000)
    monkeypatch.setattr(build, "MOST", 9_000)
    page = tab.open(write_report(out))
    assert "are in the folder report_files" in page.locator("main").inner_text()
    page = tab.open(out / "report.html", "#r0/case/t39")
    page.get_by_role("link", name="Open it").click()
    page.wait_for_selector(".case h1")
    assert page.locator(".case h1").inner_text() == "t39"
    page.get_by_role("link", name="Back to the report").click()
    page.wait_for_selector(".opening")


def test_two_judges_side_by_side(tmp_path: Path, tab: Tab) -> None:
    one = judged(tmp_path / "one", "truthfulness", truth_rows(40))
    other = judged(tmp_path / "other", "truthfulness", truth_rows(40), temperature=0.7, seed=3)
    page = tab.open(write_comparison([one, other], tmp_path / "both.html"))
    assert page.get_by_role("heading", name="Where they disagree").count() == 1
    page.locator("ol.cases button").first.click()
    page.wait_for_selector(".case .side")
    assert page.locator(".case .side").count() == 2
    page.locator("#bar select").select_option(index=2)
    page.wait_for_selector(".opening")
    assert "All 40 records judged" in page.locator(".opening").inner_text()
