"""The guard: what stays on this machine passes; what would leave it is refused, and says who tried."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from localjudge import guard

FAR = "192.0.2.1"  # RFC 5737: nobody's


def watched(code: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run in a process of its own: a guard is never taken off again."""
    whole = "import socket\nfrom localjudge import guard\nguard.watch()\n" + textwrap.dedent(code)
    env = {"LOCALJUDGE_CACHE": str(cwd), **env}
    return subprocess.run(
        [sys.executable, "-c", whole], cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", True),
        ("localhost", True),
        (b"localhost", True),
        (None, True),
        ("", True),
        ("8.8.8.8", False),
        ("::ffff:8.8.8.8", False),
        ("10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("huggingface.co", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
    ],
)
def test_what_is_this_machine(host: str | bytes | None, here: bool) -> None:
    assert guard.is_here(host) is here


def test_each_way_out_is_refused(tmp_path: Path) -> None:
    done = watched(
        f"""
        import asyncio, urllib.request

        def refused(attempt):
            try:
                attempt()
            except guard.Refused as error:
                assert "localjudge is offline" in str(error)
            except OSError as error:
                assert isinstance(getattr(error, "reason", None), guard.Refused), error
            else:
                raise SystemExit("reached")

        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        refused(lambda: socket.create_connection(("{FAR}", 80), timeout=1))
        refused(lambda: socket.socket().connect_ex(("{FAR}", 80)))
        refused(lambda: socket.socket(socket.AF_INET6).connect(("2001:db8::1", 80)))
        refused(lambda: udp.connect(("{FAR}", 80)))
        refused(lambda: udp.sendto(b"x", ("{FAR}", 53)))
        refused(lambda: udp.sendmsg([b"x"], [], 0, ("{FAR}", 53)))
        refused(lambda: socket.getaddrinfo("example.org", 80))
        refused(lambda: socket.gethostbyname("example.org"))
        refused(lambda: socket.gethostbyaddr("{FAR}"))
        refused(lambda: urllib.request.urlopen("http://example.org/", timeout=1))
        refused(lambda: asyncio.run(asyncio.open_connection("{FAR}", 80)))
        print("all")
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, "all\n"), done.stderr
    assert f"refused a connection to {FAR}:80, tried by __main__" in done.stderr
    assert done.stderr.count(f"{FAR}:80,") == 1, "each is told once"


def test_this_machine_and_its_own_sockets_are_reached(tmp_path: Path) -> None:
    done = watched(
        """
        import asyncio

        async def talk():
            async def answer(reader, writer):
                writer.write(await reader.readline())
                writer.close()

            for where in ({"host": "localhost", "port": 0}, {"path": "socket"}):
                start = asyncio.start_unix_server if "path" in where else asyncio.start_server
                connect = asyncio.open_unix_connection if "path" in where else asyncio.open_connection
                async with await start(answer, **where) as server:
                    if "port" in where:
                        where["port"] = server.sockets[0].getsockname()[1]
                    reader, writer = await connect(**where)
                    writer.write(b"hello\\n")
                    assert await reader.readline() == b"hello\\n"
                    writer.close()

        asyncio.run(talk())
        """,
        tmp_path,
        LOCALJUDGE_GUARD_LOG="log.jsonl",
    )
    assert (done.returncode, done.stderr) == (0, "")
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert log
    assert all(entry["allowed"] and guard.is_here(entry["address"].rpartition(":")[0]) for entry in log)


def test_the_library_that_tried_is_named_and_logged(tmp_path: Path) -> None:
    (tmp_path / "phones_home.py").write_text(
        "import socket\ndef ping():\n    socket.create_connection(('8.8.8.8', 53))\n"
    )
    (tmp_path / "harmless.py").write_text("import phones_home\ndef work():\n    phones_home.ping()\n")
    done = watched("import harmless; harmless.work()", tmp_path, LOCALJUDGE_GUARD_LOG="log.jsonl", PYTHONPATH=".")
    assert done.returncode == 1
    who = "phones_home < harmless < __main__"
    assert f"refused a connection to 8.8.8.8:53, tried by {who}" in done.stderr
    [entry] = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert (entry["who"], entry["address"], entry["allowed"]) == (who, "8.8.8.8:53", False)
    [kept] = map(json.loads, (tmp_path / "refused.jsonl").read_text().splitlines())
    assert (kept["who"], kept["address"]) == (who, "8.8.8.8:53")


def test_forked_processes_are_guarded_too(tmp_path: Path) -> None:
    done = watched(
        f"""
        import os
        child = os.fork()
        if child == 0:
            try:
                socket.create_connection(("{FAR}", 80), timeout=1)
            except guard.Refused:
                os._exit(7)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
        tmp_path,
    )
    assert done.stdout == "7\n"


def test_a_name_that_is_none_is_allowed_nothing_and_an_international_one_by_both_its_spellings(
    tmp_path: Path,
) -> None:
    done = watched(
        """
        import os

        for host in ("a..b", "xn--", "*é", "a" * 64, "münchen.invalid"):
            guard.allow(host)

        def outcome(host):
            try:
                socket.getaddrinfo(host, 9)
            except guard.Refused:
                return "refused"
            except OSError:
                return "tried"

        print(outcome("xn--mnchen-3ya.invalid"), outcome("other.invalid"))
        """,
        tmp_path,
    )
    assert done.stdout == "tried refused\n", done.stderr


def test_what_the_user_named_is_reached_and_nothing_else(tmp_path: Path) -> None:
    done = watched(
        f"""
        def outcome(host):
            try:
                socket.create_connection((host, 9), timeout=0.05)
            except guard.Refused:
                return "refused"
            except OSError:
                return "tried"

        guard.allow("{FAR}")
        print(outcome("{FAR}"), outcome("192.0.2.2"))
        with guard.reaching_out():
            print(outcome("192.0.2.2"))
        print(outcome("192.0.2.2"))
        """,
        tmp_path,
    )
    assert done.stdout == "tried refused\ntried\nrefused\n", done.stderr
