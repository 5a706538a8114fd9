"""Probabilities that say too much are brought down to what they are worth, told of records that were not seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localjudge import cli
from localjudge.agreement import calibrate as ours
from localjudge.agreement.calibrate import Calibration, Calibrator, apply, load
from localjudge.agreement.statistics import Values
from localjudge.agreement.writing import Asked, calibrate_run
from localjudge.errors import LocalJudgeError
from localjudge.judge import pairwise, rubric
from localjudge.judge.loading import load_judge
from localjudge.judge.spec import JudgeSpec
from localjudge.run.store import read_verdicts
from localjudge.verdict import Answer, Verdict
from tests.agreement.conftest import (
    ABSOLUTE,
    MIXED,
    Imported,
    held_of,
    judge_file,
    read_answer,
    value_of,
    written_run,
)

sklearn = pytest.importorskip("sklearn")


def overconfident(seed: int, n: int, k: int = 2, times: float = 2.5) -> tuple[Values, Any]:
    """Probabilities whose logits are `times` too large, and labels drawn from the true ones."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1, (n, k))
    true = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    said = np.exp(times * logits) / np.exp(times * logits).sum(1, keepdims=True)
    labels = np.array([rng.choice(k, p=row) for row in true])
    return said, labels


# Fits


def test_the_temperature_that_was_put_in_is_found() -> None:
    for k in (2, 5):
        p, y = overconfident(k, 20_000, k)
        found = ours.fit_temperature(p, y, [str(i) for i in range(k)])
        assert found.temperature == pytest.approx(2.5, rel=0.05)
        assert ours.log_loss(found.apply(p), y) < ours.log_loss(p, y)


def test_platts_fit_is_sklearns() -> None:
    from sklearn.calibration import _SigmoidCalibration

    for n in (30, 400):
        p, y = overconfident(n, n)
        found = ours.fit_platt(p, y, ["no", "yes"])
        theirs = _SigmoidCalibration().fit(ours._logit(p[:, 1]), y)
        assert found.apply(p)[:, 1] == pytest.approx(theirs.predict(ours._logit(p[:, 1])), abs=1e-3)
    p = np.array([[0.9, 0.1], [0.8, 0.2], [0.2, 0.8], [0.1, 0.9]])
    separable = ours.fit_platt(p, np.array([0, 0, 1, 1]), ["no", "yes"])
    assert 0.5 < separable.apply(p)[3, 1] < 1


def test_isotonic_steps_are_sklearns() -> None:
    from sklearn.isotonic import IsotonicRegression

    p, y = overconfident(7, 900)
    found = ours.fit_isotonic(p, y, ["no", "yes"])
    theirs = IsotonicRegression(out_of_bounds="clip").fit(p[:, 1], y)
    grid = np.linspace(0, 1, 500)
    inside = np.clip(theirs.predict(grid), found.floor, 1 - found.floor)
    assert found.apply(np.stack([1 - grid, grid], 1))[:, 1] == pytest.approx(inside, abs=1e-9)
    assert found.apply(p).sum(1) == pytest.approx(np.ones(900))
    assert found.apply(np.array([[1.0, 0.0]])).min() > 0, "900 labels make nothing certain"


# Runs


def truth_run(folder: Path, n: int, seed: int = 1, mode: str = "score") -> tuple[Path, JudgeSpec]:
    """A truthfulness judge that is far too sure of itself."""
    spec = load_judge("truthfulness")
    p, y = overconfident(seed, n)
    rows = [
        {"id": f"t{i}", "question": "?", "answer": "x", "label": ["yes", "no"][label], "topic": i // 3}
        for i, label in enumerate(y)
    ]
    told = [read_answer({"yes": float(a), "no": float(b)}) for a, b in p]
    verdicts = [
        rubric.verdict_of(spec, f"t{i}", [{"truthful": answer}], "scripted") for i, answer in enumerate(told)
    ]
    return written_run(folder, spec, rows, verdicts, mode), spec


def calibrated(run: Path, *golds: str, **options: Any) -> Calibration:
    asked = {name: options.pop(name) for name in ("group", "slices") if name in options}
    return calibrate_run(run, Asked(golds, **asked), run / "calibration.json", draw=False, **options)[0]


@pytest.mark.parametrize(
    ("n", "methods"), [(120, {"temperature", "platt"}), (900, {"temperature", "platt", "isotonic"})]
)
def test_ece_falls_on_records_that_were_not_seen(tmp_path: Path, n: int, methods: set[str]) -> None:
    run, _ = truth_run(tmp_path, n)
    before = held_of(run, "label").confidence
    found = calibrated(run, "label", group="topic")
    it = found.evidence["truthful"]
    assert before
    assert it.before.ece == pytest.approx(before.ece.value)
    assert it.before.brier == pytest.approx(before.brier)
    assert it.after.ece < 0.5 * it.before.ece
    assert it.after.log_loss < it.before.log_loss
    assert set(it.tried) == methods
    assert (it.n, it.groups, it.folds) == (n, n // 3, 5)
    assert not it.notes


def test_groups_are_never_torn_between_fit_and_check() -> None:
    fold, groups = ours._folds([f"g{i // 7}" for i in range(700)], seed=3)
    assert groups == 100
    assert all(len(set(fold[i * 7 : i * 7 + 7])) == 1 for i in range(100))
    assert {int(part) for part in fold} == set(range(5))


def test_verdicts_are_recalibrated_by_the_judge_s_own_arithmetic(tmp_path: Path) -> None:
    run, spec = truth_run(tmp_path, 400)
    found = calibrated(run, "label", method="temperature")
    for verdict in list(read_verdicts(run))[:50]:
        new = apply(found, spec, verdict)
        was, now = verdict.answers["truthful"], new.answers["truthful"]
        assert was.distribution and now.distribution
        assert now.value == was.value, "of two labels a temperature keeps the likelier one"
        assert max(now.distribution.values()) < max(was.distribution.values())
        assert sum(now.distribution.values()) == pytest.approx(1)
        assert (new.overall, new.passed) == (verdict.overall, verdict.passed)
        assert (new.id, new.model, new.usage) == (verdict.id, verdict.model, verdict.usage)
    failed = Verdict(id="x", status="too_long", error="long", judge=spec.name, model="m")
    assert apply(found, spec, failed) == failed


def test_a_calibrated_run_is_as_sure_as_it_should_be(tmp_path: Path) -> None:
    """Applied to other records of the same judge."""
    run, spec = truth_run(tmp_path, 600)
    found = calibrated(run, "label")
    (tmp_path / "other").mkdir()
    other, _ = truth_run(tmp_path / "other", 600, seed=2)
    verdicts = [apply(found, spec, verdict) for verdict in read_verdicts(other)]
    (other / "verdicts.jsonl").write_text("".join(verdict.model_dump_json() + "\n" for verdict in verdicts))
    now = held_of(other, "label").confidence
    assert now
    assert now.ece.value is not None
    assert now.ece.value < 0.06 < found.evidence["truthful"].before.ece


def test_a_leaning_to_the_first_place_is_taken_out(tmp_path: Path) -> None:
    spec = load_judge("pairwise")
    rng = np.random.default_rng(4)
    rows, verdicts = [], []
    for i in range(400):
        quality = rng.normal(0, 1.2)
        label = "A" if rng.random() < 1 / (1 + np.exp(-quality)) else "B"
        orders = []
        for sign in (1, -1):
            first = 1 / (1 + np.exp(-(2 * sign * quality + 1.5)))  # twice too sure, and 1.5 for standing first
            a = first if sign == 1 else 1 - first
            orders.append({"preference": read_answer({"A": a, "B": 1 - a})})
        rows.append({"id": str(i), "instruction": "?", "response_a": "x", "response_b": "y", "label": label})
        verdicts.append(pairwise.verdict_of(spec, str(i), orders, "scripted"))
    run = written_run(tmp_path, spec, rows, verdicts, "score")
    consistent = value_of(held_of(run, "label"), "consistent")
    found = calibrated(run, "label")
    it = found.calibrators["preference"]
    assert it.method == "platt"
    assert it.slope == pytest.approx(0.5, abs=0.12)
    assert it.offset == pytest.approx(0.75, abs=0.25), "the log-odds of the second place are raised"
    assert found.evidence["preference"].after.ece < found.evidence["preference"].before.ece
    new = [apply(found, spec, verdict) for verdict in verdicts]
    assert all(verdict.orders and len(verdict.orders) == 2 for verdict in new)
    gap = [np.mean([verdict.order_gap or 0 for verdict in some]) for some in (verdicts, new)]
    assert gap[1] < gap[0] / 3
    (run / "verdicts.jsonl").write_text("".join(verdict.model_dump_json() + "\n" for verdict in new))
    assert value_of(held_of(run, "label"), "consistent") > consistent + 0.2


def test_scores_follow_their_calibrated_labels_and_written_ones_stay(tmp_path: Path) -> None:
    spec = judge_file(tmp_path, ABSOLUTE)
    p, y = overconfident(5, 400, 5)
    rows = [{"id": str(i), "response": "x", "human": int(label) + 1} for i, label in enumerate(y)]
    told = [read_answer({str(j + 1): float(q) for j, q in enumerate(row)}, score=True) for row in p]
    verdicts = [rubric.verdict_of(spec, str(i), [{"quality": answer}], "scripted") for i, answer in enumerate(told)]
    found = calibrated(written_run(tmp_path, spec, rows, verdicts, "score"), "human")
    assert found.evidence["quality"].after.ece < found.evidence["quality"].before.ece
    new = apply(found, spec, verdicts[0])
    answer = new.answers["quality"]
    assert answer.distribution
    assert answer.expected == pytest.approx(sum(int(label) * q for label, q in answer.distribution.items()))
    assert new.overall == new.scores["quality"] == answer.expected != verdicts[0].overall
    was = Answer(value=2, distribution=told[0].distribution)
    written = rubric.verdict_of(spec, "w", [{"quality": was}], "scripted")
    assert apply(found, spec, written).overall == written.overall == 2
    assert apply(found, spec, written).answers["quality"].distribution == answer.distribution


def test_flags_are_calibrated_code_by_code(tmp_path: Path) -> None:
    spec = judge_file(tmp_path, MIXED)
    p, y = overconfident(6, 300)
    rows = [{"id": str(i), "response": "x", "human": ["HARM"] if label else []} for i, label in enumerate(y)]
    verdicts = []
    for i, (_, harm) in enumerate(p):
        raised = ["HARM"] if harm > 0.5 else []
        answers = {
            "good": read_answer({str(k): 0.2 for k in range(1, 6)}, score=True),
            "tone": read_answer({"warm": 0.5, "cold": 0.3, "flat": 0.2}),
            "lines": Answer(value=raised, distribution={"HARM": float(harm), "LIE": 0.01}, mass=0.9),
        }
        verdicts.append(rubric.verdict_of(spec, str(i), [answers], "scripted"))
    run = written_run(tmp_path, spec, rows, verdicts, "score")
    found = calibrated(run, "lines.HARM=human", method="platt")
    new = apply(found, spec, verdicts[0])
    was, now = verdicts[0].answers["lines"].distribution, new.answers["lines"].distribution
    assert was and now
    assert abs(now["HARM"] - 0.5) < abs(was["HARM"] - 0.5)
    assert now["LIE"] == was["LIE"]
    assert new.red_lines == new.answers["lines"].value


# Thresholds


def test_a_threshold_keeps_its_promise() -> None:
    """95 times in a hundred the agreement that was assured holds among all verdicts of that confidence."""
    rng = np.random.default_rng(9)
    broken = found = 0
    for _ in range(200):
        sure = rng.uniform(0.5, 1, 400)
        right = (rng.random(400) < sure).astype(float)
        chosen = ours.threshold(sure, right, 0.9)
        if chosen.assured and chosen.confidence is not None:
            found += 1
            broken += (1 + chosen.confidence) / 2 < 0.9  # the true share right of what is kept
    assert found > 100
    assert broken / 200 < 0.07


def test_thresholds_that_cannot_be_assured_or_had_say_so() -> None:
    sure = np.linspace(0.5, 1, 40)
    right = (np.arange(40) >= 20).astype(float)
    chosen = ours.threshold(sure, right, 0.99)
    assert chosen.confidence == pytest.approx(sure[20], abs=0.02)
    assert (chosen.accuracy, chosen.assured) == (1.0, False)
    assert ours.threshold(sure, np.zeros(40), 0.5).confidence is None


def test_what_is_less_sure_than_its_threshold_is_marked(tmp_path: Path) -> None:
    run, spec = truth_run(tmp_path, 800)
    found = calibrated(run, "label", wanted=[0.8])
    [it] = found.evidence["truthful"].thresholds
    assert it.assured
    assert it.confidence and it.coverage
    new = [apply(found, spec, verdict) for verdict in read_verdicts(run)]
    sure = [verdict for verdict in new if not verdict.unsure]
    assert len(sure) / 800 == pytest.approx(it.coverage, abs=0.05)
    assert all(max((v.answers["truthful"].distribution or {}).values()) >= it.confidence for v in sure)


# The file, and what is refused


def test_a_calibration_is_of_one_judge_model_and_mode(tmp_path: Path) -> None:
    run, spec = truth_run(tmp_path, 60)
    made = calibrated(run, "label")
    path = run / "calibration.json"
    assert load(path, spec, "f" * 64, "score") == made
    other = load_judge("truthfulness", ["rationale=90"])

    def refused(*arguments: Any) -> str:
        with pytest.raises(LocalJudgeError) as caught:
            load(*arguments)
        return str(caught.value)

    assert "made for the judge truthfulness, digest" in refused(path, other)
    assert "made for the model scripted, not this one" in refused(path, spec, "e" * 64)
    assert "made in the mode score, not explain" in refused(path, spec, "f" * 64, "explain")
    assert "there is no such file" in refused(tmp_path / "no.json", spec)
    path.write_text('{"format": 1}')
    assert "this is no calibration: localjudge: field required" in refused(path, spec)
    path.write_text("x")
    assert "this is no calibration" in refused(path, spec)


def test_what_cannot_be_calibrated(tmp_path: Path, imported: Imported) -> None:
    def refused(make: Callable[[], Any]) -> str:
        with pytest.raises(LocalJudgeError) as caught:
            make()
        return str(caught.value)

    run, _ = truth_run(tmp_path, 60)
    assert "has no probabilities of its own" in refused(lambda: calibrated(run, "passed=label"))
    assert "are all of one group" in refused(lambda: calibrated(run, "label", group="question"))
    (tmp_path / "few").mkdir()
    few, _ = truth_run(tmp_path / "few", 12)
    assert "12 labelled verdicts of 'truthful' are too few" in refused(lambda: calibrated(few, "label"))
    rows = [{"id": str(i), "truthful": "yes", "label": "no"} for i in range(40)]
    plain = imported("truthfulness", rows)
    assert "keeps no probabilities for 'truthful'" in refused(lambda: calibrated(plain, "label"))


def test_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    run, _ = truth_run(tmp_path, 300)
    out = tmp_path / "made" / "c.json"
    out.parent.mkdir()
    command = ["localjudge", "calibrate", str(run), "--gold", "label", "-o", str(out), "--agreement", "0.7"]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 0
    told = capsys.readouterr().out
    assert "as judged  calibrated" in told
    assert "For an agreement of 70.0 %: confidence" in told
    assert json.loads(out.read_text())["calibrators"]["truthful"]["labels"] == ["yes", "no"]
    drawn = {path.name for path in (out.parent / "figures").iterdir()}
    assert {"c-truthful-reliability.svg", "c-truthful-reliability.png", "c-truthful-risk-coverage.png"} <= drawn


def test_a_calibrator_outlives_its_file() -> None:
    p, y = overconfident(3, 700, 3)
    for fit in (ours.fit_temperature, ours.fit_isotonic):
        made = fit(p, y, ["a", "b", "c"])
        again = Calibrator.model_validate_json(made.model_dump_json())
        assert (again.apply(p) == made.apply(p)).all()
