"""Views: what of a JSON field the judge is shown.

In a judge.yaml, at an input of type json:

    inputs:
      - {name: project, type: json, view: {preset: strip_runtime}}
      - {name: match, type: json, view: {keep: [players.*.hero, events], drop: [openid]}}

`keep` picks parts; `drop` and the preset leave keys out of what is picked. Knows JSON, and nothing of records,
judges or prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from localjudge.errors import did_you_mean


@dataclass(frozen=True, slots=True)
class Preset:
    """drop: patterns of keys, as in View. whole: paths, as in View, inside which nothing is dropped."""

    drop: tuple[str, ...]
    whole: tuple[str, ...] = ()


_BEAT = "milestones.*.microtasks.*."

PRESETS = {
    "strip_runtime": Preset(
        drop=(
            *("id", "_id", "*Id", "*_id", "*Ids", "*_ids", "uuid", "*Uuid", "*_uuid"),
            *("timestamp", "*Timestamp", "*_timestamp", "*edAt", "*ed_at"),
            *("createTime", "updateTime", "create_time", "update_time"),
        ),
        whole=(
            "scenario",
            *(
                _BEAT + key
                for key in ("successWhen", "characterObjective", "skillFocus", "learnerBrief", "narration")
            ),
        ),
    ),
}
"""strip_runtime: without the ids and times of a generated learning project, which only its run-time needs."""


class View(BaseModel):
    """One view; it says at least one of these.

    preset: a name in PRESETS. keep: dotted paths from the top of the field, `*` for any key or item and a number,
    from 0, for one item; when given, nothing else is shown. A path that a record does not have shows nothing of it.
    drop: keys left out wherever they stand, with `*` for any characters, in upper and lower case as written.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    preset: str | None = None
    keep: Annotated[list[str], Field(min_length=1)] | None = None
    drop: Annotated[list[Annotated[str, StringConstraints(min_length=1)]], Field(min_length=1)] | None = None

    @field_validator("preset")
    @classmethod
    def _a_preset_is_known(cls, name: str | None) -> str | None:
        if name is not None and name not in PRESETS:
            raise ValueError(f"there is no view '{name}': {did_you_mean(name, PRESETS)}")
        return name

    @field_validator("keep")
    @classmethod
    def _paths_have_steps(cls, paths: list[str] | None) -> list[str] | None:
        for path in paths or ():
            if not all(path.split(".")):
                raise ValueError(f"'{path}' is not a path: write keys with single dots between them, as a.b.c")
        return paths

    @model_validator(mode="after")
    def _says_something(self) -> View:
        if self.preset is None and self.keep is None and self.drop is None:
            raise ValueError("a view needs a preset, keep or drop")
        return self


def apply_view(view: View, value: Any) -> Any:
    """The part of a JSON value that is shown: a new value in the order of the old one, which stays as it is.

    Raises ValueError for a value that is nested too deeply.
    """
    preset = PRESETS[view.preset] if view.preset else Preset(())
    drop = (*preset.drop, *(view.drop or ()))
    try:
        if view.keep is not None:
            value = _kept(value, [path.split(".") for path in view.keep])
        return _without(value, drop, [path.split(".") for path in preset.whole])
    except RecursionError:
        raise ValueError("it is nested too deeply: flatten it") from None


def _inside(paths: Iterable[Sequence[str]], step: str) -> list[Sequence[str]]:
    """What is left of the paths that lead through this key or item."""
    return [path[1:] for path in paths if path and path[0] in ("*", step)]


def _kept(value: Any, paths: list[Sequence[str]]) -> Any:
    """The parts that the paths lead to. An object or a list on the way stays, without its other parts."""
    if not all(paths):
        return value
    if isinstance(value, dict):
        return {key: _kept(part, ahead) for key, part in value.items() if (ahead := _leads(paths, key, part))}
    if isinstance(value, list):
        parts = ((part, _leads(paths, str(place), part)) for place, part in enumerate(value))
        return [_kept(part, ahead) for part, ahead in parts if ahead]
    return value


def _leads(paths: list[Sequence[str]], step: str, part: Any) -> list[Sequence[str]]:
    """The paths to go on with in this part; none when they end in nothing, as it has no parts of its own."""
    ahead = _inside(paths, step)
    return ahead if isinstance(part, dict | list) or not all(ahead) else []


def _without(value: Any, drop: Sequence[str], whole: list[Sequence[str]]) -> Any:
    if not all(whole):
        return value
    if isinstance(value, dict):
        return {
            key: _without(part, drop, ahead)
            for key, part in value.items()
            if not all(ahead := _inside(whole, key)) or not any(fnmatchcase(key, pattern) for pattern in drop)
        }
    if isinstance(value, list):
        return [_without(part, drop, _inside(whole, str(place))) for place, part in enumerate(value)]
    return value
