"""Who wins against whom, and how strong that makes each (Bradley & Terry 1952). Knows names and outcomes alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

DRAWS = 400
PRIOR = 0.1
"""Wins that everybody is given against everybody, so that whoever never lost is strong, not infinitely so."""
SAME = 1e-9


class Outcome(NamedTuple):
    """first against second; won: 1 the first, 0 the second, 0.5 nobody. case: what hangs together."""

    first: str
    second: str
    won: float
    case: str


def outcomes(case: str, overalls: Mapping[str, float]) -> list[Outcome]:
    """Of one case, whose candidates have these overalls: the greater one wins, the same is a tie."""
    found = []
    for (first, a), (second, b) in combinations(overalls.items(), 2):
        found.append(Outcome(first, second, 0.5 if abs(a - b) < SAME else float(a > b), case))
    return found


def wins(names: Sequence[str], told: Iterable[Outcome]) -> dict[str, Any]:
    """names, wins [row against column], ties: counts."""
    place = {name: i for i, name in enumerate(names)}
    won = [[0] * len(names) for _ in names]
    tied = [[0] * len(names) for _ in names]
    for one in told:
        a, b = place[one.first], place[one.second]
        if one.won == 0.5:
            tied[a][b] += 1
            tied[b][a] += 1
        elif one.won > 0.5:
            won[a][b] += 1
        else:
            won[b][a] += 1
    return {"names": list(names), "wins": won, "ties": tied}


def ranking(names: Sequence[str], told: Sequence[Outcome], seed: int = 0) -> dict[str, Any] | None:
    """Strongest first: each one's chance to win against the others, by maximum likelihood (choix), a tie counting
    half to each; with the 95 % percentile interval of resamples of whole cases. None of fewer than two that met.

    rows [{name, strength, low, high}], draws.
    """
    met = {name for one in told for name in (one.first, one.second)}
    names = [name for name in names if name in met]
    k = len(names)
    if k < 2:
        return None
    place = {name: i for i, name in enumerate(names)}
    by_case: dict[str, NDArray[np.float64]] = {}
    for one in told:
        matrix = by_case.setdefault(one.case, np.zeros((k, k)))
        matrix[place[one.first], place[one.second]] += one.won
        matrix[place[one.second], place[one.first]] += 1 - one.won
    same = Counter(matrix.tobytes() for matrix in by_case.values())
    patterns = np.stack([np.frombuffer(key) for key in same])
    times = np.array(list(same.values()), float)
    n = int(times.sum())
    strength = _strengths(times @ patterns, k)
    if strength is None:
        return None
    rng = np.random.default_rng(seed)
    drawn = (
        [_strengths(weights @ patterns, k) for weights in rng.multinomial(n, times / n, size=DRAWS)]
        if n > 1
        else []
    )
    kept = np.array([one for one in drawn if one is not None])
    low, high = np.percentile(kept, [2.5, 97.5], axis=0) if len(kept) > DRAWS / 2 else (None, None)
    rows = [
        {
            "name": name,
            "strength": float(strength[i]),
            "low": None if low is None else float(low[i]),
            "high": None if high is None else float(high[i]),
        }
        for i, name in enumerate(names)
    ]
    return {"rows": sorted(rows, key=lambda row: -row["strength"]), "draws": len(kept)}


def _strengths(flat: NDArray[np.float64], k: int) -> NDArray[np.float64] | None:
    """(k,), the mean chance against the others; None where the fit does not settle."""
    import choix

    matrix = flat.reshape(k, k) + PRIOR * (1 - np.eye(k))
    try:
        power = choix.ilsr_pairwise_dense(matrix, max_iter=1000)
    except (RuntimeError, ValueError):
        return None
    chance = 1 / (1 + np.exp(power[None, :] - power[:, None]))
    return np.asarray((chance.sum(axis=1) - 0.5) / (k - 1))
