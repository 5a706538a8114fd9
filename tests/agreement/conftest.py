"""What the stories of agreement share: runs made of rows through the real import, and runs of verdicts written
here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from localjudge.agreement.agree import Agreement, Held
from localjudge.agreement.writing import Asked, agree_run
from localjudge.judge.loading import load_judge
from localjudge.judge.spec import JudgeSpec
from localjudge.run.importing import import_verdicts
from localjudge.verdict import Answer, Verdict
from tests.run.conftest import write_rows

ABSOLUTE = """\
name: absolute
inputs: [instruction, response]
questions:
  - {id: quality, type: score, ask: How good, scale: [1, 5]}
"""
MIXED = """\
name: mixed
inputs: [response]
questions:
  - {id: good, type: score, ask: Good, scale: [1, 5]}
  - {id: tone, type: choice, ask: Tone, options: {warm: "", cold: "", flat: ""}}
  - {id: lines, type: flags, ask: Lines, codes: {HARM: it harms, LIE: it lies}}
scoring:
  pass: 3
  veto: [lines]
"""

Imported = Callable[..., Path]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALJUDGE_CACHE", str(tmp_path / "cache"))


def judge_file(folder: Path, text: str) -> JudgeSpec:
    path = folder / f"{text.split()[1]}.yaml"
    path.write_text(text)
    return load_judge(path)


@pytest.fixture
def imported(tmp_path: Path) -> Imported:
    """The folder of a run imported from rows, or from a file."""

    def imported(
        spec: JudgeSpec | str, rows: Path | Iterable[Mapping[str, Any]], name: str = "run", **options: Any
    ) -> Path:
        path = rows if isinstance(rows, Path) else write_rows(tmp_path / f"{name}.jsonl", rows)
        spec = load_judge(spec) if isinstance(spec, str) else spec
        import_verdicts(spec, path, tmp_path / name, **options)
        return tmp_path / name

    return imported


def held_of(run: Path, *golds: str, **options: Any) -> Held:
    """The one target of an agreement, without figures."""
    [held] = agreement_of(run, *golds, **options).held
    return held


def agreement_of(run: Path, *golds: str, **options: Any) -> Agreement:
    return agree_run(run, Asked(golds, **options), draw=False)[0]


def value_of(held: Held, name: str, column: str = "value") -> Any:
    return next(getattr(figure, column) for figure in held.figures if figure.name == name)


def figures(held: Held) -> dict[str, Any]:
    return {figure.name: figure.value for figure in held.figures}


def written_run(
    folder: Path, spec: JudgeSpec, rows: list[dict[str, Any]], verdicts: Iterable[Verdict], mode: str
) -> Path:
    """A run as if it had been judged: for verdicts with probabilities, which no import has."""
    records = write_rows(folder / "records.jsonl", rows)
    run = folder / "read"
    run.mkdir()
    (run / "run.json").write_text(
        json.dumps(
            {
                "judge": {"name": spec.name, "version": spec.version, "digest": spec.digest, "kind": spec.kind},
                "model": {"name": "scripted", "fingerprint": "f" * 64, "chat_template": None},
                "records": {"digest": "", "total": len(rows)},
                "settings": {"mode": mode, "mapping": {}, "limit": None},
                "engine": {"identity": {}},
                "localjudge": "0",
                "started": "",
                "spec": spec.model_dump(mode="json", by_alias=True),
                "paths": {"records": str(records), "model": None},
                "sessions": [],
            }
        )
    )
    (run / "verdicts.jsonl").write_text("".join(verdict.model_dump_json() + "\n" for verdict in verdicts))
    return run


def read_answer(distribution: Mapping[str, float], *, score: bool = False) -> Answer:
    """As score mode reads one."""
    best = max(distribution, key=distribution.__getitem__)
    if not score:
        return Answer(value=best, distribution=dict(distribution), mass=0.9)
    mean = sum(float(label) * p for label, p in distribution.items())
    return Answer(value=int(best), distribution=dict(distribution), expected=mean, sd=0.1, entropy=1.0, mass=0.9)
