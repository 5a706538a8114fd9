"""The file itself: whole or not there, closed to everything but itself, in volumes when it is large."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from localjudge.cli import app
from localjudge.errors import RunError
from localjudge.report.html import build
from localjudge.report.html.build import page, write_comparison, write_report
from localjudge.report.html.words import WORDS
from tests.report_html.runs import HOSTILE, judged, pairs
from tests.run.conftest import Job, finish, truth_rows


def blocks(file: Path) -> dict[str, Any]:
    """The data in a file: name -> JSON."""
    found = re.findall(r'<script type="application/gzip" id="([\w-]+)">([^<]*)</script>', file.read_text())
    return {name: json.loads(gzip.decompress(base64.b64decode(text))) for name, text in found}


def test_a_run_s_file_holds_every_case_and_all_of_each(tmp_path: Path) -> None:
    out = judged(tmp_path, "truthfulness", truth_rows(20))
    held = blocks(write_report(out))
    assert held["books"] == [{"key": "r0", "title": "truthfulness", "kind": "run"}]
    rows = held["rows-r0"]
    assert [row["id"] for row in rows] == [f"t{i}" for i in range(20)]
    for row in rows:
        assert held[f"block-{row['block']}"][row["place"]]["id"] == row["id"]
    assert held["overview-r0"]["cases"] == held["overview-r0"]["listed"] == 20


def test_the_content_policy_names_what_is_in_the_page_and_forbids_the_rest(tmp_path: Path) -> None:
    text = write_report(judged(tmp_path, "truthfulness", [HOSTILE])).read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in policy[1].replace("&#39;", "'").split("; "))
    assert rules["default-src"] == "'none'" and rules["img-src"] == "data:" and "connect-src" not in rules
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        inside = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.S)
        hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in inside]
        assert rules[rule].split() == hashes
    # The record's own text is nowhere in the file but in the packed blocks.
    assert "alert(1)" not in text and "tracker.example" not in text and "polluted" not in text
    assert len(text) < 450_000, "two megabytes of one letter are packed"


def test_nothing_in_the_page_is_from_elsewhere() -> None:
    text = page()
    assert not re.findall(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", text)
    [style] = re.findall(r"<style>(.*?)</style>", text, re.S)
    assert "@import" not in style and "url(" not in style
    assert "connect-src &#39;self&#39;" in page(connect=True)


def test_what_is_left_of_a_write_that_fails_is_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = judged(tmp_path, "truthfulness", truth_rows(3))
    before = write_report(out).read_bytes()
    monkeypatch.setattr(build.RunData, "overview", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_report(out)
    assert (out / "report.html").read_bytes() == before
    assert not list(out.glob(".report*"))


def test_what_is_too_much_for_one_file_is_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = judged(tmp_path, "truthfulness", truth_rows(40))
    monkeypatch.setattr(build, "BLOCK", 8_000)
    monkeypatch.setattr(build, "MOST", 9_000)
    held = blocks(write_report(out))
    volumes = held["overview-r0"]["volumes"]
    assert held["overview-r0"]["files"] == "report_files" and held["overview-r0"]["beside"] > 0
    assert len(held["rows-r0"]) == 40
    for row in held["rows-r0"]:
        if str(row["block"]) in volumes:
            beside = blocks(out / "report_files" / f"{volumes[str(row['block'])]}.html")
            assert beside[f"block-{row['block']}"][row["place"]]["id"] == row["id"]
            assert row["id"] in [one["id"] for one in beside["rows-v"]]
        else:
            assert held[f"block-{row['block']}"][row["place"]]["id"] == row["id"]
    monkeypatch.undo()
    write_report(out)
    assert not (out / "report_files").exists()


def test_more_cases_than_a_browser_holds_are_counted_and_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{**row, "topic": ("law", "art")[i % 2]} for i, row in enumerate(truth_rows(30))]
    out = judged(tmp_path, "truthfulness", rows)
    monkeypatch.setattr(build, "MOST_CASES", 10)
    monkeypatch.setattr(build, "MOST_PROMPTS", 4)
    held = blocks(write_report(out))
    told = held["overview-r0"]
    assert (len(held["rows-r0"]), told["listed"], told["cases"]) == (10, 10, 30)
    assert sum(one["n"] for one in told["slices"]["topic"].values()) == 30
    details = [one for name, block in held.items() if name.startswith("block") for one in block]
    assert [one["asks"] is None for one in details] == [False] * 4 + [True] * 6


def test_two_judges_of_the_same_records_are_crossed(tmp_path: Path) -> None:
    one = judged(tmp_path / "one", "truthfulness", truth_rows(40))
    other = judged(tmp_path / "other", "truthfulness", truth_rows(40), temperature=0.7, seed=3)
    held = blocks(write_comparison([one, other], tmp_path / "both.html"))
    assert [book["kind"] for book in held["books"]] == ["comparison", "run", "run"]
    compared, crossed = held["overview-c"]["parts"]
    assert sum(map(sum, compared["wins"]["wins"])) + sum(map(sum, compared["wins"]["ties"])) // 2 == 40
    [table] = crossed["crossed"]
    assert table["n"] == sum(map(sum, table["table"])) == 40
    assert table["same"] == sum(row[i] for i, row in enumerate(table["table"]))
    apart = [row for row in held["rows-c"] if row["gap"] == 1]
    assert len(apart) == 40 - table["same"] > 0
    assert {side["told"] for side in apart[0]["sides"]} == {"0", "1"}


def test_judges_that_ask_differently_are_held_side_by_side_without_a_ranking(tmp_path: Path) -> None:
    rows = [{**row, "prompt": row["question"], "response": row["answer"]} for row in truth_rows(10)]
    one = judged(tmp_path / "one", "truthfulness", rows)
    quality = [{"id": row["id"], "question": row["question"], "answer": row["answer"]} for row in rows]
    (tmp_path / "judge.yaml").write_text(
        "name: grades\ninputs: [answer]\n"
        "questions: [{id: good, type: score, ask: Is it good, anchors: {1: bad, 5: good}}]\n"
    )
    other = judged(tmp_path / "other", str(tmp_path / "judge.yaml"), quality)
    held = blocks(write_comparison([one, other], tmp_path / "both.html"))
    assert "no ranking: these are runs of different judges" in held["overview-c"]["notes"][0]
    assert held["overview-c"]["parts"] == []
    assert len(held["rows-c"]) == 10 and all(0 <= row["gap"] <= 1 for row in held["rows-c"])


def test_candidates_of_one_run_are_compared_in_it(tmp_path: Path) -> None:
    rows = [
        {
            "id": f"{case}-{name}",
            "case": f"c{case}",
            "candidate": name,
            "question": "Is it so?",
            "answer": f"{name} says {case}",
        }
        for case in range(6)
        for name in ("left", "right")
    ]
    held = blocks(write_report(judged(tmp_path, "truthfulness", rows)))
    assert [book["kind"] for book in held["books"]] == ["run", "comparison"]
    assert [row["id"] for row in held["rows-c"]] == [f"c{case}" for case in range(6)]
    details = {one["id"]: one for name, block in held.items() if name.startswith("block") for one in block}
    case = details["c2"]
    assert case["pairs"] == ["answer"]
    texts = {field["name"]: field["value"] for field in case["fields"]}
    assert (texts["answer_a"], texts["answer_b"], texts["question"]) == ("left says 2", "right says 2", "Is it so?")
    assert [side["name"] for side in case["sides"]] == ["left", "right"]


def test_runs_that_share_nothing_are_refused(tmp_path: Path) -> None:
    one = judged(tmp_path / "one", "pairwise", pairs(3))
    other = judged(tmp_path / "other", "truthfulness", truth_rows(3))
    with pytest.raises(RunError, match="share no record"):
        write_comparison([one, other], tmp_path / "both.html")
    assert not (tmp_path / "both.html").exists()
    with pytest.raises(RunError, match="given twice"):
        write_comparison([one, one], tmp_path / "both.html")


def test_the_command_writes_the_page_and_says_what_is_wrong(tmp_path: Path) -> None:
    out = judged(tmp_path, "truthfulness", truth_rows(3))
    runner = CliRunner()
    told = runner.invoke(app, ["report", str(out), "--html", "--language", "zh"])
    assert told.exit_code == 0 and told.output.strip() == str(out / "report.html")
    assert '<html lang="zh"' in (out / "report.html").read_text()
    for words, expected in (
        ([str(out), "--html", "--language", "fr"], "no labels in 'fr'"),
        ([str(out), str(out), "--html"], "needs a place"),
        ([str(out), "-o", "x.html"], "it is of the page"),
        ([str(out), str(out)], "compared as a page"),
        ([str(out), "--html", "--record", "t1"], "a page is of all records"),
    ):
        failed = runner.invoke(app, ["report", *words])
        assert failed.exit_code != 0 and expected in str(failed.exception)


def test_a_run_ends_with_its_page(tmp_path: Path) -> None:
    job = Job(tmp_path, "truthfulness", truth_rows(4))
    told, _ = finish(job.child())
    assert f"page      {job.out / 'report.html'}" in told
    assert len(blocks(job.out / "report.html")["rows-r0"]) == 4


def test_both_languages_say_the_same_things() -> None:
    english, chinese = WORDS["en"], WORDS["zh"]
    assert english.keys() == chinese.keys()
    for key, text in english.items():
        assert sorted(re.findall(r"\{\d\}", text)) == sorted(re.findall(r"\{\d\}", chinese[key])), key
    used = set()
    for script in build.HERE.glob("*.js"):
        used |= set(re.findall(r'say\("(\w+)"', script.read_text()))
    assert used <= english.keys()


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_text_stands_out_from_what_is_behind_it_in_light_and_dark() -> None:
    """WCAG 2.1, 1.4.3: at least 4.5 to 1."""
    style = (build.HERE / "style.css").read_text()
    themes = [
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
        for block in re.findall(r"\{([^{}]*--paper[^{}]*)\}", style)
    ]
    assert len(themes) >= 3
    on = [(ink, back) for ink in ("ink", "muted", "accent") for back in ("paper", "card")]
    on += [(kind, f"{kind}-soft") for kind in ("good", "warn", "bad", "accent")] + [
        ("ink", "mark"),
        ("muted", "accent-soft"),
    ]
    for theme in themes:
        for ink, back in on:
            if ink in theme and back in theme:
                light, dark = sorted((luminance(theme[ink]), luminance(theme[back])), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= 4.5, (ink, back, theme[ink], theme[back])
