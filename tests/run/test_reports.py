"""Each record's own report: made with the run where the judge has a template, and one by one on demand."""

from __future__ import annotations

from pathlib import Path

import pytest

from localjudge.errors import RecordsError, RunError
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
        ("# a\n\n{% for x in y %}\n", "is broken: ", 3),
        ("{{ ''.__class__.__mro__ }}", "fails on 't0': ", 1),
    ],
)
def test_a_broken_template_is_told_with_its_line(tmp_path: Path, template: str, what: str, line: int) -> None:
    mine = job(tmp_path, template)
    with pytest.raises(RunError, match=what) as caught:
        mine.run()
    assert str(caught.value.where).endswith(f"report.md.j2:{line}")
    assert mine.starts == ("broken" not in what)
    if mine.starts:
        assert len(list(read_verdicts(mine.out))) == 3
