"""The scenario suite: three judges over the same projects. A scripted reviewer answers as a careful one would, and
what code decides he cannot overrule; the real thing runs in vLLM."""

from __future__ import annotations

import asyncio
import copy
import json
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from localjudge.engines.base import Ask, AskFailed, Completion, Engine
from localjudge.errors import EngineError, JudgeError, RecordsError, RunError
from localjudge.judge.suite import Suite, find_suite, load_suite
from localjudge.models import LocalModel
from localjudge.paths import data_dir
from localjudge.run.runner import Settings
from localjudge.run.suite import SuiteRun
from localjudge.run.suite_results import Results
from tests.conftest import Loop, thorough
from tests.run.conftest import child, finish, wait_for, write_rows
from tests.scripted import ScriptedEngine, scripted_model, write_tokenizer

PROMPTS = data_dir("prompts")
SUITE = PROMPTS / "scenario-review" / "suite.yaml"
TWELVE = (
    "projectNotLecture",
    "taskEvaluability",
    "typeFit",
    "granularity",
    "coherence",
    "topicFidelity",
    "singleConcreteOutcome",
    "difficultyProgressionAndFit",
    "learnerAgency",
    "authenticWorkflow",
    "stageIntegrity",
    "closureAndConsolidation",
)


def examples() -> list[dict[str, Any]]:
    """All the example projects, scenarios first."""
    return [
        json.loads(line)
        for judge in ("scenario-review", "project-review")
        for line in (PROMPTS / judge / "examples" / "records.jsonl").read_text(encoding="utf-8").splitlines()
    ]


ROWS = {row["id"]: row for row in examples()}

REVIEWS: dict[str, dict[str, Any]] = {
    "raise-loop": {"overall": 5, "scores": 5},
    "raise-single": {"overall": 4, "red_lines": ["S4"], "scores": 4, "stageIntegrity": 1},
    "allergy-loop": {"overall": 4, "scores": 4, "taskEvaluability": 2},
    "allergy-single": {"overall": 1, "red_lines": ["S5"], "stageIntegrity": 1},
    "noise-loop": {"overall": 3, "red_lines": ["S7"], "typeFit": 1},
    "noise-single": {"overall": 5},
    "debate-loop": {"overall": 4},
    "debate-single": {"overall": 4},
    "vet-loop": {"overall": 2, "red_lines": ["B11"], "topicFidelity": 1},
    "guide-loop": {"overall": 4},
    "standby-loop": {"overall": 5, "scores": 5},
    "standby-single": {"overall": 3, "red_lines": ["B8"], "singleConcreteOutcome": 1},
    "swap-loop": {"overall": 3, "red_lines": ["B17"], "score": 2, "blockers": ["C4"]},
    "swap-single": {"overall": 3, "red_lines": ["B2"], "score": 2, "blockers": ["C2"]},
    "toast-loop": {"overall": 3, "red_lines": ["B12"]},
    "toast-single": {"overall": 3, "red_lines": ["B4"], "score": 3},
    "street-loop": {"overall": 3, "red_lines": ["B14"]},
    "label-loop": {"overall": 3, "red_lines": ["B11"]},
}
"""What a careful reviewer says who does not see what code sees: the faults that code finds are not among these."""

STAND = {
    "raise-loop": [],
    "raise-single": ["S4"],
    "allergy-loop": ["S3"],
    "allergy-single": ["S5"],
    "noise-loop": ["S7"],
    "noise-single": ["S1"],
    "debate-loop": ["S1"],
    "debate-single": ["S6"],
    "vet-loop": ["B11"],
    "guide-loop": ["S2"],
    "standby-loop": [],
    "standby-single": ["B8"],
    "swap-loop": ["B17"],
    "swap-single": ["B2"],
    "toast-loop": ["B12"],
    "toast-single": ["B4"],
    "street-loop": ["B14"],
    "label-loop": ["B11"],
}
OVERALL = {"raise-loop": 5, "standby-loop": 5, "allergy-single": 1} | {
    name: 2 for name in ROWS if name not in ("raise-loop", "standby-loop", "allergy-single")
}
RISK = {
    "allergy-loop": (4, ["C7"], False, "high"),
    "debate-loop": (4, ["C7"], False, "high"),
    "swap-loop": (2, ["C4"], False, "high"),
    "swap-single": (2, ["C2"], False, "high"),
    "toast-single": (3, [], False, "medium"),
}


def strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from strings(inner)


def marks(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """A text of each project that stands in no other: id -> text."""
    found = {}
    texts = {row["id"]: json.dumps(row["project"], ensure_ascii=False) for row in rows}
    for row in rows:
        others = [text for name, text in texts.items() if name != row["id"]]
        found[row["id"]] = next(
            text
            for text in strings(row["project"].get("milestones"))
            if len(text) > 6
            and not re.match(r"\w+_\d|\d{4}-", text)
            and json.dumps(text, ensure_ascii=False) == f'"{text}"'
            and not any(text in other for other in others)
        )
    return found


class Reviewer(ScriptedEngine):
    """Sees in the prompt which project it is, and says of it what REVIEWS has; anything else is fine, and four."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = tuple(ROWS.values()), **options: Any) -> None:
        super().__init__(**options)
        self.marks = marks(rows)

    async def complete(self, ask: Ask) -> Completion:
        completion = await super().complete(ask)
        if ask.labels:
            return completion
        text = ask.messages[-1].text
        [name] = [name for name, mark in self.marks.items() if mark in text]
        review = REVIEWS.get(name, {})
        raised = [*review.get("red_lines", []), *review.get("blockers", [])]
        said: dict[str, Any] = {}
        for key, schema in ask.schema["properties"].items():
            if "enum" in schema:
                said[key] = review.get(key, 4 if key in ("score", "overall") else review.get("scores", 4))
            elif schema["type"] == "object":
                said[key] = {code: code in raised for code in schema["properties"]}
            else:
                said[key] = f"{key} of {name}"
        return Completion(json.dumps(said, ensure_ascii=False), 100, 50, 20, "stop")


class Job:
    """The suite on some projects, by the scripted reviewer."""

    def __init__(self, path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
        self.path, self.starts, self.said = path, 0, list[str]()
        write_tokenizer(path)
        self.records = write_rows(path / "records.jsonl", rows)
        self.out = path / "out"

    def prepare(
        self,
        engine: Engine | None = None,
        *,
        suite: Suite | None = None,
        model: str | None = "scripted",
        fresh: bool = False,
        output_format: Any = "full",
        retry_failed: bool = False,
        **settings: Any,
    ) -> SuiteRun:
        async def start() -> Engine:
            self.starts += 1
            return engine or Reviewer()

        return SuiteRun(
            suite=suite or load_suite(SUITE),
            records=self.records,
            model=scripted_model(self.path, name=model) if model else None,
            directory=self.out,
            settings=Settings(**settings),
            start_engine=start if model else None,
            fresh=fresh,
            output_format=output_format,
            retry_failed=retry_failed,
            say=self.said.append,
        )

    def run(self, engine: Engine | None = None, **options: Any) -> Results:
        return asyncio.run(self.prepare(engine, **options).go())


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path, ROWS.values())


def results_of(results: Results) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(results.folder) / "results.json").read_text(encoding="utf-8"))
    return found


def by_id(results: Results) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in results_of(results)["projects"]}


# Arithmetic: the careful reviewer


def test_the_planted_faults_give_the_expected_scores_vetoes_and_caps(job: Job) -> None:
    engine = Reviewer()
    results = job.run(engine)
    assert (job.starts, engine.closed) == (1, 1)
    assert results.judged == {"scenario-review": 10, "project-review": 8, "completability": 18}
    assert not results.unscored
    found = by_id(results)
    assert list(found) == list(ROWS)
    for name, one in found.items():
        category = "scenario" if "scenario" in ROWS[name]["project"] else "project"
        assert (one["category"], one["case"], one["candidate"]) == (
            category,
            ROWS[name]["case"],
            ROWS[name]["candidate"],
        )
        assert list(one["judges"]) == [f"{category}-review", "completability"]
        verdict = one["judges"][f"{category}-review"]
        assert verdict["status"] == "ok"
        assert (name, verdict["red_lines"]) == (name, STAND[name])
        assert (name, verdict["overall"]) == (name, OVERALL[name])
        assert verdict["passed"] is (not STAND[name])
        assert verdict["answers"]["overall"]["value"] == REVIEWS[name]["overall"]
        for score in TWELVE:
            assert verdict["scores"][score] == REVIEWS[name].get(score, REVIEWS[name].get("scores", 4))
        beside = one["judges"]["completability"]
        told = (beside["overall"], beside["red_lines"], beside["passed"], beside["grade"])
        assert (name, told) == (name, RISK.get(name, (4, [], True, "low")))


def test_categories_and_variants_are_counted_apart(job: Job) -> None:
    results = job.run()
    groups = {(group.judge, group.category, group.candidate): group for group in results.groups}
    assert len(groups) == 8
    assert results.categories == {"scenario": 10, "project": 8}
    loop = groups["scenario-review", "scenario", "loop"]
    assert (loop.records, loop.scored, loop.unscored) == (6, 6, {})
    assert loop.overall is not None
    assert loop.overall.mean == pytest.approx((5 + 2 * 5) / 6)
    assert loop.passed is not None
    assert (loop.passed.count, loop.passed.n) == (1, 6)
    assert {code for code, n in loop.red_lines.items() if n} == {"S3", "S7", "S1", "B11", "S2"}
    single = groups["scenario-review", "scenario", "single-call"]
    assert single.overall is not None
    assert single.overall.mean == (2 + 1 + 2 + 2) / 4
    beside = groups["completability", "project", "single-call"]
    assert beside.beside
    assert beside.grades == {"low": 1, "medium": 1, "high": 1}
    report = (Path(results.folder) / "report.md").read_text(encoding="utf-8")
    assert "never averaged together" in report
    assert re.search(r"\| allergy +\| 2 ✗ \(S3\) +\| 4 high ✗ \(C7\) +\| 1 ✗ \(S5\) +\| 4 low ", report)
    assert re.search(r"\| taskEvaluability +\| 3\.83 \(6\) \| +4\.00 \(4\) \|", report)
    assert "beside, and in no score above" in report
    assert re.search(r"\| allergy-loop +\| S3 +\| Without successWhen: milestone 2 ", report)
    assert "single-call: 4 of 4 scored, mean overall 1.75 (1.00 to 2.55, 95 %)" in results.opening


def test_each_project_has_a_file_and_each_judge_a_run_like_any_other(job: Job) -> None:
    from localjudge.run.session import report_again

    results = job.run()
    folder = Path(results.folder)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ", folder.name)
    assert folder.parent == job.out
    files = {path.stem: json.loads(path.read_text()) for path in (folder / "projects").glob("*.json")}
    assert files == by_id(results)
    report = report_again(folder / "judges" / "scenario-review", "allergy-loop")
    assert "| S3 |" in report
    assert "program" in report
    with pytest.raises(RunError, match=r"a suite's folder.*\n.*judges/completability, .*judges/scenario-review"):
        report_again(folder, "allergy-loop")

    moved = folder.rename(job.path / "moved")
    assert report_again(moved / "judges" / "scenario-review", "allergy-loop") == report
    (moved / "records" / "scenario-review.jsonl").unlink()
    with pytest.raises(RecordsError, match="are not there any more"):
        report_again(moved / "judges" / "scenario-review", "allergy-loop")


@pytest.mark.parametrize(("overall", "passed"), [(1, False), (2, False), (3, True)])
def test_what_nobody_would_put_before_learners_does_not_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overall: int, passed: bool
) -> None:
    """Without any red line: a low overall is enough."""
    names = ["raise-loop", "standby-loop"]
    for name in names:
        monkeypatch.setitem(REVIEWS, name, {"overall": overall})
    for one in by_id(Job(tmp_path, [ROWS[name] for name in names]).run()).values():
        verdict = one["judges"][f"{one['category']}-review"]
        assert (verdict["overall"], verdict["red_lines"], verdict["passed"]) == (overall, [], passed)


def test_it_speaks_chinese(job: Job) -> None:
    results = job.run(suite=load_suite(SUITE, language="zh"))
    assert not results.unscored
    report = (Path(results.folder) / "report.md").read_text(encoding="utf-8")
    assert "各类别分开统计" in report
    assert "第 2 个里程碑" in report
    assert "averaged" not in report
    assert by_id(results)["noise-single"]["judges"]["scenario-review"]["overall"] == 2


def test_the_first_records_alone(job: Job) -> None:
    results = job.run(limit=3)
    assert results.records == 3
    assert results.judged == {"scenario-review": 3, "project-review": 0, "completability": 3}
    assert list(by_id(results)) == list(ROWS)[:3]
    assert "No record is of this category." in (Path(results.folder) / "report.md").read_text()


def test_labels_read_and_samples_drawn(job: Job) -> None:
    results = job.run(mode="score", limit=11)
    assert not results.unscored
    verdict = by_id(results)["allergy-loop"]["judges"]["scenario-review"]
    assert verdict["overall"] <= 2
    assert "S3" in verdict["red_lines"]
    assert "rationale" not in verdict["answers"]

    results = job.run(samples=3, temperature=0.7, limit=11, output_format="seed")
    told = json.loads((Path(results.folder) / "projects" / "allergy-loop.json").read_text())
    assert told["rationale"] == "rationale of allergy-loop"
    assert (told["overall"], told["redLines"]) == (2, ["S3"])


# What code decides


def broken(change: Callable[[dict[str, Any]], None], **fields: Any) -> dict[str, Any]:
    row = copy.deepcopy(ROWS["raise-loop"])
    change(row["project"])
    return {**row, **fields, "id": "broken", "candidate": "broken"}


def stages(project: dict[str, Any], stage: str) -> list[dict[str, Any]]:
    return [one for one in project["milestones"] if one["scenarioStage"] == stage]


def no_wrapup(project: dict[str, Any]) -> None:
    project["milestones"] = [one for one in project["milestones"] if one["scenarioStage"] != "wrapup"]


def lectures(project: dict[str, Any]) -> None:
    stages(project, "roleplay")[0]["coreConcept"] = "Anchoring"


def crowded(project: dict[str, Any]) -> None:
    [prep] = stages(project, "prep")
    prep["microtasks"] = [*prep["microtasks"], {"title": "Answer five questions"}]


def no_gate(project: dict[str, Any]) -> None:
    stages(project, "roleplay")[0]["microtasks"][0]["successWhen"] = " … "


def lawless(project: dict[str, Any]) -> None:
    project["scenario"]["rules"] = []


@pytest.mark.parametrize(
    ("change", "code", "blocked"),
    [
        (no_wrapup, "S1", True),
        (lectures, "S1", False),
        (crowded, "S2", False),
        (no_gate, "S3", True),
        (lawless, "S6", False),
    ],
)
def test_what_code_decides_no_model_overrules(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], code: str, blocked: bool
) -> None:
    """The same project whole and broken: who likes everything passes the one and cannot pass the other."""
    sound = {**ROWS["raise-loop"], "id": "sound"}
    row = broken(change)
    job = Job(tmp_path, [sound, row])

    class Fond(Reviewer):
        async def complete(self, ask: Ask) -> Completion:
            said: dict[str, Any] = {}
            for key, schema in ask.schema["properties"].items():
                flags = schema.get("properties", {})
                said[key] = 5 if "enum" in schema else dict.fromkeys(flags, False) if flags else "Lovely."
            return Completion(json.dumps(said), 1, 0, 1, "stop")

    found = by_id(job.run(Fond(rows=[])))
    whole, halved = (found[name]["judges"]["scenario-review"] for name in ("sound", "broken"))
    assert (whole["overall"], whole["passed"], whole["red_lines"]) == (5, True, [])
    assert (halved["overall"], halved["passed"], halved["red_lines"]) == (2, False, [code])
    assert halved["decisions"][code]["by"] == "code"
    assert halved["decisions"][code]["why"]
    beside = found["broken"]["judges"]["completability"]
    assert beside["red_lines"] == ["C7"] * blocked
    assert (beside["passed"], beside["grade"]) == ((False, "high") if blocked else (True, "low"))
    assert found["sound"]["judges"]["completability"]["grade"] == "low"


def test_without_a_model_code_says_what_it_can(job: Job) -> None:
    results = job.run(model=None)
    assert job.starts == 0
    assert results.model is None
    found = by_id(results)
    for name, one in found.items():
        for told in one["judges"].values():
            assert told["status"] == "checked"
            assert "overall" not in told
            assert all(decision["by"] == "code" for decision in told["decisions"].values())
        review = one["judges"]["scenario-review" if one["category"] == "scenario" else "project-review"]
        assert review["red_lines"] == [code for code in STAND[name] if code in ("S1", "S2", "S3", "S6")]
    assert found["debate-loop"]["judges"]["completability"]["red_lines"] == ["C7"]
    assert not found["raise-loop"]["judges"]["scenario-review"]["decisions"]["S1"]["stands"]
    report = (Path(results.folder) / "report.md").read_text()
    assert "only what code settles" in report
    assert "overall" not in report
    assert not (Path(results.folder) / "judges").exists()
    with pytest.raises(RunError, match="without a model"):
        job.prepare(model=None, output_format="seed")


# The flat JSON

SCORE = {"type": "number", "minimum": 1, "maximum": 5}
REVIEW_SCHEMA = {
    "type": "object",
    "properties": {
        "scores": {
            "type": "object",
            "properties": dict.fromkeys(TWELVE, SCORE),
            "required": list(TWELVE),
            "additionalProperties": False,
        },
        "redLines": {"type": "array", "items": {"type": "string", "pattern": "^[BS][0-9]+$"}},
        "overall": SCORE,
        "rationale": {"type": "string", "minLength": 1},
    },
    "required": ["scores", "redLines", "overall", "rationale"],
    "additionalProperties": False,
}
FINISH_SCHEMA = {
    "type": "object",
    "properties": {
        "score": SCORE,
        "blockers": {"type": "array", "items": {"type": "string", "pattern": "^C[1-8]$"}},
        "pass": {"type": "boolean"},
        "riskLevel": {"enum": ["low", "medium", "high"]},
        "rationale": {"type": "string", "minLength": 1},
    },
    "required": ["score", "blockers", "pass", "riskLevel", "rationale"],
    "additionalProperties": False,
}


def test_the_strict_json_of_the_seed(job: Job) -> None:
    full = job.run()
    results = job.run(output_format="seed")
    assert results.folder == full.folder
    assert job.starts == 1  # nothing is judged again for another form
    projects = Path(results.folder) / "projects"
    reviews = {path.stem: json.loads(path.read_text()) for path in projects.glob("*.json")}
    finishes = {path.stem: json.loads(path.read_text()) for path in (projects / "completability").glob("*.json")}
    assert set(reviews) == set(finishes) == set(ROWS)
    for review in reviews.values():
        jsonschema.validate(review, REVIEW_SCHEMA)
    for told in finishes.values():
        jsonschema.validate(told, FINISH_SCHEMA)
    assert list(reviews["raise-single"]) == ["scores", "redLines", "overall", "rationale"]
    assert list(reviews["raise-single"]["scores"]) == list(TWELVE)
    assert reviews["raise-single"] == {
        "scores": {**dict.fromkeys(TWELVE, 4), "stageIntegrity": 1},
        "redLines": ["S4"],
        "overall": 2,
        "rationale": "rationale of raise-single",
    }
    assert finishes["toast-single"] == {
        "score": 3,
        "blockers": [],
        "pass": False,
        "riskLevel": "medium",
        "rationale": "rationale of toast-single",
    }


# What cannot be judged


def test_what_cannot_be_judged_is_unscored_and_never_a_score(tmp_path: Path) -> None:
    torn = {**ROWS["raise-loop"], "id": "torn", "project": {"scenario": {}, "milestones": "none"}}
    rows = [ROWS["raise-loop"], ROWS["allergy-loop"], torn]

    def fails(ask: Ask) -> AskFailed | None:
        mark = marks(ROWS.values())["allergy-loop"]
        gone = mark in ask.messages[-1].text and "breaches" in ask.schema["properties"]
        return AskFailed("engine_error", "scripted") if gone else None

    job = Job(tmp_path, rows)
    results = job.run(Reviewer(fails=fails), output_format="seed")
    assert [(one.id, one.judge, one.status) for one in results.unscored] == [
        ("allergy-loop", "scenario-review", "incomplete"),
        ("torn", "scenario-review", "invalid_record"),
        ("torn", "completability", "invalid_record"),
    ]
    group = next(group for group in results.groups if group.judge == "scenario-review")
    assert (group.records, group.scored) == (3, 1)
    assert group.unscored == {"incomplete": 1, "invalid_record": 1}
    assert group.overall is not None
    assert (group.overall.mean, group.overall.n) == (5, 1)
    projects = Path(results.folder) / "projects"
    assert [path.name for path in projects.glob("*.json")] == ["raise-loop.json"]
    report = (Path(results.folder) / "report.md").read_text()
    assert "## Unscored" in report
    assert "project.milestones is" in report

    mended = job.run(retry_failed=True)
    assert mended.folder == results.folder
    assert [one.id for one in mended.unscored] == ["torn", "torn"]


def test_records_that_nobody_can_place(tmp_path: Path) -> None:
    flat = {**ROWS["raise-loop"], "id": "flat", "project": [1, 2]}
    mute = {"id": "mute", "topic": "A talk"}
    job = Job(tmp_path, [ROWS["raise-loop"], mute])
    with pytest.raises(RecordsError, match=r"records\.jsonl:2: field 'project' is missing"):
        job.run()
    job = Job(tmp_path, [flat, ROWS["raise-loop"]])
    with pytest.raises(RecordsError, match=r"records\.jsonl:1: .*project is a list.*\n.*--skip-invalid"):
        job.run()
    assert job.starts == 0
    results = job.run(skip_invalid=True)
    assert [(one.id, one.judge, one.status) for one in results.unscored] == [("flat", None, "invalid_record")]
    assert results.categories == {"scenario": 1, "project": 0}


def own_suite(path: Path, *lines: str) -> Path:
    """A copy of the scenario review with a suite of these lines."""
    folder = path / "own"
    if not folder.exists():
        shutil.copytree(PROMPTS / "scenario-review", folder)
    file = folder / "suite.yaml"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def test_a_record_that_no_judge_takes_is_told_and_not_judged(job: Job, tmp_path: Path) -> None:
    file = own_suite(
        tmp_path,
        "name: own",
        "dispatch: scenario",
        "judges:",
        "  - {judge: judge.yaml, category: x, when: scenario}",
    )
    results = job.run(suite=load_suite(file))
    assert len(results.unplaced) == 8
    assert not results.unscored
    assert results.judged == {"scenario-review": 10}
    assert "No judge of the suite takes: standby-loop" in (Path(results.folder) / "report.md").read_text()


# suite.yaml


@pytest.mark.parametrize(
    ("lines", "line", "what"),
    [
        (
            ["judges:", "  - {judge: project-reviw, category: a}"],
            3,
            "no judge 'project-reviw'.*\n.*'project-review'",
        ),
        (["judges:", "  - {judge: judge.yml, category: a}"], 3, "did you mean 'judge.yaml'"),
        (["name: My Suite", "judges:", "  - {judge: judge.yaml, category: a}"], 1, '"My Suite" cannot be a name'),
        (["judges:", "  - {judge: judge.yaml}"], 3, "category' is missing"),
        (["judges:", "  - {judge: judge.yaml, category: a, wen: scenario}"], 3, "did you mean 'when'"),
        (["judges:", "  - {judge: judge.yaml, category: a, when: scenario}"], 3, "'when' needs 'dispatch'"),
        (["dispatch: scenari", "judges:", "  - {judge: judge.yaml, category: a}"], 2, "did you mean 'scenario'"),
        (["dispatch: replay", "judges:", "  - {judge: judge.yaml, category: a}"], 2, "do not tell records apart"),
        (
            ["dispatch: scenario", "judges:", "  - {judge: judge.yaml, category: a, when: projct}"],
            4,
            "did you mean 'project'",
        ),
        (
            ["judges:", "  - {judge: judge.yaml, category: a}", "  - {judge: project-review, category: b}"],
            4,
            "could be in 'a' and in 'b'",
        ),
        (["judges:", "  - {judge: judge.yaml, category: a, beside: true}"], 2, "none is there to be beside of"),
        (["judges:", "  - {judge: judge.yaml, category: a}", "  - {judge: ., category: a}"], 4, "named twice"),
        (["judges:", "  - {judge: pairwise, category: a}"], 3, "is a pairwise judge"),
        (["judges:", "  - {judge: judge.yaml, category: a, seed: {overall: overal}}"], 3, "did you mean 'overall'"),
    ],
)
def test_a_mistake_in_a_suite_is_told_with_its_line(tmp_path: Path, lines: list[str], line: int, what: str) -> None:
    file = own_suite(tmp_path, *["name: own"] * (not lines[0].startswith("name")), *lines)
    with pytest.raises(JudgeError, match=what) as caught:
        load_suite(file)
    assert str(caught.value.where).startswith(f"{file}:{line}")


def test_a_suite_is_found_by_name_folder_and_file_and_settings_name_their_judge(tmp_path: Path) -> None:
    assert find_suite("scenario-review") == find_suite(str(SUITE.parent)) == find_suite(str(SUITE)) == SUITE
    assert find_suite(str(SUITE.parent / "judge.yaml")) is None
    assert find_suite("completability") is find_suite("nonsense") is None
    suite = load_suite(SUITE, ["completability.scoring.pass=5"])
    assert suite.judges["completability"].scoring.pass_mark == 5
    assert suite.judges["scenario-review"].scoring.cap == 2
    with pytest.raises(JudgeError, match=r"names none of the suite's judges.*\n.*'completability'"):
        load_suite(SUITE, ["completabilty.scoring.pass=5"])


# Resuming


def test_the_same_command_goes_on_and_another_begins_anew(job: Job) -> None:
    with pytest.raises(EngineError, match="the suite's judge 'project-review' stopped"):
        job.run(engine := Reviewer(dies_after=40))
    assert engine.closed == 1
    [folder] = job.out.iterdir()
    judged = (folder / "judges" / "scenario-review" / "verdicts.jsonl").read_bytes()
    assert not (folder / "results.json").exists()

    results = job.run(engine := Reviewer())
    assert Path(results.folder) == folder
    assert (folder / "judges" / "scenario-review" / "verdicts.jsonl").read_bytes() == judged
    assert engine.answered == 18 * 2 + 8 * 3 - (40 - 10 * 3)
    assert f"going on in {folder} (--fresh begins anew)" in job.said

    again = job.run()
    assert (again.folder, job.starts) == (results.folder, 2)
    anew = job.run(fresh=True)
    assert anew.folder != results.folder
    assert by_id(anew).keys() == by_id(results).keys()
    other = job.run(seed=3)
    assert other.folder not in (anew.folder, results.folder)
    assert any("settings.seed was 0, is now 3" in line for line in job.said)


def test_a_suite_is_killed_and_goes_on(job: Job, tmp_path: Path) -> None:
    """Through the command line, in a process that is killed as it judges the second judge's records."""
    command = ["run", "scenario-review", str(job.records), "-m", "scripted", "-o", str(job.out)]
    log = tmp_path / "log"
    slow = child(*command, log=log, hangs="You review the design of a learning project")
    wait_for(slow, "judging")
    while not log.exists() or len(log.read_bytes().splitlines()) < 30:
        time.sleep(0.02)
    time.sleep(0.1)
    slow.kill()
    slow.communicate()
    interrupted = child(*command, log=log, hangs="You review the design of a learning project")
    wait_for(interrupted, "judging")
    time.sleep(0.2)
    interrupted.send_signal(signal.SIGINT)
    _, err = finish(interrupted, 130)
    assert "run the same command again to go on" in err
    out, err = finish(child(*command, log=log))
    [folder] = (job.out / "scripted").iterdir()
    assert f"going on in {folder}" in err
    assert "scenario, loop: 6 of 6 scored" in out
    asked = log.read_bytes().splitlines()
    assert len(asked) == len(set(asked)) == 10 * 3 + 8 * 3 + 18 * 2
    assert len(json.loads((folder / "results.json").read_text())["projects"]) == 18


def test_options_of_suites_are_refused_elsewhere(job: Job) -> None:
    single = str(SUITE.parent / "judge.yaml")
    for command, told in (
        (["run", single, "--checks-only"], "--checks-only: .* is one judge"),
        (["run", "scenario-review", "--no-suite", "--fresh", "-m", "scripted"], "--fresh: .* is one judge"),
        (["run", "scenario-review"], "Missing option .*'-m'"),
        (["run", "scenario-review", "--checks-only", "-m", "scripted"], "-m: --checks-only asks no model"),
    ):
        _, err = finish(child(*command, str(job.records), "-o", str(job.out)), 2)
        assert re.search(told, err)
    out, _ = finish(child("run", "scenario-review", str(job.records), "--checks-only", "-o", str(job.out)))
    assert "checked by code alone" in out


def test_a_suite_s_file_is_checked_as_one() -> None:
    out, _ = finish(child("judges", "check", str(SUITE)))
    assert out.startswith("scenario-review is a valid suite of 3 judges\n")
    assert "completability: all records, beside 'completability'" in out
    assert re.findall(r"^(\S+) 1 is a valid rubric judge", out, re.MULTILINE) == [
        "scenario-review",
        "project-review",
        "completability",
    ]


# The real thing


@thorough
def test_the_suite_in_vllm(loop: Loop, engine: Any, embedded: LocalModel, tmp_path: Path) -> None:
    """Two projects in English, by a model that is no judge and may write little: every verdict is valid, and what
    code settles holds."""
    short = ["debate-single", "toast-single"]

    class Kept:
        def __getattr__(self, name: str) -> Any:
            return getattr(engine, name)

        async def close(self) -> None:
            pass

    async def start() -> Any:
        return Kept()

    run = SuiteRun(
        suite=load_suite(SUITE),
        records=write_rows(tmp_path / "records.jsonl", [ROWS[name] for name in short]),
        model=embedded,
        directory=tmp_path / "out",
        settings=Settings(max_tokens=110),
        start_engine=start,
    )
    results = loop.run(run.go())
    assert not results.unscored
    assert results.categories == {"scenario": 1, "project": 1}
    found = by_id(results)
    assert found["debate-single"]["judges"]["scenario-review"]["decisions"]["S6"]["stands"]
    assert found["debate-single"]["judges"]["scenario-review"]["overall"] <= 2
    for one in found.values():
        assert {verdict["status"] for verdict in one["judges"].values()} == {"ok"}
    report = (Path(results.folder) / "report.md").read_text()
    assert "| debate " in report
    assert "projectNotLecture" in report
