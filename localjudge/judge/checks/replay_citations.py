"""The numbers that a replay report cites, found in its text and held against the match's data.

Knows KDA triples, gold, damage, taken and participation shares, the match's duration, kill totals of the sides, and
single counts of kills, deaths and assists where a finding names them. Knows no questions and no scores.

A cited number agrees when the actual one, rounded half up to the digits that are written, is the same (28 % for
27.6, 1.2万 for 11,834), or when it keeps to a word such as 超过, 不足 or 近 before it. Code says that a number is
wrong only when it is wrong for everybody whom the sentence may be about: those it names, the player of the section,
and in the user's own parts the user. What nobody can be found for is left alone.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from localjudge.judge.checks.replay_match import Match, seconds
from localjudge.judge.checks.replay_report import Report

Metric = Literal["kda", "gold", "damage_share", "taken_share", "participation", "duration", "totals", "k", "d", "a"]
Matches = Literal["yes", "no", "absent"]

METRICS: dict[str, dict[str, str]] = {
    "zh": {
        "kda": "KDA",
        "gold": "经济",
        "damage_share": "输出占比",
        "taken_share": "承伤占比",
        "participation": "参团率",
        "duration": "时长",
        "totals": "双方击杀",
        "k": "击杀数",
        "d": "死亡数",
        "a": "助攻数",
    },
    "en": {
        "kda": "KDA",
        "gold": "gold",
        "damage_share": "share of damage",
        "taken_share": "share of damage taken",
        "participation": "participation",
        "duration": "duration",
        "totals": "kills of the sides",
        "k": "kills",
        "d": "deaths",
        "a": "assists",
    },
}

_TRIPLE = r"\d{1,2}\s*[/／]\s*\d{1,2}\s*[/／]\s*\d{1,2}|\d{1,2}\s*杀\s*\d{1,2}\s*死\s*\d{1,2}\s*助(?:攻)?"
_CITED = re.compile(
    rf"(?<![\d.])(?:(?P<kda>{_TRIPLE})|(?P<clock>\d{{1,2}}[:：]\d{{2}}(?!\d)|\d{{1,2}}\s*分(?:钟)?(?:\s*\d{{1,2}}\s*秒)?"
    r"|\d{1,3}\s*min(?:utes?)?\b(?:\s*\d{1,2}\s*s(?:econds?)?\b)?)"
    r"|(?P<share>\d{1,3}(?:\.\d+)?\s*[%％])|(?P<totals>\d{1,3}\s*比\s*\d{1,3})"
    r"|(?P<gold>\d{1,7}(?:\.\d{1,4})?\s*[万wWkK](?![A-Za-z])|\d{1,3}(?:,\d{3})+|\d{4,6}(?!\d)))"
)
_LONE = re.compile(r"\d{1,2}(?![\d.%％万wWkK:：/／])")
_WORD = re.compile(
    r"(?P<taken_share>(?:承伤|承受伤害|承受的伤害|damage taken|taken)(?:占比|比例|占|share)?)"
    r"|(?P<damage_share>(?:输出|伤害|damage)(?!转化)(?:占比|比例|占| share)?)"
    r"|(?P<participation>参团(?:率)?|participation)"
    r"|(?P<gold>经济|金币|身价|gold)"
    r"|(?P<other>转化率|胜率|命中|推塔|治疗|护盾|血量|生命|冷却)",
    re.IGNORECASE,
)
_COUNTS = (("k", r"击杀|人头|kills?"), ("d", r"死亡|阵亡|deaths?|死"), ("a", r"助攻|assists?"))
_LASTING = re.compile(r"时长|全程|全长|历时|整局|打了|鏖战|lasted|duration|long", re.IGNORECASE)
_SCORES = re.compile(r"人头|击杀|比分|kills", re.IGNORECASE)
_DIFFERENCE = re.compile(r"差|领先|落后|反超|拉开|分别|各|ahead|behind|lead", re.IGNORECASE)
_SENTENCE = re.compile(r"(?:[^。！？!?；;.]|\.(?=\S))+[。！？!?；;.]?[”」』\"]?")
_USER = re.compile("你|我|you", re.IGNORECASE)
_CLAUSE = re.compile(r"[，,、。！？!?；;]")
_FAR = 100
"""Characters to either side in which a clause is looked for."""

_RELATIONS = (
    ("over", re.compile(r"(?:超过|超出|超|高于|突破|多于|over|above|more than)\s*了?\s*$", re.IGNORECASE)),
    ("under", re.compile(r"(?:不足|不到|低于|少于|未满|under|below|less than)\s*$", re.IGNORECASE)),
    ("near", re.compile(r"(?:将近|接近|大约|约|近|about|nearly|around)\s*$", re.IGNORECASE)),
)


@dataclass(frozen=True, slots=True)
class Cited:
    """A number as written. digits: its last written unit, by which it may be rounded."""

    metric: Metric
    numbers: tuple[Fraction, ...]
    digits: Fraction = Fraction(1)
    relation: str = "equal"


@dataclass(frozen=True, slots=True)
class Citation:
    """A data point that code found in the report. quote: its clause or sentence, as written. player: its place in
    the match, None for the match itself. actual: what the data say."""

    line: int
    quote: str
    value: str
    cited: Cited
    player: int | None
    matches: Matches
    actual: str


def actual(match: Match, metric: Metric, player: int | None) -> list[tuple[Fraction, ...]]:
    """What the data say, in every form that a report may give it; [] when they do not."""
    if metric == "duration":
        return [] if match.duration is None else [(Fraction(match.duration),)]
    if metric == "totals":
        both = tuple(Fraction(number) for number in match.totals)
        return [both, both[::-1]] if len(both) == 2 else []
    if player is None:
        return []
    who = match.players[player]
    if metric == "kda":
        return [] if who.kda is None else [tuple(map(Fraction, who.kda))]
    if metric in ("k", "d", "a"):
        return [] if who.kda is None else [(Fraction(who.kda["kda".index(metric)]),)]
    value = getattr(who, metric)
    return [] if value is None else [(Fraction(str(value)),)]


def said(match: Match, metric: Metric, player: int | None) -> str:
    """The actual value as people write it, '' when there is none."""
    found = actual(match, metric, player)
    if not found:
        return ""
    [first, *rest] = found[0]
    if metric == "kda":
        return "/".join(str(number) for number in found[0])
    if metric == "totals":
        return f"{first}:{rest[0]}"
    if metric == "duration":
        return f"{first // 60}:{int(first % 60):02d}"
    if metric in ("k", "d", "a", "gold"):
        return f"{float(first):g}" if first.denominator > 1 else str(first)
    return f"{float(first):g}%"


def agrees(cited: Cited, found: list[tuple[Fraction, ...]]) -> bool:
    """Whether one of the forms of the actual value is what was written."""
    return any(
        len(value) == len(cited.numbers)
        and all(_same(cited, said, true) for said, true in zip(cited.numbers, value, strict=True))
        for value in found
    )


def _same(cited: Cited, written: Fraction, true: Fraction) -> bool:
    if cited.relation == "over":
        return true > written
    if cited.relation == "under":
        return true < written
    if cited.relation == "near" and abs(true - written) <= max(cited.digits, written / 50):
        return True
    if cited.metric == "duration" and cited.digits > 1 and written <= true < written + cited.digits:
        return True
    return math.floor(true / cited.digits + Fraction(1, 2)) * cited.digits == written


def read_number(text: str, before: int, after: int, clause: str, place: int) -> Cited | None:
    """text[before:after] as a datum of its clause, which stands at `place` in the text; None when it is none that
    code knows."""
    raw = unicodedata.normalize("NFKC", text[before:after])
    ahead = text[place:before]
    relation = next((name for name, words in _RELATIONS if words.search(ahead)), "equal")
    inside = (before - place, after - place)
    if re.fullmatch(_TRIPLE, raw):
        return Cited("kda", tuple(Fraction(number) for number in re.findall(r"\d+", raw)))
    if "比" in raw:
        if not _SCORES.search(clause):
            return None
        return Cited("totals", tuple(Fraction(number) for number in re.findall(r"\d+", raw)))
    if (time := seconds(raw)) is not None:
        if not _LASTING.search(clause):
            return None
        whole = not re.search(r"[秒:]|\d\s*s", raw)
        return Cited("duration", (Fraction(time),), Fraction(60 if whole else 1), relation)
    if raw.endswith("%"):
        digits = raw.removesuffix("%").strip()
        word = _nearest(clause, inside)
        if word not in ("damage_share", "taken_share", "participation") or re.search("分别|各", clause):
            return None
        return Cited(word, (Fraction(digits),), _unit(digits), relation)
    if gold := re.fullmatch(r"([\d,]+(?:\.\d+)?)\s*([万wk]?)", raw, re.IGNORECASE):
        digits, times = gold[1].replace(",", ""), {"": 1, "k": 1000}.get(gold[2].casefold(), 10000)
        if (gold[2] or Fraction(digits) >= 1000) and _nearest(clause, inside) == "gold":
            if _DIFFERENCE.search(clause):
                return None
            return Cited("gold", (Fraction(digits) * times,), _unit(digits) * times, relation)
        if not gold[2] and _LONE.fullmatch(digits):
            return _count(clause, inside, Fraction(digits), relation)
    return None


def _unit(digits: str) -> Fraction:
    return Fraction(1, 10 ** len(digits.partition(".")[2]))


def _nearest(clause: str, inside: tuple[int, int]) -> Metric | None:
    """The metric whose word stands closest to a number; of two as close, the one before it."""
    start, end = inside
    found = [
        (start - word.end() if word.end() <= start else word.start() - end, word.start() > start, word.lastgroup)
        for word in _WORD.finditer(clause)
    ]
    name = min(found)[2] if found else None
    return name if name in ("gold", "damage_share", "taken_share", "participation") else None  # type: ignore[return-value]


def _count(clause: str, inside: tuple[int, int], number: Fraction, relation: str) -> Cited | None:
    """`5次击杀`, `阵亡8次`: only where the word stands right beside the number."""
    for name, words in _COUNTS:
        beside = rf"(?:{words})(?:了|数|次数|为|是|达|[：: ])*$", rf"^\s*(?:次|个)?\s*(?:{words})"
        if re.search(beside[0], clause[: inside[0]]) or re.match(beside[1], clause[inside[1] :]):
            return Cited(name, (number,), Fraction(1), relation)  # type: ignore[arg-type]
    return None


def clause_of(text: str, start: int, end: int) -> tuple[str, int]:
    """The clause around text[start:end], and where it begins."""
    least, most = max(0, start - _FAR), end + _FAR
    before = [found.end() for found in _CLAUSE.finditer(text, least, start)]
    after = _CLAUSE.search(text, end, most)
    first, last = before[-1] if before else least, after.start() if after else min(most, len(text))
    return text[first:last], first


def citations_in(report: Report, match: Match, players: dict[int, int]) -> list[Citation]:
    """The data points that code finds. players: place of a player's section -> player in the match."""
    found = []
    for line in report.lines:
        if line.section is None or line.label == "openid":
            continue
        for sentence in _SENTENCE.finditer(line.text):
            text = sentence[0]
            named = match.mentions(text)
            to_user = bool(_USER.search(text))
            for number in _CITED.finditer(text):
                clause, place = clause_of(text, *number.span())
                cited = read_number(text, *number.span(), clause, place)
                if cited is None:
                    continue
                own = to_user or report.sections[line.section].module in ("own", "opening")
                user = match.own if own else None
                who = list(_may_be_about(number.start(), named, players.get(line.section), user))
                settled = _hold(cited, match, who)
                if settled:
                    player, matches = settled
                    found.append(
                        Citation(
                            line.number,
                            text.strip() if len(text) <= 2 * _FAR else clause.strip(),
                            number[0],
                            cited,
                            player,
                            matches,
                            said(match, cited.metric, player),
                        )
                    )
    return found


def _may_be_about(
    before: int, named: list[tuple[int, int]], section: int | None, user: int | None
) -> Iterator[int]:
    """Whom a number may be about, the likeliest first: the one named last before it, the player of the section, the
    user where addressed, others named in the sentence. named: (offset, player) in the sentence."""
    earlier = [player for offset, player in named if offset < before]
    yield from earlier[-1:]
    if section is not None:
        yield section
    if user is not None:
        yield user
    yield from (player for _, player in named)


def _hold(cited: Cited, match: Match, who: list[int]) -> tuple[int | None, Matches] | None:
    """Whom it is about and whether it is right; None when that cannot be known."""
    if cited.metric in ("duration", "totals"):
        found = actual(match, cited.metric, None)
        return None, "absent" if not found else "yes" if agrees(cited, found) else "no"
    if not who:
        return None
    known = {player: actual(match, cited.metric, player) for player in who}
    for player, found in known.items():
        if agrees(cited, found):
            return player, "yes"
    if not any(known.values()):
        return who[0], "absent"
    return (who[0], "no") if all(known.values()) else None


def read_value(value: str, quote: str) -> Cited | None:
    """A finding's value, understood by the quote it stands in."""
    number = _CITED.search(value) or _LONE.search(value)
    if not number:
        return None
    place = quote.find(number[0])
    for text, at in ((quote, place), (value, number.start())):
        if at >= 0:
            end = at + len(number[0])
            clause, first = clause_of(text, at, end)
            cited = read_number(text, at, end, clause, first) or read_number(text, at, end, text, 0)
            if cited:
                return cited
    return None
