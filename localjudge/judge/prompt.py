"""Templates and a record into messages.

Templates are Jinja2, in its sandbox. A field of the record prints inside a fence named after it, whose mark is
drawn from the text itself and does not occur in it, so that nothing in the text can close it:

    <response 3f9c>
    ...
    </response 3f9c>

`{{ response | bare }}` prints without the fence.

A picture has no text. `{{ image(1) }}` puts the record's first one at that place of the message, and an input of
pictures printed by its name puts all of its own there, each after its number.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, NoReturn

import jinja2
import jinja2.meta
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from localjudge.engines.base import Message
from localjudge.errors import JudgeError, did_you_mean
from localjudge.images import Picture


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
        return bare(self) if _pictures(self._value) else fence(self._name, bare(self))

    def __contains__(self, item: object) -> bool:
        return _value(item) in self._value

    def __iter__(self) -> Iterator[Shown]:
        """The parts of a list, the keys of an object."""
        return (Shown(self._name, part) for part in self._value)

    def __getitem__(self, key: Any) -> Shown:
        """A part. A key that the template writes names it; one that comes from the record cannot."""
        return Shown(key if isinstance(key, str) else self._name, self._value[_value(key)])


class _Placed(NamedTuple):
    """A picture as templates see it. number: its own among the record's, from 1. mark: what stands for it in the
    text that a template writes; drawn anew for each record, so that no text can have it."""

    number: int
    mark: str


class _Places:
    """The pictures of one record while its templates are written.

    fields: the inputs, their pictures exchanged for their places.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._nonce = f"{secrets.randbelow(10**20):020}"  # digits, which no filter turns into others
        self._pictures: list[Picture] = []
        self.fields = {name: self._taken(value) for name, value in fields.items()}

    def _taken(self, value: Any) -> Any:
        if not (isinstance(value, list) and value and all(isinstance(item, Picture) for item in value)):
            return value
        numbers = range(len(self._pictures) + 1, len(self._pictures) + len(value) + 1)
        self._pictures += value
        return [_Placed(number, self._mark(number)) for number in numbers]

    def _mark(self, number: int) -> str:
        return f"\ue000{self._nonce}-{number}\ue001"

    def image(self, number: Any) -> str:
        """What templates call."""
        number = _value(number)
        if isinstance(number, bool) or not isinstance(number, int):
            raise ValueError(f"image({number!r}): give a number, from 1")
        if not 1 <= number <= len(self._pictures):
            raise ValueError(f"there is no image({number}): the record has {len(self._pictures) or 'no'} pictures")
        return self._mark(number)

    def message(self, role: Literal["system", "user"], text: str) -> Message:
        """The message that a template has written, its pictures in their places. Raises ValueError."""
        begun = f"\ue000{self._nonce[:12]}"  # of a place that is cut; few enough to find it, too many to be guessed
        if begun not in text:
            return Message(role, text)
        if role == "system":
            raise ValueError("a picture can stand in the user's message only: move it to the user template")
        told, *placed = re.split(f"\ue000{self._nonce}-(\\d+)\ue001", text)
        images = []
        for number, after in zip(placed[::2], placed[1::2], strict=True):
            images.append((len(told), self._pictures[int(number) - 1]))
            told += after
        if begun in told:
            raise ValueError("the place of a picture is cut or changed: print image(n) as it is")
        return Message(role, told, tuple(images))


def _pictures(value: Any) -> Sequence[_Placed]:
    """The pictures that are all there is in a value; none of another value."""
    if isinstance(value, _Placed):
        return [value]
    return value if isinstance(value, list) and value and isinstance(value[0], _Placed) else ()


def _value(item: object) -> Any:
    return item._value if isinstance(item, Shown) else item


def bare(item: object) -> str:
    """The text without its fence. Of several pictures, each after its number."""
    value = _value(item)
    if isinstance(value, _Placed):
        return value.mark
    if placed := _pictures(value):
        return "\n".join(f"[image {number}]\n{mark}" for number, mark in placed)
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
        those that are there in order as `inputs` (name, value). names: what else a template may use. Pictures are
        numbered over all inputs, in their order.
        """
        places = _Places(fields)
        shown = {name: Shown(name, value) for name, value in places.fields.items() if value is not None}
        context = {
            IMAGE: places.image,
            **{name: _Absent(name=name) for name in fields},
            **shown,
            **names,
            "inputs": [{"name": name, "value": value} for name, value in shown.items()],
        }
        messages = []
        roles: tuple[Literal["system", "user"], ...] = ("system", "user")
        for role in roles:
            if template := self._compiled.get(role):
                try:
                    message = places.message(role, template.render(context).strip())
                except Exception as error:  # of any kind: it is the template that is to be mended
                    lines = [at.lineno for at in traceback.extract_tb(error.__traceback__) if at.filename == _NAME]
                    what = f"the template failed: {error or type(error).__name__}"
                    self._refuse(role, lines[-1] or 1 if lines else 1, what)
                if message.text or message.images:
                    messages.append(message)
        return tuple(messages)


IMAGE = "image"
"""The name by which templates place a picture; theirs alone where a judge has inputs of images."""

_NAME = "<template>"
"""Jinja's own name, in tracebacks, for a template that comes from a string."""
