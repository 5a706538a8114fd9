"""The numbers that a replay report cites, found in its text and held against the match's data.

Knows KDA triples, gold, damage, taken and participation shares, the match's duration, kill totals of the sides, and
single counts of kills, deaths and assists where a finding names them. Knows no questions and no scores.

A cited number agrees when the actual one, rounded half up to the digits that are written, is the same (28 % for
27.6, 1.2万 for 11,834), or when it keeps to a word such as 超过, 不足 or 近 before it. Code says that a number is
wrong only when it is wrong for everybody whom the sentence may be about: those it names, the player of the section,
and in the user's own parts the user. What nobody can be found for is left alone.

A number of some moment or of several people is no error either: where its clause, or its sentence before that, has
another time of the clock, a phase (前期, 那波, 团战), a side or team, or a comparison, code confirms it and never
contradicts. Single counts (击杀3次) are contradicted only where the whole match is named. What follows the clause
does not count: in `输出占比23.8%，09:15暴君坑三杀` the share is the match's.
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
_LASTING_BEFORE = re.compile(
    r"(?:时长|历时|全程|鏖战|lasted|duration)"
    r"(?:不足|不到|超过|将近|接近|大约|近|约|共|仅|只有|达|了|为|是|only|about|nearly|around|over|was|of|[：:（( ])"
    r"{0,4}$",
    re.IGNORECASE,
)
_LASTING_AFTER = re.compile(r"\s*的(?:比赛|对局|总)?(?:时长|鏖战)|\s*(?:in|of) duration", re.IGNORECASE)
_WHOLE = re.compile(r"时长|全程|全场|全局|[整本这]局|整场|对局|比赛|总|共|match|game|duration|total", re.IGNORECASE)
_TIME = re.compile(
    r"\d{1,2}[:：]\d{2}(?!\d)|\d{1,2}\s*(?:分(?:钟)?\s*(?:\d{1,2}|半)|[′'’]\s*\d{1,2})|(?:\d{1,2}|[一二两三四五六七八九十]{1,3})\s*分钟"
    r"|\b\d{1,3}\s*min(?:utes?)?\b",
    re.IGNORECASE,
)
_PHASE = re.compile(
    r"[前中后初]期|开局|开场|起初|最初|一开始|对线期|[那这一几首次两三]波|团战|团里|会战|高地战|龙战|河道战|[上下]半场|期间"
    r"|(?<![及按准同小临暂随平有何历])时(?![长间机代速常不])|一度|后(?=[，,])|截[至止]"
    r"|之前|以前|之后|以后|\b(?:then|early|mid[- ]?game|late[- ]?game|(?:team ?)?fights?|skirmish|when|after|before"
    r"|until|while|at first)\b",
    re.IGNORECASE,
)
_EXCHANGE = re.compile(
    r"[互交]换|[一二两三四五]换|一路|扩大到|来到|追[到至平]|变成|波|trade|exchange", re.IGNORECASE
)
_GROUP = re.compile(
    r"全队(?![最第首])|[我敌对己]方|对面|[双两][方边]|[蓝红]方|[两三四五]人|队友|别人|其他人|其余|射手|打野|辅助|法师"
    r"|[上中]单|边路|游走|坦克|\b(?:teams?|both|each|enem(?:y|ies)|opponents?|their|sides?|teammates?|others)\b",
    re.IGNORECASE,
)
_COMPARED = re.compile(
    r"平均|人均|合计|总共|一共|共计|加起来|(?<!占)比(?![例赛分])[^，,。]{0,12}[高低多少强弱大小]|[高低多少]出|低了"
    r"|提升|上升|提高|下降|降低|增加|减少|增长"
    r"|\b(?:averages?|than|combined|together|more|less|fewer|higher|lower|increased?|rose|dropped|fell)\b",
    re.IGNORECASE,
)
_SCORES = re.compile(r"人头|击杀|比分|kills", re.IGNORECASE)
_DIFFERENCE = re.compile(r"差|领先|落后|反超|拉开|分别|各|ahead|behind|lead", re.IGNORECASE)
_SENTENCE = re.compile(r"(?:[^。！？!?；;.]|\.(?=\S))+[。！？!?；;.]?[”」』\"]?")
_END = re.compile(r"[。！？!?；;\n]|\.(?=\s)")
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


def of_the_match(text: str, before: int, after: int, metric: Metric) -> bool:
    """Whether text[before:after], a metric in its line or sentence, is surely said of the whole match and, where
    the metric is a player's, of one player."""
    least = max(0, before - 2 * _FAR)
    ends = [least, *(least + found.end() for found in _END.finditer(text[least:before]))]
    rest = _CLAUSE.search(text, after, after + _FAR)
    ahead, behind = text[ends[-1] : before], text[after : rest.start() if rest else after + _FAR]
    around = f"{ahead} … {behind}"
    times = [
        found
        for part in (ahead, behind)
        for found in _TIME.finditer(part)
        if not (_LASTING_BEFORE.search(part[: found.start()]) or _LASTING_AFTER.match(part[found.end() :]))
    ]
    if times or _PHASE.search(around):
        return False
    if metric == "totals":
        return not _EXCHANGE.search(around)
    if metric == "duration":
        return not _COMPARED.search(around) and bool(_WHOLE.search(around))
    if metric in ("k", "d", "a") and not _WHOLE.search(around):
        return False
    return not (_GROUP.search(around) or _COMPARED.search(around))


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
        if not (_LASTING_BEFORE.search(clause[: inside[0]]) or _LASTING_AFTER.match(clause[inside[1] :])):
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
                if settled and (settled[1] == "yes" or of_the_match(text, *number.span(), cited.metric)):
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


def span_of(value: str, quote: str) -> tuple[int, int]:
    """Where the number of a finding's value stands in its quote; at the quote's end where it does not."""
    number = _CITED.search(value) or _LONE.search(value)
    place = quote.find(number[0]) if number else -1
    if number and place >= 0:
        return place, place + len(number[0])
    end = len(quote.rstrip("。！？!?；;. "))
    return end, end
