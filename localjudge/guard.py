"""The guard: in this process, no Python socket reaches another machine, and who tries is told.

An audit hook (PEP 578), which cannot be taken off again. It is put on by the command line and, through
`decoding.vllm_plugin`, in each process of an engine of ours; processes that were forked have it too. A program that
imports localjudge keeps its own network, unless it calls `watch`.

What was refused is said once a process on stderr, and kept in the cache folder, since an engine's own processes
write where nobody looks; `localjudge doctor` tells it.

It sees what Python's `socket` is asked to do. Sockets that native code opens by itself (NCCL, ZeroMQ, uvloop) it
does not see: `scripts/prove_offline` watches those from outside, with strace and in a namespace without interfaces.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

LOG = "LOCALJUDGE_GUARD_LOG"
"""Environment variable: a file to which each address that a socket was to reach is added, as a line of JSON."""

ALLOWED = "LOCALJUDGE_ALLOWED_HOSTS"
"""Environment variable: hosts that may be reached, with commas between; processes inherit it."""

_REACHING = {"socket.connect", "socket.sendto", "socket.sendmsg"}
_ASKING = {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"}
_THIS_MACHINE = {"", "localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"}
_LOCAL_FAMILIES = {getattr(socket, name, None) for name in ("AF_UNIX", "AF_NETLINK")}

_hooked = False
_open = 0  # how many `reaching_out` are under way
_told: set[tuple[str, str]] = set()
_quiet = False


class Refused(ConnectionRefusedError):
    """A socket was to reach another machine. An OSError, since libraries are ready for those."""


def watch() -> None:
    """From now on, refuse any socket to an address that is not this machine's own. Once a process is enough."""
    global _hooked  # noqa: PLW0603 - a hook is there once a process, and cannot be taken off
    if not _hooked:
        _hooked = True
        sys.addaudithook(_hook)


def is_on() -> bool:
    return _hooked


def allow(host: str | None) -> None:
    """Let this host be reached, by name or address: one that the user named.

    A name stands for the addresses it resolves to now, if it does. Processes started later inherit it.
    """
    if is_here(host):
        return
    hosts = {str(host).lower()}
    with contextlib.suppress(UnicodeError):
        hosts.add(str(host).encode("idna").decode().lower())  # as an HTTP client asks for it
    with reaching_out(), contextlib.suppress(OSError, UnicodeError):
        hosts |= {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(host, None)}
    os.environ[ALLOWED] = ",".join(sorted(_allowed() | hosts))


def allow_url(url: str) -> None:
    """Let the host of this address be reached; what is wrong with the address is for others to tell."""
    from urllib.parse import urlsplit

    with contextlib.suppress(ValueError):
        allow(urlsplit(url).hostname)


@contextlib.contextmanager
def reaching_out() -> Iterator[None]:
    """While it lasts, any address may be reached: for a command that was told `--online`."""
    global _open  # noqa: PLW0603
    _open += 1
    try:
        yield
    finally:
        _open -= 1


@contextlib.contextmanager
def untold() -> Iterator[None]:
    """While it lasts, refuse without a word: for trying the guard itself."""
    global _quiet  # noqa: PLW0603
    _quiet = True
    try:
        yield
    finally:
        _quiet = False


def is_here(host: Any) -> bool:
    """Whether this address, or name, is this machine's own loopback. A name is only if it needs no looking up."""
    if isinstance(host, bytes):
        host = host.decode("ascii", "replace")
    if host is None or str(host).lower() in _THIS_MACHINE:
        return True
    address = _address(str(host))
    return address is not None and (address.is_loopback or address.is_unspecified)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _allowed() -> set[str]:
    return {host for host in os.environ.get(ALLOWED, "").split(",") if host}


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _REACHING:
        _check_address(*arguments[:2])
    elif event in _ASKING:
        host = arguments[0].decode("ascii", "replace") if isinstance(arguments[0], bytes) else arguments[0]
        # An address is turned into numbers without asking anybody; gethostbyaddr asks for a name all the same.
        if event == "socket.gethostbyaddr" or host is None or _address(host) is None:
            _decide(host, None, is_here(host))


def _check_address(sock: Any, address: Any) -> None:
    if address is None or sock.family in _LOCAL_FAMILIES:  # None: on a socket that is connected already
        return
    if sock.family in (socket.AF_INET, socket.AF_INET6) and isinstance(address, tuple):
        _decide(address[0], address[1], is_here(address[0]))
    else:
        _decide(repr(address), None, False)


def _decide(host: Any, port: int | None, here: bool) -> None:
    """Return, or raise Refused."""
    may = here or _open > 0 or str(host).lower().partition("%")[0] in _allowed()
    where = str(host) if port is None else f"{host}:{port}"
    who = None if may and LOG not in os.environ else _who()
    if LOG in os.environ and not _quiet:
        _log({"pid": os.getpid(), "who": who, "address": where, "allowed": may})
    if may:
        return
    assert who is not None
    if (who, where) not in _told and not _quiet:
        _told.add((who, where))
        _keep(who, where)
        print(f"localjudge: refused a connection to {where}, tried by {who}", file=sys.stderr, flush=True)
    raise Refused(f"localjudge is offline: {who} tried to reach {where}")


def _who() -> str:
    """The libraries in whose name it is done, innermost first: 'urllib3 < huggingface_hub < transformers'."""
    names: list[str] = []
    frame = sys._getframe(3)  # behind _decide, its caller and _hook; what of those is left is taken out by name
    while frame:
        name = str(frame.f_globals.get("__name__", "?"))
        top = name.partition(".")[0]
        if name != __name__ and top not in sys.stdlib_module_names and (not names or names[-1] != top):
            names.append(top)
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(names) or "Python itself"


def kept_at() -> Path:
    from localjudge.paths import cache_dir

    return cache_dir() / "refused.jsonl"


def _keep(who: str, where: str) -> None:
    line = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "who": who, "address": where}
    with contextlib.suppress(OSError):
        kept_at().parent.mkdir(parents=True, exist_ok=True)
        with kept_at().open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _log(line: dict[str, Any]) -> None:
    with contextlib.suppress(OSError), open(os.environ[LOG], "a", encoding="utf-8") as file:  # noqa: PTH123
        file.write(json.dumps(line) + "\n")
