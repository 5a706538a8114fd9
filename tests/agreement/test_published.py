"""Published tables come out, through the import that anyone would use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from localjudge.judge.loading import load_judge
from tests.agreement.conftest import ABSOLUTE, Imported, held_of, judge_file, value_of
from tests.conftest import shared, shared_rows

LLMBAR = "gpt4_verdicts_ab_ba"


def llmbar(prompt: str) -> list[dict[str, Any]]:
    """The 419 pairs of LLMBar itself, Natural and Adversarial."""
    rows = [row for row in shared_rows("llmbar.jsonl.gz", 885) if row["subset"].startswith("LLMBar/")]
    assert len(rows) == 419
    assert all(prompt in row[LLMBAR] for row in rows)
    return rows


@pytest.mark.parametrize(
    ("prompt", "mean"),
    [("Vanilla_NoRules", 0.765), ("Vanilla", 0.845), ("CoT", 0.813), ("Metrics_Reference", 0.872)],
)
def test_gpt_4_on_llmbar(imported: Imported, prompt: str, mean: float) -> None:
    """Zeng et al. (ICLR 2024): 76.5 % with the plain prompt, 87.2 with the best."""
    way = f"{LLMBAR}.{prompt}"
    mapping = {"preference": f"{way}.0", "preference_swapped": f"{way}.1"}
    rows = llmbar(prompt)
    both = sum(row[LLMBAR][prompt] == [row["label"]] * 2 for row in rows) / 419
    run = imported("pairwise", rows, mapping=mapping, skip_invalid=True)
    held = held_of(run, "label", slices=["subset"])
    assert value_of(held, "accuracy_mean_of_orders") == pytest.approx(mean, abs=0.0006)
    assert value_of(held, "both_orders_right") == pytest.approx(both)
    assert value_of(held, "accuracy") == value_of(held, "both_orders_right"), "what the orders disagree on is wrong"
    assert value_of(held, "consistent", "n") == held.counts["used"] == 419
    assert {one.value.rpartition("/")[2] for one in held.slices} == {
        "Natural",
        "Neighbor",
        "GPTInst",
        "GPTOut",
        "Manual",
    }
    assert held.confusion
    assert held.confusion.judge == ["A", "B", "inconsistent"]
    assert sum(map(sum, held.confusion.table)) == 419
    longer = [len(row["response_a"]) > len(row["response_b"]) for row in rows]
    right = sum((row["label"] == "A") is is_a for row, is_a in zip(rows, longer, strict=True)) / 419
    assert value_of(held, "accuracy", "longer") == pytest.approx(right, abs=0.01), "equal lengths are nobody's"
    assert right < 0.3, "LLMBar's adversarial pairs were chosen so that the longer one is the worse"


@pytest.mark.parametrize(
    ("judge", "unjudged", "published"), [("gpt35", 25, 0.698), ("pandalm7b", 0, 0.668)], ids=["gpt35", "pandalm7b"]
)
def test_pandalm_s_judges_against_its_people(
    imported: Imported, judge: str, unjudged: int, published: float
) -> None:
    """Wang et al. (ICLR 2024): accuracy over three labels, what could not be parsed counted as wrong."""
    ties = load_judge("pairwise", ["tie=true"])
    run = imported(ties, shared("pandalm.jsonl.gz"), mapping={"preference": judge}, skip_invalid=bool(unjudged))
    held = held_of(run, "votes")
    assert held.counts["not_judged"] == ({"invalid_record": unjudged} if unjudged else {})
    name = "accuracy_of_all" if unjudged else "accuracy"
    assert round(value_of(held, name), 3) == published
    assert value_of(held, name, "n") == 999
    assert held.people
    assert round(held.people.pairwise.value or 0, 2) == 0.92
    assert held.people.pairwise.n == 999
    assert held.alt_test
    assert not held.alt_test.passed
    decided = value_of(held, "accuracy_ties_dropped")
    assert decided > value_of(held, "accuracy"), "neither judge finds many of the ties"
    by_label = held_of(run, "label")
    assert value_of(by_label, name) == value_of(held, name), "the published label is the majority of the votes"


def test_gpt_4_rates_as_it_did_before(imported: Imported, tmp_path: Path) -> None:
    """Kim et al. (ICLR 2024), MT-Bench part: three runs of GPT-4 against one another."""
    rows = [row for row in shared_rows("prometheus_absolute.jsonl.gz", 640) if row["source"] == "mt_bench_eval"]
    spec = judge_file(tmp_path, ABSOLUTE)
    exact, pearson = [], []
    for run, other in ((0, 1), (0, 2), (1, 2)):
        folder = imported(spec, rows, f"run{run}{other}", mapping={"quality": f"scores.{run}"})
        held = held_of(folder, f"scores.{other}")
        exact.append(round(value_of(held, "accuracy"), 2))
        pearson.append(round(value_of(held, "pearson"), 2))
    assert (min(exact), max(exact)) == (0.57, 0.66)
    assert (min(pearson), max(pearson)) == (0.84, 0.88)
