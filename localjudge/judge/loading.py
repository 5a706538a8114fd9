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
from localjudge.images import example
from localjudge.judge.items import STEPS
from localjudge.judge.personas import read_library, read_personas
from localjudge.judge.prompt import IMAGE, Source
from localjudge.judge.spec import ROLES, JudgeSpec
from localjudge.judge.streams import Policy
from localjudge.paths import data_dir
from localjudge.yamlfile import Document

MOST_PLACED = 16
"""How many pictures a template may place one by one, each by its number."""


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
    roles = (*ROLES, *STEPS) if spec.checklist else ROLES
    beside = {
        role: [f"{role}.{spec.language}.{end}", f"{role}.{end}"]
        for role, end in (*((role, "j2") for role in roles), ("report", "md.j2"))
    }
    if document.path.stem.split(".")[0] == "judge":
        known = re.compile(rf"({'|'.join(roles)})(\.(en|zh))?\.j2|report(\.(en|zh))?\.md\.j2")
        for file in sorted(folder.glob("*.j2")):
            if not known.fullmatch(file.name):
                known_names = ", ".join(f"{role}.j2" for role in roles)
                fix = f"a judge's templates are {known_names} and report.md.j2: rename it, or move it away"
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
        if role in roles:
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
        _read_readers(document)
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


def _read_readers(document: Document) -> None:
    """Put what a dual-control judge keeps in files of their own into its data: `personas`, which is a folder or a
    list of files, `library` and `policy`; paths are relative to the judge's. Raises JudgeError."""
    section = document.data.get("dual_control")
    if not isinstance(section, dict):
        return
    folder = document.path.parent
    library = None
    if isinstance(section.get("library"), str):
        library = read_library(folder / section["library"])
        section["library"] = library.model_dump(mode="json")
    if isinstance(section.get("policy"), str):
        file = yamlfile.load(folder / section["policy"], JudgeError)
        section["policy"] = yamlfile.validate(Policy, file, JudgeError).model_dump(mode="json")
    told = section.get("personas")
    files = [told] if isinstance(told, str) else told
    if isinstance(files, list) and files and all(isinstance(file, str) for file in files):
        personas = [persona for file in files for persona in read_personas(folder / file, library)]
        section["personas"] = [persona.model_dump(mode="json") for persona in personas]


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


def example_fields(spec: JudgeSpec, text: str) -> dict[str, Any]:
    """Inputs to try templates with: `text`, with the name in its place, and as few pictures as the templates are
    content with, of each input as many. Raises JudgeError."""
    for number in range(1, MOST_PLACED + 1):
        fields: dict[str, Any] = {
            item.name: [example(f"{item.name} {i}") for i in range(1, number + 1)]
            if item.type == "images"
            else text.format(item.name)
            for item in spec.inputs
        }
        try:
            spec.templates.messages(fields, spec.template_names)
        except JudgeError:
            if number == MOST_PLACED or not spec.takes_images:
                raise
        else:
            break
    return fields


def _try_templates(spec: JudgeSpec, document: Document) -> None:
    """Every input must be shown. Render with all of them and with the required ones only, so that what is wrong
    shows before a run.

    Inputs of JSON are left to real records: what their templates look for cannot be guessed.
    """
    shown: set[str] = set()
    pictured = {item.name for item in spec.inputs if item.type == "images"}
    if "inputs" in spec.templates.used:
        shown = {item.name for item in spec.inputs}
    if any(item.type == "json" for item in spec.inputs):
        shown |= spec.templates.used
        shown |= pictured if IMAGE in spec.templates.used else set()
    else:
        marks = example_fields(spec, "Text of {}.")
        required = {item.name: None if item.optional else marks[item.name] for item in spec.inputs}
        spec.templates.messages(required, spec.template_names)
        messages = spec.templates.messages(marks, spec.template_names)
        for step in STEPS if spec.checklist else ():
            spec.step(step).messages(required, spec.template_names)
            messages += spec.step(step).messages(marks, spec.template_names)
        if not any(message.role == "user" for message in messages):
            raise JudgeError("the user template writes nothing", where=document.where(("user",)))
        text = "".join(message.text for message in messages)
        shown = {
            name for name, mark in marks.items() if name not in pictured and mark.casefold() in text.casefold()
        }
        placed = {picture for message in messages for _, picture in message.images}
        shown |= {name for name in pictured if placed.intersection(marks[name])}
    for place, item in enumerate(spec.inputs):
        if item.name not in shown:
            raise JudgeError(
                f"no template shows the input '{item.name}'",
                where=document.where(("inputs", place)),
                fix=f"print it with {{{{ {item.name} }}}}, or drop it from 'inputs'",
            )
