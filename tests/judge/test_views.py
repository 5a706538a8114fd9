"""Views: what of a JSON field the judge is shown."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from pydantic import ValidationError

from localjudge.judge.views import View, apply_view
from localjudge.paths import data_dir

PROJECT: dict[str, Any] = {
    "id": "p1",
    "title": "A talk",
    "createdAt": "2026-03-02",
    "scenario": {"setting": "A room", "characters": [{"id": "c1", "name": "Dana", "timestamp": 3}]},
    "milestones": [
        {
            "id": 1,
            "parentId": "p1",
            "title": "Before",
            "paid": True,
            "microtasks": [
                {
                    "task_id": 7,
                    "title": "Ask",
                    "successWhen": {"id": "kept", "text": "A question is asked."},
                    "narration": "It is late.",
                    "updated_at": 1,
                    "hints": [{"uuid": "u", "text": "Ask."}],
                }
            ],
        }
    ],
}


def view(value: Any, **settings: Any) -> Any:
    return apply_view(View(**settings), value)


def test_strip_runtime_drops_ids_and_times_but_keeps_the_scenario_and_what_beats_are_made_of() -> None:
    before = copy.deepcopy(PROJECT)
    assert view(PROJECT, preset="strip_runtime") == {
        "title": "A talk",
        "scenario": PROJECT["scenario"],
        "milestones": [
            {
                "title": "Before",
                "paid": True,
                "microtasks": [
                    {
                        "title": "Ask",
                        "successWhen": {"id": "kept", "text": "A question is asked."},
                        "narration": "It is late.",
                        "hints": [{"text": "Ask."}],
                    }
                ],
            }
        ],
    }
    assert before == PROJECT


@pytest.mark.parametrize(
    "key",
    [
        *(
            "id",
            "_id",
            "learnerId",
            "learner_id",
            "taskIds",
            "task_ids",
            "uuid",
            "rowUuid",
            "row_uuid",
            "timestamp",
        ),
        *("startTimestamp", "start_timestamp", "createdAt", "updatedAt", "completedAt", "created_at", "createTime"),
    ],
)
def test_strip_runtime_knows_an_id_or_a_time(key: str) -> None:
    assert view([{key: 1, "title": 2}], preset="strip_runtime") == [{"title": 2}]


@pytest.mark.parametrize("key", ["title", "paid", "idea", "valid", "openid", "whatAt", "time", "timing", "Id card"])
def test_strip_runtime_leaves_other_keys_alone(key: str) -> None:
    assert view({key: 1}, preset="strip_runtime") == {key: 1}


def test_in_the_examples_nothing_is_lost_that_a_reviewer_reads() -> None:
    for judge in ("scenario-review", "project-review"):
        for line in (data_dir("prompts") / judge / "examples" / "records.jsonl").read_text("utf-8").splitlines():
            project = json.loads(line)["project"]
            shown = view(project, preset="strip_runtime")
            assert shown.get("scenario") == project.get("scenario")
            lost = set(_keys(project)) - set(_keys(shown))
            assert lost == {"id", "milestoneId", "createdAt", "updatedAt"}


def _keys(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(key for part in value.values() for key in _keys(part))]
    return [key for part in value for key in _keys(part)] if isinstance(value, list) else []


@pytest.mark.parametrize(
    ("keep", "shown"),
    [
        (["title"], {"title": "A talk"}),
        (["title", "scenario.setting"], {"title": "A talk", "scenario": {"setting": "A room"}}),
        (["milestones.*.title"], {"milestones": [{"title": "Before"}]}),
        (["milestones.0.microtasks.*.title"], {"milestones": [{"microtasks": [{"title": "Ask"}]}]}),
        (["milestones.1.title"], {"milestones": []}),
        (["scenario", "scenario.setting"], {"scenario": PROJECT["scenario"]}),
        (["*.setting"], {"scenario": {"setting": "A room"}, "milestones": []}),
        (["title.first", "nothing"], {}),
    ],
)
def test_keep_shows_these_paths_and_nothing_else(keep: list[str], shown: Any) -> None:
    assert view(PROJECT, keep=keep) == shown


def test_drop_leaves_keys_out_wherever_they_stand() -> None:
    match = {"players": [{"hero": "A", "openid": "x"}, {"hero": "B", "openid": "y", "raw_gold": 1}], "raw_log": []}
    assert view(match, drop=["openid", "raw_*"]) == {"players": [{"hero": "A"}, {"hero": "B"}]}


def test_keep_is_done_first_and_what_is_kept_may_lose_keys() -> None:
    assert view(PROJECT, keep=["title", "milestones"], drop=["microtasks"], preset="strip_runtime") == {
        "title": "A talk",
        "milestones": [{"title": "Before", "paid": True}],
    }


@pytest.mark.parametrize("value", ["text", 3, None, [], {}])
def test_what_has_no_parts_stays(value: Any) -> None:
    assert view(value, preset="strip_runtime") == value
    assert view(value, keep=["a.b"]) == value


def test_the_order_of_keys_stays() -> None:
    assert list(view({"b": 1, "id": 2, "a": 3}, preset="strip_runtime")) == ["b", "a"]


def test_what_is_nested_too_deeply_is_said_to_be() -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested too deeply"):
        view(deep, preset="strip_runtime")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"preset": "strip_runtim"}, "there is no view 'strip_runtim': did you mean 'strip_runtime'?"),
        ({"preset": "nothing"}, "there is no view 'nothing': known: strip_runtime"),
        ({}, "a view needs a preset, keep or drop"),
        ({"keep": ["a..b"]}, "'a..b' is not a path: write keys with single dots between them, as a.b.c"),
        ({"keep": []}, "at least 1 item"),
        ({"keep": "a"}, "valid list"),
        ({"drop": [""]}, "at least 1 character"),
        ({"drop": [1]}, "valid string"),
        ({"kep": ["a"]}, "Extra inputs are not permitted"),
    ],
)
def test_a_view_is_read_strictly(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        View(**settings)
    assert said in str(caught.value)
