"""Templates and a record into messages.

Templates are Jinja2, in its sandbox. A field of the record prints inside a fence named after it, whose mark is
drawn from the text itself and does not occur in it, so that nothing in the text can close it:

    <response 3f9c>
    ...
    </response 3f9c>

`{{ response | bare }}` prints without the fence.
"""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import jinja2
import jinja2.meta
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from localjudge.engines.base import Message
from localjudge.errors import JudgeError, did_you_mean


def fence(name: str, text: str) -> str:
    """`text` between an opening and a closing line that it cannot contain, in upper or lower case."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    folded = text.casefold()
    mark = next(digest[:n] for n in range(4, len(digest) + 1) if digest[:n] not in folded)
    return f"<{name} {mark}>\n{text}\n</{name} {mark}>"


class Shown:
    """A field, or a part of one, as templates see it: its text is fenced however it gets into the prompt.

    False when empty. Indexable and iterable when it holds JSON, whose parts are fields again.
    """

    __slots__ = ("_name", "_value")

    def __init__(self, name: str, value: Any) -> None:
        self._name, self._value = name, value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __len__(self) -> int:
        return len(self._value)

    def __eq__(self, other: object) -> bool:
        return bool(self._value == _value(other))

    def __hash__(self) -> int:
        return hash(self._value if isinstance(self._value, str) else bare(self))

    def __str__(self) -> str:
        return fence(self._name, bare(self))

    def __contains__(self, item: object) -> bool:
        return _value(item) in self._value

    def __iter__(self) -> Iterator[Shown]:
        """The parts of a list, the keys of an object."""
        return (Shown(self._name, part) for part in self._value)

    def __getitem__(self, key: Any) -> Shown:
        """A part. A key that the template writes names it; one that comes from the record cannot."""
        return Shown(key if isinstance(key, str) else self._name, self._value[_value(key)])


def _value(item: object) -> Any:
    return item._value if isinstance(item, Shown) else item


def bare(item: object) -> str:
    """The text without its fence."""
    value = _value(item)
    if isinstance(value, str) or not isinstance(item, Shown):
        return str(value)
    return json.dumps(value, ensure_ascii=False, indent=1)


class _Undefined(jinja2.StrictUndefined):
    """What there is not, in words."""

    @property
    def _undefined_message(self) -> str:
        if isinstance(self._undefined_obj, Shown):
            return f"'{self._undefined_obj._name}' has no '{self._undefined_name}'"
        return super()._undefined_message


class _Absent(_Undefined):
    """An optional input that a record lacks: false, not defined, and nothing else."""

    def __bool__(self) -> bool:  # type: ignore[override]
        return False

    @property
    def _undefined_message(self) -> str:
        name = self._undefined_name
        return f"the optional input '{name}' may be absent: use it between {{% if {name} %}} and {{% endif %}}"


class Source(NamedTuple):
    """A template's text, where it is from, and on which line it begins there."""

    where: str
    line: int
    text: str


class Templates:
    """A judge's templates, compiled. sources: role -> template. known: every name that they may use.

    Raises JudgeError, with the line, for a template that is broken or uses another name.
    """

    def __init__(self, sources: Mapping[str, Source], known: Collection[str]) -> None:
        environment = ImmutableSandboxedEnvironment(undefined=_Undefined, trim_blocks=True, lstrip_blocks=True)
        environment.filters["bare"] = bare
        self.sources = sources
        self.used: set[str] = set()
        """The names that the templates mention."""
        self._compiled = {}
        for role, source in sources.items():
            try:
                tree = environment.parse(source.text)
                self._compiled[role] = environment.from_string(source.text)
            except jinja2.TemplateSyntaxError as error:
                self._refuse(role, error.lineno, f"the template is broken: {error.message}")
            used = jinja2.meta.find_undeclared_variables(tree)
            self.used |= used
            if unknown := used - set(known):
                first = next(name for name in tree.find_all(jinja2.nodes.Name) if name.name in unknown)
                what = f"the template uses '{first.name}', which there is not"
                self._refuse(role, first.lineno, what, did_you_mean(first.name, known))

    def _refuse(self, role: str, line: int, what: str, fix: str | None = None) -> NoReturn:
        source = self.sources[role]
        raise JudgeError(what, where=f"{source.where}:{source.line + line - 1}", fix=fix) from None

    def messages(self, fields: Mapping[str, Any], names: Mapping[str, Any]) -> tuple[Message, ...]:
        """The messages for one record. Raises JudgeError when a template fails on it.

        fields: the record's inputs, None where an optional one is absent; templates see each by its name, and
        those that are there in order as `inputs` (name, value). names: what else a template may use.
        """
        shown = {name: Shown(name, value) for name, value in fields.items() if value is not None}
        context = {
            **{name: _Absent(name=name) for name in fields},
            **shown,
            **names,
            "inputs": [{"name": name, "value": value} for name, value in shown.items()],
        }
        messages = []
        for role in ("system", "user"):
            if template := self._compiled.get(role):
                try:
                    text = template.render(context).strip()
                except Exception as error:  # of any kind: it is the template that is to be mended
                    lines = [at.lineno for at in traceback.extract_tb(error.__traceback__) if at.filename == _NAME]
                    what = f"the template failed: {error or type(error).__name__}"
                    self._refuse(role, lines[-1] or 1 if lines else 1, what)
                if text:
                    messages.append(Message("system" if role == "system" else "user", text))
        return tuple(messages)


_NAME = "<template>"
"""Jinja's own name, in tracebacks, for a template that comes from a string."""
