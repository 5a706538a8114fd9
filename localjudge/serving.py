"""`localjudge serve`: vLLM's own server on a checked model with our plugin on, for `--engine server` elsewhere.

Three processes. The first, which the user started, waits, says when the server is ready and passes signals on. The
second is vLLM's server: this module, run as a program. The third is vLLM's engine, started by the second; either
ends when the one before it is gone. What is served the server says in a header of its answers, by which a client
knows that the guarantee holds there, and for which files.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from localjudge import __version__
from localjudge.decoding import vllm_plugin
from localjudge.engines import vllm
from localjudge.engines.inprocess import first_line
from localjudge.engines.server import HEADER, PROTOCOL
from localjudge.engines.wire import API_KEY
from localjudge.errors import EngineError, LocalJudgeError
from localjudge.offline import silence

SERVES = "LOCALJUDGE_SERVES"
"""Environment variable: what HEADER says, for `Greeting`, which vLLM makes."""

GRACE = 30.0
"""Seconds that vLLM has to end when it is told to."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Greeting:
    """ASGI middleware: every good answer of the API says what is served, behind vLLM's own check of the key."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._app = app
        self._header = HEADER.encode(), os.environ[SERVES].encode("ascii")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def greet(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                message["headers"] = [*message.get("headers", []), self._header]
            await send(message)

        guarded = scope["type"] == "http" and scope["path"].startswith("/v1/")
        await self._app(scope, receive, greet if guarded else send)


def serve(
    model: str,
    *,
    host: str,
    port: int,
    arguments: Mapping[str, Any],
    verbose: bool,
    say: Callable[[str], None] = print,
) -> None:
    """Serve `model` until SIGINT or SIGTERM; call it on the main thread. say: gets one line when it is ready.

    Raises ModelError, EngineError, and SystemExit where vLLM's process has told what is wrong.
    """
    from localjudge.models import find_model

    silence()
    vllm.check_version()
    vllm.check_plugin()
    found = find_model(model)
    _check_free(host, port)
    log = None
    if not verbose:
        handle, name = tempfile.mkstemp(prefix="localjudge-vllm-", suffix=".log")
        os.close(handle)
        log = Path(name)
    told = {
        "model": str(found.path),
        "host": host,
        "port": port,
        "arguments": dict(arguments),
        "log": name if log else None,
    }
    print(f"loading {found.name} ({found.path})", file=sys.stderr, flush=True)
    child = subprocess.Popen(
        [sys.executable, "-m", "localjudge.serving", json.dumps(told)],
        env={**os.environ, vllm_plugin.OWNER: str(os.getpid())},
    )
    stopping = threading.Event()

    def stop(*_: object) -> None:
        if not stopping.is_set():
            stopping.set()
            child.terminate()
            killing = threading.Timer(GRACE, child.kill)
            killing.daemon = True
            killing.start()

    def tell() -> None:
        while not _listens(host, port):
            if child.poll() is not None or stopping.is_set():
                return
            time.sleep(0.1)
        url = f"http://{_reached_at(host)}:{port}/v1"
        say(f"ready: localjudge run JUDGE RECORDS -o DIR --engine server --url {url} -m {shlex.quote(model)}")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        threading.Thread(target=tell, name="localjudge-ready", daemon=True).start()
        child.wait()
    finally:
        if child.poll() is None:
            child.kill()
        for number, handler in before.items():
            signal.signal(number, handler)
    if stopping.is_set():
        if log:
            log.unlink(missing_ok=True)
        return
    if child.returncode == 2:  # it has said why
        raise SystemExit(2)
    raise EngineError("vLLM has stopped by itself", fix=f"its own account is in {log}" if log else None)


def _reached_at(host: str) -> str:
    """The address by which a client on this machine reaches what listens at `host`."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{reached}]" if ":" in reached else reached


def _check_free(host: str, port: int) -> None:
    """Raises EngineError when nothing can listen there."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
            trial.listen(1)
    except UnicodeError:
        raise EngineError(f"'{host}' is no address or host name", where="--host") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise EngineError(
                f"port {port} is in use", where=host, fix=f"give another: --port {port + 1}"
            ) from None
        if error.errno == errno.EACCES:
            raise EngineError(f"port {port} is not for everyone", where=host, fix="give one above 1023") from None
        raise EngineError(f"nothing can listen there: {error.strerror}", where=f"{host}:{port}") from None


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((_reached_at(host).strip("[]"), port), timeout=1).close()
    except OSError:
        return False
    return True


def _flags(arguments: Mapping[str, Any]) -> list[str]:
    """Engine arguments as vLLM's command line takes them."""
    flags = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list):
            flags += [f"--{flag}", *map(str, value)]
        elif value is not None:
            flags += [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return flags


def _command(model: Any, told: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[str]:
    """`vllm serve` with what we set, as a command line: the one interface of vLLM's server that does not move."""
    fixed = vllm.fixed_arguments(model)
    del fixed["model"]
    address = ["--host", told["host"], "--port", str(told["port"]), "--served-model-name", model.name]
    quiet = ["--disable-uvicorn-access-log", *([] if told["log"] is None else ["--uvicorn-log-level", "warning"])]
    ours = ["--middleware", f"{Greeting.__module__}.{Greeting.__qualname__}", "--enable-prompt-tokens-details"]
    return ["serve", str(model.path), *address, *ours, *quiet, *_flags({**fixed, **arguments})]


def _greeting(model: Any, arguments: Mapping[str, Any], device: str) -> str:
    """What HEADER says."""
    identity = {
        "versions": {"localjudge": __version__, **vllm.versions()},
        "model": model.name,
        "model_fingerprint": model.fingerprint,
        "chat_template": model.template_hash,
        "device": device,
        "arguments": {name: value for name, value in arguments.items() if name not in vllm.SPEED_ONLY},
    }
    concurrency = 2 * int(arguments.get("max_num_seqs") or 128)
    return json.dumps({"protocol": PROTOCOL, "concurrency": concurrency, "identity": identity})


def _vllm_serve(command: list[str]) -> None:
    """`vllm` with this command, without its other commands: its program wants a package that is called vllm, and
    that of the CPU build is not."""
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    served = ServeSubcommand()
    parser = FlexibleArgumentParser()
    served.subparser_init(parser.add_subparsers(dest="subparser"))
    arguments = parser.parse_args(command)
    served.validate(arguments)
    served.cmd(arguments)


def _run_vllm(told: Mapping[str, Any]) -> None:
    """In the second process: vLLM's server until it is told to end. Raises LocalJudgeError."""
    from localjudge.models import find_model

    silence()
    vllm.check_version()
    vllm.check_plugin()
    if key := os.environ.get(API_KEY):
        os.environ["VLLM_API_KEY"] = key
    model = find_model(told["model"])
    account = f"its own account is in {told['log']}" if told["log"] else None
    arguments, device = vllm.choose_arguments(model, told["arguments"])
    os.environ[SERVES] = _greeting(model, arguments, device)
    try:
        _vllm_serve(_command(model, told, arguments))
    except SystemExit as error:
        if error.code:
            raise EngineError("vLLM's server does not take these engine arguments", fix=account) from None
    except KeyboardInterrupt:
        pass
    except Exception as error:
        raise EngineError(f"vLLM could not start: {first_line(error)}", fix=account) from error


def _main(told: Mapping[str, Any]) -> None:
    vllm_plugin.follow_owner()
    errors = os.dup(2)
    if told["log"]:
        # Up to the last moment: its libraries print even while Python ends.
        vllm.quiet()
        with Path(told["log"]).open("ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
    try:
        _run_vllm(told)
    except LocalJudgeError as error:
        os.write(errors, f"error: {error}\n".encode())
        sys.exit(2)


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
