"""A dual-control judge killed between its steps, each time at another, and told to spare what the gate failed."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

from localjudge.judge.streams import MATCH_ASK
from tests.run.conftest import Job, by_id, finish, wait_for

ROW = {
    "id": "kettle",
    "task": "My kettle goes off before the water boils.",
    "context": "With the lid open it switches off after about 20 seconds.",
    "response": "Shut the lid until it clicks.",
}
STEPS = 2 + 1 + 1
"""Claims and basics, whom it is for, and that one reader: the scripted engine tells no probabilities."""


def asked(log: Path) -> Counter[str]:
    return Counter(log.read_text().split()) if log.exists() else Counter()


def test_killed_before_each_step_it_redoes_none_that_was_finished(tmp_path: Path) -> None:
    job = Job(tmp_path, "dual-control", [ROW])
    whole = job.expected()
    log = tmp_path / "asked"
    for hangs, finished in ((MATCH_ASK["en"], 2), ("one particular person", 3)):
        process = job.child(log=log, hangs=hangs)
        wait_for(process, "judging")
        until = time.monotonic() + 60
        while asked(log).total() < finished and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.1)
        process.kill()
        process.communicate()
        assert by_id(job.out) == {}
        assert asked(log).total() == finished
    finish(job.child(log=log))
    assert sorted(asked(log).values()) == [1] * STEPS
    assert by_id(job.out) == whole
    [line] = (job.out / "verdicts.jsonl").read_text().splitlines()
    usage = json.loads(line)["usage"]
    assert (usage["asks"], usage["reused"]) == (STEPS, 3)


def test_the_funnel_is_an_option_of_such_judges_alone(tmp_path: Path) -> None:
    rows = [{**ROW, "id": str(i), "response": f"Shut the lid, {i}."} for i in range(8)]
    job = Job(tmp_path, "dual-control", rows)
    finish(job.child("--funnel"))
    saved = json.loads((job.out / "summary.json").read_text())["diagnosis"]["saved"]
    assert saved["skipped"] > 0
    assert "The funnel spared" in (job.out / "report.md").read_text()
    (tmp_path / "other").mkdir()
    other = Job(tmp_path / "other", "truthfulness", [{"id": "1", "question": "q", "answer": "a"}])
    _, err = finish(other.child("--funnel"), 2)
    assert "--funnel: 'truthfulness' is a rubric judge, which has no gate" in err
