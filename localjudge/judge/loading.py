"""A judge by its name, folder or file: its YAML in the language asked for and its templates, and whatever is wrong
with them, told before a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from localjudge import yamlfile
from localjudge.decoding.grammar import check_schema
from localjudge.errors import JudgeError, did_you_mean, nearest
from localjudge.judge.prompt import Source
from localjudge.judge.spec import ROLES, JudgeSpec
from localjudge.paths import data_dir
from localjudge.yamlfile import Document


def judge_names() -> dict[str, Path]:
    """The built-in judges: name -> folder."""
    return {
        path.parent.name: path.parent
        for path in sorted(data_dir("prompts").glob("*/judge.yaml"))
        if re.match(r"[a-z0-9]", path.parent.name)
    }


def _find(name_or_path: str | Path) -> Path:
    path = Path(name_or_path)
    if path.is_dir() and (path / "judge.yaml").is_file():
        return path / "judge.yaml"
    if path.is_file():
        return path
    built_in = judge_names()
    if str(name_or_path) in built_in:
        return built_in[str(name_or_path)] / "judge.yaml"
    if path.is_dir():
        files = sorted(path.glob("*.y*ml"))
        fix = f"give {files[0]}" if len(files) == 1 else "give a judge's file, or a folder with judge.yaml in it"
        raise JudgeError("there is no judge.yaml in this folder", where=str(path), fix=fix)
    if path.suffix in {".yaml", ".yml"} or len(path.parts) > 1:
        near = nearest(path.name, [file.name for file in path.parent.glob("*")])
        hint = f"did you mean '{path.parent / near}'?" if near else None
        raise JudgeError("there is no such judge file", where=str(path), fix=hint)
    raise JudgeError(f"there is no judge called '{name_or_path}'", fix=did_you_mean(str(name_or_path), built_in))


def _in_language(path: Path, language: str | None) -> Path:
    """The judge's file in a language, which is judge.<language>.yaml beside one of another. Raises JudgeError."""
    if language is None:
        return path
    document = yamlfile.load(path, JudgeError)
    if isinstance(document.data, Mapping) and document.data.get("language", "en") == language:
        return path
    other = path.with_name(f"{path.stem}.{language}{path.suffix}")
    if not other.is_file():
        raise JudgeError(
            f"this judge does not come in the language '{language}'",
            where=str(path),
            fix=f"write {other.name} beside it, or leave --language out",
        )
    return other


def _template_sources(spec: JudgeSpec, document: Document) -> dict[str, Source]:
    """role -> its template: in the judge's file, else beside it (first in its language), else the kind's own; and
    `report`, where there is one beside it."""
    folder = document.path.parent
    beside = {
        role: [f"{role}.{spec.language}.{end}", f"{role}.{end}"]
        for role, end in (*((role, "j2") for role in ROLES), ("report", "md.j2"))
    }
    if document.path.stem.split(".")[0] == "judge":
        known = re.compile(r"(system|user)(\.(en|zh))?\.j2|report(\.(en|zh))?\.md\.j2")
        for file in sorted(folder.glob("*.j2")):
            if not known.fullmatch(file.name):
                fix = "a judge's templates are system.j2, user.j2 and report.md.j2: rename it, or move it away"
                raise JudgeError("no template is called so", where=str(file), fix=fix)
    default = data_dir("prompts") / "_default" / spec.kind
    sources = {}
    for role, names in beside.items():
        own = getattr(spec, role, None)
        if own is not None:
            put = document.setting((role,))
            where = f"--set {role}" if put else str(document.path)
            sources[role] = Source(where, 1 if put else document.text_starts((role,)), own)
            continue
        found = [folder / name for name in names if (folder / name).is_file()]
        if role in ROLES:
            found.append(default / f"{role}.{spec.language}.j2")
        if found:
            sources[role] = Source(str(found[0]), 1, yamlfile.read_text(found[0], JudgeError))
    return sources


def load_judge(name_or_path: str | Path, settings: Iterable[str] = (), language: str | None = None) -> JudgeSpec:
    """A judge by its built-in name, its folder or its file. settings: `key=value` overrides of its YAML. language:
    that of the file to take, where it comes in several.

    Raises JudgeError, with file and line, for anything that is not as it should be, and for questions whose
    answers could not be enforced.
    """
    document = yamlfile.load(_in_language(_find(name_or_path), language), JudgeError)
    if isinstance(document.data, dict):
        document = yamlfile.override(document, settings, JudgeError)
    spec = yamlfile.validate(JudgeSpec, document, JudgeError)
    for schema in spec.schemas:
        check_schema(schema)
    sources = _template_sources(spec, document)
    shared = data_dir("prompts") / "_default"
    for role in ("read", "questions"):
        file = shared / f"{role}.{spec.language}.j2"
        sources[role] = Source(str(file), 1, yamlfile.read_text(file, JudgeError))
    spec.equip(sources)
    _try_templates(spec, document)
    return spec


def load_wordings(
    name_or_path: str | Path, settings: Iterable[str] = (), language: str | None = None
) -> dict[str, JudgeSpec]:
    """A judge's other wordings by name, from `judge.wording-<name>.yaml` beside its judge.yaml: they ask the same
    in other words, for an audit of what words alone change. Raises JudgeError for one that changes more."""
    path = _in_language(_find(name_or_path), language)
    settings = list(settings)
    asked = _apart_from_words(load_judge(path, settings))
    found = {}
    for file in sorted(path.parent.glob(f"{path.stem}.wording-*{path.suffix}")):
        spec = load_judge(file, settings)
        other = _apart_from_words(spec)
        if changed := [what for what in asked if other[what] != asked[what]]:
            raise JudgeError(
                f"this wording changes more than words: its {', '.join(changed)}",
                where=str(file),
                fix=f"keep them as they are in {path.name}",
            )
        found[file.stem.partition(".wording-")[2]] = spec
    return found


def _apart_from_words(spec: JudgeSpec) -> dict[str, Any]:
    return {
        "kind": (spec.kind, spec.tie, spec.orders),
        "inputs": [(item.name, item.type, item.optional) for item in spec.inputs],
        "questions, labels or budgets": spec.schemas,
        "scoring": spec.scoring,
        "red lines": [(line.code, line.by, line.fails, line.cap) for line in spec.red_lines],
    }


def _try_templates(spec: JudgeSpec, document: Document) -> None:
    """Every input must be shown. Render with all of them and with the required ones only, so that what is wrong
    shows before a run.

    Inputs of JSON are left to real records: what their templates look for cannot be guessed.
    """
    shown: set[str] = set()
    if "inputs" in spec.templates.used:
        shown = {item.name for item in spec.inputs}
    if any(item.type == "json" for item in spec.inputs):
        shown |= spec.templates.used
    else:
        marks = {item.name: f"Text of {item.name}." for item in spec.inputs}
        required = {item.name: None if item.optional else marks[item.name] for item in spec.inputs}
        spec.templates.messages(required, spec.template_names)
        messages = spec.templates.messages(marks, spec.template_names)
        if not any(message.role == "user" for message in messages):
            raise JudgeError("the user template writes nothing", where=document.where(("user",)))
        text = "".join(message.text for message in messages)
        shown = {name for name, mark in marks.items() if mark.casefold() in text.casefold()}
    for place, item in enumerate(spec.inputs):
        if item.name not in shown:
            raise JudgeError(
                f"no template shows the input '{item.name}'",
                where=document.where(("inputs", place)),
                fix=f"print it with {{{{ {item.name} }}}}, or drop it from 'inputs'",
            )
