"""The table of figures: each beside what would be had for nothing, in numbers, on a page and in pictures."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localjudge.agreement import figures as pictures
from localjudge.agreement.agree import Agreement, risk_coverage
from localjudge.agreement.writing import Asked, agree_run
from localjudge.errors import LocalJudgeError
from localjudge.judge import rubric
from localjudge.judge.loading import load_judge
from tests.agreement.conftest import (
    ABSOLUTE,
    MIXED,
    Imported,
    agreement_of,
    figures,
    held_of,
    judge_file,
    read_answer,
    value_of,
    written_run,
)

metrics = pytest.importorskip("sklearn.metrics")


def scores(n: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows = []
    for i in range(n):
        gold = rng.choice([1, 2, 3, 4, 5])
        told = min(5, max(1, gold + rng.choice([-1, 0, 0, 1])))
        length = 10 * gold + rng.randint(0, 30)
        rows.append({"id": f"r{i}", "response": "x" * length, "quality": told, "label": gold, "kind": "ab"[i % 2]})
    return rows


# Numbers


def test_every_figure_of_a_scale_is_the_libraries(imported: Imported, tmp_path: Path) -> None:
    from scipy import stats

    rows = scores(120)
    held = held_of(imported(judge_file(tmp_path, ABSOLUTE), rows), "label")
    x, y = (np.array([row[name] for row in rows]) for name in ("quality", "label"))
    found = figures(held)
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(y, x))
    assert found["quadratic_kappa"] == pytest.approx(metrics.cohen_kappa_score(x, y, weights="quadratic"))
    assert found["kendall"] == pytest.approx(stats.kendalltau(x, y).statistic)
    assert found["mae"] == pytest.approx(np.abs(x - y).mean())
    assert all(figure.low is not None and figure.high is not None for figure in held.figures)
    assert all(figure.low - 1e-9 <= figure.value <= figure.high + 1e-9 for figure in held.figures)  # type: ignore[operator]
    assert {figure.method for figure in held.figures} == {"wilson", "bca"}


def test_what_would_be_had_for_nothing(imported: Imported, tmp_path: Path) -> None:
    from scipy import stats

    rows = scores(200)
    held = held_of(imported(judge_file(tmp_path, ABSOLUTE), rows), "label")
    x, y = (np.array([row[name] for row in rows]) for name in ("quality", "label"))
    assert value_of(held, "accuracy", "constant") == max(np.bincount(y)) / 200
    assert value_of(held, "mae", "constant") == np.abs(y - np.median(y)).mean()
    assert value_of(held, "pearson", "constant") is None
    shares = [(x == k).mean() * (y == k).mean() for k in range(1, 6)]
    assert value_of(held, "accuracy", "shuffled") == pytest.approx(sum(shares))
    assert value_of(held, "mae", "shuffled") == pytest.approx(np.abs(x[:, None] - y).mean())
    assert abs(value_of(held, "kappa", "shuffled")) < 1e-9
    lengths = [len(row["response"]) for row in rows]
    assert held.length_of == "response"
    assert value_of(held, "spearman", "longer") == pytest.approx(stats.spearmanr(lengths, y).statistic)
    assert value_of(held, "accuracy", "longer") is None


def test_people_are_held_against_the_others_as_the_judge_is(imported: Imported) -> None:
    rng = random.Random(1)
    rows = []
    for i in range(150):
        truth = rng.choice("AB")
        vote = [truth if rng.random() < 0.9 else rng.choice("AB") for _ in range(3)]
        told = truth if rng.random() < 0.5 else rng.choice("AB")
        rows.append({"id": f"p{i}", "preference": told, "votes": vote})
    held = held_of(imported("pairwise", rows), "votes")
    people, judge = [], []
    for k in range(3):
        others = [[v for j, v in enumerate(row["votes"]) if j != k] for row in rows]
        agreed = [i for i, pair in enumerate(others) if pair[0] == pair[1]]
        people.append(np.mean([rows[i]["votes"][k] == others[i][0] for i in agreed]))
        judge.append(np.mean([rows[i]["preference"] == others[i][0] for i in agreed]))
    assert value_of(held, "accuracy", "people") == pytest.approx(np.mean(people))
    assert value_of(held, "accuracy", "judge_there") == pytest.approx(np.mean(judge))
    pairs = [np.mean([row["votes"][a] == row["votes"][b] for row in rows]) for a, b in ((0, 1), (0, 2), (1, 2))]
    assert held.people
    assert held.people.pairwise.value == pytest.approx(np.mean(pairs))
    kripp = pytest.importorskip("krippendorff")
    ratings = [["AB".index(row["votes"][k]) for row in rows] for k in range(3)]
    expected = kripp.alpha(np.array(ratings, float), level_of_measurement="nominal")
    assert held.people.alpha.value == pytest.approx(expected)
    assert held.people.alpha.low is not None


def test_people_s_numbers_without_a_table_of_all_of_them(imported: Imported, tmp_path: Path) -> None:
    kripp = pytest.importorskip("krippendorff")
    rng = random.Random(2)
    rows: list[dict[str, Any]] = []
    for i in range(150):
        q = rng.uniform(1.5, 4.5)
        votes = [min(5.0, max(1.0, q + rng.gauss(0, 0.4))) if rng.random() < 0.8 else None for _ in "abc"]
        rows.append({"id": str(i), "response": "x", "good": round(q), "tone": "flat", "lines": [], "votes": votes})
    held = held_of(imported(judge_file(tmp_path, MIXED), rows), "overall=votes")
    expected = kripp.alpha(np.array([row["votes"] for row in rows], float).T, level_of_measurement="interval")
    assert held.people
    assert held.people.alpha.value == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        ([("A", "A")] * 40, "people gave every record the same label"),
        ([("A", "A"), ("A", "B")] * 20, "the judge gave every record the same answer"),
        ([("A", "A"), ("B", "B")], "small sample: the figures stand on 2 records"),
        ([("A", "A")] * 95 + [("B", "B")] * 5, "95 % of the labels are one"),
    ],
)
def test_hardly_anything_to_agree_on_is_said_and_nothing_made_up(
    imported: Imported, rows: list[tuple[str, str]], note: str
) -> None:
    made = [{"id": f"r{i}", "preference": told, "label": gold} for i, (told, gold) in enumerate(rows)]
    result = agreement_of(imported("pairwise", made), "label")
    assert any(note in one for one in result.held[0].notes)
    assert "NaN" not in result.model_dump_json()
    assert Agreement.model_validate_json(result.model_dump_json()) == result


def test_slices_are_the_same_figures_of_some_records(imported: Imported, tmp_path: Path) -> None:
    rows = scores(120)
    run = imported(judge_file(tmp_path, ABSOLUTE), rows)
    held = held_of(run, "label", slices=["kind"])
    [a, b] = held.slices
    assert [(s.field, s.value, s.figures[0].n) for s in (a, b)] == [("kind", "a", 60), ("kind", "b", 60)]
    some = imported(judge_file(tmp_path, ABSOLUTE), rows[::2], "some")
    alone = figures(held_of(some, "label"))
    assert all(figure.value == pytest.approx(alone[figure.name]) for figure in a.figures)


def test_confidence_is_told_where_probabilities_are_known(tmp_path: Path) -> None:
    spec = load_judge("truthfulness")
    rng = np.random.default_rng(1)
    rows, verdicts = [], []
    for i in range(300):
        yes = float(rng.uniform(0.02, 0.98))
        label = "yes" if rng.random() < yes else "no"
        rows.append({"id": str(i), "question": "?", "answer": "x", "label": label})
        answer = read_answer({"yes": yes, "no": 1 - yes})
        verdicts.append(rubric.verdict_of(spec, str(i), [{"truthful": answer}], "scripted"))
    held = held_of(written_run(tmp_path, spec, rows, verdicts, "score"), "label")
    it = held.confidence
    assert it
    assert it.ece.value is not None
    assert it.ece.value < 0.08, "probabilities that labels were drawn from are calibrated"
    assert (it.ece.method, it.ece.low) == ("debiased", 0)
    p = [(v.answers["truthful"].distribution or {})["yes"] for v in verdicts]
    assert it.brier == pytest.approx(metrics.brier_score_loss([row["label"] == "yes" for row in rows], p))
    assert sum(one.n for one in it.reliability) == 300
    first, *_, last = it.risk_coverage
    assert (first.coverage, first.accuracy) == (1.0, pytest.approx(value_of(held, "accuracy")))
    assert last.confidence > first.confidence
    assert last.coverage < 0.05


def test_equal_confidences_stay_or_go_together() -> None:
    sure = np.array([0.9, 0.9, 0.9, 0.6, 0.6])
    curve = risk_coverage(sure, np.array([1.0, 1, 0, 1, 0]))
    assert [(kept.confidence, kept.coverage) for kept in curve] == [(0.6, 1.0), (0.9, 0.6)]


# The page and the pictures


HOSTILE = "| *a* <script>alert(1)</script> [x](y)\n# b"


def test_a_page_shows_what_records_say_and_never_obeys_it(imported: Imported, tmp_path: Path) -> None:
    rows = [{**row, "kind": HOSTILE if row["kind"] == "a" else "b"} for row in scores(60)]
    run = imported(judge_file(tmp_path, ABSOLUTE), rows)
    result = agreement_of(run, "label", slices=["kind"])
    page = (run / "agreement.md").read_text()
    assert "<script>" not in page
    assert "\n# b" not in page
    assert "&lt;script>" in page
    tables = [line for line in page.splitlines() if line.startswith("|")]
    assert len({line.count("|") - line.count("\\|") for line in tables if "script" in line}) == 1
    assert result.held[0].slices[0].value == HOSTILE or result.held[0].slices[1].value == HOSTILE


def test_pictures_of_all_kinds_as_svg_and_png(imported: Imported, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [{**row, "kind": "$x^" if row["kind"] == "a" else "中文" * 20} for row in scores(80)]
    run = imported(judge_file(tmp_path, ABSOLUTE), rows)
    _, files = agree_run(run, Asked(["label"], ["kind"]))
    drawn = {path.name for path in (run / "figures").iterdir()}
    names = {"quality-confusion", "quality-scores", "quality-slices-kind"}
    assert drawn == {f"{name}.{kind}" for name in names for kind in ("svg", "png")}
    assert {path.name for path in files} == {"agreement.json", "agreement.md", *(f"{name}.svg" for name in names)}
    for name in names:
        svg = (run / "figures" / f"{name}.svg").read_text()
        assert svg.startswith("<?xml")
        assert (run / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert f"(figures/{name}.svg)" in (run / "agreement.md").read_text()
    once = {path.name: path.read_bytes() for path in (run / "figures").glob("*.svg")}
    agree_run(run, Asked(["label"], ["kind"]))
    assert once == {path.name: path.read_bytes() for path in (run / "figures").glob("*.svg")}, "no dates, no chance"


def test_without_matplotlib_there_are_figures_in_numbers_only(
    imported: Imported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = imported(judge_file(tmp_path, ABSOLUTE), scores(40))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(LocalJudgeError, match=r"localjudge\[plots\]"):
        pictures.save(tmp_path, "x", (1, 1), lambda axes: None)
    monkeypatch.setattr(pictures, "available", lambda: False)
    _, files = agree_run(run, Asked(["label"]))
    assert [path.name for path in files] == ["agreement.json", "agreement.md"]


def test_the_same_run_and_seed_give_the_same_bytes(imported: Imported, tmp_path: Path) -> None:
    run = imported(judge_file(tmp_path, ABSOLUTE), scores(90))
    told = []
    for seed in (3, 3, 4):
        agree_run(run, Asked(["label"]), seed=seed, draw=False)
        told.append((run / "agreement.json").read_text())
    assert told[0] == told[1] != told[2]


# Cost


def test_agreement_does_not_import_what_it_does_not_use() -> None:
    code = (
        "import sys; from localjudge.agreement import writing; "
        "print([m for m in ('torch', 'vllm', 'transformers', 'matplotlib', 'scipy.stats') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_twenty_thousand_verdicts_take_seconds(imported: Imported, tmp_path: Path) -> None:
    rng = random.Random(0)
    rows = [
        {
            "id": f"r{i}",
            "response": "x" * rng.randint(1, 200),
            "quality": (q := rng.randint(1, 5)),
            "votes": [min(5, q + rng.randint(0, 1)), max(1, q - rng.randint(0, 1))],
            "group": i // 4,
        }
        for i in range(20_000)
    ]
    run = imported(judge_file(tmp_path, ABSOLUTE), rows)
    started = time.process_time()
    held = held_of(run, "votes")
    assert time.process_time() - started < 12
    assert held.counts["used"] == 20_000
    assert json.loads((run / "agreement.json").read_text())["held"][0]["grouped"]
