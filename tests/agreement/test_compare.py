"""Two judges on the same records: what differs is told with what chance would do."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localjudge import cli
from localjudge.agreement import compare as ours
from localjudge.agreement.compare import Comparison
from localjudge.agreement.writing import Asked, compare_runs
from localjudge.errors import LocalJudgeError
from localjudge.judge.loading import load_judge
from tests.agreement.conftest import ABSOLUTE, MIXED, Imported, judge_file
from tests.conftest import shared

TIES = ["tie=true"]


def compared(*runs: Path, gold: str = "label", **options: Any) -> Comparison:
    [found] = compare_runs(runs, Asked([gold], **options))
    return found


def scored(seed: int, n: int, noise: float) -> list[dict[str, Any]]:
    """Rows with gold that does not depend on the noise."""
    rng = random.Random(0)
    other = random.Random(seed)
    rows = []
    for i in range(n):
        gold = rng.randint(1, 5)
        told = min(5, max(1, round(gold + other.gauss(0, noise))))
        rows.append({"id": f"r{i}", "response": "x", "quality": told, "label": gold, "topic": i // 5})
    return rows


def test_pandalm_s_two_judges(imported: Imported) -> None:
    spec = load_judge("pairwise", TIES)
    path = shared("pandalm.jsonl.gz")
    gpt = imported(spec, path, "gpt", mapping={"preference": "gpt35"}, skip_invalid=True)
    panda = imported(spec, path, "panda", mapping={"preference": "pandalm7b"})
    found = compared(gpt, panda)
    assert (found.n, found.left_out, found.judges) == (974, 25, ["gpt35", "pandalm7b"])
    [pair] = found.between
    accuracy, kappa = pair.differences
    assert (accuracy.figure, accuracy.test) == ("accuracy", "mcnemar")
    assert accuracy.difference == pytest.approx((pair.only_second - pair.only_first) / 974)
    assert accuracy.low is not None and accuracy.high is not None
    assert accuracy.low < accuracy.difference < accuracy.high < 0
    contingency = pytest.importorskip("statsmodels.stats.contingency_tables")
    expected = contingency.mcnemar([[0, pair.only_first], [pair.only_second, 0]], exact=True).pvalue
    assert accuracy.p == pytest.approx(expected)
    assert accuracy.adjusted == pytest.approx(2 * expected)
    assert (kappa.figure, kappa.test) == ("kappa", "bootstrap")


def test_scores_and_the_better_judge(imported: Imported, tmp_path: Path) -> None:
    spec = judge_file(tmp_path, ABSOLUTE)
    good, bad = (imported(spec, scored(s, 200, noise), f"n{s}") for s, noise in ((1, 0.4), (2, 1.2)))
    [pair] = compared(good, bad).between
    told = {one.figure: one for one in pair.differences}
    assert set(told) == {"accuracy", "kappa", "quadratic_kappa", "spearman", "pearson", "mae"}
    assert all(one.adjusted is not None and one.adjusted < 0.01 for one in told.values())
    mae = told["mae"]
    assert mae.first is not None and mae.second is not None
    assert mae.difference == pytest.approx(mae.second - mae.first)
    assert mae.difference > 0 > told["pearson"].difference  # type: ignore[operator]
    grouped = compared(good, bad, group="topic")
    assert grouped.grouped
    assert {one.test for one in grouped.between[0].differences} == {"bootstrap"}


def test_the_interval_covers_no_difference_and_p_seldom_says_otherwise() -> None:
    """Two judges of one kind, 300 times; their figures differ by chance alone."""
    rng = np.random.default_rng(6)
    covered, small, times = 0, 0, 300
    from localjudge.agreement import statistics

    for turn in range(times):
        y = rng.integers(1, 6, 100).astype(float)
        x, z = (np.clip(y + rng.integers(-1, 2, 100), 1, 5) for _ in "ab")
        data: Any = type("Rows", (), {"groups": None})
        [found] = ours._differences(data, {"mae": statistics.mae}, x, z, y, None, turn)
        assert found.low is not None and found.high is not None and found.p is not None
        covered += found.low <= 0 <= found.high
        small += found.p < 0.05
    assert covered / times == pytest.approx(0.95, abs=0.03)
    assert small / times == pytest.approx(0.05, abs=0.03)


def test_three_judges_are_three_comparisons_and_holm_counts_them_all(imported: Imported, tmp_path: Path) -> None:
    spec = judge_file(tmp_path, ABSOLUTE)
    runs = [imported(spec, scored(s, 80, 0.6), f"n{s}", model_name=f"m{s}") for s in (1, 2, 3)]
    found = compared(*runs)
    assert [(b.first, b.second) for b in found.between] == [("m1", "m2"), ("m1", "m3"), ("m2", "m3")]
    p = [one.p for b in found.between for one in b.differences]
    least = min(one.adjusted or 1 for b in found.between for one in b.differences)
    assert least == pytest.approx(min(1.0, min(q for q in p if q is not None) * len(p)))


def test_a_run_held_against_itself_differs_by_nothing(imported: Imported, tmp_path: Path) -> None:
    run = imported(judge_file(tmp_path, ABSOLUTE), scored(1, 50, 0.6))
    [pair] = compared(run, run).between
    assert pair.same_answer == 1
    assert all(one.difference == 0 for one in pair.differences)
    assert pair.differences[0].p == 1


def test_runs_of_other_records_and_of_other_judges(imported: Imported, tmp_path: Path) -> None:
    def refused(*runs: Path, gold: str = "label") -> str:
        with pytest.raises(LocalJudgeError) as caught:
            compared(*runs, gold=gold)
        return str(caught.value)

    spec = judge_file(tmp_path, ABSOLUTE)
    run = imported(spec, scored(1, 30, 1))
    others = imported(spec, [{**row, "id": f"o{i}"} for i, row in enumerate(scored(1, 30, 1))], "others")
    assert "no labelled record was judged in all of the runs" in refused(run, others)
    ten = judge_file(tmp_path, ABSOLUTE.replace("[1, 5]", "[1, 10]").replace("absolute", "ten"))
    wide = imported(ten, scored(1, 30, 1), "wide")
    assert "'quality' has other labels in this run" in refused(run, wide)
    mixed = [{**row, "good": 3, "tone": "warm", "lines": []} for row in scored(1, 30, 1)]
    assert "the judge mixed has no question 'quality'" in refused(
        run, imported(judge_file(tmp_path, MIXED), mixed, "mixed"), gold="quality=label"
    )
    assert "one run is nothing to compare" in refused(run)


def test_the_command_line(
    imported: Imported, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = judge_file(tmp_path, ABSOLUTE)
    runs = [imported(spec, scored(s, 60, 0.5 * s), f"n{s}", model_name=f"m{s}") for s in (1, 2)]
    out = tmp_path / "c.json"
    command = ["localjudge", "compare-judges", *map(str, runs), "--gold", "label", "-o", str(out)]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 0
    told = capsys.readouterr().out
    assert "60 records judged by all and labelled" in told
    assert "m1 and m2: same answer to" in told
    assert "McNemar, exact" in told
    assert [Comparison.model_validate(one).n for one in json.loads(out.read_text())] == [60]
