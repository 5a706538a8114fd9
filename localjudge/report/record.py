"""One record's own report: a judge's Markdown template, or the plain one here, filled with its verdict.

Templates run in Jinja2's sandbox and see `record` (its id, its fields by name, and all of them as `fields`),
`verdict`, `judge` and `checked`; `plain` shows a text in Markdown as it is. Knows no files of a run.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from localjudge.errors import RunError
from localjudge.judge.checks import Checked
from localjudge.judge.prompt import Source
from localjudge.judge.spec import JudgeSpec
from localjudge.report.markdown import cut, percent, plain, table
from localjudge.verdict import Verdict


class RecordReport:
    """A report template, compiled. Raises RunError, with the line, when it is broken."""

    def __init__(self, spec: JudgeSpec, source: Source | None) -> None:
        own = Path(__file__).with_name("record.md.j2")
        self._source = source or Source(str(own), 1, own.read_text(encoding="utf-8"))
        self._spec = spec
        environment = ImmutableSandboxedEnvironment(
            undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
        )
        environment.filters.update(plain=plain, cut=cut, percent=percent)
        environment.globals.update(table=table)
        try:
            self._template = environment.from_string(self._source.text)
        except jinja2.TemplateSyntaxError as error:
            raise self._broken(f"is broken: {error.message}", error.lineno) from None

    def _broken(self, what: str, line: int) -> RunError:
        return RunError(f"the report template {what}", where=f"{self._source.where}:{line}")

    def render(self, record_id: str, fields: Mapping[str, Any], verdict: Verdict, checked: Checked) -> str:
        """Markdown. Raises RunError when the template fails on this record."""
        try:
            return self._template.render(
                record={**fields, "id": record_id, "fields": fields},
                verdict=verdict,
                judge=self._spec,
                checked=checked,
            )
        except Exception as error:  # of any kind: it is the template that is to be mended
            lines = [at.lineno for at in traceback.extract_tb(error.__traceback__) if at.filename == "<template>"]
            raise self._broken(f"fails on '{record_id}': {error}", lines[-1] or 1 if lines else 1) from None
