"""Requests to a server over HTTP, with patience: what may pass is tried again, what will not is told at once.

Knows an OpenAI-compatible server's status codes and errors, nothing of asks and answers. Takes no proxy from the
environment and follows no redirect: what is sent goes to the host that was named and to no other.
"""

from __future__ import annotations

import asyncio
import email.utils
import os
import random
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from localjudge import __version__
from localjudge.engines.base import AskFailed
from localjudge.errors import EngineError, did_you_mean

if TYPE_CHECKING:
    import httpx

API_KEY = "LOCALJUDGE_API_KEY"
"""Environment variable: the key that the server wants. Never an option, never kept, never printed."""

ARGUMENTS = {
    "patience": "seconds to wait for a server that is gone or busy; 300",
    "timeout": "seconds that one answer may take, its time in the server's queue with it; 1800",
    "concurrency": "asks in flight; as many as the server says, else 16",
}

CONNECT = 10.0
"""Seconds to wait for a connection."""

LONGEST_PAUSE = 10.0
TRIES = 5
"""How often an ask is sent that the server fails at (500, or what cannot be unpacked) while it goes on living. With
pauses of up to 0.5, 1, 2 and 4 seconds between them: vLLM takes 5 seconds to stop answering after its engine has
died."""

AGAIN = "start it again and run the same command: finished verdicts are kept"

KEEPALIVE = {"SO_KEEPALIVE": 1, "TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""How the system finds out, in two minutes, that the other machine is off: an answer may take far longer."""

AWAY = {408, 425, 429, 502, 503, 504}
"""Status codes of a server that does not answer just now."""


class Refused(Exception):
    """The server will not answer this one request. code: its own word for why, or ''."""

    def __init__(self, message: str, code: str = "") -> None:
        self.message, self.code = message, code
        super().__init__(message)


def check_url(url: str) -> str:
    """The URL without a slash at its end. Raises EngineError for what is none, or holds more than a place. Needs
    httpx."""
    if not _is_url(url):
        rest = url.split("://", 1)[-1].strip().strip("/")
        guess = f"http://127.0.0.1:{rest}/v1" if rest.isdecimal() else f"http://{rest}"
        if guess == url or not _is_url(guess):
            guess = "http://127.0.0.1:8000/v1"
        raise EngineError(f"'{url}' is not a URL", where="--url", fix=f"as in: --url {guess}")
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise EngineError(
            "only scheme, host, port and path may be in it: it is kept in run.json",
            where="--url",
            fix=f"give http://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}; a key goes in "
            f"the environment, as {API_KEY}",
        )
    return url.rstrip("/")


def _is_url(url: str) -> bool:
    """Whether urllib, httpx and the resolver can all make something of it: each refuses what others take."""
    import httpx

    try:
        parts, asked = urlsplit(url), httpx.URL(url)
        asked.raw_host.decode("ascii").encode("idna")  # as the resolver does; `asked.host` decodes what is encoded
        named = bool(parts.hostname) and bool(asked.host)
        return parts.scheme in ("http", "https") and named and parts.port != 0 and not any(map(str.isspace, url))
    except (ValueError, httpx.InvalidURL):
        return False


def check_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """The same, each known and a number above 0. Raises EngineError."""
    for name, value in given.items():
        if name not in ARGUMENTS:
            raise EngineError(f"the server engine has no argument '{name}'", fix=did_you_mean(name, ARGUMENTS))
        kinds = (int,) if name == "concurrency" else (int, float)
        if not isinstance(value, kinds) or isinstance(value, bool) or not 0 < value < 1e9:
            raise EngineError(f"the engine argument '{name}' cannot be {value!r}", fix=f"{name}: {ARGUMENTS[name]}")
    return dict(given)


def client_options() -> dict[str, Any]:
    """What every client is made with. Raises EngineError without httpx, or for a key that no header can carry."""
    try:
        import httpx
    except ImportError:
        raise EngineError("httpx is not installed", fix="pip install 'localjudge[server]'") from None
    headers = {"User-Agent": f"localjudge/{__version__}"}
    if key := os.environ.get(API_KEY):
        if not key.isascii() or not key.isprintable() or key != key.strip():
            raise EngineError("it holds characters that no header can carry", where=API_KEY, fix="set it anew")
        headers["Authorization"] = f"Bearer {key}"
    return {
        "headers": headers,
        "trust_env": False,
        "follow_redirects": False,
        # The system's certificates, and those that SSL_CERT_FILE names, which is how a site's own are known.
        "verify": ssl.create_default_context(),
        "timeout": httpx.Timeout(None, connect=CONNECT),
    }


def _keepalive() -> list[tuple[int, int, int]]:
    level = {"SO": socket.SOL_SOCKET, "TCP": socket.IPPROTO_TCP}
    return [
        (level[name.partition("_")[0]], getattr(socket, name), value)
        for name, value in KEEPALIVE.items()
        if hasattr(socket, name)  # not every system has all
    ]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for inner in error.exceptions:
                yield from _causes(inner)
        error = error.__cause__ or error.__context__


def why_not(error: httpx.RequestError, url: str) -> EngineError:
    """What kept a request from being answered, and what to do about it."""
    import httpx

    place = urlsplit(url)
    host = f"{place.hostname}:{place.port or (443 if place.scheme == 'https' else 80)}"
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return EngineError(
                f"the certificate of {host} is not trusted: {cause.verify_message}",
                fix="name the file of your authority's certificate: SSL_CERT_FILE=/path/to/ca.pem",
            )
        if isinstance(cause, ssl.SSLError):
            return EngineError(
                f"{host} does not speak https", fix=f"give --url http://{url.removeprefix('https://')}"
            )
        if isinstance(cause, ConnectionRefusedError):
            return EngineError(
                f"nothing listens at {host}",
                fix="start the server (localjudge serve MODEL says its URL when it is ready), or correct --url",
            )
        if isinstance(cause, OSError) and type(cause).__name__ == "gaierror":
            return EngineError(f"no host is called '{place.hostname}'", fix="correct --url")
    if isinstance(error, httpx.ConnectTimeout):
        return EngineError(f"{host} does not answer", fix="see that it is on and that no firewall is between")
    if isinstance(error, httpx.ConnectError):
        return EngineError(f"{host} cannot be reached: {error}", fix="correct --url")
    if isinstance(error, httpx.DecodingError):
        return EngineError(f"{host} sends an answer that cannot be unpacked: {error}")
    fix = (
        f"if it speaks https, give --url https://{url.removeprefix('http://')}" if place.scheme == "http" else None
    )
    return EngineError(f"{host} hung up without an answer", fix=fix)


def _message(response: httpx.Response) -> tuple[str, str]:
    """A server's own words for an error, in one line, and its code for it."""
    message, code = "", ""
    try:
        body = response.json()
    except ValueError:
        body = None
    if isinstance(body, Mapping):
        error = body.get("error", body)
        if isinstance(error, Mapping):
            message = str(error.get("message") or error.get("detail") or "")
            words = (error.get("type"), error.get("code"), error.get("param"))
            code = " ".join(str(word) for word in words if word is not None)
        else:
            message = str(error)
    message = " ".join(message.split())[:300]
    if key := os.environ.get(API_KEY):
        message = message.replace(key, "…")
    return message, code


def read(response: httpx.Response, url: str) -> Any:
    """The JSON of a good answer. url: the server's. Raises Refused for one request's fault, EngineError for what
    every request would meet."""
    status = response.status_code
    message, code = _message(response) if status >= 400 else ("", "")
    told = f"{status} {response.reason_phrase}".strip() + (f": {message}" if message else "")
    path = response.request.url.path
    if status in (401, 403):
        keyed = f"does not take the key in {API_KEY}" if os.environ.get(API_KEY) else "wants an API key"
        raise EngineError(f"the server {keyed} ({told})", where=url, fix=f"set {API_KEY} in the environment")
    if status in (404, 405):
        fix = None if urlsplit(url).path else f"most servers want --url {url}/v1"
        raise EngineError(f"the server has no {path} ({told})", where=url, fix=fix)
    if 300 <= status < 400:
        raise EngineError(
            f"the server sends elsewhere: {response.headers.get('location', told)}",
            where=url,
            fix="give that place as --url, if you trust it",
        )
    if status in AWAY or status >= 500:
        raise EngineError(f"the server is not ready: {told}", where=url, fix="run again when it is")
    if status >= 400:
        raise Refused(message or told, code)
    try:
        return response.json()
    except ValueError:
        kind = response.headers.get("content-type", "").partition(";")[0] or "something"
        raise EngineError(
            f"{path} answers with {kind}, not JSON: this is no OpenAI-compatible API",
            where=url,
            fix=None if urlsplit(url).path.endswith("/v1") else f"most servers want --url {origin(url)}/v1",
        ) from None


def origin(url: str) -> str:
    """Scheme, host and port of a URL."""
    return "{0.scheme}://{0.netloc}".format(urlsplit(url))


def _seconds(value: str | None) -> float:
    """A Retry-After header as seconds from now; 0 without one that can be read."""
    if not value:
        return 0.0
    if value.strip().isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0


class Wire:
    """A server that requests are sent to, for as long as it takes. Make it on the loop that is to use it.

    patience, timeout: seconds; see ARGUMENTS. check: looks at each good answer's headers, and raises EngineError
    when they are not those of the server that the run began with.
    """

    def __init__(
        self, url: str, arguments: Mapping[str, Any], check: Callable[[Mapping[str, str]], None] = lambda _: None
    ) -> None:
        import httpx

        self.url = url
        self._patience: float = arguments.get("patience", 300)
        self._timeout: float = arguments.get("timeout", 1800)
        self._check = check
        # A connection for each ask in flight, however many: they wait in the server, where they are batched.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        options = client_options()
        transport = httpx.AsyncHTTPTransport(
            verify=options.pop("verify"), trust_env=False, limits=limits, socket_options=_keepalive()
        )
        self._client = httpx.AsyncClient(**options, transport=transport)
        self._answered = 0
        self._away_since: float | None = None

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON that answers. Raises Refused or AskFailed for this request, EngineError when the server is gone
        for longer than its patience, or is not the one it was."""
        import httpx

        answered = self._answered
        sent = failed = late = 0
        while True:
            sent += 1
            least = 0.0
            try:
                async with asyncio.timeout(self._timeout):
                    response = await self._client.post(f"{self.url}{path}", json=body)
            except TimeoutError:
                trouble = EngineError(f"the server did not answer within {self._timeout:g} s")
                late += 1
                if late == 2 and self._answered > answered:
                    raise AskFailed("engine_error", trouble.what) from None
                if late == 2:
                    raise EngineError(f"the server answers nobody: {trouble.what}, twice", fix=AGAIN) from None
            except httpx.RequestError as error:
                trouble = why_not(error, self.url)
                if isinstance(error, httpx.DecodingError):
                    failed += 1
                    if failed == TRIES:
                        raise AskFailed("engine_error", trouble.what) from None
            else:
                if response.status_code < 500 and response.status_code not in AWAY:
                    self._answered += 1
                    self._away_since = None
                    found = read(response, self.url)
                    self._check(response.headers)
                    return found
                trouble = EngineError(
                    f"the server says {response.status_code}: {_message(response)[0]}".rstrip(": ")
                )
                if response.status_code not in AWAY:
                    failed += 1
                    if failed == TRIES:
                        raise AskFailed("engine_error", trouble.what)
                least = _seconds(response.headers.get("retry-after"))
            now = time.monotonic()
            if self._away_since is None:
                self._away_since = now
            left = self._away_since + self._patience - now
            if left <= 0:
                raise self._over(trouble)
            await asyncio.sleep(min(max(pause(sent), least), left + 0.01))

    def _over(self, trouble: EngineError) -> EngineError:
        return EngineError(f"the server is gone, after {self._patience:g} s of waiting: {trouble.what}", fix=AGAIN)

    async def close(self) -> None:
        await self._client.aclose()


def pause(sent: int) -> float:
    """Seconds to wait after the nth try: twice as long each time, up to half of it left out so that not all come at
    once."""
    return min(0.5 * 2.0 ** min(sent - 1, 10), LONGEST_PAUSE) * random.uniform(0.5, 1.0)
