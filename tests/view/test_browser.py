"""The viewer in a real Chromium: step through cases, label three by keyboard alone, hold the run against them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from localjudge.agreement.join import join, open_run
from tests.browser import Tab, apart
from tests.view.conftest import Job, Opened, lines_of, truth_rows

ATTACK = (
    "<img src=x onerror='window.owned=1'><script>window.owned=2</script> [go](javascript:window.owned=3) \u202etxt"
)


def look_at_two_cases(page: Any) -> None:
    page.click("section.run >> text=Cases")
    page.wait_for_selector(".row")
    for name in ("p0", "p1"):
        page.keyboard.press("j")
        page.wait_for_selector(f".case h1:text-is('{name}')")
        page.wait_for_selector(".judgement .answer")


def label(page: Any, key: str, chosen: str) -> str:
    """Label the case that is shown, whose id it returns."""
    page.wait_for_selector("#save")
    record_id: str = page.inner_text(".labelling h1")
    assert page.locator(".judgement").count() == 0, "blind until the person has said"
    assert page.locator(".hidden-verdict").count() == 1
    page.keyboard.press("t" if key == "a" else "a")  # and then thinks again
    page.keyboard.press(key)
    assert page.get_attribute("[role=radio][aria-checked=true]", "data-option") == chosen
    page.keyboard.press("Enter")
    page.wait_for_selector(".sheet .judgement .answer")
    assert f"you: {chosen}" in page.inner_text(".compared")
    return record_id


def test_three_cases_are_labelled_by_keyboard(tmp_path: Path, opened: Opened, tab: Tab) -> None:
    rows = [
        {"id": f"p{i}", "instruction": ATTACK, "response_a": f"# left {i}\n{ATTACK}", "response_b": f"right {i}"}
        for i in range(6)
    ]
    job = Job(tmp_path, "pairwise", rows)
    apart(job.run, judge_settings=["tie=true"])
    viewer, page = opened(job.out), tab.page
    page.goto(f"http://127.0.0.1:{viewer.port}/?token={viewer.token}")
    page.wait_for_selector("section.run")
    assert "token" not in page.url
    look_at_two_cases(page)
    page.click("nav >> text=Label")
    page.fill("#annotator", " ann ")
    page.keyboard.press("Enter")
    labelled: list[str] = []
    for key, chosen in (("a", "A"), ("b", "B"), ("t", "tie")):
        labelled.append(label(page, key, chosen))
        page.keyboard.press("Enter")
    page.wait_for_selector("#save")
    skipped = page.inner_text(".labelling h1")
    page.keyboard.press("s")
    page.wait_for_selector(f".labelling h1:not(:text-is('{skipped}'))")
    page.keyboard.press("u")
    page.wait_for_selector(f".labelling h1:text-is('{labelled[-1]}')")
    page.keyboard.press("b")
    page.keyboard.press("Enter")
    page.wait_for_selector("#next")
    page.keyboard.press("Escape")
    page.wait_for_selector(".row .badge >> text=✎ 1")
    assert page.evaluate("window.owned") is None
    page.click("#language")
    page.click("nav >> text=运行")
    page.wait_for_selector("section.run")
    assert {url.split("/")[2] for url in tab.requests if not url.startswith("data:")} == {viewer.host}
    lines = lines_of(job.out / "gold.jsonl")
    assert [line.get("preference") for line in lines] == ["A", "B", "tie", None, "B"]
    assert {line["annotator"] for line in lines} == {"ann"}
    assert [line["blind"] for line in lines[:3]] == [record_id not in ("p0", "p1") for record_id in labelled]
    assert lines[-1]["blind"] is False, "its verdict was shown when it was first saved"
    [joined] = join(open_run(job.out), [f"preference={job.out / 'gold.jsonl'}:preference"])
    told = dict(zip(joined.ids, joined.gold, strict=True))
    assert told == {labelled[0]: 0.0, labelled[1]: 1.0, labelled[2]: 1.0}


def test_verdicts_that_come_while_one_looks_are_told(tmp_path: Path, opened: Opened, tab: Tab) -> None:
    job = Job(tmp_path, "truthfulness", truth_rows(5))
    apart(job.run)
    verdicts = job.out / "verdicts.jsonl"
    lines = verdicts.read_bytes().splitlines(keepends=True)
    verdicts.write_bytes(b"".join(lines[:2]))
    viewer, page = opened(job.out), tab.page
    page.goto(f"http://127.0.0.1:{viewer.port}/?token={viewer.token}")
    page.wait_for_selector("section.run .badge >> text=judging now")
    page.click("section.run >> text=Cases")
    page.wait_for_selector("text=2 of 2 cases")
    verdicts.write_bytes(b"".join(lines))
    page.click("text=3 more judged")
    page.wait_for_selector("text=5 of 5 cases")
