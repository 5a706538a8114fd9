"""What code settles about a record, so that no model is asked: a check is a module with `check`, and `settle` where
findings of the model can be held against the record.

Names the checks that a judge.yaml may ask for under `checks`. Knows no spec, no model, no files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class About:
    """What a check looks at and may settle. fields: the inputs it needs. codes: red lines; measures: by name."""

    fields: tuple[str, ...]
    codes: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()


KNOWN = {
    "scenario": About(("project",), codes=("S1", "S2", "S3", "S6", "C7")),
    "replay": About(("match", "report"), measures=("structure", "fields", "lengths", "perspective")),
}
Language = Literal["en", "zh"]


@dataclass(frozen=True, slots=True)
class Settled:
    """Whether a red line stands, and why, in one sentence of the judge's language that names the place.

    bare: the same without any word of the record's own, which is what prompts print, as no fence is around it.
    """

    stands: bool
    why: str
    bare: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Measured:
    """A number of its own scale, or None where the record does not let anybody judge; and why, point by point."""

    value: float | None
    why: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Checked:
    """What code found in a record.

    red_lines: code -> whether it stands. A code that is absent is not code's to decide in this record.
    measures: measure -> its number.
    tables: name -> rows, for the report template and, where the prompt shows them, the model.
    """

    red_lines: Mapping[str, Settled] = field(default_factory=dict)
    measures: Mapping[str, Measured] = field(default_factory=dict)
    tables: Mapping[str, list[Mapping[str, Any]]] = field(default_factory=dict)


def run_check(name: str, fields: Mapping[str, Any], language: Language) -> Checked:
    """`name`: one of KNOWN. Raises ValueError, which says what is wrong with a record that cannot be checked."""
    found: Checked = import_module(f"{__name__}.{name}").check(fields, language)
    return found


def settle(
    name: str, question: str, findings: list[dict[str, Any]], fields: Mapping[str, Any], language: Language
) -> list[dict[str, Any]]:
    """The model's findings with what code knows better: a finding that code could check has `settled` ('agrees',
    'overruled', or 'added' when only code found it) and `why`, and its typed fields as code has them."""
    module = import_module(f"{__name__}.{name}")
    if not hasattr(module, "settle"):
        return findings
    settled: list[dict[str, Any]] = module.settle(question, findings, fields, language)
    return settled
