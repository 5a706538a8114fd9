"""Options that several commands take, and how they are read."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated, Any, Literal, NoReturn

import typer

from localjudge.errors import LocalJudgeError

Mode = Literal["explain", "score"]
Combine = Literal["mean", "median"]


class EngineName(StrEnum):
    vllm = "vllm"
    transformers = "transformers"
    server = "server"


Mapping = Annotated[
    list[str] | None, typer.Option("--map", help="field=column: where the judge's field is. Repeatable.")
]
JudgeSettings = Annotated[
    list[str] | None, typer.Option("--set", help="key=value: a setting of judge.yaml. Repeatable.")
]
Language = Annotated[str | None, typer.Option(help="en or zh, where the judge comes in several languages.")]
Url = Annotated[str | None, typer.Option(help="The server's, as in http://127.0.0.1:8000/v1 (--engine server).")]
EngineArg = Annotated[
    list[str] | None,
    typer.Option("--engine-arg", help="name=value: any of the engine's own arguments. Repeatable."),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show the engine's own log.")]
Engine = Annotated[
    EngineName,
    typer.Option(
        help="vllm; transformers, slower, where vLLM does not run or know the model; or server, a running one."
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="For what is drawn at random.")]


def named_pairs(values: list[str], option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for value in values:
        key, equals, rest = value.partition("=")
        if not equals or not key or not rest:
            raise LocalJudgeError(f"'{value}' is not of the form name=value", where=option)
        if key in pairs:
            raise LocalJudgeError(f"'{key}' is given twice", where=option)
        pairs[key] = rest
    return pairs


def engine_arguments(values: list[str] | None) -> dict[str, Any]:
    """--engine-arg: name -> value, read as YAML."""
    from localjudge.yamlfile import parse

    return {
        name.replace("-", "_"): parse(value, "--engine-arg")
        for name, value in named_pairs(values or [], "--engine-arg").items()
    }


def stopped() -> NoReturn:
    print("stopped; what is judged is kept: run the same command again to go on", file=sys.stderr)
    raise typer.Exit(130)
