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
from collections.abc import Iterator, Mapping
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from localjudge.engines.base import Message
from localjudge.errors import JudgeError, did_you_mean


class Shown:
    """A field as templates see it: false when empty, indexable and iterable when it holds JSON."""

    __slots__ = ("_name", "_value")

    def __init__(self, name: str, value: Any) -> None:
        self._name, self._value = name, value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __len__(self) -> int:
        return len(self._value)

    def __eq__(self, other: object) -> bool:
        return bool(self._value == (other._value if isinstance(other, Shown) else other))

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        if isinstance(self._value, str):
            return self._value
        return json.dumps(self._value, ensure_ascii=False, indent=1)

    def __iter__(self) -> Iterator[Any]:
        for value in self._value:
            yield value if isinstance(self._value, Mapping) else Shown(self._name, value)

    def __getitem__(self, key: Any) -> Shown:
        return Shown(key if isinstance(key, str) else self._name, self._value[key])


def fence(name: str, text: str) -> str:
    """`text` between an opening and a closing line that it cannot contain."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    mark = next(digest[:n] for n in range(4, len(digest) + 1) if digest[:n] not in text)
    return f"<{name} {mark}>\n{text}\n</{name} {mark}>"


def _print(value: Any) -> Any:
    return fence(value._name, str(value)) if isinstance(value, Shown) else value


def _bare(value: Any) -> str:
    return str(value)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        undefined=jinja2.StrictUndefined,
        finalize=_print,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
    )
    environment.filters["bare"] = _bare
    return environment


class Templates:
    """A judge's two templates, compiled. `source` maps role -> (where it is from, its text)."""

    def __init__(self, source: Mapping[str, tuple[str, str]]) -> None:
        environment = _environment()
        self._where = {role: where for role, (where, _) in source.items()}
        self._compiled = {}
        for role, (where, text) in source.items():
            try:
                self._compiled[role] = environment.from_string(text)
            except jinja2.TemplateSyntaxError as error:
                raise JudgeError(
                    f"the template is broken: {error.message}", where=f"{where}:{error.lineno}"
                ) from None

    def messages(self, fields: Mapping[str, Any], names: Mapping[str, Any]) -> tuple[Message, ...]:
        """The messages for one record. Raises JudgeError when a template uses a name that there is not.

        fields: the record's inputs, None where an optional one is absent; templates see each by its name, and all
        in order as `inputs` (name, value). names: what else a template may use.
        """
        shown = {name: Shown(name, value) for name, value in fields.items()}
        context = {
            **names,
            **shown,
            "inputs": [{"name": name, "value": value} for name, value in shown.items()],
        }
        messages = []
        for role in ("system", "user"):
            if template := self._compiled.get(role):
                try:
                    text = template.render(context).strip()
                except jinja2.UndefinedError as error:
                    unknown = str(error.message).split("'")[1] if "'" in str(error.message) else ""
                    raise JudgeError(
                        f"the template uses what there is not: {error.message}",
                        where=self._where[role],
                        fix=did_you_mean(unknown, context) if unknown else None,
                    ) from None
                except (jinja2.TemplateError, TypeError, ValueError, KeyError, IndexError) as error:
                    raise JudgeError(f"the template failed: {error}", where=self._where[role]) from None
                if text:
                    messages.append(Message("system" if role == "system" else "user", text))
        return tuple(messages)
