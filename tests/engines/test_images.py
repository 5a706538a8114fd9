"""From pixels to verdict on small vision models of real architectures: a picture stands where the judge put it, as
the model's own processor has it; it matters; and no text can feign one."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import io
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from PIL import Image

from localjudge.engines.base import Ask, AskFailed, Message, openai_content
from localjudge.engines.chat import ChatEncoder
from localjudge.engines.foreign import _request
from localjudge.engines.inprocess import ask_key, vision_of
from localjudge.engines.server import ServerEngine
from localjudge.engines.transformers import TransformersEngine
from localjudge.engines.vision import Seen, Vision
from localjudge.engines.vllm import VllmEngine, choose_arguments
from localjudge.errors import EngineError, ModelError
from localjudge.images import Picture, read_picture
from localjudge.judge.loading import load_judge
from localjudge.models import LocalModel, find_model
from localjudge.run.runner import Run, Settings, own_seed
from localjudge.run.store import read_verdicts
from tests.conftest import Loop
from tests.tiny import tiny_model
from tests.tiny_vision import tiny_llava, tiny_qwen

torch = pytest.importorskip("torch")
pytest.importorskip("outlines")

ON_CPU = {"device": "cpu", "dtype": "float32"}
SCHEMA = load_judge("truthfulness").answer_schema
MARKS = "What is here? <image> <|image_pad|> <|vision_start|>"


def picture(color: Any = "red", size: tuple[int, int] = (90, 60)) -> Picture:
    file = io.BytesIO()
    Image.new("RGB", size, color).save(file, "PNG")
    return read_picture(file.getvalue())


RED, BLUE = picture("red"), picture("blue")


def shown(*pictures: Picture, text: str = "What is here?") -> tuple[Message, ...]:
    """Pictures after the first word of the text."""
    at = text.index(" ") + 1
    return Message("system", "Judge."), Message("user", text, tuple((at, each) for each in pictures))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def models(embedded: LocalModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, LocalModel]:
    folder = tmp_path_factory.mktemp("vision")
    return {"llava": tiny_llava(folder / "llava"), "qwen": tiny_qwen(folder / "qwen")}


@pytest.fixture(scope="module")
def engines(loop: Loop, models: dict[str, LocalModel]) -> Iterator[dict[str, TransformersEngine]]:
    started = {name: loop.run(TransformersEngine.start(model, ON_CPU)) for name, model in models.items()}
    yield started
    for engine in started.values():
        loop.run(engine.close())


both = pytest.mark.parametrize("name", ["llava", "qwen"])


def all_of(loop: Loop, engine: Any, asks: list[Ask]) -> list[Any]:
    async def ask_all() -> list[Any]:
        return await asyncio.gather(*map(engine.complete, asks), return_exceptions=True)

    return list(loop.run(ask_all()))


def its_own_way(engine: TransformersEngine, before: str, after: str, *pictures: Picture) -> Any:
    """What transformers itself makes of a turn with pictures in it: the model's inputs."""
    encoder = engine._encoder
    assert encoder.vision is not None
    parts = [
        {"type": "text", "text": before},
        *[{"type": "image"}] * len(pictures),
        {"type": "text", "text": after},
    ]
    rendered = encoder._chat.apply_chat_template(
        [{"role": "system", "content": "Judge."}, {"role": "user", "content": parts}],
        tokenize=False,
        add_generation_prompt=True,
    )
    pixels = [each.pixels() for each in pictures]
    return encoder.vision._processor(text=[rendered], images=pixels, return_tensors="pt")


# Prompts


@both
def test_a_picture_stands_where_it_was_put_as_the_processor_has_it(
    engines: dict[str, TransformersEngine], name: str
) -> None:
    encoder = engines[name]._encoder
    for pictures in ((RED,), (RED, BLUE), (picture(size=(300, 100)), RED)):
        expected = its_own_way(engines[name], "What ", "is here?", *pictures)["input_ids"][0].tolist()
        assert encoder.encode(shown(*pictures)) == expected
        held = encoder.encode(shown(*pictures), whole=False)
        assert held.count(encoder._marker_id) == len(pictures)
        assert len(held) < len(expected)


@both
def test_no_text_is_a_picture(engines: dict[str, TransformersEngine], name: str) -> None:
    encoder = engines[name]._encoder
    alone = encoder.encode(shown(text=MARKS))
    assert encoder._marker_id not in alone
    beside = encoder.encode(shown(RED, text=MARKS), whole=False)
    assert beside.count(encoder._marker_id) == 1
    assert encoder._chat.decode(alone).count(encoder.marker) == MARKS.count(encoder.marker)


def test_text_in_what_stands_for_a_picture_is_encoded_with_the_text_around_it(
    engines: dict[str, TransformersEngine],
) -> None:
    class Gemma(Vision):
        """Its pictures begin and end with line breaks, as Gemma's do."""

        def __init__(self) -> None:
            pass

        def see(self, picture: Picture, marker: str) -> Seen:
            plain = encoder.encode_text("\n")
            return Seen((*plain, *plain, 3, 3, *plain, *plain), {})

    encoder = copy.copy(engines["llava"]._encoder)
    encoder.vision = Gemma()
    ids = encoder.encode([Message("user", "Look.\nAh", ((6, RED),))])
    text = "<|im_start|>user\nLook.\n\n\n<image><image>\n\nAh<|im_end|>\n<|im_start|>assistant\n"
    assert ids[ids.index(1) :] == encoder._chat.encode(text, add_special_tokens=False)


PARTS_ONLY = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}<image>\n{% endfor %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] }}{% endfor %}"
    "<|im_end|>\n{% endfor %}"
)


def test_a_template_that_knows_parts_alone_and_puts_pictures_first(
    engines: dict[str, TransformersEngine], models: dict[str, LocalModel], tmp_path: Path
) -> None:
    """As LLaVA 1.5's does; and it lies with the processor, as older ones do."""
    for file in models["llava"].path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    del settings["chat_template"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": PARTS_ONLY}))
    model = find_model(str(tmp_path))
    encoder = ChatEncoder(model.path, vision_of(model))
    assert encoder._chat.decode(encoder.encode(shown(text="Plain <image>"))).endswith(
        "user\nPlain <image><|im_end|>\n"
    )
    told = encoder._chat.decode(encoder.encode(shown(RED, text="What now"), whole=False))
    assert told.endswith("<|im_start|>user\n<image>\nWhat now<|im_end|>\n")
    assert encoder.label_ids("A") == engines["llava"]._encoder.label_ids("A")


# Keys


def test_a_picture_is_in_the_key_and_without_one_nothing_has_changed() -> None:
    text = Ask((Message("system", "s"), Message("user", "u")), SCHEMA)
    asked = [[["system", "s"], ["user", "u"]], SCHEMA, None, 0.0, 0]
    assert ask_key(text, b"x") == hashlib.sha256(b"x" + json.dumps(asked).encode()).hexdigest()
    told = json.dumps([7, ["system", "s"], ["user", "u"]]).encode()
    assert own_seed(7, text.messages) == int.from_bytes(hashlib.sha256(told).digest()[:7])
    others = [shown(), shown(RED), shown(BLUE), shown(RED, BLUE), shown(BLUE, RED)]
    others.append((others[1][0], Message("user", others[1][1].text, ((0, RED),))))
    assert len({ask_key(Ask(messages), b"") for messages in others}) == len(others)
    assert len({own_seed(0, messages) for messages in others}) == len(others)
    assert ask_key(Ask(shown(RED)), b"") == ask_key(Ask(shown(picture("red"))), b"")


# Answers


@both
def test_labels_are_read_as_transformers_itself_would(
    loop: Loop, engines: dict[str, TransformersEngine], name: str
) -> None:
    """Each picture another belief, and each that of the model called by itself; together as one by one."""
    engine = engines[name]
    sets = [(RED,), (BLUE,), (RED, BLUE), (BLUE, RED), (picture("red", (300, 100)),)]
    asks = [Ask(shown(*pictures), labels=("A", "B")) for pictures in sets]
    told = all_of(loop, engine, [*asks, Ask(shown(), labels=("A", "B"))])
    likely = [completion.distributions[""]["A"] for completion in told]
    if name == "llava":  # which sees squares of one size
        assert likely.pop(4) == pytest.approx(likely[0], abs=1e-6)
    assert min(abs(a - b) for i, a in enumerate(likely) for b in likely[:i]) > 1e-4
    for pictures, completion in zip(sets, told, strict=False):
        inputs = its_own_way(engine, "What ", "is here?", *pictures)
        with torch.no_grad():
            own = torch.softmax(engine._writer.model(**inputs).logits[0, -1], -1)
        shares = [sum(float(own[token]) for token in engine._codec.label_ids(label)) for label in ("A", "B")]
        assert completion.distributions[""]["A"] == pytest.approx(shares[0] / sum(shares), abs=1e-4)
        assert completion.mass == pytest.approx(sum(shares), rel=1e-3)
        assert completion.prompt_tokens == inputs["input_ids"].shape[1]


@both
def test_answers_about_pictures_are_valid_and_do_not_depend_on_the_batch(
    loop: Loop, engines: dict[str, TransformersEngine], name: str
) -> None:
    engine = engines[name]
    asks = [
        Ask(shown(*pictures), SCHEMA, budget, temperature, 5)
        for pictures in ((), (RED,), (BLUE,), (RED, BLUE))
        for budget, temperature in ((24, 0.0), (16, 1.0))
    ]
    together = all_of(loop, engine, asks)
    for completion in together:
        jsonschema.validate(json.loads(completion.text), SCHEMA)
    for place in (2, 7):  # of one picture and of two
        [alone] = all_of(loop, engine, [asks[place]])
        assert alone.text == together[place].text
    assert len({completion.text for completion in together}) > 4


def test_what_cannot_be_shown_fails_its_own_ask(loop: Loop, engines: dict[str, TransformersEngine]) -> None:
    engine = engines["qwen"]
    many = shown(*[picture(size=(112, 112))] * 300)
    long, odd, fine = all_of(
        loop,
        engine,
        [Ask(many, SCHEMA), Ask(shown(picture(size=(3000, 4))), SCHEMA), Ask(shown(RED), labels=("A", "B"))],
    )
    assert (long.status, odd.status) == ("too_long", "invalid_record")
    assert "the prompt takes 54" in long.why
    assert "does not take [data, 3000 x 4 PNG]: absolute aspect ratio" in odd.why
    assert fine.distributions
    blind = copy.copy(engine._encoder)
    blind.marker = ""
    with pytest.raises(AskFailed, match="is not shown pictures"):
        blind.encode(shown(RED))


# From pixels to verdict

JUDGE = """
name: pictured
inputs: [question, {name: images, type: images, optional: true}]
rationale: 12
user: |
  {{ question }}
  {% if images %}
  Look: {{ image(1) }} That was it.
  {% endif %}
questions:
  - {id: good, type: score, ask: Is it good, anchors: {1: bad, 5: good}}
"""


def run(
    loop: Loop, folder: Path, engine: Any, model: LocalModel, rows: list[dict[str, Any]], **settings: Any
) -> Any:
    folder.mkdir(exist_ok=True)
    (folder / "judge.yaml").write_text(JUDGE)
    for color in ("red", "blue"):
        Image.new("RGB", (80, 60), color).save(folder / f"{color}.png")
    (folder / "empty.png").write_bytes(b"")
    (folder / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    class Lent:
        """The engine, which others need after this run."""

        def __getattr__(self, name: str) -> Any:
            return getattr(engine, name)

        async def close(self) -> None:
            pass

    async def start() -> Any:
        return Lent()

    judged = Run(
        load_judge(folder),
        folder / "records.jsonl",
        model,
        folder / "out",
        Settings(**settings),
        start,
        shared_cache=False,
    )
    loop.run(judged.go())
    return {verdict.id: verdict for verdict in read_verdicts(folder / "out")}


@both
@pytest.mark.parametrize("mode", ["explain", "score"])
def test_a_run_from_pixels_to_verdicts(
    loop: Loop,
    engines: dict[str, TransformersEngine],
    models: dict[str, LocalModel],
    tmp_path: Path,
    name: str,
    mode: Any,
) -> None:
    rows = [
        {"id": "red", "question": "Good?", "images": ["red.png"]},
        {"id": "blue", "question": "Good?", "images": "blue.png"},
        {"id": "none", "question": "Good?"},
        {"id": "empty", "question": "Good?", "images": ["empty.png"]},
    ]
    told = run(loop, tmp_path / "job", engines[name], models[name], rows, mode=mode, skip_invalid=True)
    assert {id: verdict.status for id, verdict in told.items()} == {
        **dict.fromkeys(("red", "blue", "none"), "ok"),
        "empty": "invalid_record",
    }
    assert told["empty"].error == "records.jsonl:4: field 'images': 'empty.png' has 0 bytes"
    beliefs = [told[id].answers["good"].distribution for id in ("red", "blue", "none")]
    assert all(sum(belief.values()) == pytest.approx(1) for belief in beliefs)
    assert abs(beliefs[0]["5"] - beliefs[1]["5"]) > 1e-3
    assert told["red"].usage.prompt > told["none"].usage.prompt


def test_a_text_model_is_refused_before_it_is_loaded(loop: Loop, embedded: LocalModel, tmp_path: Path) -> None:
    blind = tiny_model(tmp_path / "blind")
    rows = [{"id": "red", "question": "Good?", "images": ["red.png"]}]
    with pytest.raises(
        ModelError, match=r"blind takes no pictures, and records hold some \(first at records.jsonl:1\)"
    ):
        run(loop, tmp_path / "job", None, blind, rows)


# Other engines


def test_over_a_server(loop: Loop) -> None:
    """Another's gets pictures in OpenAI's form; ours takes token ids, and says so."""
    [system, user] = shown(RED, text="What is here?")
    assert openai_content(system) == "Judge."
    parts = [
        {"type": "text", "text": "What "},
        {"type": "image_url", "image_url": {"url": RED.uri()}},
        {"type": "text", "text": "is here?"},
    ]
    assert openai_content(user) == parts
    turns = [{"role": message.role, "content": openai_content(message)} for message in (system, user)]
    manner = {"system": False, "thinking_switch": False, "logprobs": False}
    [turn] = _request("m", turns, manner, {})["messages"]
    assert turn["content"] == [{"type": "text", "text": "Judge."}, *parts]

    class Ours(ServerEngine):
        def __init__(self) -> None:
            self._server = type("Server", (), {"url": "http://127.0.0.1:8000/v1"})()

    with pytest.raises(EngineError, match="takes token ids, and no pictures"):
        loop.run(Ours().complete(Ask(shown(RED), SCHEMA)))


def test_vllm_without_torchvision_loads_no_vision_model(models: dict[str, LocalModel]) -> None:
    if find_spec("torchvision"):
        pytest.skip("torchvision is here")
    with pytest.raises(EngineError, match="without torchvision") as caught:
        choose_arguments(models["qwen"], {})
    assert "--engine transformers" in str(caught.value)


@pytest.mark.vllm
@both
def test_vllm_sees_what_transformers_sees(
    loop: Loop, engines: dict[str, TransformersEngine], models: dict[str, LocalModel], name: str
) -> None:
    pytest.importorskip("vllm")
    pytest.importorskip("torchvision", reason="vLLM loads no vision model without a torchvision that fits torch")
    sets = [(), (RED,), (BLUE,), (RED, BLUE), (BLUE, RED)]
    asks = [Ask(shown(*pictures, text=MARKS), labels=("A", "B")) for pictures in sets]
    asks += [Ask(shown(*pictures, text=MARKS), SCHEMA, 40) for pictures in sets]
    for_vllm = {"dtype": "float32", "max_num_seqs": 8, "max_model_len": 2048}
    vllm = loop.run(VllmEngine.start(models[name], for_vllm))
    try:
        there = all_of(loop, vllm, asks)
    finally:
        loop.run(vllm.close())
    here = all_of(loop, engines[name], asks)
    for a, b in zip(there, here, strict=True):
        assert (a.text, a.prompt_tokens, a.written_tokens) == (b.text, b.prompt_tokens, b.written_tokens)
        for question, likely in b.distributions.items():
            assert a.distributions[question] == pytest.approx(likely, abs=1e-4)
