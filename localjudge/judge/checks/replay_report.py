"""A game-replay report, which is Markdown or plain text, into its modules, sections and fields.

Knows how such a report is written; nothing of the match, of what is required, or of scores. The form:

    ## 一、开头                       Opening
    本局关键词：…                     Match keyword: …
    一句话短评：…                     One-line comment: …
    定性结论：…                       Conclusion: …
    ## 二、玩家分析                   Player analysis
    ### 昵称（英雄）                  one heading a player: name, hero, or `玩家3：…`
    梗系关键词：…                     Meme keyword: …
    点评：…                           Comment: …
    关键句：…                         Key sentence: …
    openid：…                         openid: …
    正负向：…                         Sentiment: …
    ## 三、本人亮点与失误             Highlights and mistakes
    ### 亮点                          Highlights: Basic numbers, Mechanics, Decisions, Team fights
    基础数值：… 操作：… 决策：… 团战处理：…
    ### 失误                          Mistakes: Basic numbers, Decisions, Team fights, Items, Other
    基础数值：… 决策：… 团战处理：… 装备：… 其他：…
    ## 四、整体分析                   Overall analysis
    ### 本局概要                      Summary
    ### 阵容分析                      Line-ups
    ### 关键转折点                    Turning points, one list item each

A heading is a Markdown heading, a line all in bold or in 【】, or a line that is nothing but a known name. A field
is `label：value`, alone on its line, and goes on until the next field or heading. Bullets, numbering, bold marks,
either width of colon, emoji, and a remark in parentheses after a name make no difference. The sections of the last
two modules may be written as fields (`本局概要：…`), and `亮点-操作：…` names section and field at once. What
belongs to one module only opens that module where its heading is missing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

MODULES = ("opening", "players", "own", "whole")
"""In the order in which they should stand."""

SECTIONS = {
    "opening": "opening",
    "players": "players",
    "player": "players",
    "own": "own",
    "highlights": "own",
    "mistakes": "own",
    "whole": "whole",
    "summary": "whole",
    "lineups": "whole",
    "turning_points": "whole",
}
"""Kind of section -> its module. A module's own name is the kind of what stands before its first section."""

LABELS = {
    "opening": ("keyword", "remark", "conclusion"),
    "player": ("meme", "comment", "key_sentence", "openid", "sentiment"),
    "highlights": ("basics", "mechanics", "decisions", "teamfights"),
    "mistakes": ("basics", "decisions", "teamfights", "items", "other"),
}
"""Kind of section -> its fields, in order."""

_HEADINGS = {
    "opening": "开头 开场 opening headline",
    "players": "玩家 玩家锐评 玩家点评 全员点评 全员锐评 player players playerreviews",
    "own": "本人亮点失误 亮点失误 我的亮点失误 highlightsmistakes ownhighlightsmistakes yourhighlightsmistakes",
    "highlights": "亮点 本人亮点 highlights yourhighlights ownhighlights",
    "mistakes": "失误 本人失误 mistakes yourmistakes ownmistakes",
    "whole": "整体 全局 整局 对局 overall whole wholematch match",
    "summary": "本局概要 对局概要 概要 summary matchsummary",
    "lineups": "阵容 双方阵容 lineup lineups",
    "turning_points": "关键转折点 转折点 turningpoint turningpoints keyturningpoints",
}
_FIELDS = {
    "keyword": "本局关键词 关键词 matchkeyword keyword",
    "remark": "一句话短评 短评 onelinecomment oneliner",
    "conclusion": "定性结论 结论 conclusion",
    "meme": "梗系关键词 梗关键词 关键词 memekeyword keyword",
    "comment": "点评 锐评 comment",
    "key_sentence": "关键句 keysentence",
    "openid": "openid",
    "sentiment": "正负向 sentiment",
    "basics": "基础数值 数值 basicnumbers numbers",
    "mechanics": "操作 mechanics",
    "decisions": "决策 decisions",
    "teamfights": "团战处理 团战 teamfights",
    "items": "装备 出装 items",
    "other": "其他 其它 other",
}
_KIND_OF = {name: kind for kind, names in _HEADINGS.items() for name in names.split()}
_ONLY_OPENING = {"本局关键词", "一句话短评", "定性结论", "matchkeyword", "onelinecomment"}
_PLAYER = re.compile(r"(?:玩家|player)\s*\d*\s*[:：]\s*(?P<title>\S.*)", re.IGNORECASE)
_MARKDOWN = re.compile(r"(?P<level>#{1,6})\s+(?P<title>\S.*)")
_BOXED = re.compile(r"\*\*(?P<bold>[^*]+)\*\*|__(?P<under>[^_]+)__|【(?P<box>[^】]+)】")
_ITEM = re.compile(r"\s*(?:[-*+•·]\s+|(?P<number>\d{1,2}\s*[.、)）](?!\d)|[①-⑩]|[（(]\d{1,2}[)）])\s*)")
_FIELD = re.compile(r"(?P<label>[^:：]{1,24}?)\s*[:：](?:\s*\*\*)?\s*(?P<value>.*)")
_NUMBERING = re.compile(
    r"(?:[（(]?[一二三四五六七八九十]+[、.)）]|模块[一二三四五六七八九十\d]+[:、.]?|[（(]?\d{1,2}[.、)）])\s*"
)
_REMARK = re.compile(r"\s*[（(][^（）()]*[)）]\s*$")
_JOINING = re.compile(r"与|和|及|\band\b|[^\w]|_", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Section:
    """kind: one of SECTIONS. title: of a player's section, its heading as written. line: where it begins."""

    kind: str
    title: str
    line: int

    @property
    def module(self) -> str:
        return SECTIONS[self.kind]


@dataclass(frozen=True, slots=True)
class Line:
    """number: from 1. text: without label and marks. section: its place in Report.sections, None outside all.
    item: how a list item is marked ('number' or 'bullet'), or 'heading', or ''. indent: columns before the text."""

    number: int
    text: str
    section: int | None
    label: str | None
    item: str
    indent: int


@dataclass(frozen=True)
class Report:
    lines: tuple[Line, ...]
    sections: tuple[Section, ...]

    @cached_property
    def _lines_of(self) -> dict[int, list[Line]]:
        """The lines of each section that have text."""
        found: dict[int, list[Line]] = {}
        for line in self.lines:
            if line.section is not None and line.text:
                found.setdefault(line.section, []).append(line)
        return found

    @property
    def order(self) -> list[str]:
        """The modules that are there, by first appearance."""
        return list(dict.fromkeys(section.module for section in self.sections))

    def find(self, kind: str) -> list[int]:
        """The places of the sections of a kind."""
        return [place for place, section in enumerate(self.sections) if section.kind == kind]

    def text(self, section: int, label: str | None = None) -> str:
        """A field, or without a label all of the section that is no heading; lines joined, '' when absent."""
        return "\n".join(
            line.text
            for line in self._lines_of.get(section, ())
            if line.item != "heading" and (label is None or line.label == label)
        )

    def points(self, section: int) -> int:
        """How many list items a section has, nested ones aside; without a list, how many paragraphs."""
        lines = self._lines_of.get(section, [])
        own = [line for line in lines if line.number > self.sections[section].line]
        for mark in ("heading", "number", "bullet"):
            marked = [line for line in own if line.item == mark]
            if marked:
                least = min(line.indent for line in marked)
                return sum(line.indent == least for line in marked)
        numbers = [line.number for line in lines if line.item != "heading"]
        return sum(number - 1 not in numbers for number in numbers)


def length(text: str) -> int:
    """字数 of a text: letters and digits of any script, one each. Punctuation, spaces, marks and emoji are none."""
    return sum(unicodedata.category(character)[0] in "LN" for character in unicodedata.normalize("NFC", text))


def parse(report: str) -> Report:
    """Never fails: what is not recognised stands in the section it follows, or in none."""
    return _Reading().all(report)


def _name(text: str) -> str:
    """What a heading or label is known by."""
    text = unicodedata.normalize("NFKC", text).casefold().strip("*_#【】 \t")
    text = "".join(c for c in text if unicodedata.category(c) not in ("So", "Mn", "Cf", "Sk")).strip()
    text = _REMARK.sub("", _NUMBERING.sub("", text, count=1))
    text = _JOINING.sub("", text)
    return re.sub(r"(?:分析|模块|analysis)$", "", text) or text


def _field(kind: str, name: str) -> str | None:
    return next((label for label in LABELS.get(kind, ()) if name in _FIELDS[label].split()), None)


class _Reading:
    """Where the reading of a report is: the section it is in, and the field."""

    def __init__(self) -> None:
        self.sections: list[Section] = []
        self.at: int | None = None
        self.label: str | None = None
        self.level = 0
        self.seen: set[str] = set()

    def all(self, report: str) -> Report:
        return Report(tuple(self._lines(report)), tuple(self.sections))

    def _lines(self, report: str) -> Iterator[Line]:
        for number, raw in enumerate(report.splitlines(), 1):
            line = raw.expandtabs(4)
            indent = len(line) - len(line.lstrip())
            text, item = line.strip(), ""
            if not text:
                yield Line(number, "", self.at, None, "", indent)
                continue
            if self._heading(text, number):
                yield Line(number, _plain(text), self.at, None, "heading", indent)
                continue
            marked = _ITEM.match(line)
            if marked:
                item = "number" if marked["number"] else "bullet"
                text = line[marked.end() :].strip()
            value = self._labelled(text, number)
            yield Line(number, _plain(text if value is None else value), self.at, self.label, item, indent)

    @property
    def kind(self) -> str | None:
        return None if self.at is None else self.sections[self.at].kind

    def _open(self, kind: str, title: str, number: int) -> None:
        self.sections.append(Section(kind, title, number))
        self.at, self.label, self.seen = len(self.sections) - 1, None, set()

    def _heading(self, text: str, number: int) -> bool:
        """Takes the line as a heading, if it is one."""
        markdown = _MARKDOWN.fullmatch(text)
        title = markdown["title"].rstrip("# ") if markdown else text
        boxed = _BOXED.fullmatch(title)
        title = next(filter(None, boxed.groups())) if boxed else title
        level = len(markdown["level"]) if markdown else 7
        kind = _KIND_OF.get(_name(title)) if len(title) <= 60 else None
        if kind == "players" and self.kind == "player" and not (markdown and level <= self.level):
            kind = None
        if kind and (markdown or boxed or not re.search(r"[:：]\s*\S", text)):
            self._open(kind, "", number)
            if kind in MODULES:
                self.level = level if markdown else 0
            return True
        inside = self.kind in ("players", "player")
        named = _PLAYER.fullmatch(_plain(title))
        item = _ITEM.match(text)
        numbered = item and item["number"] and not re.search(r"[:：。！？!?]", text) and length(text) <= 24
        if inside and (not markdown or level > self.level) and (markdown or boxed or named or numbered):
            if boxed and not markdown and _field("player", _name(title.rstrip(":："))):
                return False
            self._open("player", named["title"] if named else _plain(title), number)
            return True
        if markdown:
            if level <= self.level:
                self.at, self.label = None, None
            return True
        return False

    def _labelled(self, text: str, number: int) -> str | None:
        """The value of a line that is `label：value`, None of any other."""
        found = _FIELD.fullmatch(text)
        if not found:
            return None
        name, value = _name(found["label"]), found["value"]
        kind = _KIND_OF.get(name)
        if kind == self.kind == "turning_points":
            return None
        if kind in ("highlights", "mistakes", "summary", "lineups", "turning_points"):
            self._open(kind, "", number)
            return value
        for kind in ("highlights", "mistakes"):
            for start in _HEADINGS[kind].split():
                label = _field(kind, name.removeprefix(start)) if name.startswith(start) else None
                if label:
                    if self.kind != kind:
                        self._open(kind, "", number)
                    self.label = label
                    return value
        if name in _ONLY_OPENING and self.kind != "opening":
            self._open("opening", "", number)
        if self.kind == "players" and _field("player", name):
            self._open("player", "", number)
        label = _field(self.kind or "", name)
        if label is None:
            return None
        if self.kind == "player" and label == "meme" and label in self.seen:
            self._open("player", "", number)
        self.seen.add(label)
        self.label = label
        return value


def _plain(text: str) -> str:
    """Without the marks of emphasis and headings."""
    return re.sub(r"^#{1,6}\s+|\*\*|`", "", text).strip()
