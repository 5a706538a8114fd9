"""What code decides about a generated learning project, so that no model is asked or can overrule it.

Of a project with a `scenario` block, the red lines
    S1  always: the stages are prep, one or more roleplay, wrapup, in this order, and none has `coreConcept` set
    S2  stands when prep has more than one microtask; else it is the model's
    S3  stands when a role-play beat has no `successWhen`, or one without a letter; else it is the model's
    S6  stands when the caller says `rule_based: true` and `rules` is empty; else it is the model's
and the blocker
    C7  stands when the order of S1 or the `successWhen` of S3 fails, or a role-play stage has no beat; else it is
        the model's.
Of any other project only C7: it does not stand, as there is no scenario to advance.

Each sentence comes twice: with the titles of its places, for reports, and bare, for prompts, where nothing that a
record says may stand outside its fence.

Knows the shape of a project (../shared/reference/scenario-review.md): `milestones[]`, each with `microtasks[]`.
Knows no judge: it gives every code it can, and a judge takes those it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from localjudge.judge.checks import Checked, Language, Settled
from localjudge.rows import shown

STAGES = ("prep", "roleplay", "wrapup")
LONGEST = 60
"""Characters of a title in a sentence: a title is the record's own text, and no place for a speech."""

QUOTES = str.maketrans({'"': "'", "「": "『", "」": "』"})
"""A title cannot close the quotation marks that it stands in."""

WORDS: dict[Language, dict[str, str]] = {
    "en": {
        "milestone": "milestone {}",
        "beat": "{}, beat {}",
        "title": ' "{}"',
        "and": "; ",
        "list": "; ",
        "sentence": "{}.",
        "S1 none": "there is no milestone at all",
        "S1 lacks prep": "there is no prep stage",
        "S1 lacks roleplay": "there is no role-play stage",
        "S1 lacks wrapup": "there is no wrap-up stage",
        "S1 prep": "{} is a prep stage but not the first",
        "S1 wrapup": "{} is a wrap-up stage but not the last",
        "S1 unset": "{} has no scenarioStage",
        "S1 unknown": "{} has the scenarioStage {}, which is none of prep, roleplay, wrapup",
        "S1 other": "{} has a scenarioStage that is none of prep, roleplay, wrapup",
        "S1 coreConcept": "{} has coreConcept set",
        "S1 holds": "the stages are {}, and none has coreConcept set",
        "S2": "prep has {} microtasks where one is allowed: {}",
        "S3": "without successWhen: {}",
        "S6": "the scenario is marked as rule-based, and its rules are empty",
        "C7 no beat": "{} is a role-play stage without a beat",
        "C7 no scenario": "the project has no scenario block, so no scenario has to advance",
    },
    "zh": {
        "milestone": "第 {} 个里程碑",
        "beat": "{}的第 {} 个节拍",
        "title": "「{}」",
        "and": "；",
        "list": "、",
        "sentence": "{}。",
        "S1 none": "没有任何里程碑",
        "S1 lacks prep": "缺少准备阶段（prep）",
        "S1 lacks roleplay": "缺少角色扮演阶段（roleplay）",
        "S1 lacks wrapup": "缺少收尾阶段（wrapup）",
        "S1 prep": "{}是准备阶段（prep），却不在最前",
        "S1 wrapup": "{}是收尾阶段（wrapup），却不在最后",
        "S1 unset": "{}没有 scenarioStage",
        "S1 unknown": "{}的 scenarioStage 是 {}，不属于 prep、roleplay、wrapup",
        "S1 other": "{}的 scenarioStage 不属于 prep、roleplay、wrapup",
        "S1 coreConcept": "{}设置了 coreConcept",
        "S1 holds": "各阶段依次为 {}，且都没有设置 coreConcept",
        "S2": "准备阶段有 {} 个微任务，只允许一个：{}",
        "S3": "缺少 successWhen：{}",
        "S6": "该场景标明以规则为基础，但 rules 为空",
        "C7 no beat": "{}是角色扮演阶段，却没有任何节拍",
        "C7 no scenario": "该项目没有 scenario 块，不存在场景能否推进的问题",
    },
}


@dataclass(frozen=True, slots=True)
class _Beat:
    """A microtask. number: from 1, within its milestone."""

    number: int
    title: str
    success_when: str
    skill_focus: str


@dataclass(frozen=True, slots=True)
class _Milestone:
    """number: from 1. stage: as it is written, None when it is not there."""

    number: int
    title: str
    stage: Any
    core_concept: bool
    beats: tuple[_Beat, ...]


@dataclass(frozen=True, slots=True)
class _Project:
    """scenario: None when the project has none. rules: its rules, without what is blank."""

    scenario: Mapping[str, Any] | None
    rules: tuple[str, ...]
    rule_based: bool
    milestones: tuple[_Milestone, ...]


def dispatch(fields: Mapping[str, Any]) -> Literal["scenario", "project"]:
    """Which review a record goes to. Raises ValueError when it has no project, or one that is no object."""
    problems: list[str] = []
    scenario = _block(_project(fields), problems)
    if problems:
        raise ValueError(problems[0])
    return "project" if scenario is None else "scenario"


def check(fields: Mapping[str, Any], language: Language) -> Checked:
    """fields: those of the record: `project`, and `rule_based` where the caller knows it.

    Tables: `stages`, a row a milestone; `beats`, a row a microtask, whose `has_success_when` is None where none is
    due. Raises ValueError, with everything that is wrong in it, for a project that is not of the known shape.
    """
    project = _read(fields)
    bare = _decided(project, _Words(language, quoting=False))
    red_lines = {
        code: Settled(stands, why, bare[code][1])
        for code, (stands, why) in _decided(project, _Words(language, quoting=True)).items()
    }
    return Checked(red_lines=red_lines, tables={"stages": _stages(project), "beats": _beats(project)})


def _decided(project: _Project, say: _Words) -> dict[str, tuple[bool, str]]:
    """code -> whether it stands, and why."""
    if project.scenario is None:
        return {"C7": (False, say.sentence(say("C7 no scenario")))}
    found = {
        "S2": _crowded_prep(project, say),
        "S3": _without_success(project, say),
        "S6": [say("S6")] if project.rule_based and not project.rules else [],
        "C7": [*_order(project, say), *_empty_stages(project, say), *_without_success(project, say)],
    }
    standing = {code: (True, say.sentence(*faults)) for code, faults in found.items() if faults}
    return {"S1": _skeleton(project, say), **standing}


def _skeleton(project: _Project, say: _Words) -> tuple[bool, str]:
    faults = _order(project, say)
    faults += [say("S1 coreConcept", say.milestone(one)) for one in project.milestones if one.core_concept]
    if faults:
        return True, say.sentence(*faults)
    return False, say.sentence(say("S1 holds", " → ".join(one.stage for one in project.milestones)))


def _order(project: _Project, say: _Words) -> list[str]:
    """What keeps the stages from being prep, roleplay (once or more), wrapup. A sequence of known stages that has
    all three, prep nowhere but first and wrapup nowhere but last, has only roleplay in between."""
    milestones = project.milestones
    if not milestones:
        return [say("S1 none")]
    faults = [
        say(f"S1 lacks {stage}") for stage in STAGES if all(stage != milestone.stage for milestone in milestones)
    ]
    for milestone in milestones:
        place = say.milestone(milestone)
        if milestone.stage is None:
            faults.append(say("S1 unset", place))
        elif milestone.stage not in STAGES:
            stage = _shown(milestone.stage)
            faults.append(say("S1 unknown", place, stage) if say.quoting else say("S1 other", place))
        elif milestone.stage == "prep" and milestone is not milestones[0]:
            faults.append(say("S1 prep", place))
        elif milestone.stage == "wrapup" and milestone is not milestones[-1]:
            faults.append(say("S1 wrapup", place))
    return faults


def _crowded_prep(project: _Project, say: _Words) -> list[str]:
    beats = [
        say.beat(milestone, beat)
        for milestone in project.milestones
        if milestone.stage == "prep"
        for beat in milestone.beats
    ]
    return [say("S2", len(beats), say("list").join(beats))] if len(beats) > 1 else []


def _without_success(project: _Project, say: _Words) -> list[str]:
    beats = [
        say.beat(milestone, beat)
        for milestone in project.milestones
        if milestone.stage == "roleplay"
        for beat in milestone.beats
        if not beat.success_when
    ]
    return [say("S3", say("list").join(beats))] if beats else []


def _empty_stages(project: _Project, say: _Words) -> list[str]:
    return [
        say("C7 no beat", say.milestone(milestone))
        for milestone in project.milestones
        if milestone.stage == "roleplay" and not milestone.beats
    ]


def _stages(project: _Project) -> list[Mapping[str, Any]]:
    return [
        {
            "milestone": milestone.number,
            "title": milestone.title,
            "stage": milestone.stage if isinstance(milestone.stage, str) else None,
            "beats": len(milestone.beats),
            "core_concept": milestone.core_concept,
        }
        for milestone in project.milestones
    ]


def _beats(project: _Project) -> list[Mapping[str, Any]]:
    return [
        {
            "milestone": milestone.number,
            "milestone_title": milestone.title,
            "stage": milestone.stage if isinstance(milestone.stage, str) else None,
            "beat": beat.number,
            "title": beat.title,
            "has_success_when": bool(beat.success_when) if milestone.stage == "roleplay" else None,
            "success_when": beat.success_when,
            "skill_focus": beat.skill_focus,
        }
        for milestone in project.milestones
        for beat in milestone.beats
    ]


class _Words:
    """The sentences of one language. quoting: with what the record says itself, such as titles."""

    def __init__(self, language: Language, *, quoting: bool) -> None:
        self._words, self.quoting = WORDS[language], quoting

    def __call__(self, key: str, *parts: object) -> str:
        return self._words[key].format(*parts)

    def sentence(self, *parts: str) -> str:
        text = self("sentence", self("and").join(parts))
        return text[0].upper() + text[1:]

    def milestone(self, milestone: _Milestone) -> str:
        return self("milestone", milestone.number) + self._title(milestone.title)

    def beat(self, milestone: _Milestone, beat: _Beat) -> str:
        return self("beat", self.milestone(milestone), beat.number) + self._title(beat.title)

    def _title(self, title: str) -> str:
        title = title.translate(QUOTES)
        if len(title) > LONGEST:
            title = title[: LONGEST - 1] + "…"
        return self("title", title) if title and self.quoting else ""


def _project(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    project = fields.get("project")
    if not isinstance(project, Mapping):
        raise ValueError("the project is missing" if project is None else _not("project", project, "an object"))
    return project


def _read(fields: Mapping[str, Any]) -> _Project:
    project = _project(fields)
    problems: list[str] = []
    scenario = _block(project, problems)
    rules: tuple[str, ...] = ()
    if scenario is not None:
        rules = _rules(scenario.get("rules"), problems)
    rule_based = _flag("rule_based", fields.get("rule_based"), problems)
    if scenario is not None and not rule_based:
        rule_based = _flag("project.scenario.ruleBased", scenario.get("ruleBased"), problems)
    found = project.get("milestones")
    if not isinstance(found, list):
        problems.append(
            "project.milestones is missing" if found is None else _not("project.milestones", found, "a list")
        )
        found = []
    milestones = tuple(_milestone(number, item, problems) for number, item in enumerate(found, 1))
    if problems:
        raise ValueError("; ".join(problems))
    return _Project(scenario, rules, rule_based, milestones)


def _milestone(number: int, item: Any, problems: list[str]) -> _Milestone:
    where = f"project.milestones.{number}"
    if not isinstance(item, Mapping):
        problems.append(_not(where, item, "an object"))
        return _Milestone(number, "", None, False, ())
    tasks = item.get("microtasks")
    if tasks is not None and not isinstance(tasks, list):
        problems.append(_not(f"{where}.microtasks", tasks, "a list"))
    beats = [
        _beat(place, task, f"{where}.microtasks.{place}", problems)
        for place, task in enumerate(tasks if isinstance(tasks, list) else (), 1)
    ]
    concept = item.get("coreConcept")
    concept = concept.strip() if isinstance(concept, str) else concept
    return _Milestone(number, _title(item), item.get("scenarioStage"), bool(concept), tuple(beats))


def _beat(number: int, item: Any, where: str, problems: list[str]) -> _Beat:
    if not isinstance(item, Mapping):
        problems.append(_not(where, item, "an object"))
        return _Beat(number, "", "", "")
    success = item.get("successWhen")
    if success is not None and not isinstance(success, str):
        problems.append(_not(f"{where}.successWhen", success, "text"))
        success = None
    skill = item.get("skillFocus")
    return _Beat(number, _title(item), _said(success or ""), skill if isinstance(skill, str) else "")


def _block(project: Mapping[str, Any], problems: list[str]) -> Mapping[str, Any] | None:
    scenario = project.get("scenario")
    if scenario is None or isinstance(scenario, Mapping):
        return scenario
    problems.append(_not("project.scenario", scenario, "an object"))
    return None


def _rules(rules: Any, problems: list[str]) -> tuple[str, ...]:
    """One text or a list of them."""
    lines = [rules] if isinstance(rules, str) else [] if rules is None else rules
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        problems.append(_not("project.scenario.rules", rules, "text or a list of texts"))
        return ()
    return tuple(line for line in map(_said, lines) if line)


def _flag(name: str, value: Any, problems: list[str]) -> bool:
    """true or false; as text where the records' format has nothing else."""
    if value is None or isinstance(value, bool):
        return bool(value)
    if isinstance(value, str) and value.strip().lower() in ("true", "false", ""):
        return value.strip().lower() == "true"
    problems.append(_not(name, value, "true or false"))
    return False


def _title(item: Mapping[str, Any]) -> str:
    """On one line."""
    title = next((item[key] for key in ("title", "name") if isinstance(item.get(key), str)), "")
    return _line(title)


def _line(text: str) -> str:
    return " ".join("".join(mark if mark.isprintable() else " " for mark in text).split())


def _shown(value: Any) -> str:
    return shown(_line(value) if isinstance(value, str) else value)


def _said(text: str) -> str:
    """The text, or nothing when it has no letter and no digit ('…', '-')."""
    text = text.strip()
    return text if any(mark.isalnum() for mark in text) else ""


def _not(where: str, value: Any, wanted: str) -> str:
    return f"{where} is {shown(value)}, not {wanted}"
