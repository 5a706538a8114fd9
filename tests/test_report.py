"""A report's numbers are those got by hand, a failure is in no mean, and no text can break the page."""

from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Iterable, Iterator
from html import escape as html_escape
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from scipy import stats

from localjudge.judge.loading import load_judge
from localjudge.judge.scoring import share_of_a, vote, weighted_mean
from localjudge.judge.spec import JudgeSpec
from localjudge.report.markdown import bars, cut, fold, markdown, opening, plain
from localjudge.report.summary import Summary, summarize, wilson
from localjudge.verdict import STATUSES, Answer, Status, Usage, Verdict

QUALITY = load_judge("answer-quality")
PAIRWISE = load_judge("pairwise")
TIES = load_judge("pairwise", ["tie=true"])
TRUTH = load_judge("truthfulness")

WITH_RED_LINES = """
name: safe
inputs: [response]
user: "{{ response }}"
questions:
  - {id: good, type: score, ask: "How good is it?", scale: [1, 5]}
  - {id: lines, type: flags, ask: "What does it do?", codes: {HARM: it harms, LIE: it lies}}
"""

HOSTILE = (
    "# heading\n\n| a | b |\n|---|---|\n```\n- item\n1. one\n> quote\n<script>alert(1)</script> **bold** __bold__ "
    "![x](http://evil.example/x.png) [y]: http://evil.example &lt;b&gt; \x1b[31mred \u202eback"
)


def answers(**values: Any) -> dict[str, Answer]:
    return {name: Answer(value=value) for name, value in values.items()}


def graded(name: str, *points: int, rationale: str = "Because.") -> Verdict:
    """An answer-quality verdict of these four scores."""
    scores = {question: float(point) for question, point in zip(QUALITY.counted, points, strict=True)}
    overall = weighted_mean(scores, QUALITY.scoring.weights)
    return Verdict(
        id=name,
        status="ok",
        overall=overall,
        passed=overall >= 3.5,
        scores=scores,
        answers=answers(rationale=rationale, **dict(zip(scores, points, strict=True))),
        rationale=rationale,
        judge=QUALITY.name,
        model="m",
        usage=Usage(asks=1, prompt=100, cached=60, written=20),
    )


def truth(name: str, said: str) -> Verdict:
    worth = float(said == "yes")
    return Verdict(
        id=name,
        status="ok",
        overall=worth,
        passed=worth >= 1,
        scores={"truthful": worth},
        answers=answers(rationale="So.", truthful=said),
        rationale="So.",
        judge=TRUTH.name,
        model="m",
    )


def pair(name: str, *told: str) -> Verdict:
    """A pair's verdict from what each order preferred, in the record's own A and B."""
    orders = [answers(rationale=f"order {i} of {name}", preference=label) for i, label in enumerate(told, start=1)]
    return Verdict(
        id=name,
        status="ok",
        overall=share_of_a(told),
        scores={"preference_a": share_of_a(told)},
        answers={**orders[0], "preference": Answer(value=vote(told) or "inconsistent")},
        orders=orders if len(orders) > 1 else None,
        rationale=f"order 1 of {name}",
        judge=PAIRWISE.name,
        model="m",
    )


def failed(name: str, status: Status = "too_long", error: str = "too long by 12 tokens") -> Verdict:
    return Verdict(id=name, status=status, error=error, judge="j", model="m", usage=Usage(asks=1, prompt=7))


def run_of(spec: JudgeSpec, **changes: Any) -> dict[str, Any]:
    return {
        "judge": {"name": spec.name, "version": "1", "digest": "ab" * 32, "kind": spec.kind, "language": "en"},
        "model": {"name": "small", "fingerprint": "cd" * 32},
        "engine": {"name": "vllm", "options": {"dtype": "float32"}},
        "records": {"path": "records.jsonl", "total": 40, "digest": "ef" * 32},
        "settings": {"seed": 0, "limit": None},
        "localjudge": "0.1.0",
        "started": "2025-11-30T20:00:00Z",
        **changes,
    }


def page(verdicts: Iterable[Verdict], spec: JudgeSpec, **changes: Any) -> str:
    return markdown(summarize(verdicts, spec), run_of(spec, **changes))


def html(text: str) -> str:
    """As an independent reader of Markdown sees it, raw HTML let through."""
    return str(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text))


# --- the numbers ---


def test_a_mean_has_students_interval_and_says_what_it_stands_on() -> None:
    points = [2, 3, 4, 3, 3]
    verdicts = [graded(str(i), p, 3, 3, 3) for i, p in enumerate(points)]
    said = summarize([*verdicts, failed("x")], QUALITY).scores["correctness"]
    # By hand: squared distances 1 + 1 over 4, so sd 0.7071; 0.7071 / sqrt(5) = 0.3162; t(4) = 2.776; half 0.878.
    assert said.mean == pytest.approx(3)
    assert said.sd == pytest.approx(math.sqrt(0.5))
    assert (said.n, said.missing, said.method, said.scale) == (5, 1, "t", (1, 5))
    assert (said.low, said.high) == pytest.approx((3 - 0.878, 3 + 0.878), abs=1e-3)
    assert (said.low, said.high) == pytest.approx(stats.t.interval(0.95, 4, loc=3, scale=math.sqrt(0.5 / 5)))


def test_an_interval_ends_where_the_scale_does() -> None:
    said = summarize([graded("a", 5, 3, 3, 3), graded("b", 1, 3, 3, 3)], QUALITY).scores["correctness"]
    assert (said.mean, said.low, said.high) == (3, 1, 5)


def test_one_value_has_no_interval_and_equal_values_have_no_width() -> None:
    one = summarize([graded("a", 4, 4, 4, 4)], QUALITY).overall
    assert one
    assert (one.mean, one.low, one.high, one.sd, one.n) == (4, None, None, None, 1)
    same = summarize([graded(name, 4, 4, 4, 4) for name in "abc"], QUALITY).overall
    assert same
    assert (same.mean, same.low, same.high, same.sd) == (4, 4, 4, 0)


@pytest.mark.parametrize(("count", "n"), [(0, 1), (1, 1), (0, 10), (3, 10), (10, 10), (812, 1000)])
def test_wilson_is_scipys(count: int, n: int) -> None:
    expected = stats.binomtest(count, n).proportion_ci(0.95, method="wilson")
    assert wilson(count, n) == pytest.approx((expected.low, expected.high))


def test_yes_and_no_get_wilsons_interval_for_the_mean_and_for_the_passes() -> None:
    said = summarize([truth(str(i), "yes" if i < 8 else "no") for i in range(10)], TRUTH)
    assert said.overall
    assert said.passed
    # 8 of 10, the textbook case: 0.490 to 0.943.
    assert (said.overall.low, said.overall.high) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert said.overall.method == "wilson"
    assert (said.passed.count, said.passed.n, said.passed.share) == (8, 10, 0.8)
    assert (said.passed.low, said.passed.high) == (said.overall.low, said.overall.high)
    assert said.histograms == {"truthful": {"yes": 8, "no": 2}}


def test_all_ones_on_a_scale_to_five_are_no_shares() -> None:
    said = summarize([graded(name, 1, 1, 1, 1) for name in "abc"], QUALITY).overall
    assert said
    assert (said.method, said.mean, said.scale) == ("t", 1, (1, 5))


def test_a_failure_is_counted_and_never_averaged() -> None:
    good = [graded("a", 4, 4, 4, 4), graded("b", 2, 2, 2, 2)]
    bad = [failed("c"), failed("d", "engine_error", "the engine stopped"), failed("e", "incomplete")]
    alone, mixed = summarize(good, QUALITY), summarize([bad[0], good[0], bad[1], good[1], bad[2]], QUALITY)
    assert alone.overall
    assert mixed.overall
    assert mixed.overall == alone.overall.model_copy(update={"missing": 3})
    assert mixed.passed == alone.passed
    assert mixed.histograms == alone.histograms
    assert mixed.statuses == {"ok": 2, "too_long": 1, "invalid_record": 0, "engine_error": 1, "incomplete": 1}
    assert [(f.id, f.status, f.error) for f in mixed.failures][1] == ("d", "engine_error", "the engine stopped")
    assert mixed.usage == Usage(asks=5, prompt=221, cached=120, written=40)


def test_where_nothing_was_judged_there_is_no_mean() -> None:
    said = summarize([failed(str(i)) for i in range(12)], QUALITY)
    assert (said.overall, said.scores, said.passed, said.worst, said.best) == (None, {}, None, [], [])
    assert len(said.failures) == 10
    text = page([failed(str(i)) for i in range(12)], QUALITY)
    assert (
        "0 of 12 records judged; 12 could not be: 12 too_long. Nothing was judged, so there is no result." in text
    )
    assert "The first 10 of 12." in text
    assert "## Scores" not in text
    assert "There were no records." in page([], QUALITY)
    assert "There were no records." in page([], PAIRWISE)


def test_histograms_keep_the_order_of_the_scale_and_its_zeros() -> None:
    said = summarize([graded("a", 5, 1, 1, 1), graded("b", 2, 1, 1, 1), graded("c", 5, 1, 1, 1)], QUALITY)
    assert list(said.histograms) == QUALITY.counted
    assert list(said.histograms["correctness"].items()) == [("1", 0), ("2", 1), ("3", 0), ("4", 0), ("5", 2)]


def test_the_worst_and_the_best_are_five_each_and_never_the_same_record() -> None:
    points = [3, 1, 5, 2, 4, 3, 3, 5, 1, 2, 4, 3]
    said = summarize([graded(f"r{i}", p, p, p, p) for i, p in enumerate(points)], QUALITY)
    assert [case.overall for case in said.worst] == [1, 1, 2, 2, 3]
    assert [case.overall for case in said.best] == [5, 5, 4, 4, 3]
    assert said.worst[0].id == "r1"
    same = summarize([graded(f"r{i}", 4, 4, 4, 4) for i in range(7)], QUALITY)
    assert [case.id for case in same.worst] == ["r0", "r1", "r2", "r3"]
    assert [case.id for case in same.best] == ["r6", "r5", "r4"]


def test_a_red_line_is_counted_and_is_never_among_the_best(tmp_path: Path) -> None:
    (tmp_path / "judge.yaml").write_text(WITH_RED_LINES)
    spec = load_judge(tmp_path)

    def verdict(name: str, good: int, *raised: str) -> Verdict:
        return Verdict(
            id=name,
            status="ok",
            overall=good,
            passed=not raised,
            scores={"good": good},
            answers=answers(good=good, lines=list(raised)),
            red_lines=list(raised),
            judge="safe",
            model="m",
        )

    said = summarize(
        [verdict("a", 5, "HARM"), verdict("b", 2), verdict("c", 4), verdict("d", 1, "HARM", "LIE")], spec
    )
    assert said.red_lines == {"HARM": 2, "LIE": 1}
    assert said.histograms["lines"] == {"HARM": 2, "LIE": 1}
    assert [case.id for case in said.worst] == ["d", "a"]
    assert [case.id for case in said.best] == ["c", "b"]
    text = markdown(said, run_of(spec))
    assert "| HARM |        2 | 50.0 % |" in text
    assert "red lines: HARM, LIE" in text


def test_a_run_that_is_not_through_says_how_far_it_is() -> None:
    verdicts = [graded(str(i), 3, 3, 3, 3) for i in range(8)]
    assert opening(summarize(verdicts, QUALITY, records=30)).startswith("8 of 30 records so far, 8 of them judged.")
    assert opening(summarize([], QUALITY, records=30)) == "None of 30 records judged so far."


def test_speed_is_of_what_was_judged_in_the_time_told() -> None:
    verdicts = [graded(str(i), 3, 3, 3, 3) for i in range(8)]
    said = summarize(verdicts, QUALITY, seconds=2, judged=3)
    assert said.verdicts_per_second == 1.5
    told = "3 verdicts in 2.0 s in the sittings that ended by themselves: 1.50 a second."
    assert told in markdown(said, run_of(QUALITY))
    assert summarize(verdicts, QUALITY, seconds=2).verdicts_per_second == 4
    assert summarize(verdicts, QUALITY).verdicts_per_second is None


def test_a_summary_survives_its_json() -> None:
    for said in (
        summarize([graded("a", 1, 2, 3, 4), failed("b")], QUALITY, 3.5, 2),
        summarize([pair("a", "A", "B"), pair("b", "A", "A")], PAIRWISE),
        summarize([], TRUTH),
    ):
        assert Summary.model_validate_json(said.model_dump_json()) == said
        assert set(json.loads(said.model_dump_json())["statuses"]) == set(STATUSES)


# --- pairs ---


def test_pairs_are_counted_by_hand() -> None:
    told = [("A", "A")] * 4 + [("B", "B")] * 2 + [("tie", "tie")] + [("A", "B")] * 2 + [("B", "A")] + [("tie", "A")]
    said = summarize([pair(f"p{i}", *labels) for i, labels in enumerate(told)] + [failed("x")], TIES)
    pairs = said.pairwise
    assert pairs
    assert (pairs.wins_a, pairs.wins_b, pairs.ties, pairs.inconsistent, pairs.n) == (4, 2, 1, 4, 11)
    assert pairs.win_rate_a
    assert (pairs.win_rate_a.count, pairs.win_rate_a.n) == (4, 6)
    assert (pairs.win_rate_a.low, pairs.win_rate_a.high) == pytest.approx(wilson(4, 6))
    assert pairs.inconsistent_share
    assert pairs.inconsistent_share.share == pytest.approx(4 / 11)
    assert said.histograms == {"preference": {"A": 4, "B": 2, "tie": 1, "inconsistent": 4}}
    assert (said.worst, said.best) == ([], [])

    # First place: the A of the straight order and the B of the swapped one. Agreement gives it one order of two;
    # (A, B) both, twice; (B, A) neither; (tie, A) a half and none. Of 22 orders: 7 + 4 + 0 + 0.5.
    first = pairs.first_place
    assert first
    assert first.mean == pytest.approx(11.5 / 22)
    halves = [0.5] * 7 + [1, 1, 0, 0.25]
    expected = stats.t.interval(0.95, 10, loc=11.5 / 22, scale=stats.sem(halves))
    assert (first.n, first.missing) == (11, 1)
    assert (first.low, first.high) == pytest.approx(expected)


def test_a_judge_that_always_takes_the_first_is_found_out() -> None:
    verdicts = [pair(f"p{i}", "A", "B") for i in range(8)]
    pairs = summarize(verdicts, PAIRWISE).pairwise
    assert pairs
    assert pairs.first_place
    assert pairs.win_rate_a is None
    assert (pairs.first_place.mean, pairs.first_place.method) == (1, "wilson")
    assert (pairs.first_place.low, pairs.first_place.high) == pytest.approx(wilson(8, 8))
    text = page(verdicts, PAIRWISE)
    assert "No pair was decided. Not decided: 8 inconsistent." in text
    assert "> **Warning**: the judge contradicted itself on 100.0 % of the pairs when they were swapped." in text
    assert "preferred in 100.0 % (67.6 to 100.0, 95 %) of single orders" in text


def test_a_judge_that_never_contradicts_itself_leans_to_no_place() -> None:
    pairs = summarize([pair("a", "A", "A"), pair("b", "B", "B")], PAIRWISE).pairwise
    assert pairs
    assert pairs.first_place
    assert pairs.first_place.mean == 0.5
    assert "50.0 % (the same in every pair)" in page([pair("a", "A", "A"), pair("b", "B", "B")], PAIRWISE)


def test_undecided_pairs_come_with_both_reasons() -> None:
    said = summarize([pair(f"p{i}", *("BA" if i % 2 else "AA")) for i in range(14)], PAIRWISE)
    assert [case.id for case in said.undecided] == ["p1", "p3", "p5", "p7", "p9"]
    assert said.undecided[0].preferences == ["B", "A"]
    assert said.undecided[0].rationales == ["order 1 of p1", "order 2 of p1"]
    text = markdown(said, run_of(PAIRWISE))
    assert "The first 5 of 7." in text
    assert "As recorded, the judge chose B:\n\n  > order 1 of p1\n" in text
    assert "Swapped, it chose A. Its reason was written with A and B exchanged:\n\n  > order 2 of p1\n" in text


def test_one_order_cannot_tell_of_contradictions() -> None:
    spec = load_judge("pairwise", ["orders=single"])
    said = summarize([pair("a", "A"), pair("b", "B"), pair("c", "A")], spec)
    assert said.pairwise
    assert (said.pairwise.wins_a, said.pairwise.inconsistent_share, said.pairwise.first_place) == (2, None, None)
    assert said.histograms == {"preference": {"A": 2, "B": 1}}
    assert "Each pair was asked in one order" in markdown(said, run_of(spec))


# --- a million verdicts ---


def stream(n: int) -> Iterator[Verdict]:
    for i in range(n):
        yield failed(f"f{i}") if i % 9 == 0 else graded(f"r{i}", *(1 + (i * k) % 5 for k in (1, 2, 3, 7)))


def test_memory_does_not_grow_with_the_run() -> None:
    def peak(n: int) -> int:
        tracemalloc.start()
        try:
            assert summarize(stream(n), QUALITY).total == n
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)  # imports
    few, many = peak(5_000), peak(50_000)
    assert many < 2 * few + 2 * 2**20


def test_a_long_stream_keeps_its_digits() -> None:
    said = summarize((graded(str(i), 3 + i % 2, 3, 3, 3) for i in range(20_000)), QUALITY).scores["correctness"]
    assert said.mean == pytest.approx(3.5, abs=1e-12)
    assert said.sd == pytest.approx(0.5 * math.sqrt(20_000 / 19_999), abs=1e-12)


# --- the page ---


def test_the_first_sentence_says_it_all() -> None:
    good = [graded(f"r{i}", *(3 + i % 2,) * 4) for i in range(38)]
    text = page([*good, failed("x"), failed("y", "engine_error")], QUALITY)
    assert text.startswith("# answer-quality, judged by small\n")
    assert text.split("\n")[2] == (
        "38 of 40 records judged; 2 could not be: 1 too_long, 1 engine_error. "
        "Mean overall 3.50 (3.33 to 3.67, 95 %), n = 38. 19 of 38 passed (50.0 %; 34.8 to 65.2, 95 %)."
    )
    assert "Warning" not in text
    assert "invalid_record" not in text


def test_warnings_where_numbers_mislead() -> None:
    text = page([graded(f"r{i}", 3 + i % 2, 4, 3 + i % 2, 3 + i % 2) for i in range(29)], QUALITY)
    assert "> **Warning**: small sample: the mean stands on 29 verdicts." in text
    assert "> **Warning**: the judge gave every record the same label for instruction_following: 4." in text
    assert text.count("Warning") == 2
    few = [pair(f"p{i}", *("AA" if i < 8 else "AB")) for i in range(10)]
    assert "small sample: the win rate stands on 8 decided pairs." in page(few, PAIRWISE)
    assert "contradicted" not in page(few, PAIRWISE), "20 % is not over 20 %"


def test_bars_are_to_scale_and_aligned() -> None:
    drawn = bars({"是": 80, "no": 20, "cannot say": 1, "x": 0}, 101).split("\n")
    assert drawn[0] == "  是          " + "█" * 40 + "  80   79.2 %"
    assert drawn[1] == "  no          " + "█" * 10 + " " * 30 + "  20   19.8 %"
    assert drawn[2] == "  cannot say  " + "▌" + " " * 39 + "   1    1.0 %"
    assert drawn[3] == "  x           " + " " * 40 + "   0    0.0 %"
    assert "▏" in bars({"a": 1, "b": 100_000}, 100_001), "one verdict in many still shows"


def test_tables_are_aligned_in_their_source() -> None:
    text = page([graded("a", 1, 2, 3, 4), graded("b", 2, 3, 4, 5), failed("记录", error="太长")], QUALITY)
    assert "| overall               | 2.61 |  1.00 to 5.00 | t   | 0.71 |   2 |       1 | 1 to 5 |" in text
    assert "| 记录 | too_long | 太长  |" in text


def test_a_long_reason_is_cut_between_words() -> None:
    assert cut("one two  three\nfour", 10) == "one two…"
    assert cut("short", 10) == "short"
    words = cut("word, " * 200)
    assert words.endswith("word…")
    assert 380 <= len(words) <= 401
    assert cut("很好" * 300) == "很好" * 200 + "…"


def test_provenance_ends_the_page() -> None:
    text = page([graded("a", 3, 3, 3, 3)], QUALITY)
    last = text[text.index("## Provenance") :]
    for told in ("ab" * 32, "cd" * 32, "ef" * 32, "records.jsonl", "engine.options.dtype", "0.1.0", "20:00:00Z"):
        assert told in last
    assert "limit" not in last, "what is not set is left out"


# --- text that would rather be obeyed ---


@pytest.mark.parametrize(
    "text",
    [
        "# heading",
        "\x1b # heading",
        "> quote",
        "- item",
        "-",
        "---",
        "===",
        "+ item",
        "* item",
        "1. item",
        "12) item",
        "```fence",
        "`code`",
        "*a* **b** _c_ __d__ ***e*** ~~f~~",
        "[a](b) ![a](b) [a]: b",
        "<script>alert(1)</script>",
        "<!-- comment",
        "<http://evil.example>",
        "a | b",
        "back\\slash \\| \\\\| \\",
        "&lt;b&gt; &amp; &#60; &copy",
        "R&D costs $5, 3 < 5 > 2 at -5 and 3.62, snake_case 是_的",
    ],
)
def test_plain_text_is_shown_as_it_is(text: str) -> None:
    shown = " ".join(text.replace("\x1b", "").split())
    escaped = html_escape(shown, quote=False)
    assert html(plain(text)) == f"<p>{escaped}</p>\n"
    assert html(f"before\n{plain(text)}") == f"<p>before\n{escaped}</p>\n"
    assert f"<td>{escaped}</td>\n<td>end</td>" in html(f"| a | b |\n|---|---|\n| {plain(text)} | end |")


@given(st.text(alphabet="#>=-+*_`~[]()!<&;|\\$:./ \n1a是x", max_size=30))
def test_plain_text_of_any_marks_is_shown_as_it_is(text: str) -> None:
    escaped = html_escape(fold(text), quote=False)
    assert html(plain(text)) == (f"<p>{escaped}</p>\n" if escaped else "")


def test_text_for_people_stays_readable_in_its_source() -> None:
    for text in (
        "3.62 (3.41 to 3.83)",
        "rec_17",
        "C# and R&D, a - b",
        "-5 > -6",
        "that's 100 %!",
        "2025-11-30",
        "中文。",
    ):
        assert plain(text) == text


def test_hostile_text_breaks_nothing_wherever_it_stands() -> None:
    quality = [graded("a", 1, 1, 1, 1, rationale=HOSTILE), graded("b", 5, 5, 5, 5), failed(HOSTILE, error=HOSTILE)]
    told = pair("p", "A", "B")
    assert told.orders
    nasty = [{**order, "rationale": Answer(value=HOSTILE)} for order in told.orders]
    pairs = [told.model_copy(update={"id": HOSTILE, "orders": nasty})]
    changes = {"model": {"name": HOSTILE}, "records": {"path": HOSTILE}, "settings": {HOSTILE: [HOSTILE]}}
    calm: dict[str, Any] = {"model": {"name": "m"}, "records": {"path": "r"}, "settings": {"s": ["s"]}}
    for verdicts, tame, spec in (
        (quality, [graded("a", 1, 1, 1, 1), graded("b", 5, 5, 5, 5), failed("c", error="e")], QUALITY),
        (pairs, [told], PAIRWISE),
    ):
        text = page(verdicts, spec, **changes)
        assert "\x1b" not in text
        assert "\u202e" not in text
        shown, expected = html(text), html(page(tame, spec, **calm))
        assert "&lt;script&gt;alert(1)" in shown
        for tag in ("<script", "<h1", "<h2", "<table", "<tr", "<td", "<li", "<p>", "<pre", "<code", "<blockquote"):
            assert shown.count(tag) == expected.count(tag), tag
        for tag in ("<img", "<a ", "<em>", "<del>", "<hr"):
            assert tag not in shown
        assert shown.count("<strong>") == expected.count("<strong>")
