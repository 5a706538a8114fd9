"""A teacher's likeliest labels alone: what its probabilities would add can then be measured."""

from __future__ import annotations

from pathlib import Path

from localjudge.distill.data import DataSettings, make, read_recipe
from localjudge.judge.loading import load_judge
from localjudge.judge.rubric import verdict_of
from localjudge.verdict import Answer
from tests.distill.test_data import all_rows, truths, write_run


def test_hard_targets_are_the_likeliest_labels_of_the_same_rows(tmp_path: Path) -> None:
    truth, rows = load_judge("truthfulness"), truths(6)
    likely = [{"yes": p, "no": 1 - p} for p in (0.9, 0.3, 0.6, 0.45, 0.99, 0.2)]
    said = [{"truthful": Answer(value=max(of, key=of.__getitem__), distribution=of)} for of in likely]
    verdicts = [verdict_of(truth, row["id"], [one], "m") for row, one in zip(rows, said, strict=True)]
    run = write_run(tmp_path / "run", truth, rows, verdicts)
    made = [make([run], tmp_path / str(hard), DataSettings(dev=0, test=0, hard=hard)) for hard in (False, True)]
    labels = made[0].questions["truthful"].labels
    targets = {row["id"]: dict(zip(labels, row["target"], strict=True)) for row in all_rows(tmp_path / "True")}
    assert targets == {f"t{i}": {label: float(p > 0.5) for label, p in of.items()} for i, of in enumerate(likely)}
    assert made[0].rows == made[1].rows and made[0].digest != made[1].digest
    assert read_recipe(tmp_path / "True").settings.hard
