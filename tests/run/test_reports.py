"""Each record's own report: made with the run where the judge has a template, and one by one on demand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from localjudge.errors import RecordsError, RunError
from localjudge.paths import data_dir
from localjudge.report.markdown import plain
from localjudge.run.reports import report_file
from localjudge.run.session import report_again
from localjudge.run.store import read_verdicts
from tests.run.conftest import Job, truth_rows

JUDGE = """\
name: mine
inputs: [question, answer]
rationale: 30
questions:
  - {id: good, type: score, ask: Is it good, scale: [1, 5]}
red_lines:
  - {code: R1, text: it is dangerous}
"""
TEMPLATE = """\
# {{ record.id | plain }}: {{ record.question | plain }}
{{ verdict.status }} {{ verdict.overall }} of {{ judge.name }}
{% for code, decision in verdict.decisions.items() %}
- {{ code }}: {{ decision.stands }} by {{ decision.by }}
{% endfor %}
"""


def job(tmp_path: Path, template: str | None = TEMPLATE) -> Job:
    folder = tmp_path / "judge"
    folder.mkdir()
    (folder / "judge.yaml").write_text(JUDGE)
    if template is not None:
        (folder / "report.md.j2").write_text(template)
    rows = truth_rows(3)
    rows[1] |= {"id": "../<b>x", "question": "Is *1* | even?"}
    return Job(tmp_path, str(folder), rows)


def test_a_judge_with_a_template_reports_on_each_record(tmp_path: Path) -> None:
    mine = job(tmp_path)
    mine.run()
    files = {file.name: file.read_text() for file in (mine.out / "reports").iterdir()}
    assert len(files) == 3
    [verdict, *_] = read_verdicts(mine.out)
    assert files["t0.md"].startswith(f"# t0: Is 0 even?\nok {verdict.overall} of mine\n- R1: ")
    hostile = report_file(mine.out, "../<b>x")
    assert hostile.parent == mine.out / "reports"
    assert "Is \\*1\\* \\| even?" in files[hostile.name]
    assert report_again(mine.out, "t0") == files["t0.md"]


def test_any_record_can_be_reported_on(truth: Job) -> None:
    truth.run()
    assert not (truth.out / "reports").exists()
    told = report_again(truth.out, "t7")
    assert told.startswith("# t7\n\ntruthfulness by scripted: overall ")
    assert "- truthful: " in told
    with pytest.raises(RunError, match="no verdict on a record 't77'") as caught:
        report_again(truth.out, "t77")
    assert "did you mean 't" in str(caught.value)
    truth.records.unlink()
    with pytest.raises(RecordsError, match="the run's records are not there any more"):
        report_again(truth.out, "t7")


def test_a_record_that_could_not_be_judged_is_told_so(tmp_path: Path) -> None:
    mine = job(tmp_path, None)
    mine.rows.append({"id": "bare", "question": "Only this?"})
    mine = Job(tmp_path, mine.judge, mine.rows)
    mine.run(skip_invalid=True)
    assert ": invalid_record. " in report_again(mine.out, "bare")


@pytest.mark.parametrize(
    ("template", "what", "line"),
    [
        ("# a\n{{ verdict.nothing }}\n", "fails on 't0': ", 2),
        ("{{ ''.__class__.__mro__ }}", "fails on 't0': ", 1),
    ],
)
def test_a_template_that_fails_is_told_with_its_line_and_ends_no_run(
    tmp_path: Path, template: str, what: str, line: int
) -> None:
    mine = job(tmp_path, template)
    assert mine.run().statuses["ok"] == 3
    [warning] = [said for said in mine.said if said.startswith("warning: ")]
    assert f"report.md.j2:{line}: the report template {what}" in warning
    assert "3 of 3 reports could not be made" in warning
    with pytest.raises(RunError, match=what) as caught:
        report_again(mine.out)
    assert str(caught.value.where).endswith(f"report.md.j2:{line}")


def test_a_template_that_cannot_be_read_is_told_before_anything_is_judged(tmp_path: Path) -> None:
    mine = job(tmp_path, "# a\n\n{% for x in y %}\n")
    with pytest.raises(RunError, match="is broken: ") as caught:
        mine.run()
    assert str(caught.value.where).endswith("report.md.j2:3")
    assert mine.starts == 0


def test_a_record_whose_report_fails_keeps_no_other_from_its_own(tmp_path: Path) -> None:
    mine = job(tmp_path)
    mine = Job(tmp_path, mine.judge, [{"id": "bare", "question": "Only this?"}, *mine.rows])
    mine.run(skip_invalid=True)
    assert len(list((mine.out / "reports").iterdir())) == 3
    [warning] = [said for said in mine.said if said.startswith("warning: ")]
    assert "fails on 'bare': " in warning
    assert warning.endswith("1 of 4 reports could not be made; the verdicts and the others are whole")
    (mine.out / "report.md").unlink()
    with pytest.raises(RunError, match="fails on 'bare': "):
        report_again(mine.out)
    assert (mine.out / "report.md").exists()


@pytest.mark.parametrize("judge", ["scenario-review", "project-review", "completability"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_built_in_reports_take_a_record_that_lacks_everything(
    tmp_path: Path, judge: str, language: str
) -> None:
    folder = data_dir("prompts") / judge
    file = folder / ("judge.yaml" if language == "en" else "judge.zh.yaml")
    whole = json.loads((folder / "examples" / "records.jsonl").read_text(encoding="utf-8").splitlines()[0])
    mine = Job(tmp_path, str(file), [{**whole, "id": "whole"}, {"id": "bare", "project": whole["project"]}])
    mine.run(skip_invalid=True, model={"context": 100_000})
    assert not [said for said in mine.said if said.startswith("warning: ")]
    told = {file.stem: file.read_text().splitlines()[0] for file in (mine.out / "reports").iterdir()}
    assert told == {"whole": f"# {plain(whole['topic'])}", "bare": "# bare"}


def test_a_copied_judge_is_changed_and_run(tmp_path: Path) -> None:
    """A new user's way, to its end: the replay review with other weights, on its own examples."""
    mine = tmp_path / "mine"
    shutil.copytree(data_dir("prompts") / "replay-review", mine)
    file = mine / "judge.yaml"
    text = file.read_text(encoding="utf-8")
    text = text.replace("title: 事实准确性, weight: 20", "title: 事实准确性, weight: 30")
    file.write_text(text.replace("title: 分析深度, weight: 20", "title: 分析深度, weight: 10"), encoding="utf-8")
    copied = Job(tmp_path, str(mine), [])
    summary = copied.run(records=mine / "examples" / "records.jsonl", limit=2)
    assert summary.statuses["ok"] == 2
    reports = [path.read_text(encoding="utf-8") for path in (copied.out / "reports").iterdir()]
    assert len(reports) == 2
    assert all("| 事实准确性 |" in report and "| 30% |" in report for report in reports)
