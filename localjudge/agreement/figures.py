"""Pictures of agreement: confusion, reliability, risk and coverage, score against gold, slices. SVG and PNG.

Drawn with matplotlib, of the extra `plots`. Knows results and joined arrays; computes nothing but where to
draw."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from localjudge.agreement.agree import Bin, Held, Kept
from localjudge.agreement.calibrate import Evidence, Threshold
from localjudge.agreement.join import Joined
from localjudge.agreement.render import NAMES, PERCENT, number
from localjudge.agreement.statistics import Values
from localjudge.errors import LocalJudgeError
from localjudge.report.markdown import cut

INK, BLUE, ORANGE, GREY = "#222222", "#2b6cb0", "#c05621", "#9aa0a6"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "localjudge",
    "figure.dpi": 100,
}
CHINESE = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "PingFang SC",
    "Microsoft YaHei",
    "SimHei",
    "Arial Unicode MS",
)
"""Fonts for what matplotlib's own has no shape for, the first that is here."""

MOST_POINTS = 5000
MOST_LABELS = 25
FORMATS = ("svg", "png")


def available() -> bool:
    """Whether matplotlib is here."""
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


def draw(held: Held, data: Joined, folder: Path) -> list[str]:
    """Draw all that there is to draw of one target; the names of the SVG files, with a PNG of each beside it."""
    judged = data.of(data.ok)
    name = held.target.replace(".", "-")
    wanted: list[tuple[str, tuple[float, float], Callable[[Any], None]]] = []
    if held.confusion and len(held.confusion.judge) <= MOST_LABELS:
        side = 1.7 + 0.55 * len(held.confusion.gold)
        size = (max(3.4, side + 0.6), max(2.6, 1.3 + 0.55 * len(held.confusion.judge)))
        wanted.append(("confusion", size, lambda axes: confusion(axes, held)))
    if held.kind in ("score", "overall"):
        wanted.append(("scores", (4.2, 4.0), lambda axes: scores(axes, judged)))
    if held.confidence:
        c = held.confidence
        wanted.append(
            ("reliability", (4.0, 4.0), lambda axes: reliability(axes, [("", c.reliability, BLUE)], held.target))
        )
        wanted.append(("risk-coverage", (4.6, 3.4), lambda axes: risk_coverage(axes, c.risk_coverage, held.target)))
    for field in dict.fromkeys(one.field for one in held.slices):
        n = sum(one.field == field for one in held.slices)
        wanted.append(
            (f"slices-{_file(field)}", (5.6, 1.2 + 0.28 * n), lambda axes, f=field: slices(axes, held, f))  # type: ignore[misc]
        )
    return [save(folder, f"{name}-{what}", size, paint) for what, size, paint in wanted]


def draw_calibration(name: str, it: Evidence, stem: str, folder: Path) -> list[str]:
    """Reliability before and after, and what each threshold keeps; the names of the SVG files."""
    lines = [("as judged", it.before.reliability, GREY), ("calibrated, held out", it.after.reliability, BLUE)]
    return [
        save(folder, f"{stem}-reliability", (4.0, 4.0), lambda axes: reliability(axes, lines, name)),
        save(
            folder,
            f"{stem}-risk-coverage",
            (4.6, 3.4),
            lambda axes: risk_coverage(axes, it.risk_coverage, name, it.thresholds),
        ),
    ]


def _file(text: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in text)


def save(folder: Path, name: str, size: tuple[float, float], paint: Callable[[Any], None]) -> str:
    """One picture as SVG and PNG. Raises LocalJudgeError without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise LocalJudgeError(
            "figures need matplotlib, which is not here", fix="pip install 'localjudge[plots]'"
        ) from None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({**STYLE, "font.family": _fonts()}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the SVG keeps it as text, for the reader's own fonts
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        paint(figure.add_subplot())
        for kind in FORMATS:
            more: dict[str, Any] = {"metadata": {"Date": None}} if kind == "svg" else {"dpi": 160}
            figure.savefig(folder / f"{name}.{kind}", format=kind, **more)
    return f"{name}.svg"


@functools.cache
def _fonts() -> list[str]:
    from matplotlib import font_manager

    here = set(font_manager.get_font_names())
    return ["DejaVu Sans", *[name for name in CHINESE if name in here][:1]]


def _label(text: str) -> str:
    """matplotlib reads $ as mathematics."""
    return cut(text, 28).replace("$", r"\$")


def confusion(axes: Any, held: Held) -> None:
    """Counts, shaded by the share of what people gave that label."""
    c = held.confusion
    assert c is not None
    table = np.array(c.table, float)
    of_gold = table / np.maximum(table.sum(0), 1)
    axes.imshow(of_gold, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for i, row in enumerate(table):
        for j, n in enumerate(row):
            shade = "white" if of_gold[i, j] > 0.55 else INK
            axes.text(j, i, f"{n:,.0f}", ha="center", va="center", color=shade, fontsize=8)
    axes.set_xticks(
        range(len(c.gold)), [_label(x) for x in c.gold], rotation=30 if max(map(len, c.gold)) > 6 else 0
    )
    axes.set_yticks(range(len(c.judge)), [_label(x) for x in c.judge])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlabel("people")
    axes.set_ylabel("judge")
    axes.set_title(_label(held.target))


def scores(axes: Any, judged: Joined) -> None:
    """Each record's score against people's; the line is equality. Points at one place are shaken apart a
    little."""
    rng = np.random.default_rng(0)
    x, y = judged.gold, judged.number
    if len(x) > MOST_POINTS:
        rows = rng.choice(len(x), MOST_POINTS, replace=False)
        x, y = x[rows], y[rows]
    low, high = judged.target.bounds or (float(min(x.min(), y.min())), float(max(x.max(), y.max())))
    crowded = len(np.unique(np.column_stack([x, y]), axis=0)) < len(x) / 2
    shake = [0.3 * _gap(values, high - low) if crowded else 0.0 for values in (x, y)]
    off = [rng.uniform(-most, most, len(x)) for most in shake]
    axes.plot([low, high], [low, high], color=GREY, linewidth=1, zorder=1)
    alpha = float(np.clip(60 / np.sqrt(len(x)) / 4, 0.08, 0.7))
    axes.scatter(x + off[0], y + off[1], s=10, color=BLUE, alpha=alpha, linewidths=0, zorder=2)
    levels = np.unique(judged.rounded) if judged.target.kind == "score" else np.empty(0)
    means = [judged.number[judged.rounded == level].mean() for level in levels]
    if len(levels):
        axes.plot(
            levels, means, color=ORANGE, marker="o", markersize=4, linewidth=1.2, zorder=3, label="judge's mean"
        )
        axes.legend(frameon=False, loc="upper left")
    room = max(0.06 * (high - low), 1.2 * max(shake))
    if judged.target.kind == "score" and high - low <= 10:
        axes.set_xticks(judged.target.codes)
        axes.set_yticks(judged.target.codes)
    axes.set_xlim(low - room, high + room)
    axes.set_ylim(low - room, high + room)
    axes.set_aspect("equal")
    axes.set_xlabel("people")
    axes.set_ylabel("judge")
    axes.set_title(_label(judged.target.name))


def _gap(values: Values, span: float) -> float:
    """The least distance between two values; of many values, a little."""
    gaps = np.diff(np.unique(values))
    return float(max(gaps.min(initial=span), 0.01 * span)) if len(gaps) else 0.05 * span


def reliability(axes: Any, lines: Sequence[tuple[str, Sequence[Bin], str]], title: str) -> None:
    """How often verdicts of each confidence are right, with 95 % intervals; the line is what it should be. The
    bars at the bottom are how many verdicts lie in each bin, of the last line drawn."""
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, zorder=1)
    for name, bins, color in lines:
        there = [b for b in bins if b.n and b.confidence is not None and b.share is not None]
        x = [b.confidence for b in there]
        y = [b.share or 0.0 for b in there]
        down = [max(0.0, (b.share or 0) - (b.share_low or 0)) for b in there]
        up = [max(0.0, (b.share_high or 0) - (b.share or 0)) for b in there]
        axes.errorbar(
            x,
            y,
            yerr=[down, up],
            color=color,
            marker="o",
            markersize=4,
            linewidth=1.2,
            capsize=2,
            label=name,
            zorder=3,
        )
    last = lines[-1][1]
    most = max((b.n for b in last), default=1) or 1
    axes.bar(
        [(b.low + b.high) / 2 for b in last],
        [0.16 * b.n / most for b in last],
        width=[0.92 * (b.high - b.low) for b in last],
        color=GREY,
        alpha=0.35,
        zorder=0,
    )
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    axes.set_aspect("equal")
    axes.set_xlabel("confidence of the verdict's label")
    axes.set_ylabel("share right")
    axes.set_title(f"Reliability: {_label(title)}")
    if any(name for name, _, _ in lines):
        axes.legend(frameon=False, loc="upper left")


def risk_coverage(axes: Any, curve: Sequence[Kept], title: str, wanted: Sequence[Threshold] = ()) -> None:
    """The share right among the most confident verdicts, from a few to all of them, with 95 % intervals."""
    # The first few verdicts alone say nothing, and would set the scale.
    curve = [kept for kept in curve if kept.high - kept.low < 0.35] or curve
    x = [kept.coverage for kept in curve]
    axes.fill_between(x, [k.low for k in curve], [k.high for k in curve], color=BLUE, alpha=0.15, linewidth=0)
    axes.plot(x, [kept.accuracy for kept in curve], color=BLUE, linewidth=1.4)
    if len(x) == 1:
        axes.plot(x, [curve[0].accuracy], color=BLUE, marker="o")
    for one in wanted:
        if one.confidence is None or one.coverage is None or one.accuracy is None:
            continue
        axes.plot([one.coverage], [one.accuracy], marker="o", color=ORANGE, markersize=5)
        axes.annotate(
            f"at {one.confidence:.2f}: {100 * one.coverage:.0f} % kept",
            (one.coverage, one.accuracy),
            xytext=(-6, -12) if one.coverage > 0.35 else (8, 4),
            textcoords="offset points",
            ha="right" if one.coverage > 0.35 else "left",
            fontsize=8,
        )
    axes.set_xlim(0, 1.01)
    axes.set_ylim(max(0.0, min(k.low for k in curve) - 0.03), 1.005)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.grid(axis="y", color=GREY, alpha=0.3, linewidth=0.6)
    axes.set_xlabel("share of verdicts kept, the most confident first")
    axes.set_ylabel("share right")
    axes.set_title(f"Risk and coverage: {_label(title)}")


def slices(axes: Any, held: Held, field: str) -> None:
    """The first figure of each slice, with its interval; the dashed line is that of all records."""
    chosen = [one for one in held.slices if one.field == field]
    first = chosen[0].figures[0].name
    whole = next((figure.value for figure in held.figures if figure.name == first), None)
    places = np.arange(len(chosen))[::-1]
    for place, one in zip(places, chosen, strict=True):
        figure = one.figures[0]
        if figure.value is None:
            continue
        if figure.low is not None and figure.high is not None:
            axes.plot([figure.low, figure.high], [place, place], color=BLUE, linewidth=1.4, alpha=0.6)
        axes.plot([figure.value], [place], marker="o", color=BLUE, markersize=5)
    if whole is not None:
        axes.axvline(whole, color=ORANGE, linewidth=1, linestyle="--", zorder=0)
        axes.annotate(
            f"all: {number(first, whole)}",
            (whole, 1),
            xycoords=("data", "axes fraction"),
            xytext=(3, -2),
            textcoords="offset points",
            fontsize=8,
            color=ORANGE,
            va="bottom",
        )
    axes.set_yticks(places, [f"{_label(one.value)}  (n = {one.figures[0].n:,})" for one in chosen])
    axes.set_ylim(-0.6, len(chosen) - 0.4)
    if first in PERCENT:
        axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=GREY, alpha=0.3, linewidth=0.6)
    axes.set_xlabel(NAMES.get(first, first))
    axes.set_title(f"By {_label(field)}", pad=14)
