"""The server engine: what a person gets wrong told in one message, patience, another's server, and one's own.

Here the server is scripted; tests/test_serving.py runs the real ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from localjudge import guard
from localjudge.cli import main
from localjudge.engines import wire
from localjudge.engines.base import Ask, AskFailed, Completion, Message
from localjudge.engines.foreign import ForeignEngine
from localjudge.engines.server import HEADER, PROTOCOL, find_server, start_server_engine
from localjudge.engines.start import choose_engine
from localjudge.errors import EngineError, LocalJudgeError, ModelError
from localjudge.judge.loading import load_judge
from localjudge.models import LocalModel, ServedModel
from localjudge.run.store import read_verdicts
from tests.conftest import Loop

HELLO = (Message("system", "Be brief."), Message("user", "Say anything."))
SCHEMA = load_judge("truthfulness").answer_schema
VALID = '{"rationale":"So it is.","truthful":"yes"}'


@dataclass
class Reply:
    """status 0: hang up without a word. delay: seconds before it is sent."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0


NO_GZIP = Reply("no gzip", headers={"content-encoding": "gzip"})


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


class Scripted:
    """An HTTP server whose answers a test gives; `asked` is what came to it, but for /models and /version."""

    def __init__(self) -> None:
        self.models: Any = {"data": [{"id": "judge-7b"}, {"id": "other"}]}
        self.script: list[Reply] | Callable[[Request], Reply] = []
        self.greeting: dict[str, str] = {}
        self.listed = Reply()
        self.asked: list[Request] = []
        self.seen: list[Request] = []
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                self._answer()

            def do_POST(self) -> None:
                self._answer()

            def _answer(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                headers = {key.lower(): value for key, value in self.headers.items()}
                reply = scripted.reply(Request(self.command, self.path, headers, body))
                time.sleep(reply.delay)
                if not reply.status:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                text = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
                sent = {"content-type": "application/json", **scripted.greeting, **reply.headers}
                self.send_response(reply.status)
                for key, value in sent.items():
                    self.send_header(key, value)
                self.send_header("content-length", str(len(text.encode())))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(text.encode())

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def reply(self, request: Request) -> Reply:
        self.seen.append(request)
        if request.path.endswith("/models"):
            listed = self.listed
            return Reply(listed.body or self.models, listed.status, listed.headers)
        if request.path == "/version":
            return Reply({"version": "9.9"})
        self.asked.append(request)
        return self.script(request) if callable(self.script) else self.script.pop(0)

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def http() -> Iterator[Scripted]:
    server = Scripted()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(wire.API_KEY, raising=False)


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port: int = trial.getsockname()[1]
        return port


def trouble(url: str, model: str = "judge-7b", **arguments: Any) -> str:
    with pytest.raises(LocalJudgeError) as caught:
        find_server(url, model, arguments)
    return str(caught.value)


# What a person gets wrong, before anything is asked


def test_a_closed_port() -> None:
    port = free_port()
    told = trouble(f"http://127.0.0.1:{port}/v1")
    assert told.startswith(f"nothing listens at 127.0.0.1:{port}\n  start the server (localjudge serve MODEL")


@pytest.mark.parametrize(
    ("url", "fix"),
    [
        ("127.0.0.1:8000/v1", "--url http://127.0.0.1:8000/v1"),
        ("localhost", "--url http://localhost"),
        ("8000", "--url http://127.0.0.1:8000/v1"),
        ("ftp://here/v1", "--url http://here/v1"),
        ("http://:8000/v1", "--url http://127.0.0.1:8000/v1"),
        ("http://here:99999/v1", "--url http://127.0.0.1:8000/v1"),
        ("http://here:0/v1", "--url http://127.0.0.1:8000/v1"),
        ("http://a..b/v1", "--url http://127.0.0.1:8000/v1"),
        ("http://xn--/v1", "--url http://127.0.0.1:8000/v1"),
        ("http://*é/v1", "--url http://127.0.0.1:8000/v1"),
        ("http://[::1", "--url http://127.0.0.1:8000/v1"),
        ("http://[zz]/v1", "--url http://127.0.0.1:8000/v1"),
        (f"http://{'a' * 64}.here/v1", "--url http://127.0.0.1:8000/v1"),
        ("http://a host/v1", "--url http://127.0.0.1:8000/v1"),
        ("", "--url http://127.0.0.1:8000/v1"),
    ],
)
def test_what_is_no_url(url: str, fix: str) -> None:
    told = trouble(url)
    assert told.startswith(f"--url: '{url}' is not a URL\n")
    assert told.endswith(f"as in: {fix}")


@pytest.mark.parametrize("url", ["http://here", "http://é.here/v1", "http://[::1]:8000/v1", "https://a_b:1/x/"])
def test_what_is_a_url(url: str) -> None:
    assert wire.check_url(url) == url.rstrip("/")


@pytest.mark.parametrize("url", ["http://me:secret@here:8000/v1", "http://here:8000/v1?key=secret"])
def test_a_url_is_kept_and_so_holds_no_secret(url: str) -> None:
    told = trouble(url)
    assert "run.json" in told and "http://here:8000/v1" in told and "LOCALJUDGE_API_KEY" in told
    assert "secret" not in told


def test_a_host_that_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(guard.ALLOWED, "no-such-host.invalid")  # which the command line sets, of what it is given
    assert "'no-such-host.invalid'" in trouble("http://no-such-host.invalid/v1")


def test_the_path_left_out(http: Scripted) -> None:
    http.listed = Reply({"detail": "Not Found"}, 404)
    bare = http.url.removesuffix("/v1")
    told = trouble(bare)
    assert (
        told
        == f"{bare}: the server has no /models (404 Not Found: Not Found)\n  most servers want --url {http.url}"
    )


def test_a_server_that_speaks_html(http: Scripted) -> None:
    http.listed = Reply("<html>hello</html>", headers={"content-type": "text/html; charset=utf-8"})
    told = trouble(f"{http.url.removesuffix('/v1')}/app")
    assert "/app/models answers with text/html, not JSON: this is no OpenAI-compatible API" in told
    assert told.endswith(f"most servers want --url {http.url}")


def test_json_that_lists_no_models(http: Scripted) -> None:
    http.models = {"models": []}
    assert "/models does not list models" in trouble(http.url)


def test_a_list_that_cannot_be_unpacked(http: Scripted) -> None:
    http.listed = NO_GZIP
    assert f"127.0.0.1:{http.port} sends an answer that cannot be unpacked: " in trouble(http.url)


def test_a_key_that_is_wanted_or_wrong(http: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    http.listed = Reply({"error": "Unauthorized"}, 401)
    told = trouble(http.url)
    assert "the server wants an API key (401 Unauthorized: Unauthorized)" in told
    assert told.endswith("set LOCALJUDGE_API_KEY in the environment")
    monkeypatch.setenv(wire.API_KEY, "sesame")
    http.listed = Reply({"error": {"message": "bad key 'sesame'"}}, 401)
    told = trouble(http.url)
    assert "the server does not take the key in LOCALJUDGE_API_KEY (401 Unauthorized: bad key '…')" in told
    assert http.seen[-1].headers["authorization"] == "Bearer sesame"
    monkeypatch.setenv(wire.API_KEY, "open\nsesame")
    told = trouble(http.url)
    assert "no header can carry" in told and "sesame" not in told


def test_a_model_that_is_not_served(http: Scripted) -> None:
    assert trouble(http.url, "judge7b") == f"{http.url}: the server serves no 'judge7b'\n  did you mean 'judge-7b'?"


def test_a_server_that_is_still_loading_or_sends_elsewhere(http: Scripted) -> None:
    http.listed = Reply({"error": {"message": "Loading model"}}, 503)
    assert "the server is not ready: 503 Service Unavailable: Loading model" in trouble(http.url)
    http.listed = Reply({}, 307, {"location": "http://elsewhere/v1/models"})
    assert "the server sends elsewhere: http://elsewhere/v1/models" in trouble(http.url)
    assert len(http.seen) == 2


def test_https_asked_of_a_server_that_speaks_http(http: Scripted) -> None:
    told = trouble(http.url.replace("http:", "https:"))
    assert told == f"127.0.0.1:{http.port} does not speak https\n  give --url {http.url}"


def test_http_asked_of_a_server_that_speaks_https(tmp_path: Path) -> None:
    """And its certificate, which nobody has vouched for, is not taken."""
    command = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost"
    made = subprocess.run(command.split(), cwd=tmp_path, capture_output=True, check=False)
    if made.returncode:
        pytest.skip("openssl cannot make a certificate here")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    plain, _ = listener.accept()
                    with plain, contextlib.suppress(OSError):
                        context.wrap_socket(plain, server_side=True).close()

        threading.Thread(target=accept, daemon=True).start()
        told = trouble(f"http://127.0.0.1:{port}/v1")
        assert f"127.0.0.1:{port} hung up without an answer\n  if it speaks https, give --url https://" in told
        told = trouble(f"https://127.0.0.1:{port}/v1")
        assert f"the certificate of 127.0.0.1:{port} is not trusted: self" in told
        assert "SSL_CERT_FILE" in told


def test_proxies_of_the_environment_are_not_used(http: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    assert find_server(http.url, "judge-7b").served == "judge-7b"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"patiance": 3}, "the server engine has no argument 'patiance'\n  did you mean 'patience'?"),
        ({"timeout": 0}, "the engine argument 'timeout' cannot be 0\n  timeout: seconds that one answer may take"),
        ({"concurrency": 1.5}, "the engine argument 'concurrency' cannot be 1.5"),
        ({"patience": True}, "the engine argument 'patience' cannot be True"),
    ],
)
def test_arguments_are_checked(http: Scripted, arguments: dict[str, Any], told: str) -> None:
    assert trouble(http.url, **arguments).startswith(told)


def test_engine_and_url_go_together(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="needs --url"):
        choose_engine("server", "judge-7b")
    with pytest.raises(EngineError, match="--url is of no use to the vllm engine"):
        choose_engine("vllm", str(tmp_path), url="http://127.0.0.1/v1")
    with pytest.raises(EngineError, match=r"no engine 'serve'\n  did you mean 'server'\?"):
        choose_engine("serve", "judge-7b")


# localjudge's own server, as far as it can be scripted


def greet(model: LocalModel, **changed: Any) -> dict[str, str]:
    identity = {"model": model.name, "model_fingerprint": model.fingerprint, "chat_template": None, "versions": {}}
    told = {"protocol": PROTOCOL, "concurrency": 7, "identity": identity | changed.pop("identity", {})}
    return {HEADER: json.dumps(told | changed)}


def test_the_server_must_hold_the_files_that_are_here(http: Scripted, random_model: LocalModel) -> None:
    path = str(random_model.path)
    http.models = {"data": [{"id": random_model.name, "max_model_len": 512}]}
    http.greeting = greet(random_model)
    found = find_server(http.url, path)
    assert found.model == random_model and found.greeting is not None
    http.greeting = greet(random_model, identity={"model_fingerprint": "0" * 64})
    told = trouble(http.url, path)
    assert f"the server serves another {random_model.name}: its files are 000000000000…" in told
    assert told.endswith(f"start it with: localjudge serve {path}")
    http.greeting = greet(random_model, protocol=PROTOCOL + 1)
    assert "install the same release of localjudge on both sides" in trouble(http.url, path)
    http.greeting = {HEADER: "hello"}
    assert "not what localjudge sends" in trouble(http.url, path)
    http.greeting = greet(random_model)
    with pytest.raises(ModelError, match="did you mean 'smollm2-135m'"):
        find_server(http.url, "smolm2-135m")


def written(model: LocalModel, text: str, finish: str = "stop") -> dict[str, Any]:
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(str(model.path / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    choice = {"token_ids": ids, "finish_reason": finish, "logprobs": None}
    return {"choices": [choice], "usage": {"prompt_tokens": 1}}


@pytest.fixture
def own(http: Scripted, random_model: LocalModel, loop: Loop) -> Iterator[Any]:
    """An engine on a scripted server that greets as localjudge's."""
    http.models = {"data": [{"id": random_model.name, "max_model_len": 512}]}
    http.greeting = greet(random_model)
    yield from engine_on(http, loop, str(random_model.path))


def engine_on(http: Scripted, loop: Loop, model: str = "judge-7b", **arguments: Any) -> Iterator[Any]:
    engine = loop.run(start_server_engine(find_server(http.url, model, arguments)))
    yield engine
    loop.run(engine.close())


def failure(loop: Loop, engine: Any, ask: Ask) -> AskFailed | EngineError:
    with pytest.raises((AskFailed, EngineError)) as caught:
        loop.run(engine.complete(ask))
    return caught.value


def test_what_is_sent_is_tokens_and_a_marked_schema(
    http: Scripted, own: Any, loop: Loop, random_model: LocalModel
) -> None:
    assert own.concurrency == 7
    assert own.context == 512
    http.script = [Reply(written(random_model, VALID))]
    completion = loop.run(own.complete(Ask(HELLO, SCHEMA, 40)))
    assert completion.text == VALID
    [request] = http.asked
    assert request.path == "/v1/completions"
    assert all(isinstance(token, int) for token in request.body["prompt"])
    assert json.loads(request.body["structured_outputs"]["json"])["x-localjudge"] == {"budget": 40}
    assert own.identity["kind"] == "localjudge" and http.url not in json.dumps(own.identity)
    assert own.provenance["url"] == http.url


def test_a_server_that_comes_back_as_another_is_not_believed(
    http: Scripted, own: Any, loop: Loop, random_model: LocalModel
) -> None:
    """In the middle of a run, with other weights or without our plugin."""
    for greeting in (greet(random_model, identity={"model_fingerprint": "0" * 64}), {}):
        http.greeting = greeting
        http.script = [Reply(written(random_model, VALID))]
        error = failure(loop, own, Ask(HELLO, SCHEMA, 40))
        assert isinstance(error, EngineError) and "the server was replaced by one with another model" in str(error)
    http.greeting = greet(random_model, concurrency=99)  # only speed: that may change
    http.script = [Reply(written(random_model, VALID))]
    assert loop.run(own.complete(Ask(HELLO, SCHEMA, 40))).text == VALID


def test_an_answer_broken_off_by_a_server_that_is_stopped_is_asked_for_again(
    http: Scripted, own: Any, loop: Loop, random_model: LocalModel
) -> None:
    http.script = [
        Reply(written(random_model, '{"rationale":"', "abort")),
        Reply(status=0),
        Reply({"error": {"message": "EngineCore encountered an issue"}}, 500),
        Reply(written(random_model, VALID)),
    ]
    assert loop.run(own.complete(Ask(HELLO, SCHEMA, 40))).text == VALID
    assert not http.script


def test_what_vllm_does_not_send_is_an_engine_error(http: Scripted, own: Any, loop: Loop) -> None:
    for body in ({}, {"choices": []}, {"choices": [{"token_ids": None}], "usage": {}}, []):
        http.script = [Reply(body)]
        error = failure(loop, own, Ask(HELLO, SCHEMA, 40))
        assert isinstance(error, AskFailed) and error.status == "engine_error"
    http.script = [Reply({"error": {"message": "no such thing", "code": 400}}, 400)]
    error = failure(loop, own, Ask(HELLO, SCHEMA, 40))
    assert isinstance(error, AskFailed) and error.why == "the server refused the ask: no such thing"


# Another's server


def chat(text: str, finish: str = "stop", tokens: dict[str, float] | None = None) -> Reply:
    choice: dict[str, Any] = {"message": {"role": "assistant", "content": text}, "finish_reason": finish}
    if tokens:
        listed = [{"token": token, "logprob": math.log(p)} for token, p in tokens.items()]
        choice["logprobs"] = {"content": [{**listed[0], "top_logprobs": listed}]}
    usage = {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}
    return Reply({"choices": [choice], "usage": usage})


PROBE = {"A": 0.5}


@pytest.fixture
def foreign(http: Scripted, loop: Loop) -> Iterator[Any]:
    http.script = [chat("A", tokens=PROBE)]
    yield from engine_on(http, loop)


def test_a_foreign_server_is_asked_with_a_schema_without_quotas(http: Scripted, foreign: Any, loop: Loop) -> None:
    http.script = [chat(VALID)]
    completion = loop.run(foreign.complete(Ask(HELLO, SCHEMA, None, 0.7, 5)))
    assert completion == Completion(VALID, 12, 8, 3, "stop")
    sent = http.asked[-1].body
    assert http.asked[-1].path == "/v1/chat/completions"
    assert sent["messages"] == [{"role": message.role, "content": message.text} for message in HELLO]
    assert (sent["temperature"], sent["seed"]) == (0.7, 5)
    form = sent["response_format"]["json_schema"]["schema"]
    assert form["required"] == SCHEMA["required"] and "x-tokens" not in json.dumps(form)
    assert foreign.identity["kind"] == "foreign" and foreign.identity["vllm"] == "9.9"
    assert http.url not in json.dumps(foreign.identity)
    assert "a label that is not on it counts as 0" in foreign.provenance["labels"]
    assert foreign.key(Ask(HELLO, SCHEMA)) != foreign.key(Ask(HELLO, SCHEMA, 5))


def test_a_foreign_model_is_its_name(http: Scripted) -> None:
    found = find_server(http.url, "judge-7b")
    assert found.model == ServedModel("judge-7b")
    assert (found.model.fingerprint, found.model.path) == ("server:judge-7b", None)


def test_servers_that_call_their_models_alike_are_told_apart(http: Scripted, loop: Loop) -> None:
    """By what /models tells and, for completions, by where they are; a run may go on where the server moved to."""

    def made(told: dict[str, Any], at: str) -> tuple[Any, str]:
        http.models = {"data": [{"id": "default", **told}]}
        http.script = [chat("A", tokens=PROBE)]
        with contextlib.closing(engine_on(http, loop, "default")) as engines:
            engine = next(engines)
            elsewhere = ForeignEngine(
                dataclasses.replace(engine._server, url=at), engine._wire, engine.identity["manner"]
            )
            return elsewhere.identity, elsewhere.key(Ask(HELLO, SCHEMA))

    here, there = "http://a:1/v1", "http://b:1/v1"
    tell = [{"root": "/w/a"}, {"root": "/w/b"}, {"meta": {"n_params": 7}}, {"meta": {"n_params": 8}}, {}]
    made_all = [made(told, at) for told in tell for at in (here, there)]
    assert len({key for _, key in made_all}) == 10
    assert len({json.dumps(identity) for identity, _ in made_all}) == 5
    assert made_all[0] == made({"root": "/w/a"}, "http://a:1/v2")


def test_an_answer_that_is_cut_or_invalid_is_asked_for_again_with_more(
    http: Scripted, foreign: Any, loop: Loop
) -> None:
    http.script = [chat(VALID[:20], "length"), chat("Sure! " + VALID), chat(VALID)]
    assert loop.run(foreign.complete(Ask(HELLO, SCHEMA))).text == VALID
    budgets = [request.body["max_tokens"] for request in http.asked[-3:]]
    assert budgets == [budgets[0], 2 * budgets[0], 4 * budgets[0]]
    http.script = [chat(VALID[:20], "length")] * 3
    error = failure(loop, foreign, Ask(HELLO, SCHEMA))
    assert isinstance(error, AskFailed) and error.status == "engine_error"
    assert error.why == (
        f"the server's answer is cut after {4 * budgets[0]} tokens, asked for 3 times with twice the budget each"
    )
    http.script = [chat('{"truthful":"maybe"}')] * 3
    assert "does not follow the schema" in str(failure(loop, foreign, Ask(HELLO, SCHEMA)))
    http.script = [chat(VALID[:20], "length")]  # --max-tokens is not exceeded
    assert str(failure(loop, foreign, Ask(HELLO, SCHEMA, 50))) == "the server's answer is cut after 50 tokens"


@pytest.mark.parametrize(
    "error",
    [
        {"code": "context_length_exceeded", "message": "too many tokens"},
        {"code": 400, "type": "exceed_context_size_error", "message": "too many tokens"},
        {"code": 400, "type": "BadRequestError", "param": "input_tokens", "message": "too many tokens"},
        {"code": 400, "type": "BadRequestError", "param": "input_text", "message": "too many characters"},
        {"code": 400, "message": "the input is longer than the model's context length"},
    ],
)
def test_a_prompt_that_does_not_fit_is_too_long(http: Scripted, foreign: Any, loop: Loop, error: Any) -> None:
    http.script = [Reply({"error": error}, 400)] * 3
    found = failure(loop, foreign, Ask(HELLO, SCHEMA))
    assert isinstance(found, AskFailed)
    assert (found.status, found.why) == ("too_long", f"the server: {error['message']}")
    http.script = [chat(VALID[:20], "length"), Reply({"error": error}, 400)]
    found = failure(loop, foreign, Ask(HELLO, SCHEMA))  # what does not fit is the greater budget
    assert isinstance(found, AskFailed) and found.status == "engine_error" and "is cut" in found.why


def small(room: int, answer: Reply) -> Callable[[Request], Reply]:
    """A server that has so many tokens to spare beside the prompt, and refuses who wants more."""
    told = Reply({"error": {"code": "context_length_exceeded", "message": "no room"}}, 400)
    return lambda request: told if request.body["max_tokens"] > room else answer


def test_a_budget_that_does_not_fit_is_halved(http: Scripted, foreign: Any, loop: Loop) -> None:
    """Our own engines judge a large rubric in what context is left, and so does another's server."""
    large = load_judge("replay-review").schemas[0]
    full = foreign._budget(large)
    assert full > 4000

    def budgets(room: int, answer: str, ask: Ask) -> tuple[list[int], str]:
        http.asked.clear()
        http.script = small(room, chat(answer, "length"))
        found = failure(loop, foreign, ask)
        assert isinstance(found, AskFailed)
        return [request.body["max_tokens"] for request in http.asked], f"{found.status}: {found.why}"

    cut = f"engine_error: the server's answer is cut after {full // 4} tokens; the server has no room for more"
    assert budgets(full // 4, "{", Ask(HELLO, large)) == ([full, full // 2, full // 4], cut)
    assert budgets(full // 8, "{", Ask(HELLO, large)) == (
        [full, full // 2, full // 4],
        "too_long: the server: no room",
    )
    assert budgets(30, "{", Ask(HELLO, SCHEMA, 40))[0] == [40, 20], "nor is it raised then to what did not fit"
    http.script = small(100, chat(VALID))
    assert loop.run(foreign.complete(Ask(HELLO, SCHEMA, 150))).text == VALID
    assert http.asked[-1].body["max_tokens"] == 75


def test_no_budget_is_greater_than_the_context(http: Scripted, loop: Loop) -> None:
    http.models = {"data": [{"id": "judge-7b", "max_model_len": 200}]}
    http.script = [chat("A", tokens=PROBE)]
    with contextlib.closing(engine_on(http, loop)) as engines:
        engine = next(engines)
        http.script = [chat(VALID[:20], "length")] * 2
        found = failure(loop, engine, Ask(HELLO, SCHEMA))
        assert str(found) == (
            "the server's answer is cut after 200 tokens, asked for 2 times with twice the budget each"
            "; the server has no room for more"
        )
        assert [request.body["max_tokens"] for request in http.asked[-2:]] == [engine._budget(SCHEMA), 200]
        http.script = [chat(VALID)]
        loop.run(engine.complete(Ask(HELLO, SCHEMA, 5000)))
        assert http.asked[-1].body["max_tokens"] == 200


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ([], "holds no choice"),
        ({"choices": ["x"]}, "holds no choice"),
        ({"choices": [{"message": None}]}, "holds no message but None"),
        ({"choices": [{"message": "hello"}]}, "holds no message but 'hello'"),
        *(
            ({"choices": [{"message": {"content": VALID}}], "usage": usage}, "counts no tokens but says")
            for usage in (
                {"prompt_tokens": "many"},
                {"completion_tokens": [1]},
                {"completion_tokens": math.inf},
                {"prompt_tokens_details": "none"},
                "none",
            )
        ),
    ],
)
def test_an_odd_answer_is_its_own_asks_error(
    http: Scripted, foreign: Any, loop: Loop, body: Any, told: str
) -> None:
    http.script = [Reply(body)]
    error = failure(loop, foreign, Ask(HELLO, SCHEMA))
    assert isinstance(error, AskFailed) and error.status == "engine_error" and told in error.why
    http.script = [chat(VALID)]
    assert loop.run(foreign.complete(Ask(HELLO, SCHEMA))).text == VALID


def test_labels_are_read_from_the_list_of_likeliest_tokens(http: Scripted, foreign: Any, loop: Loop) -> None:
    ask = Ask(HELLO, labels=("A", "B", "C"))
    http.script = [chat("A", tokens={"A": 0.3, " A": 0.1, "Sure": 0.3, "B": 0.1})]
    completion = loop.run(foreign.complete(ask))
    assert completion.distributions[""] == pytest.approx({"A": 0.8, "B": 0.2, "C": 0.0})
    assert completion.mass == pytest.approx(0.5)
    assert http.asked[-1].body["max_tokens"] == 1 and "response_format" not in http.asked[-1].body
    http.script = [chat("So", tokens={"So": 0.9})]
    assert "none of the labels" in str(failure(loop, foreign, ask))
    for p in (math.exp(9), math.inf):
        http.script = [chat("A", tokens={"A": p, "B": 0.1})]  # no probabilities, but raw scores
        assert "told no log-probabilities" in str(failure(loop, foreign, ask))
    assert foreign.one_token(["A", "B", "7"])
    assert not foreign.one_token(["yes", "no"])
    assert not foreign.one_token(["A", "A"])


def test_a_server_without_log_probabilities_cannot_score(http: Scripted, loop: Loop) -> None:
    http.script = [chat("A")]
    with contextlib.closing(engine_on(http, loop)) as engines:
        engine = next(engines)
        with pytest.raises(EngineError, match=r"no log-probabilities.*\n.*--mode explain"):
            engine.one_token(["A", "B"])
        assert "not to be had" in engine.provenance["labels"]


def test_a_server_is_asked_in_the_manner_it_takes(http: Scripted, loop: Loop) -> None:
    """Here: no system message, no switch for the chat template."""

    def picky(request: Request) -> Reply:
        if request.body["messages"][0]["role"] == "system":
            return Reply({"error": {"message": "system role not supported"}}, 400)
        if "chat_template_kwargs" in request.body:
            return Reply({"error": {"message": "unknown field"}}, 400)
        return chat(VALID, tokens=PROBE)

    http.script = picky
    with contextlib.closing(engine_on(http, loop)) as engines:
        engine = next(engines)
        assert engine.identity["manner"] == {"system": False, "thinking_switch": False, "logprobs": True}
        assert loop.run(engine.complete(Ask(HELLO, SCHEMA))).text == VALID
        assert http.asked[-1].body["messages"] == [{"role": "user", "content": "Be brief.\n\nSay anything."}]
    http.script = lambda _: Reply({"error": {"message": "only embeddings here"}}, 400)
    with pytest.raises(EngineError, match="the server refuses to chat: only embeddings here"):
        next(engine_on(http, loop))


# Patience


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pauses of no time; the numbers of the tries that were paused after."""
    tries: list[int] = []

    def pause(sent: int) -> float:
        tries.append(sent)
        return 0.001

    monkeypatch.setattr(wire, "pause", pause)
    return tries


def test_what_may_pass_is_waited_for(http: Scripted, foreign: Any, loop: Loop, quick: list[int]) -> None:
    http.script = [
        Reply({"error": {"message": "loading"}}, 503),
        Reply(status=0),
        Reply("<html>bad gateway</html>", 502),
        Reply({}, 500),
        Reply({}, 429),
        chat(VALID),
    ]
    assert loop.run(foreign.complete(Ask(HELLO, SCHEMA))).text == VALID
    assert quick == [1, 2, 3, 4, 5]


def test_the_server_says_how_long_to_wait(http: Scripted, foreign: Any, loop: Loop, quick: list[int]) -> None:
    http.script = [Reply({}, 429, {"retry-after": "1"}), chat(VALID)]
    started = time.monotonic()
    loop.run(foreign.complete(Ask(HELLO, SCHEMA)))
    assert 1.0 <= time.monotonic() - started < 2.5
    assert wire._seconds("Wed, 01 Jan 2020 00:00:00 GMT") == 0.0
    assert wire._seconds("Wed, 01 Jan 2120 00:00:00 GMT") > 1e9
    assert wire._seconds("soon") == 0.0
    assert wire._seconds("Wed, 01 Jan 2020 00:00:00 +99999999999999") == 0.0


def test_an_ask_that_breaks_the_server_every_time_is_given_up(
    http: Scripted, foreign: Any, loop: Loop, quick: list[int]
) -> None:
    http.script = [Reply({"error": {"message": "division by zero"}}, 500)] * wire.TRIES
    error = failure(loop, foreign, Ask(HELLO, SCHEMA))
    assert isinstance(error, AskFailed)
    assert (error.status, error.why) == ("engine_error", "the server says 500: division by zero")


def test_what_cannot_be_unpacked_is_tried_again_and_given_up(
    http: Scripted, foreign: Any, loop: Loop, quick: list[int]
) -> None:
    http.script = [NO_GZIP, chat(VALID)]
    assert loop.run(foreign.complete(Ask(HELLO, SCHEMA))).text == VALID
    http.script = [NO_GZIP] * wire.TRIES
    error = failure(loop, foreign, Ask(HELLO, SCHEMA))
    assert isinstance(error, AskFailed) and error.status == "engine_error" and "cannot be unpacked" in error.why


def test_patience_has_an_end(http: Scripted, loop: Loop, quick: list[int]) -> None:
    http.script = [chat("A", tokens=PROBE)]
    with contextlib.closing(engine_on(http, loop, patience=0.3)) as engines:
        engine = next(engines)
        http.close()
        started = time.monotonic()
        error = failure(loop, engine, Ask(HELLO, SCHEMA))
        assert 0.3 <= time.monotonic() - started < 3
        assert isinstance(error, EngineError)
        assert error.what == f"the server is gone, after 0.3 s of waiting: nothing listens at 127.0.0.1:{http.port}"
        assert "run the same command" in (error.fix or "")


def test_an_answer_that_does_not_come(http: Scripted, loop: Loop, quick: list[int]) -> None:
    """Where the server answers others, it is this ask's failure; where it answers nobody, it is the server's."""
    http.script = lambda request: Reply(delay=5.0) if "slow" in str(request.body) else chat(VALID, tokens=PROBE)
    slow = Ask((Message("user", "slow"),), SCHEMA)
    with contextlib.closing(engine_on(http, loop, timeout=1)) as engines:
        engine = next(engines)

        async def go() -> list[Any]:
            late = asyncio.ensure_future(engine.complete(slow))
            await asyncio.sleep(0.2)
            return [await engine.complete(Ask(HELLO, SCHEMA)), *await asyncio.gather(late, return_exceptions=True)]

        answered, late = loop.run(go())
        assert answered.text == VALID
        assert isinstance(late, AskFailed) and late.why == "the server did not answer within 1 s"
        error = failure(loop, engine, slow)
        assert isinstance(error, EngineError) and "the server answers nobody" in error.what


def test_pauses_grow_and_differ() -> None:
    assert all(0.25 <= wire.pause(1) <= 0.5 for _ in range(50))
    assert all(5 <= wire.pause(30) <= 10 for _ in range(50))
    assert len({wire.pause(3) for _ in range(20)}) > 10


# The command line


def test_a_run_over_a_foreign_server_keeps_no_key(
    http: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    records = tmp_path / "records.jsonl"
    rows = [{"id": str(i), "question": f"Is {i} even?", "answer": "yes"} for i in range(5)]
    records.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setenv(wire.API_KEY, "sesame")
    monkeypatch.setenv("LOCALJUDGE_CACHE", str(tmp_path / "cache"))
    http.script = lambda request: chat(VALID, tokens=PROBE)
    out = tmp_path / "run"

    def run(*more: str) -> tuple[int, str]:
        command = ["run", "truthfulness", str(records), "-m", "judge-7b", "-o", str(out), "--engine", "server"]
        monkeypatch.setattr(sys, "argv", ["localjudge", *command, *more])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capfd.readouterr().err

    code, said = run("--url", http.url, "--no-cache", "--engine-arg", "concurrency=2")
    assert code == 0, said
    assert "not localjudge's own" in said
    assert [verdict.status for verdict in read_verdicts(out)] == ["ok"] * 5
    for file in out.rglob("*"):
        assert file.is_dir() or b"sesame" not in file.read_bytes(), file
    kept = json.loads((out / "run.json").read_text())
    assert kept["engine"]["url"] == http.url
    assert (kept["model"]["fingerprint"], kept["paths"]["model"]) == ("server:judge-7b", None)
    assert all(request.headers["authorization"] == "Bearer sesame" for request in http.seen)

    # Weights may have changed under that name: what was answered before is nobody else's.
    sent = len(http.asked)
    for again in ("again", "once more"):
        out = tmp_path / again
        code, said = run("--url", http.url)
        assert code == 0, said
    assert len(http.asked) == sent + 2 * (5 + 1)  # and a trial of the manner
    assert not (tmp_path / "cache" / "completions.sqlite").exists()

    code, said = run()
    assert (code, "needs --url" in said, "Traceback" in said) == (2, True, False)
    code, said = run("--url", f"http://127.0.0.1:{free_port()}/v1")
    assert (code, "nothing listens" in said, "Traceback" in said) == (2, True, False)
