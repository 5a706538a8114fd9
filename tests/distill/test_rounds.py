"""Rounds: the teacher labels what the student is least sure of, and the student knows more each time."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("datasets")

from localjudge.distill.data import read_recipe
from localjudge.distill.rounds import Round, Rounds, RoundsRun, rounds_markdown
from localjudge.engines.base import Ask, Completion
from localjudge.errors import EngineError, RecordsError, RunError
from localjudge.judge.loading import load_judge
from localjudge.run.runner import Run
from tests.run.conftest import Job
from tests.scripted import ScriptedEngine

N = 100


class Skilled(ScriptedEngine):
    """Knows the first `skill` records of each ten surely, and is unsure and wrong of the others."""

    def __init__(self, name: str, skill: int, **options: Any) -> None:
        super().__init__(settings={"model": name}, **options)
        self.skill = skill

    async def complete(self, ask: Ask) -> Completion:
        told = await super().complete(ask)
        number = int(ask.messages[-1].text.split("It is number ")[1].split(".")[0])
        knows = number % 10 < self.skill
        yes = (0.95 if knows else 0.45) if number % 20 < 10 else (0.05 if knows else 0.55)
        return replace(told, distributions={"": dict(zip(ask.labels, (yes, 1 - yes), strict=True))}, mass=0.98)


class World:
    """A student that knows two more of ten for each round that it was trained."""

    def __init__(self, path: Path) -> None:
        rows = [
            {"id": f"t{i}", "question": f"Is word{i} thing{i * 7} even?", "answer": f"It is number {i}."}
            for i in range(N)
        ]
        self.job = Job(path, "truthfulness", rows)
        self.out = path / "out"
        self.taught: list[int] = []
        self.dies = ""

    def run_of(self, model: str, records: Path, directory: Path) -> Run:
        skill = 10 if model == "large" else 4
        if Path(model).is_dir():
            skill = int((Path(model) / "skill").read_text())
        engine = Skilled(model, skill, dies_after=5 if self.dies and self.dies in str(directory) else None)
        own = {"name": Path(model).name, "fingerprint": model}
        return self.job.prepare(engine, model=own, records=records, out=directory, mode="score", shared_cache=False)

    def learn(self, data: Path, folder: Path) -> Path:
        self.taught.append(sum(read_recipe(data).rows.values()))
        model = folder / "model"
        model.mkdir(parents=True, exist_ok=True)
        (model / "skill").write_text(str(4 + 2 * int(folder.parent.name.removeprefix("round-"))))
        return model

    def rounds(self, **how: Any) -> RoundsRun:
        settings = Rounds(**{"per_round": 15, "rounds": 2, "hold_out": 20, **how})
        return RoundsRun(
            load_judge("truthfulness"),
            self.job.records,
            {},
            "small",
            "large",
            self.out,
            settings,
            self.run_of,
            self.learn,
            say=self.job.said.append,
        )

    def go(self, **how: Any) -> list[Round]:
        return asyncio.run(self.rounds(**how).go())


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("LOCALJUDGE_CACHE", str(tmp_path / "cache"))
    return World(tmp_path)


def replaced(one: Round, path: Path) -> Round:
    return one.model_copy(update={"model": one.model.replace(str(path / "other"), str(path))})


def ids(file: Path) -> list[str]:
    return [json.loads(line)["id"] for line in file.read_text().splitlines()]


def test_each_round_labels_what_the_student_is_least_sure_of(world: World) -> None:
    found = world.go()
    assert [one.number for one in found] == [0, 1, 2]
    assert [one.labelled for one in found] == [0, 15, 30]
    held_out, pool = ids(world.out / "held-out.jsonl"), ids(world.out / "pool.jsonl")
    assert len(held_out) == 20 and set(held_out) | set(pool) == {f"t{i}" for i in range(N)}
    first, second = (ids(world.out / f"round-{n}" / "records.jsonl") for n in (1, 2))
    assert len(first) == len(second) == 15
    assert not set(first) & set(second) and set(first) | set(second) <= set(pool)
    # After one round it knows six of ten: what it is asked of then are the others.
    assert all(int(record_id[1:]) % 10 >= 6 for record_id in second)
    assert found[1].unsure is None
    assert found[2].unsure == pytest.approx(0.55)
    for one, skill in zip(found, (4, 6, 8), strict=True):
        assert one.agreement == pytest.approx(sum(int(i[1:]) % 10 < skill for i in held_out) / 20)
        assert one.low is not None and one.low <= one.agreement
    assert world.taught[1] > world.taught[0] > 10
    assert "       30 |" in (world.out / "rounds.md").read_text()
    assert rounds_markdown(found).count("\n|") == 5


def test_it_ends_when_the_student_agrees_enough_and_goes_on_when_more_is_wanted(world: World) -> None:
    found = world.go(wanted=0.5, rounds=5)
    assert len(found) == 2
    found = world.go(wanted=0.7, rounds=5)
    assert len(found) == 3
    assert len(world.taught) == 2, "what was trained is not trained again"


def test_a_stopped_round_goes_on(world: World, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    undisturbed = World(tmp_path / "other").go()
    for dies in ("held-out/teacher", "round-1/teacher", "round-2/student", "round-2/held-out"):
        world.dies = dies
        with pytest.raises(EngineError):
            world.go()
    world.dies = ""
    found = world.go()
    assert found == [replaced(one, tmp_path) for one in undisturbed]


def test_the_pool_may_be_used_up(world: World) -> None:
    found = world.go(per_round=50, rounds=9)
    assert [one.labelled for one in found] == [0, 50, 80]
    assert "the pool is used up" in world.job.said


def test_records_of_a_group_stay_together(world: World) -> None:
    rows = [{**row, "group": f"g{i % 25}"} for i, row in enumerate(world.job.rows)]
    world.job.records.write_text("".join(json.dumps(row) + "\n" for row in rows))
    world.go(rounds=1)
    held_out = {int(i[1:]) % 25 for i in ids(world.out / "held-out.jsonl")}
    assert not held_out & {int(i[1:]) % 25 for i in ids(world.out / "pool.jsonl")}


def test_what_is_held_out_is_not_in_the_pool_in_other_words(world: World) -> None:
    long = " ".join(f"word{i}" for i in range(40))
    rows = [
        {**row, "group": str(i), **({"answer": f"{long} {row['answer']}"} if i < 40 else {})}
        for i, row in enumerate(world.job.rows)
    ]
    world.job.records.write_text("".join(json.dumps(row) + "\n" for row in rows))
    world.go(rounds=1)
    held_out, pool = (ids(world.out / f"{name}.jsonl") for name in ("held-out", "pool"))
    alike = {row["id"] for row in rows[:40]}
    assert alike & set(held_out)
    assert not alike & set(pool)
    assert f"left out {len(alike - set(held_out))}: all but the same is held out too" in world.job.said


def test_other_rounds_and_too_few_records_are_refused(world: World) -> None:
    with pytest.raises(RecordsError, match="are too few to hold 500 out of"):
        world.go(hold_out=500)
    with pytest.raises(RecordsError, match=r"no field 'questoin'\n  did you mean 'question'"):
        world.go(group="questoin")
    world.go(rounds=1)  # nothing was begun, so that the folder is free
    with pytest.raises(RunError, match=r"how\.hold_out was 20, is now 10"):
        world.go(hold_out=10)
    (world.out / "rounds.json").write_text("{")
    with pytest.raises(RunError, match=r"rounds\.json is broken"):
        world.go()
