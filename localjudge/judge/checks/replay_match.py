"""A match's raw data, read tolerantly: who played, and the numbers that a report can be held against.

Knows no report. Whatever is not there is None, and nobody's error; what is there and cannot be read is refused.

    {"duration": "18:42", "result": "失败", "user": openid or name of the player whose replay it is,
     "players": [{"name", "hero", "position", "openid", "side", "user": true, "kda": "3/5/7", "gold": 11834,
                  "damage_share": 28.4, "taken_share": 19.0, "participation": 62.5, "mvp": "MVP"}, ...],
     "kills": {"蓝方": 18, "红方": 24}}

Shares are in percent (28.4 or "28.4%"); where no player's is over 1 they are taken as parts of one. `kda` may be
text, a list, an object of kills, deaths and assists, or these three beside it; a duration a number of seconds. null
is not there. Other keys, the events among them, are let be.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

_SHARES = ("damage_share", "taken_share", "participation")


def seconds(text: str) -> int | None:
    """`18:42`, `18分42秒`, `18分钟`, `1:02:03` as seconds; None of anything else."""
    text = unicodedata.normalize("NFKC", text).strip()
    if clock := re.fullmatch(r"(?:(\d+):)?(\d{1,3}):(\d{2})", text):
        hours, minutes, rest = (int(part or 0) for part in clock.groups())
        return hours * 3600 + minutes * 60 + rest
    if words := re.fullmatch(
        r"(\d{1,3})\s*(?:分钟|分|min(?:utes?)?)\s*(?:(\d{1,2})\s*(?:秒|s(?:econds?)?))?", text
    ):
        return int(words[1]) * 60 + int(words[2] or 0)
    return None


def _time(value: Any) -> Any:
    if isinstance(value, str):
        found = seconds(value)
        if found is None:
            raise ValueError(f"'{value}' is no time: write 18:42, or seconds as a number")
        return found
    return math.floor(value) if isinstance(value, float) and math.isfinite(value) else value


def _number(value: Any) -> Any:
    if isinstance(value, str):
        text = unicodedata.normalize("NFKC", value).replace(",", "").strip().removesuffix("%")
        if found := re.fullmatch(r"(\d+(?:\.\d+)?)\s*([万wk]?)", text, re.IGNORECASE):
            return float(found[1]) * {"": 1, "k": 1000}.get(found[2].casefold(), 10000)
        raise ValueError(f"'{value}' is no number")
    return value


def _kda(value: Any) -> Any:
    if isinstance(value, str):
        parts = re.fullmatch(r"\s*(\d+)\s*[/／-]\s*(\d+)\s*[/／-]\s*(\d+)\s*", value)
        if not parts:
            raise ValueError(f"'{value}' is no KDA: write kills/deaths/assists")
        return [int(part) for part in parts.groups()]
    if isinstance(value, Mapping):
        value = [value.get(key) for key in ("kills", "deaths", "assists")]
    return None if isinstance(value, list) and None in value else value


Number = Annotated[float, BeforeValidator(_number)]
Seconds = Annotated[int, BeforeValidator(_time)]


def _given(data: Any) -> Any:
    """Without what is null."""
    if isinstance(data, list):
        return [value for value in data if value is not None]
    return {key: value for key, value in data.items() if value is not None} if isinstance(data, Mapping) else data


class Player(BaseModel):
    """One of the ten. Shares in percent, gold in coins."""

    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)

    name: str = ""
    hero: str = ""
    position: str = ""
    side: str = ""
    openid: str = ""
    user: bool = False
    kda: Annotated[tuple[int, int, int] | None, BeforeValidator(_kda)] = None
    gold: Number | None = None
    damage_share: Number | None = None
    taken_share: Number | None = None
    participation: Number | None = None

    @model_validator(mode="before")
    @classmethod
    def _counts_may_stand_alone(cls, data: Any) -> Any:
        data = _given(data)
        if not isinstance(data, Mapping) or data.get("kda") is not None:
            return data
        alone = [data.get(part) for part in ("kills", "deaths", "assists")]
        return data if None in alone else {**data, "kda": alone}

    @property
    def title(self) -> str:
        """`name（hero）`, or whichever of the two there is."""
        return f"{self.name}（{self.hero}）" if self.name and self.hero else self.name or self.hero


class Match(BaseModel):
    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)

    players: Annotated[tuple[Player, ...], BeforeValidator(_given)] = ()
    user: str = ""
    duration: Seconds | None = None
    kills: Annotated[dict[str, int], BeforeValidator(_given)] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _null_is_not_there(cls, data: Any) -> Any:
        return _given(data)

    @field_validator("players")
    @classmethod
    def _shares_are_percents(cls, players: tuple[Player, ...]) -> tuple[Player, ...]:
        for share in _SHARES:
            there = [value for player in players if (value := getattr(player, share)) is not None]
            if there and max(there) <= 1:
                players = tuple(
                    player if getattr(player, share) is None else _scaled(player, share) for player in players
                )
        return players

    @property
    def own(self) -> int | None:
        """The place of the player whose replay it is; None when the data do not tell."""
        marked = [place for place, player in enumerate(self.players) if player.user]
        named = [place for place, player in enumerate(self.players) if self.user in (player.openid, player.name)]
        found = marked or (named if self.user else [])
        return found[0] if len(found) == 1 else None

    @property
    def totals(self) -> list[int]:
        """The kills of each side, as given or as the players' add up; [] when neither is known."""
        if len(self.kills) == 2:
            return list(self.kills.values())
        sides = dict.fromkeys(player.side for player in self.players)
        if len(sides) != 2 or any(player.kda is None for player in self.players):
            return []
        return [
            sum(player.kda[0] for player in self.players if player.kda and player.side == side) for side in sides
        ]

    def named(self, text: str) -> list[int]:
        """The places of the players whose name, hero or openid is `text` or, failing that, occurs in it. A hero on
        both sides is nobody's name; one of a single character (镜) must be all of the text, or of what stands
        before, in or after parentheses."""
        text = folded(text)
        if not text:
            return []
        names = [[folded(name) for name in self._names(place)] for place in range(len(self.players))]
        exact = [place for place, own in enumerate(names) if text in own]
        parts = re.split("[()]", text)
        return exact or [
            place
            for place, own in enumerate(names)
            if any(name in (text if len(name) > 1 else parts) for name in own)
        ]

    def mentions(self, text: str) -> list[tuple[int, int]]:
        """Where players are named in a text: (offset, player), by offset."""
        text = text.casefold()
        return sorted(
            (found.start(), place)
            for place in range(len(self.players))
            for name in self._names(place)
            if len(name) > 1
            for found in re.finditer(re.escape(name.casefold()), text)
        )

    def _names(self, place: int) -> list[str]:
        player = self.players[place]
        heroes = [other.hero for other in self.players]
        names = [player.name, player.openid, player.hero if heroes.count(player.hero) == 1 else ""]
        return [name for name in names if name]


def _scaled(player: Player, share: str) -> Player:
    return player.model_copy(update={share: round(getattr(player, share) * 100, 6)})


def folded(text: str) -> str:
    """Without differences of width, case, space and markup."""
    return re.sub(r"[\s*`]+", "", unicodedata.normalize("NFKC", text).casefold())


def read_match(value: Any) -> Match:
    """Raises ValueError, which names the first field that cannot be read."""
    if not isinstance(value, Mapping):
        raise ValueError("'match' is not an object of a match's data")
    try:
        return Match.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, ("match", *first["loc"])))
        raise ValueError(f"'{place}': {first['msg'].removeprefix('Value error, ')}") from None
