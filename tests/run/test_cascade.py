"""A cascade: what the student doubts goes to the teacher, and the verdict says who decided."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from localjudge.agreement.join import open_run
from localjudge.agreement.writing import Asked
from localjudge.cli.run import _check_cascade
from localjudge.engines.base import Ask, AskFailed
from localjudge.errors import EngineError, LocalJudgeError, RunError
from localjudge.report.html.build import write_report
from localjudge.report.summary import Side, Summary
from localjudge.run.cascade import ESCALATED, CascadeRun, costs, decided, doubt, sureness
from localjudge.run.panel import member_folder
from localjudge.run.session import report_again
from localjudge.run.store import read_verdicts
from localjudge.verdict import Answer, Usage, Verdict
from tests.run.conftest import Job, by_id, child, finish
from tests.scripted import ScriptedEngine


def cascade(
    job: Job,
    below: float | None = 0.6,
    *,
    student: ScriptedEngine | None = None,
    teacher: ScriptedEngine | None = None,
    out: Path | None = None,
    mode: str = "score",
    **options: Any,
) -> CascadeRun:
    out = out or job.out
    engines = {
        "student": student or ScriptedEngine(settings={"model": "student"}),
        "teacher": teacher or ScriptedEngine(settings={"model": "teacher"}),
    }
    runs = [
        job.prepare(
            engine, model={"name": name, "fingerprint": name}, out=member_folder(out, name), mode=mode, **options
        )
        for name, engine in engines.items()
    ]
    return CascadeRun(*runs, out, below, job.said.append)


def go(run: CascadeRun) -> Summary:
    return asyncio.run(run.go())


def members(out: Path) -> tuple[dict[str, Verdict], dict[str, Verdict]]:
    own, theirs = ({v.id: v for v in read_verdicts(member_folder(out, name))} for name in ("student", "teacher"))
    return own, theirs


def test_what_is_not_confident_goes_to_the_teacher_and_nothing_else(truth: Job) -> None:
    summary = go(cascade(truth))
    verdicts = by_id(truth.out)
    student, teacher = members(truth.out)
    assert len(verdicts) == len(student) == 30
    tied = {i for i, verdict in student.items() if verdict.unsure}
    doubtful = tied | {i for i, verdict in student.items() if (sureness(verdict) or 0) < 0.6}
    assert 0 < len(doubtful) < 30
    assert set(teacher) == doubtful
    assert [json.loads(line)["id"] for line in (truth.out / ESCALATED).read_text().splitlines()] == sorted(
        doubtful, key=lambda i: int(i[1:])
    )
    for record_id, verdict in verdicts.items():
        decider = (teacher if record_id in doubtful else student)[record_id]
        assert verdict.answers == decider.answers
        assert verdict.decided_by == ("teacher" if record_id in doubtful else "student")
        assert verdict.model == "student > teacher"
    told = summary.cascade
    assert told is not None
    assert (told.student.judged, told.teacher.judged) == (30, len(doubtful))
    assert (told.student.decided, told.teacher.decided) == (30 - len(doubtful), len(doubtful))
    assert told.escalated and told.escalated.count == len(doubtful)
    assert told.doubted == {"not confident": len(doubtful - tied), "unsure": len(tied)}
    assert summary.usage.asks == 30 + len(doubtful)
    assert summary.statuses["ok"] == 30
    made = json.loads((truth.out / "run.json").read_text())
    assert made["labels"] == {"truthful": {"A": "yes", "B": "no"}}, (
        "as the student, who was asked of all, was shown them"
    )
    assert write_report(truth.out).is_file()
    report = report_again(truth.out)
    assert "## Cascade" in report
    assert f"{len(doubtful)} of 30 records" in report
    assert json.loads((truth.out / "summary.json").read_text())["cascade"]["below"] == 0.6


def test_the_whole_is_held_against_people_like_any_run(truth: Job) -> None:
    truth.rows = [{**row, "label": "true" if i % 3 else "false"} for i, row in enumerate(truth.rows)]
    truth.records.write_text("".join(json.dumps(row) + "\n" for row in truth.rows))
    go(cascade(truth))
    [joined] = Asked(["label"], theirs={"true": "yes", "false": "no"}).joined(open_run(truth.out))
    assert joined.counts.used == 30


def test_a_doubted_pair_is_one_whose_orders_disagree(pairs: Job) -> None:
    summary = go(cascade(pairs, below=None, mode="explain"))
    student, teacher = members(pairs.out)
    undecided = {i for i, verdict in student.items() if verdict.answers["preference"].value == "inconsistent"}
    assert set(teacher) == undecided
    assert summary.cascade is not None
    assert summary.cascade.doubted == {"inconsistent": len(undecided)}


def test_both_are_gone_on_with(truth: Job) -> None:
    expected = go(cascade(truth, out=truth.path / "undisturbed", shared_cache=False))
    for name in ("student", "teacher"):
        dying = ScriptedEngine(settings={"model": name}, dies_after=4)
        with pytest.raises(
            EngineError, match=f"the cascade's {name} '{name}' stopped: the scripted engine has died"
        ):
            go(cascade(truth, **{name: dying}, shared_cache=False))
        assert not (truth.out / "verdicts.jsonl").exists()
        assert (truth.out / ESCALATED).exists() == (name == "teacher")
    student = ScriptedEngine(settings={"model": "student"})
    teacher = ScriptedEngine(settings={"model": "teacher"})
    summary = go(cascade(truth, student=student, teacher=teacher, shared_cache=False))
    assert student.answered == 0
    assert expected.cascade is not None
    assert 0 < teacher.answered <= expected.cascade.teacher.judged - 3
    assert by_id(truth.out) == by_id(truth.path / "undisturbed")
    assert summary.statuses == expected.statuses
    again = go(cascade(truth, student=student, teacher=teacher, shared_cache=False))
    assert again.cascade == summary.cascade


def test_what_the_student_could_not_judge_is_the_teacher_s(truth: Job) -> None:
    def fails(ask: Ask) -> AskFailed | None:
        return AskFailed("too_long", "too long for me") if "Is 7 even?" in ask.messages[-1].text else None

    student = ScriptedEngine(settings={"model": "student"}, fails=fails)
    summary = go(cascade(truth, below=None, mode="explain", student=student))
    verdict = by_id(truth.out)["t7"]
    assert (verdict.status, verdict.decided_by) == ("ok", "teacher")
    assert summary.cascade is not None
    assert summary.cascade.doubted == {"failed": 1}


def test_what_failed_at_the_teacher_is_tried_again_there(truth: Job) -> None:
    def fails(ask: Ask) -> AskFailed | None:
        return AskFailed("engine_error", "out of luck")

    first = go(cascade(truth, teacher=ScriptedEngine(settings={"model": "teacher"}, fails=fails)))
    assert first.cascade is not None
    assert first.statuses["ok"] == 30
    assert first.unsure == first.cascade.teacher.judged, "the student's verdicts stand, as unsure"
    assert first.cascade.teacher.decided == 0
    student = ScriptedEngine(settings={"model": "student"})
    second = go(cascade(truth, student=student, retry_failed=True))
    assert student.answered == 0
    assert second.cascade is not None
    assert second.cascade.teacher.decided == second.cascade.teacher.judged
    assert second.unsure < first.unsure


def test_without_doubt_the_teacher_is_not_loaded(truth: Job) -> None:
    summary = go(cascade(truth, below=None, mode="explain"))
    assert truth.starts == 1
    assert summary.cascade is not None
    assert summary.cascade.teacher.judged == 0
    assert (summary.cascade.work, summary.cascade.time) == (None, None)
    assert {verdict.decided_by for verdict in by_id(truth.out).values()} == {"student"}


def test_bad_records_are_nobody_s_to_decide(truth: Job) -> None:
    truth.records.write_text(truth.records.read_text() + '{"id": "bad"}\n')
    summary = go(cascade(truth, skip_invalid=True))
    assert by_id(truth.out)["bad"].status == "invalid_record"
    assert summary.cascade is not None
    assert summary.cascade.escalated and summary.cascade.escalated.n == 30


def test_a_folder_belongs_to_its_cascade(truth: Job) -> None:
    go(cascade(truth))
    with pytest.raises(RunError, match=r"below was 0\.6, is now 0\.7"):
        go(cascade(truth, below=0.7))
    with pytest.raises(RunError, match="this folder holds a cascade's run"):
        truth.run(model={"name": "student", "fingerprint": "student"}, mode="score")
    truth.run(out=truth.path / "alone")
    with pytest.raises(RunError, match="this folder holds another run"):
        go(cascade(truth, out=truth.path / "alone"))


def test_a_student_that_tells_no_probabilities_cannot_be_below_any(truth: Job) -> None:
    with pytest.raises(LocalJudgeError, match=r"student gives no probabilities that could be below 0\.6"):
        go(cascade(truth, mode="explain"))


def test_one_model_is_no_cascade(truth: Job) -> None:
    both = [truth.prepare(out=member_folder(truth.out, "scripted")) for _ in range(2)]
    with pytest.raises(RunError, match="is both the student and the teacher"):
        CascadeRun(*both, truth.out)


# Arithmetic


def verdict(value: Any = "yes", p: float | None = 0.9, **changed: Any) -> Verdict:
    likely = None if p is None else {"yes": p, "no": 1 - p}
    fields = {"id": "1", "status": "ok", "overall": 1.0, "judge": "j", "model": "m"}
    return Verdict(**{**fields, "answers": {"q": Answer(value=value, distribution=likely)}, **changed})


def test_why_a_verdict_is_doubted() -> None:
    failed = {"answers": {}, "overall": None}
    assert doubt(verdict(), 0.9) is None
    assert doubt(verdict(p=0.89), 0.9) == "not confident"
    assert doubt(verdict(p=0.3), 0.9) == "not confident"
    assert doubt(verdict(p=0.89), None) is None
    assert doubt(verdict(p=None), 0.9) is None
    assert doubt(verdict(unsure=True), None) == "unsure"
    assert doubt(verdict(value="inconsistent"), None) == "inconsistent"
    assert doubt(verdict(status="engine_error", **failed), None) == "failed"
    assert doubt(verdict(status="invalid_record", **failed), 0.9) is None


def test_the_least_certain_answer_counts() -> None:
    flags = Answer(value=["a"], distribution={"a": 0.8, "b": 0.3})
    both = verdict(answers={"q": Answer(value=1, distribution={"1": 0.9, "2": 0.1}), "f": flags})
    assert sureness(both) == pytest.approx(0.7)
    order = {"preference": Answer(value="A", distribution={"A": 0.6, "B": 0.4})}
    other = {"preference": Answer(value="B", distribution={"A": 0.4, "B": 0.6})}
    assert doubt(verdict(orders=[order, order]), 0.5) is None
    assert doubt(verdict(orders=[order, other]), 0.5) == "inconsistent"
    assert sureness(verdict(p=None, orders=[order, order])) == pytest.approx(0.6)
    assert sureness(verdict(p=None)) is None


def test_who_decides() -> None:
    own, other = verdict(model="s", usage=Usage(asks=1)), verdict(value="no", model="t", usage=Usage(asks=2))
    assert decided(own, None, "s > t").decided_by == "s"
    whole = decided(own, other, "s > t")
    assert (whole.decided_by, whole.model, whole.usage.asks) == ("t", "s > t", 3)
    lost = Verdict(id="1", status="too_long", error="too long", judge="j", model="t")
    assert decided(own, lost, "s > t").unsure
    assert decided(own, lost, "s > t").decided_by == "s"
    assert decided(lost, lost, "s > t").status == "too_long"


def side(judged: int, tokens: int, parameters: int | None, seconds: float | None) -> Side:
    return Side(model="m", judged=judged, decided=0, tokens=tokens, parameters=parameters, seconds=seconds)


def test_what_a_cascade_costs_beside_the_teacher_alone() -> None:
    # A student a tenth of the size reads all 100 records of 50 tokens, the teacher 20 of them.
    work, time = costs(side(100, 5000, 10, 10.0), side(20, 1000, 100, 20.0), 100)
    assert work == pytest.approx(0.1 + 0.2)
    assert time == pytest.approx((10 + 20) / 100)
    assert costs(side(100, 5000, None, 10.0), side(20, 1000, 100, None), 100) == (None, None)
    assert costs(side(100, 5000, 10, 10.0), side(0, 0, 100, None), 100) == (None, None)


# The command line


@pytest.mark.parametrize(
    ("suite", "models", "to", "below", "says"),
    [
        (False, ["small"], None, 0.8, "name that model: --escalate-to MODEL"),
        (False, ["small"], "large", None, "nothing says what is in doubt"),
        (False, ["small", "third"], "large", 0.8, "a cascade has one first model"),
        (True, ["small"], "large", 0.8, "a suite is judged by one model"),
    ],
)
def test_what_does_not_go_together_is_refused(
    suite: bool, models: list[str], to: str | None, below: float | None, says: str
) -> None:
    with pytest.raises(LocalJudgeError, match=says):
        _check_cascade(suite, models, to, below, None)


def test_from_the_command_line_one_model_is_no_cascade(truth: Job) -> None:
    _, err = finish(child(*truth.command("--mode", "score", "--escalate-to", "scripted", "--below", "0.8")), 2)
    assert "is both the student and the teacher" in err
