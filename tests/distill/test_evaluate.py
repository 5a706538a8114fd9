"""A student held against its teacher and people: figures from runs, the curve by arithmetic, the card in words."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from localjudge import cli
from localjudge.agreement.audit import AuditRun
from localjudge.agreement.writing import Asked
from localjudge.distill.card import evaluation_markdown, write_card
from localjudge.distill.curve import best, choose, curve, held_out
from localjudge.distill.evaluate import Evaluation, Evaluations, Role, Wanted, kl, measure, read, relative
from localjudge.distill.evaluating import EvaluationRun
from localjudge.engines.base import Ask, Completion
from localjudge.errors import LocalJudgeError, RunError
from localjudge.judge.loading import load_judge
from localjudge.run.importing import import_verdicts
from localjudge.run.runner import Run, Settings
from localjudge.run.store import read_verdicts
from tests.run.conftest import Job
from tests.scripted import ScriptedEngine, scripted_model

N = 120
ROLES: tuple[Role, ...] = ("untrained", "student", "teacher")


def truth(i: int) -> str:
    return "yes" if i % 5 < 2 else "no"


class Knows(ScriptedEngine):
    """Says yes to record i with the probability that `of` gives."""

    def __init__(self, name: str, of: Callable[[int], float]) -> None:
        super().__init__(settings={"model": name})
        self.of = of

    async def complete(self, ask: Ask) -> Completion:
        told = await super().complete(ask)
        number = int(ask.messages[-1].text.split("It is number ")[1].split(".")[0])
        yes = self.of(number)
        return replace(told, distributions={"": dict(zip(ask.labels, (yes, 1 - yes), strict=True))}, mass=0.98)


def likely(i: int, right: bool, sure: float) -> float:
    yes = truth(i) == "yes"
    return sure if yes == right else 1 - sure


def untrained(i: int) -> float:
    return 0.45 + 0.1 * (i % 2)


def student(i: int) -> float:
    """Right but for every sixth, and not sure of those, nor of every fourth."""
    return likely(i, i % 6 != 0, 0.55 if i % 6 == 0 or i % 4 == 0 else 0.9)


def teacher(i: int) -> float:
    return likely(i, i % 12 != 0, 0.95)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[Role, Path]:
    path = tmp_path_factory.mktemp("runs")
    rows = [
        {"id": f"t{i}", "question": f"Is {i} even?", "answer": f"It is number {i}.", "label": truth(i)}
        for i in range(N)
    ]
    job = Job(path, "truthfulness", rows)
    made: dict[Role, Path] = {}
    for role, knows in zip(ROLES, (untrained, student, teacher), strict=True):
        run = job.prepare(
            Knows(role, knows),
            model={"name": role, "fingerprint": role},
            out=path / role,
            mode="score",
            shared_cache=False,
        )
        asyncio.run(run.go())
        made[role] = path / role
    return made


def wanted(gold: tuple[str, ...] = ("truthful=label",), **changed: Any) -> Wanted:
    return Wanted("test", Asked(list(gold)), **changed)


@pytest.fixture(scope="module")
def found(runs: dict[Role, Path], tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    labels = tmp_path_factory.mktemp("labels") / "teacher.jsonl"
    return measure(runs, wanted(price=2.0, hardware="a test"), labels)


def figure(judged: Any, name: str) -> Any:
    return next(one for one in judged[0].figures if one.name == name)


def test_each_judge_is_held_against_people_and_the_teacher(found: Evaluation) -> None:
    of = {judge.role: judge for judge in found.judges}
    assert list(of) == list(ROLES)
    labels = {
        role: [knows(i) > 0.5 for i in range(N)]
        for role, knows in zip(ROLES, (untrained, student, teacher), strict=True)
    }
    gold = [truth(i) == "yes" for i in range(N)]
    for role, own in labels.items():
        assert of[role].judged == of[role].verdicts == N
        accuracy = figure(of[role].people, "accuracy")
        assert accuracy.value == pytest.approx(np.mean([a == b for a, b in zip(own, gold, strict=True)]))
        assert accuracy.low < accuracy.value < accuracy.high
        assert figure(of[role].people, "kappa").value == pytest.approx(cohen_kappa_score(own, gold))
    assert of["teacher"].teacher == []
    both = figure(of["student"].teacher, "accuracy")
    assert both.value == pytest.approx(np.mean(np.array(labels["student"]) == np.array(labels["teacher"])))
    expected = np.mean(
        [kl({"y": teacher(i), "n": 1 - teacher(i)}, {"y": student(i), "n": 1 - student(i)}) for i in range(N)]
    )
    assert of["student"].distance["truthful"] == pytest.approx(expected)
    assert of["untrained"].distance["truthful"] > of["student"].distance["truthful"]


def test_what_of_the_teacher_s_agreement_is_kept(found: Evaluation) -> None:
    accuracy, kappa = found.kept
    # 100 of 120 against 110 of 120.
    assert accuracy.share == pytest.approx(100 / 110)
    assert accuracy.low and accuracy.high and 0.8 < accuracy.low < 100 / 110 < accuracy.high < 1
    assert kappa.share and kappa.share < accuracy.share
    names = {between.first: between.second for between in found.compared[0].between}
    assert names["student"] == "teacher"


def test_speed_tokens_and_cost(found: Evaluation, runs: dict[Role, Path]) -> None:
    for judge in found.judges:
        speed = judge.speed
        told = json.loads((runs[judge.role] / "run.json").read_text())["sessions"]
        seconds = sum(session["seconds"] for session in told)
        assert speed.per_second == pytest.approx(N / seconds)
        assert speed.cost == pytest.approx(1000 * seconds / N * 2 / 3600)
        assert (speed.asks, speed.written) == (1, 1)
        assert speed.computed == pytest.approx(speed.prompt / 2, rel=0.01)
        assert speed.parameters is None and speed.work is None
    assert next(judge for judge in found.judges if judge.role == "teacher").speed.relative == 1


def test_without_time_cost_is_parameters_times_tokens(found: Evaluation) -> None:
    one = found.judges[0].speed.model_copy(update={"per_second": None, "work": 10.0})
    assert relative(one, one.model_copy(update={"work": 40.0})) == 0.25
    assert relative(one, one.model_copy(update={"work": None})) is None


def test_the_cascade_is_had_from_both_complete_runs(found: Evaluation) -> None:
    people, own = found.cascades
    assert (people.of, own.of, people.n) == ("people", "teacher", N)
    assert people.points[0].escalated == 0
    assert people.points[0].agreement == pytest.approx(100 / 120)
    assert people.points[-1].escalated == 1
    assert people.points[-1].agreement == pytest.approx(110 / 120)
    # All it is wrong about it is unsure of: those alone are worth asking, with every fourth.
    assert people.chosen is not None
    assert people.chosen.escalated == pytest.approx(sum(i % 6 == 0 or i % 4 == 0 for i in range(N)) / N)
    assert people.chosen.agreement == pytest.approx(110 / 120)
    assert own.points[-1].agreement == 1


def test_without_people_the_teacher_is_what_there_is(runs: dict[Role, Path], tmp_path: Path) -> None:
    found = measure({role: runs[role] for role in ("student", "teacher")}, wanted(()), tmp_path / "labels.jsonl")
    assert found.kept == found.compared == []
    assert [cascade.of for cascade in found.cascades] == ["teacher"]
    assert [json.loads(line) for line in (tmp_path / "labels.jsonl").read_text().splitlines()][:1] == [
        {"id": "t0", "truthful": "no"}
    ]
    alone = measure({"student": runs["student"]}, wanted(), tmp_path / "labels.jsonl")
    assert alone.cascades == [] and len(alone.judges) == 1


def test_answers_of_earlier_completions_tell_no_speed(runs: dict[Role, Path], tmp_path: Path) -> None:
    job = Job(
        tmp_path,
        "truthfulness",
        [
            {"id": f"t{i}", "question": "Is it?", "answer": f"It is number {i}.", "label": truth(i)}
            for i in range(30)
        ],
    )
    for out in ("first", "second"):
        asyncio.run(job.prepare(Knows("one", student), out=tmp_path / out, mode="score").go())
    found = measure({"student": tmp_path / "second"}, wanted(), tmp_path / "labels.jsonl")
    assert found.judges[0].speed.per_second is None
    assert "30 of 30 answers came from earlier completions" in found.notes[0]


def test_runs_of_other_records_are_told(runs: dict[Role, Path], tmp_path: Path, found: Evaluation) -> None:
    other = Path(shutil.copytree(runs["teacher"], tmp_path / "other"))
    run = json.loads((other / "run.json").read_text())
    (other / "run.json").write_text(json.dumps({**run, "records": {**run["records"], "digest": "1" * 64}}))
    told = measure({**runs, "teacher": other}, wanted(), tmp_path / "labels.jsonl")
    assert [note for note in told.notes if note not in found.notes] == [
        "the teacher's run is of another file than the untrained's, or of other fields of it: records are held to "
        "be the same where their ids are"
    ]


def test_a_teacher_may_be_judgements_that_were_imported(runs: dict[Role, Path], tmp_path: Path) -> None:
    """As of people, or of a model behind an API: nothing is known of its weights."""
    rows = [
        {"id": f"t{i}", "question": "?", "answer": f"It is number {i}.", "label": truth(i), "said": truth(i)}
        for i in range(N)
    ]
    (tmp_path / "said.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    spec = load_judge("truthfulness")
    import_verdicts(spec, tmp_path / "said.jsonl", tmp_path / "said", mapping={"truthful": "said"})
    judged = {"student": runs["student"], "teacher": tmp_path / "said"}
    found = measure(judged, wanted(), tmp_path / "labels.jsonl")
    of_teacher = next(one for one in found.judges if one.role == "teacher")
    assert of_teacher.fingerprint is None
    assert figure(of_teacher.people, "accuracy").value == 1


def test_runs_of_different_judges_are_refused(runs: dict[Role, Path], tmp_path: Path) -> None:
    job = Job(tmp_path, "truthfulness", [{"id": "t0", "question": "Is it?", "answer": "It is number 0."}])
    other = job.prepare(Knows("one", student), out=tmp_path / "out", mode="score", judge_settings=["rationale=10"])
    asyncio.run(other.go())
    with pytest.raises(RunError, match="the teacher was asked another judge than the student"):
        measure({"student": runs["student"], "teacher": tmp_path / "out"}, wanted(), tmp_path / "labels.jsonl")


def test_pairs_are_measured_too(tmp_path: Path) -> None:
    rows = [
        {
            "id": f"p{i}",
            "instruction": "Count.",
            "response_a": f"left {i}",
            "response_b": f"right {i}",
            "label": "AB"[i % 2],
        }
        for i in range(40)
    ]
    job = Job(tmp_path, "pairwise", rows)
    for role in ("student", "teacher"):
        engine = ScriptedEngine(settings={"model": role})
        model = {"name": role, "fingerprint": role}
        asyncio.run(job.prepare(engine, model=model, out=tmp_path / role, mode="score", shared_cache=False).go())
    found = measure(
        {"student": tmp_path / "student", "teacher": tmp_path / "teacher"}, wanted(("label",)), tmp_path / "l.jsonl"
    )
    assert found.judges[0].people[0].target == "preference"
    assert found.judges[0].teacher[0].n <= 40
    orders = [[order["preference"].value for order in v.orders or ()] for v in read_verdicts(tmp_path / "student")]
    apart = sum(first != second for first, second in orders)
    assert 0 < apart < 40
    assert found.cascades[0].points[0].escalated >= apart / 40


def test_an_audit_of_one_of_them_is_told(runs: dict[Role, Path], tmp_path: Path) -> None:
    job = Job(
        tmp_path,
        "truthfulness",
        [{"id": f"t{i}", "question": "Is it?", "answer": f"It is number {i}."} for i in range(30)],
    )

    async def start() -> ScriptedEngine:
        return Knows("student", student)

    model = scripted_model(tmp_path, name="student", fingerprint="student")
    audit = AuditRun(
        load_judge("truthfulness"),
        job.records,
        model,
        tmp_path / "audit",
        Settings(mode="score"),
        start,
        only=["padding"],
    )
    asyncio.run(audit.go())
    found = measure(
        {"student": runs["student"]}, replace(wanted(), audits=[tmp_path / "audit"]), tmp_path / "l.jsonl"
    )
    assert [(one.role, one.name, one.flips) for one in found.audits] == [("student", "padding", 0)]
    assert "| padding" in evaluation_markdown(Evaluations(sets={"test": found}))
    with pytest.raises(LocalJudgeError, match="is of student, which is none of the judges here"):
        measure({"student": runs["teacher"]}, replace(wanted(), audits=[tmp_path / "audit"]), tmp_path / "l.jsonl")
    with pytest.raises(LocalJudgeError, match="holds no audit"):
        measure({"student": runs["student"]}, replace(wanted(), audits=[tmp_path]), tmp_path / "l.jsonl")


# The curve


def test_the_curve_by_hand() -> None:
    sure = np.array([0.9, 0.6, 0.6, math.nan])
    always = np.array([False, False, False, True])
    own, theirs = np.array([1.0, 0, 1, 0]), np.array([1.0, 1, 0, 1])
    points = curve(sure, always, own, theirs, work=0.1, time=0.2)
    assert [point.escalated for point in points] == [0.25, 0.75, 1.0]
    assert [point.agreement for point in points] == [0.75, 0.75, 0.75]
    assert [point.below for point in points][:2] == [0.6, 0.9]
    assert points[-1].below > 0.9
    assert [point.work for point in points] == pytest.approx([0.35, 0.85, 1.1])
    assert [point.time for point in points] == pytest.approx([0.45, 0.95, 1.2])
    assert choose(points, 0.75) == best(points) == points[0]
    assert choose(points, 0.8) is None
    assert curve(sure[:0], always[:0], own[:0], theirs[:0]) == []


def test_a_student_without_probabilities_escalates_what_is_in_doubt_alone() -> None:
    always = np.array([True, False])
    [point] = curve(np.full(2, math.nan), always, np.zeros(2), np.ones(2))
    assert (point.escalated, point.agreement, point.work) == (0.5, 0.5, None)


def test_a_long_curve_is_thinned_from_end_to_end() -> None:
    rng = np.random.default_rng(0)
    sure, own = rng.uniform(0.5, 1, 5000), rng.integers(0, 2, 5000).astype(float)
    points = curve(sure, np.zeros(5000, bool), own, np.ones(5000))
    assert len(points) == 100
    assert (points[0].escalated, points[-1].escalated) == (0, 1)
    for point in points:
        kept = np.where(sure < point.below, 1, own)
        assert point.agreement == pytest.approx(kept.mean())


def test_a_threshold_chosen_on_one_half_is_judged_on_the_other() -> None:
    rng = np.random.default_rng(0)
    n = 4000
    sure = rng.uniform(0.5, 1, n)
    own = (rng.uniform(size=n) < sure).astype(float)  # as right as it is sure
    theirs = (rng.uniform(size=n) < 0.9).astype(float)
    never = np.zeros(n, bool)
    found = held_out(sure, never, own, theirs, None, 0.85)
    assert found is not None
    chosen = choose(curve(sure, never, own, theirs), 0.85)
    assert chosen is not None
    assert found.agreement == pytest.approx(0.85, abs=0.02)
    assert found.escalated == pytest.approx(chosen.escalated, abs=0.05)
    assert found.low < found.agreement < found.high
    assert held_out(sure, never, own, theirs, None, 0.99) is None
    assert held_out(sure, never, own, theirs, ["one"] * n, 0.85) is None
    within = held_out(sure, never, own, theirs, None, None)
    assert within is not None and within.agreement > theirs.mean() - 0.03


# Written


def test_models_judge_first_and_everything_is_written(tmp_path: Path, found: Evaluation) -> None:
    rows = [
        {"id": f"t{i}", "question": "Is it?", "answer": f"It is number {i}.", "label": truth(i)} for i in range(30)
    ]
    job = Job(tmp_path, "truthfulness", rows)
    out = tmp_path / "student"
    out.mkdir()
    told = {"student": "smollm2-135m", "data": {"rows": {"train": 13867}}, "recipe": {"rank": 24, "lr": 5e-4}}
    (out / "distill.json").write_text(json.dumps(told))

    def made(role: Role, knows: Callable[[int], float]) -> Run:
        model = {"name": role, "fingerprint": role}
        folder = out / "runs" / role
        return job.prepare(Knows(role, knows), model=model, out=folder, mode="score", shared_cache=False)

    given: dict[Role, Path | Run] = {"student": made("student", student), "teacher": made("teacher", teacher)}
    run = EvaluationRun(given, out, wanted(), job.said.append)
    _, files = asyncio.run(run.go())
    assert [file.name for file in files] == ["evaluation.json", "evaluation.md", "README.md"]
    assert "student: student" in job.said
    elsewhere = EvaluationRun(given, out, replace(wanted(), name="elsewhere"))
    asyncio.run(elsewhere.go())
    assert job.starts == 2, "what is judged is not judged again"
    assert list(read(out).sets) == ["test", "elsewhere"]
    card = (out / "README.md").read_text()
    for part in ("rows.train", "13867", "rank", "### test", "### elsewhere", "## Limits", "--mode score"):
        assert part in card
    assert "it was not measured" not in card
    text = evaluation_markdown(read(out))
    assert "The student keeps" in text
    assert "\n\n\n" not in text


def test_a_card_needs_no_evaluation(tmp_path: Path) -> None:
    (tmp_path / "distill.json").write_text('{"student": "tiny"}')
    text = write_card(tmp_path).read_text()
    assert "Out of the domain of its training set it was not measured." in text
    assert "## Measured" not in text


def test_a_broken_evaluation_is_told(tmp_path: Path) -> None:
    (tmp_path / "evaluation.json").write_text('{"sets": 3}')
    with pytest.raises(LocalJudgeError, match="is not what this localjudge writes"):
        read(tmp_path)


# The command line


def test_from_the_command_line(
    runs: dict[Role, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def call(*words: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["localjudge", "distill", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return int(caught.value.code or 0), *capfd.readouterr()

    given = (runs["student"], "--untrained", runs["untrained"], "--teacher", runs["teacher"])
    code, text, err = call("evaluate", *given, "--gold", "truthful=label", "--agreement", "0.9", "-o", tmp_path)
    assert (code, err) == (0, "")
    assert "For an agreement of 90.0 % the cheapest is below" in text
    assert str(tmp_path / "evaluation.md") in text
    code, _, err = call("evaluate", tmp_path, "-o", tmp_path)
    assert code == 2
    assert "holds no run, and as a model it is told neither a judge nor records" in err
    code, _, err = call("card", tmp_path)
    assert code == 2
    assert "holds no distill.json, which a training writes" in err
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "distill.json").write_text('{"settings": {"rank": 24}}')
    code, _, err = call("card", tmp_path / "adapter", "--evaluation", tmp_path)
    assert (code, err) == (0, "")
    text = (tmp_path / "adapter" / "README.md").read_text()
    assert "### test" in text and "For an agreement of 90.0 %" in text
    assert str(runs["student"]) not in (tmp_path / "adapter" / "evaluation.json").read_text()
