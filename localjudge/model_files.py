"""The files of a model's folder: whether they are safe and whole, what their hashes are, what they say.

Knows file formats and looks at a folder's own level only, which is all that engines load. Nothing here runs
or unpickles what it reads, and nothing knows cards or where models come from.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from localjudge.errors import ModelError
from localjudge.paths import cache_dir

MANIFEST = "localjudge.json"
_TOLD = (MANIFEST, "distill.json", "evaluation.json")
"""What is told of a model in its own folder, and no engine reads."""
INDEX = "model.safetensors.index.json"

PICKLES = {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib"}
_OTHER_WEIGHTS = {".gguf", ".h5", ".msgpack", ".onnx"}
MAY_NAME_CODE = ("config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json")
_LFS = b"version https://git-lfs"
_AGAIN = "download or copy the model again until every file has arrived"
_LONGEST_HEADER = 100_000_000  # bytes; the safetensors library's own limit
_CHUNK = 1 << 23
_WORTH_SHOWING = 2 << 30  # bytes; less is read in a few seconds


def check_folder(path: Path, *, needs_chat_template: bool = True) -> None:
    """Raise ModelError unless the folder holds one whole model whose loading runs no code of its own."""
    if not path.is_dir():
        raise ModelError("there is no such folder", where=str(path))
    if not (path / "config.json").is_file():
        adapter = (path / "adapter_config.json").is_file()
        fix = "it is a LoRA adapter: merge it into its base model and give that folder" if adapter else None
        raise ModelError("has no config.json, so it is not a model's folder", where=str(path), fix=fix)
    _refuse_pointers(path)
    _refuse_pickles(path)
    _refuse_code(path)
    for shard in weight_files(path):
        _check_safetensors(shard)
    if not (path / "tokenizer.json").is_file():
        raise ModelError(
            "has no tokenizer.json; a fast tokenizer is needed to know the vocabulary byte by byte",
            where=str(path),
            fix="make it (from tokenizer.model this needs `pip install sentencepiece`): "
            'python -c "from transformers import AutoTokenizer as T; '
            f"T.from_pretrained('{path}').save_pretrained('{path}')\"",
        )
    read_json(path / "tokenizer.json")
    if needs_chat_template and chat_template(path) is None:
        raise ModelError(
            "has no chat template, so it is a base model and cannot be asked questions",
            where=str(path),
            fix="use its instruction-tuned release, or put its family's template into chat_template.jinja",
        )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; a broken file is a ModelError that names its line."""
    try:
        value = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise ModelError(f"is not JSON: {error.msg}", where=f"{path}:{error.lineno}") from None
    if not isinstance(value, dict):
        raise ModelError("is not a JSON object", where=str(path))
    return value


def weight_files(path: Path) -> list[Path]:
    """The safetensors that engines load: those an index names, else all there are.

    An index that names missing files, and shards without their index, are ModelErrors.
    """
    index = path / INDEX
    if index.is_file():
        places = read_json(index).get("weight_map")
        shards = sorted({str(name) for name in places.values()}) if isinstance(places, dict) else []
        if not shards or any(Path(name).name != name for name in shards):
            raise ModelError("names no files of this folder", where=str(index), fix=_AGAIN)
        missing = [name for name in shards if not (path / name).is_file()]
        if missing:
            raise ModelError(f"names files that are missing: {', '.join(missing)}", where=str(index), fix=_AGAIN)
        return [path / name for name in shards]
    found = _files(path, {".safetensors"})
    shard = next((file.name for file in found if "-of-" in file.name), None)
    if shard:
        raise ModelError(f"has {shard} but no {INDEX}", where=str(path), fix=_AGAIN)
    if not found:
        raise ModelError("has no *.safetensors file", where=str(path), fix=_AGAIN)
    return found


def chat_template(path: Path) -> str | None:
    """The chat template in force, looked for in transformers' order; several named ones as one JSON text."""
    if (path / "chat_template.jinja").is_file():
        return _read_text(path / "chat_template.jinja") or None
    for name in ("tokenizer_config.json", "chat_template.json"):
        template = read_json(path / name).get("chat_template") if (path / name).is_file() else None
        if template:
            return template if isinstance(template, str) else json.dumps(template, sort_keys=True)
    return None


def fingerprint(path: Path) -> str:
    """SHA-256 over the sorted names and hashes of all files that can change an answer."""
    others = [file for file in _files(path, {".json", ".jinja"}) if file.name not in _TOLD]
    sentencepiece = path / "tokenizer.model"
    return _digest(path, {*weight_files(path), *others, *([sentencepiece] if sentencepiece.is_file() else [])})


def hash_weights(path: Path) -> str:
    """SHA-256 over the sorted names and hashes of the weights alone."""
    return _digest(path, set(weight_files(path)))


def _digest(path: Path, files: set[Path]) -> str:
    hashes = hash_files(files)
    lines = sorted(f"{file.relative_to(path).as_posix()}\0{digest}\n" for file, digest in hashes.items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def hash_files(files: Iterable[Path], *, fresh: bool = False) -> dict[Path, str]:
    """SHA-256 of each file, in hex.

    Hashes are remembered by real path, size and time of change, so that large weights are read once and not
    at each run. fresh: read every byte again, as a check against damage must.
    """
    stats = {file: file.stat() for file in files}
    keys = {file: (str(file.resolve()), stat.st_size, stat.st_mtime_ns) for file, stat in stats.items()}
    with _memory() as memory:
        known = {} if fresh else {file: found for file, key in keys.items() if (found := _recall(memory, key))}
        unread = [file for file in keys if file not in known]
        with _progress(sum(stats[file].st_size for file in unread)) as advance:
            for file in unread:
                known[file] = _hash(file, advance)
                _remember(memory, keys[file], known[file])
    return {file: known[file] for file in keys}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ModelError("is not UTF-8 text", where=str(path)) from None


def _files(path: Path, suffixes: set[str]) -> list[Path]:
    return sorted(file for file in path.iterdir() if file.suffix.lower() in suffixes and file.is_file())


def _refuse_pointers(path: Path) -> None:
    for file in _files(path, {".safetensors", ".json", ".model", ".jinja"}):
        with file.open("rb") as opened:
            if opened.read(len(_LFS)) == _LFS:
                raise ModelError(
                    "is a git-lfs pointer, not the file itself",
                    where=str(file),
                    fix="in its folder: git lfs pull",
                )


def _refuse_pickles(path: Path) -> None:
    pickles = ", ".join(file.name for file in _files(path, PICKLES))
    if (path / INDEX).is_file() or _files(path, {".safetensors"}):
        if pickles:
            raise ModelError(
                f"has {pickles} beside its safetensors; such pickles can run code when they are opened",
                where=str(path),
                fix="remove or move them: the safetensors are enough",
            )
    elif pickles:
        raise ModelError(
            f"has its weights as pickles only ({pickles}), which can run code when they are opened",
            where=str(path),
            fix="convert them on a machine that you trust with them: "
            'python -c "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; '
            f"M.from_pretrained('{path}', dtype='auto').save_pretrained('NEW'); "
            f"T.from_pretrained('{path}').save_pretrained('NEW')\"",
        )
    elif others := _files(path, _OTHER_WEIGHTS):
        raise ModelError(
            f"has its weights in a form that is not read here ({', '.join(file.name for file in others)})",
            where=str(path),
            fix="use the same model's release with *.safetensors",
        )


def _refuse_code(path: Path) -> None:
    if scripts := _files(path, {".py"}):
        raise ModelError(
            f"brings code ({', '.join(file.name for file in scripts)}); trust_remote_code is never on",
            where=str(path),
            fix="remove it if transformers knows this architecture by itself, else use another model",
        )
    for name in MAY_NAME_CODE:
        if (path / name).is_file() and read_json(path / name).get("auto_map"):
            raise ModelError(
                "has an auto_map, which asks for trust_remote_code; it is never on",
                where=str(path / name),
                fix="remove it if transformers knows this architecture by itself, else use another model",
            )


def count_parameters(path: Path) -> int:
    """All numbers in a folder's weights. Raises ModelError."""
    return sum(math.prod(shape) for file in weight_files(path) for shape in _check_safetensors(file))


def _check_safetensors(file: Path) -> list[list[int]]:
    """The shapes of its tensors. The header must be readable and describe exactly as many bytes as there are."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        start = opened.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        text = opened.read(length) if length <= min(size - 8, _LONGEST_HEADER) else b""
    try:
        tensors = [value for name, value in json.loads(text).items() if name != "__metadata__"]
        end = 8 + length + max((tensor["data_offsets"][1] for tensor in tensors), default=0)
        shapes = [tensor["shape"] for tensor in tensors]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise ModelError("has no readable safetensors header", where=str(file), fix=_AGAIN) from None
    if end != size:
        raise ModelError(f"is {size:,} bytes where its header describes {end:,}", where=str(file), fix=_AGAIN)
    return shapes


def _hash(file: Path, advance: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK):
            digest.update(chunk)
            advance(len(chunk))
    return digest.hexdigest()


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    if total < _WORTH_SHOWING:
        yield lambda read: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("hashing the model"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda read: progress.advance(task, read)


_Key = tuple[str, int, int]


@contextlib.contextmanager
def _memory() -> Iterator[sqlite3.Connection | None]:
    """The table of remembered hashes; None where the cache cannot be written, which only costs time."""
    file = cache_dir() / "hashes.sqlite"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        memory = sqlite3.connect(file, timeout=10, isolation_level=None)
        memory.execute("CREATE TABLE IF NOT EXISTS hashes (path PRIMARY KEY, size, mtime_ns, sha256)")
    except (OSError, sqlite3.Error):
        yield None
        return
    with contextlib.closing(memory):
        yield memory


def _recall(memory: sqlite3.Connection | None, key: _Key) -> str | None:
    query = "SELECT sha256 FROM hashes WHERE path = ? AND size = ? AND mtime_ns = ?"
    with contextlib.suppress(sqlite3.Error):
        row = memory.execute(query, key).fetchone() if memory else None
        return row[0] if row else None
    return None


def _remember(memory: sqlite3.Connection | None, key: _Key, digest: str) -> None:
    with contextlib.suppress(sqlite3.Error):
        if memory:
            memory.execute("INSERT OR REPLACE INTO hashes VALUES (?, ?, ?, ?)", (*key, digest))
