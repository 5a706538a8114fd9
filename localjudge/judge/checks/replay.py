"""What code settles about a game-replay report: its structure, fields and lengths, whom it calls 你, and the
numbers it cites.

Knows the required modules, fields and limits, and the deductions for what is amiss (rules and figures of
`shared/seeds/001`). Reads the report through `replay_report`, the match through `replay_match`, numbers through
`replay_citations`. Asks no model.

Required: four modules in order; in them the ten players' sections, highlights and mistakes, summary, line-ups and
turning points; 65 fields (3 of the opening, 5 a player, 4 and 5 of the user's own part, 3 of the whole match).

- structure: from 100, 30 for a missing module, 15 for a missing section of one that is there, 10 for modules out
  of order. The opening has fields only.
- fields: 100 - 100·M/F for M of F missing, and 5 more for each openid, sentiment or key sentence among them. An
  openid that is not that player's is missing.
- lengths: from 100, 10 for each field out of its limits, 5 if slightly: by 5 % of the limit at most (42 for 40), or
  by one character. A missing field has no length. The count of turning points is shown, and left to the judge.
- perspective: from 100, 20 for each 你 that is somebody else: one in another player's section, unless it stands in
  quotation marks, after a preposition (被你单杀, 往你头上), or in a sentence that calls that player 他 or 她; there
  the user is told about somebody else, as everywhere outside such sections. 你们 addresses the team. Unknown where
  the match does not tell who the user is.

None goes below 0.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from localjudge.judge.checks import Checked, Language, Measured
from localjudge.judge.checks.replay_citations import (
    METRICS,
    Citation,
    Cited,
    actual,
    agrees,
    citations_in,
    of_the_match,
    read_value,
    said,
    span_of,
)
from localjudge.judge.checks.replay_match import Match, folded, read_match
from localjudge.judge.checks.replay_report import LABELS, MODULES, Report, length, parse
from localjudge.judge.scoring import deduction_score

PLAYERS = 10
LIMITS = {"keyword": (1, 5), "remark": (30, 40), "meme": (3, 5), "comment": (1, 90)}
"""Least and most characters, as `length` counts them."""
CORE = ("openid", "sentiment", "key_sentence")
WHOLE = ("summary", "lineups", "turning_points")
_QUOTES = re.compile(r"“[^”]{0,200}”|「[^」]{0,200}」|『[^』]{0,200}』|\"[^\"]{0,200}\"")
_ENDS = re.compile(r"[。！？!?；;]")
_FAR = 200
"""Characters to either side in which a sentence is looked for."""
_HIM = re.compile(r"(?<!其)他(?!们)|她(?!们)|\b(?:he|she|his|her|him)\b", re.IGNORECASE)
_TO_YOU = re.compile(
    r"[被给把往向对和跟替找帮为与比]$|\b(?:by|to|at|for|with|on|from|against|past|behind|than)\s+$", re.IGNORECASE
)
_YOU = re.compile(r"(?<!迷)[你您](?P<plural>们)?|\byou(?:r|rs|rself)?\b", re.IGNORECASE)

_WORDS: dict[Language, dict[str, str]] = {
    "zh": {
        "opening": "开头",
        "players": "玩家分析",
        "own": "本人亮点与失误",
        "whole": "整体分析",
        "highlights": "亮点",
        "mistakes": "失误",
        "summary": "本局概要",
        "lineups": "阵容分析",
        "turning_points": "关键转折点",
        "keyword": "本局关键词",
        "remark": "一句话短评",
        "conclusion": "定性结论",
        "meme": "梗系关键词",
        "comment": "点评",
        "key_sentence": "关键句",
        "openid": "openid",
        "sentiment": "正负向",
        "basics": "基础数值",
        "mechanics": "操作",
        "decisions": "决策",
        "teamfights": "团战处理",
        "items": "装备",
        "other": "其他",
        "player": "玩家{}",
        "between": "{}-{}字",
        "most": "≤{}字",
        "points": "1-3个",
        "no module": "缺主模块“{}”，扣30分",
        "no section": "缺子模块“{}”，扣15分",
        "order": "模块顺序为{}，扣10分",
        "arrow": "→",
        "missing": "缺{}/{}个字段：{}",
        "core": "其中核心字段{}个，另扣{}分",
        "length": "{}：{}字，要求{}，扣{}分",
        "you": "第{}行：“{}”指{}，扣20分",
        "user": "用户本人",
        "team": "用户所在队伍",
        "quoted": "引语",
        "nobody": "对局数据没有说明用户是哪位玩家，数据不足，暂不评分",
        "is": "对局数据：{}{}为{}",
        "lacks": "对局数据没有{}{}",
        "of": "的",
        "agrees": "，与评审的判断相同",
        "overruled": "，评审答“{}”，以数据为准",
        "added": "，评审未列出，由程序补列",
        "unrated": "评审未评此处，不计入",
        "yes": "一致",
        "no": "不一致",
        "absent": "数据中没有",
        "list": "、",
        "stop": "。",
    },
    "en": {
        "opening": "Opening",
        "players": "Player analysis",
        "own": "Highlights and mistakes",
        "whole": "Overall analysis",
        "highlights": "Highlights",
        "mistakes": "Mistakes",
        "summary": "Summary",
        "lineups": "Line-ups",
        "turning_points": "Turning points",
        "keyword": "Match keyword",
        "remark": "One-line comment",
        "conclusion": "Conclusion",
        "meme": "Meme keyword",
        "comment": "Comment",
        "key_sentence": "Key sentence",
        "openid": "openid",
        "sentiment": "Sentiment",
        "basics": "Basic numbers",
        "mechanics": "Mechanics",
        "decisions": "Decisions",
        "teamfights": "Team fights",
        "items": "Items",
        "other": "Other",
        "player": "Player {}",
        "between": "{}-{}",
        "most": "≤ {}",
        "points": "1-3",
        "no module": "the module '{}' is missing: -30",
        "no section": "the section '{}' is missing: -15",
        "order": "the modules stand in the order {}: -10",
        "arrow": " → ",
        "missing": "{} of {} fields are missing: {}",
        "core": "{} of them are core fields: another -{}",
        "length": "{} has {} characters, not {}: -{}",
        "you": "line {}: '{}' means {}: -20",
        "user": "the user",
        "team": "the user's team",
        "quoted": "a quotation",
        "nobody": "the match does not tell which player the user is, so this cannot be judged",
        "is": "in the match's data, {}{}: {}",
        "lacks": "the match's data do not have {}{}",
        "of": "'s ",
        "agrees": ", as the judge says",
        "overruled": "; the judge says '{}', and the data win",
        "added": "; the judge passed it over",
        "unrated": "the judge passed it over, so it does not count",
        "yes": "it agrees",
        "no": "it differs",
        "absent": "it is not there",
        "list": ", ",
        "stop": ".",
    },
}


def check(fields: Mapping[str, Any], language: Language) -> Checked:
    """Measures `structure`, `fields`, `lengths`, `perspective`. Tables: `fields` (name, of player and field; field;
    player, from 1, or None; present, limit, length, ok), `players` (player, and the texts of keyword and comment,
    '' where missing) and `you` (line, place, context, whom, counts). Raises ValueError when match or report cannot
    be read."""
    match, report = _read(fields)
    words = _WORDS[language]
    whose = _sections(report, match)
    rows = list(_fields(report, match, whose, words))
    you = list(_you(report, match, whose, words))
    shown: list[Mapping[str, Any]] = [row["shown"] for row in rows]
    return Checked(
        measures={
            "structure": _structure(report, match, whose, words),
            "fields": _present(rows, words),
            "lengths": _lengths(rows, words),
            "perspective": _perspective(you, match, words),
        },
        tables={"fields": shown, "players": list(_players(report, match, whose, words)), "you": list(you)},
    )


def settle(
    question: str, findings: list[dict[str, Any]], fields: Mapping[str, Any], language: Language
) -> list[dict[str, Any]]:
    """Findings with what the data say.

    `citations`: `matches` and `actual` as the data have them, where code understands the number; what the model
    passed over is added with `settled: added`. `memes`: one rating for each player and part, none for a part that
    the report lacks; parts passed over are added, rated `cannot_judge`. Other findings, and those whose quote the
    report does not have, are left as they are.
    """
    if question not in ("citations", "memes"):
        return findings
    match, report = _read(fields)
    whose = _sections(report, match)
    if question == "memes":
        return _memes(findings, fields["report"], report, match, whose, _WORDS[language])
    known = {place: player for place, player in whose.items() if player < len(match.players)}
    return _citations(findings, fields["report"], citations_in(report, match, known), match, _WORDS[language])


def _read(fields: Mapping[str, Any]) -> tuple[Match, Report]:
    report = fields.get("report")
    if not isinstance(report, str):
        raise ValueError("'report' is not a text")
    return read_match(fields.get("match")), parse(report)


def _sections(report: Report, match: Match) -> dict[int, int]:
    """Place of a player's section in the report -> the player's place in the match: by the heading, else by openid,
    else, where the heading names nobody, by order. Of two sections for one player the first counts."""
    found: dict[int, int] = {}
    places = report.find("player")
    count = len(match.players) or PLAYERS
    titles = {place: report.sections[place].title for place in places}
    for naming in (titles, {place: report.text(place, "openid") for place in places}):
        for place, name in naming.items():
            named = [player for player in match.named(name) if player not in found.values()]
            if place not in found and len(named) == 1:
                found[place] = named[0]
    for order, place in enumerate(places):
        anonymous = re.fullmatch(r"(?:玩家|player)?\W*\d*", titles[place], re.IGNORECASE)
        if place not in found and anonymous and order < count and order not in found.values():
            found[place] = order
    return found if match.players else dict(zip(places[:count], range(count), strict=False))


def _title(match: Match, player: int, words: Mapping[str, str]) -> str:
    title = match.players[player].title if player < len(match.players) else ""
    return title or words["player"].format(player + 1)


def _structure(report: Report, match: Match, whose: Mapping[int, int], words: Mapping[str, str]) -> Measured:
    order = report.order
    points: list[float] = []
    why = []
    for module in MODULES:
        if module not in order:
            points.append(30)
            why.append(words["no module"].format(words[module]))
    wanted: list[tuple[str, str, bool]] = [
        *(
            ("players", _title(match, player, words), player in whose.values())
            for player in range(len(match.players) or PLAYERS)
        ),
        *(("own", words[kind], bool(report.find(kind))) for kind in ("highlights", "mistakes")),
        *(("whole", words[kind], bool(report.find(kind))) for kind in WHOLE),
    ]
    for module, title, there in wanted:
        if module in order and not there:
            points.append(15)
            why.append(words["no section"].format(title))
    if order != [module for module in MODULES if module in order]:
        points.append(10)
        why.append(words["order"].format(words["arrow"].join(words[module] for module in order)))
    return Measured(deduction_score(points), tuple(why))


def _fields(
    report: Report, match: Match, whose: Mapping[int, int], words: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """One row a required field: what is shown, and what is counted."""
    section_of = {player: place for place, player in whose.items()}

    def row(label: str, text: str, field: str, player: int | None = None) -> dict[str, Any]:
        name = field if player is None else f"{_title(match, player, words)} {field}"
        number = None if player is None else player + 1
        shown = {"name": name, "field": field, "player": number, "present": bool(text), "ok": bool(text)}
        shown |= {"limit": "—", "length": None}
        if label not in LIMITS:
            return {"label": label, "shown": shown, "points": 0}
        low, high = LIMITS[label]
        shown["limit"] = words["between"].format(low, high) if low > 1 else words["most"].format(high)
        if not text:
            return {"label": label, "shown": shown, "points": 0}
        points = off_limits(length(text), low, high)
        return {"label": label, "shown": {**shown, "length": length(text), "ok": not points}, "points": points}

    def text_of(place: int | None, label: str | None = None) -> str:
        return "" if place is None else report.text(place, label)

    opening = next(iter(report.find("opening")), None)
    for label in LABELS["opening"]:
        yield row(label, text_of(opening, label), words[label])
    for player in range(len(match.players) or PLAYERS):
        place = section_of.get(player)
        for label in LABELS["player"]:
            text = text_of(place, label)
            if label == "openid" and not _is_theirs(text, match, player):
                text = ""
            yield row(label, text, words[label], player)
    for kind in ("highlights", "mistakes"):
        place = next(iter(report.find(kind)), None)
        for label in LABELS[kind]:
            yield row(label, text_of(place, label), f"{words[kind]}-{words[label]}")
    for kind in WHOLE:
        place = next(iter(report.find(kind)), None)
        points = 0 if place is None else report.points(place)
        found = row(kind, text_of(place) or ("…" if points else ""), words[kind])
        if kind == "turning_points":
            there = found["shown"]["present"]
            found["shown"].update(
                limit=words["points"], length=points if there else None, ok=there and 1 <= points <= 3
            )
        yield found


def _players(
    report: Report, match: Match, whose: Mapping[int, int], words: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    section_of = {player: place for place, player in whose.items()}
    for player in range(len(match.players) or PLAYERS):
        place = section_of.get(player)
        texts = ["" if place is None else report.text(place, label) for label in ("meme", "comment")]
        yield {"player": _title(match, player, words), "keyword": texts[0], "comment": texts[1]}


def off_limits(count: int, low: int, high: int) -> int:
    """What a length of `count` costs where `low` to `high` is asked: 0, 5 when slightly off, else 10."""
    over = max(low - count, count - high, 0)
    slight = max(Fraction(1), Fraction(low if count < low else high, 20))
    return 0 if not over else 5 if over <= slight else 10


def _is_theirs(text: str, match: Match, player: int) -> bool:
    """Whether an openid is the player's, as far as the match tells."""
    openid = match.players[player].openid if player < len(match.players) else ""
    return not openid or folded(openid) == folded(text)


def _present(rows: list[dict[str, Any]], words: Mapping[str, str]) -> Measured:
    missing = [row for row in rows if not row["shown"]["present"]]
    if not missing:
        return Measured(100.0)
    core = sum(row["label"] in CORE for row in missing)
    names = words["list"].join(row["shown"]["name"] for row in missing)
    why = [words["missing"].format(len(missing), len(rows), names)]
    if core:
        why.append(words["core"].format(core, 5 * core))
    score = max(Fraction(0), 100 - Fraction(100 * len(missing), len(rows)) - 5 * core)
    return Measured(float(score), tuple(why))


def _lengths(rows: list[dict[str, Any]], words: Mapping[str, str]) -> Measured:
    wrong = [row for row in rows if row["points"]]
    why = [
        words["length"].format(row["shown"]["name"], row["shown"]["length"], row["shown"]["limit"], row["points"])
        for row in wrong
    ]
    return Measured(deduction_score(row["points"] for row in wrong), tuple(why))


def _you(
    report: Report, match: Match, whose: Mapping[int, int], words: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    for line in report.lines:
        quoted = [place for found in _QUOTES.finditer(line.text) for place in range(*found.span())]
        inside = set(quoted)
        for found in _YOU.finditer(line.text):
            section = None if line.section is None else report.sections[line.section]
            place = "" if section is None else words[section.module]
            player = whose.get(line.section) if line.section is not None else None
            whom, counts = words["user"], False
            if player is not None:
                place += f"·{_title(match, player, words)}"
            if found.start() in inside:
                whom = words["quoted"]
            elif found["plural"]:
                whom = words["team"]
            elif player is not None and match.own not in (None, player) and not _of_another(line.text, found):
                whom, counts = _title(match, player, words), True
            context = line.text[max(0, found.start() - 12) : found.end() + 12]
            yield {"line": line.number, "place": place, "context": context, "whom": whom, "counts": counts}


def _of_another(text: str, you: re.Match[str]) -> bool:
    """Whether a sentence with 你 speaks of the section's player as a third person."""
    before, after = text[max(0, you.start() - _FAR) : you.start()], text[you.end() : you.end() + _FAR]
    sentence = _ENDS.split(before)[-1] + _ENDS.split(after)[0]
    return bool(_TO_YOU.search(before[-16:]) or _HIM.search(sentence))


def _perspective(you: list[dict[str, Any]], match: Match, words: Mapping[str, str]) -> Measured:
    if match.own is None:
        return Measured(None, (words["nobody"],))
    wrong = [row for row in you if row["counts"]]
    why = tuple(words["you"].format(row["line"], row["context"], row["whom"]) for row in wrong)
    return Measured(deduction_score(20 for _ in wrong), why)


def _citations(
    findings: list[dict[str, Any]], text: str, found: list[Citation], match: Match, words: Mapping[str, str]
) -> list[dict[str, Any]]:
    """The model's findings against the data, then code's own that no finding covers. A finding that says the same
    again counts once for each place where its quote occurs."""
    report = folded(text)
    free = list(found)
    whole = _unspaced(text)
    lines = [_unspaced(line) for line in text.splitlines()]

    def firm(quote: str, value: str, cited: Cited) -> bool:
        own = _unspaced(quote)
        start, end = span_of(_unspaced(value), own)
        places = [(line, at.start()) for line in lines for at in re.finditer(re.escape(own), line)] or [(own, 0)]
        return all(of_the_match(line, at + start, at + end, cited.metric) for line, at in places)

    seen: dict[tuple[str, str, str], int] = {}
    settled = []
    for finding in findings:
        quote, value = (str(finding.get(key) or "") for key in ("quote", "value"))
        if not quote or _unspaced(quote) not in whole:
            settled.append(finding)
            continue
        same = (folded(quote), folded(value), folded(str(finding.get("subject") or "")))
        seen[same] = seen.get(same, 0) + 1
        if seen[same] > max(1, report.count(same[0])):
            continue
        cited = read_value(value, quote)
        twin = _twin(cited, quote, free) if cited else None
        if twin:
            free.remove(twin)
        settled.append(
            _against(finding, cited, twin, match, words, firm(quote, value, cited)) if cited else finding
        )
    return [*settled, *(_added(citation, match, words) for citation in free)]


def _unspaced(text: str) -> str:
    """As quotes are compared: NFKC, runs of white space as one blank."""
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text)).strip()


def _twin(cited: Cited, quote: str, found: list[Citation]) -> Citation | None:
    """Code's own citation of the number that a finding quotes: the quote and its sentence must overlap."""
    quote = folded(quote)
    for citation in found:
        own = folded(citation.quote)
        same = (citation.cited.metric, citation.cited.numbers) == (cited.metric, cited.numbers)
        if same and quote and (quote in own or own in quote):
            return citation
    return None


def _against(
    finding: dict[str, Any],
    cited: Cited,
    twin: Citation | None,
    match: Match,
    words: Mapping[str, str],
    firm: bool,
) -> dict[str, Any]:
    """One finding held against the data: of the player it names, else of the one its place tells. Where it is not
    `firm` that one player and the whole match are meant, the model is confirmed or let be."""
    player = None
    if cited.metric not in ("duration", "totals"):
        subject = str(finding.get("subject") or "")
        named = match.named(subject)
        if (
            not named
            and match.own is not None
            and re.search("用户|本人|自己|你|我|user|you", subject, re.IGNORECASE)
        ):
            named = [match.own]
        player = named[0] if len(named) == 1 else twin.player if twin else None
        if player is None:
            return finding
    data = actual(match, cited.metric, player)
    matches = "absent" if not data else "yes" if agrees(cited, data) else "no"
    given = finding.get("matches")
    if twin and twin.matches == given == "yes":
        player, matches = twin.player, "yes"
    if not firm and not matches == given == "yes":
        return finding
    how = "agrees" if given == matches else "overruled"
    return {
        **finding,
        "matches": matches,
        "actual": said(match, cited.metric, player) or finding.get("actual", ""),
        "settled": how,
        "why": _why(cited, player, match, words) + words[how].format(words.get(str(given), given)) + words["stop"],
    }


def _added(citation: Citation, match: Match, words: Mapping[str, str]) -> dict[str, Any]:
    player = citation.player
    return {
        "quote": citation.quote,
        "subject": "" if player is None else match.players[player].title,
        "value": citation.value,
        "matches": citation.matches,
        "actual": citation.actual,
        "settled": "added",
        "why": _why(citation.cited, player, match, words) + words["added"] + words["stop"],
    }


def _why(cited: Cited, player: int | None, match: Match, words: Mapping[str, str]) -> str:
    metric = METRICS["zh" if words is _WORDS["zh"] else "en"][cited.metric]
    whose = "" if player is None else _title(match, player, words) + words["of"]
    true = said(match, cited.metric, player)
    return words["is"].format(whose, metric, true) if true else words["lacks"].format(whose, metric)


def _memes(
    findings: list[dict[str, Any]],
    text: str,
    report: Report,
    match: Match,
    whose: Mapping[int, int],
    words: Mapping[str, str],
) -> list[dict[str, Any]]:
    """A rating whose quote the report does not have is kept, to be seen, and uses up nothing."""
    whole = _unspaced(text)
    texts = {
        (player, part): report.text(place, label)
        for place, player in whose.items()
        for part, label in (("keyword", "meme"), ("comment", "comment"))
    }
    unrated = {key for key, own in texts.items() if own}
    kept = []
    for finding in findings:
        part = str(finding.get("part"))
        quote = folded(str(finding.get("quote") or ""))
        named = match.named(str(finding.get("player") or "")) or [
            player for (player, own), said in texts.items() if own == part and quote and quote in folded(said)
        ]
        key = (named[0], part) if len(named) == 1 else None
        if not quote or _unspaced(str(finding["quote"])) not in whole:
            kept.append(finding)
        elif key is not None and key in unrated:
            unrated.remove(key)
            kept.append({**finding, "player": _title(match, key[0], words)})
    added = [
        {
            "quote": own,
            "player": _title(match, player, words),
            "part": part,
            "rating": "cannot_judge",
            "settled": "added",
            "why": words["unrated"],
        }
        for (player, part), own in texts.items()
        if (player, part) in unrated
    ]
    return [*kept, *added]
