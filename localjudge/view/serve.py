"""`localjudge view` from its start to Ctrl-C: puts runs, site and server together, and says where to look."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from localjudge.errors import LocalJudgeError, did_you_mean
from localjudge.report.html.words import LANGUAGES
from localjudge.view.runs import Runs
from localjudge.view.server import Server
from localjudge.view.site import Site


def serve(
    folders: Sequence[Path],
    *,
    port: int = 0,
    annotator: str | None = None,
    gold: Path | None = None,
    questions: Sequence[str] = (),
    language: str = "en",
    say: Callable[[str], None] = lambda text: print(text, flush=True),
) -> None:
    """Serve until SIGINT or SIGTERM; call it on the main thread. say: gets the address, on a line of its own.

    Raises LocalJudgeError: no run there, a gold file that holds no labels, a port in use.
    """
    if language not in LANGUAGES:
        fix = did_you_mean(language, LANGUAGES)
        raise LocalJudgeError(f"there are no labels in '{language}'", where="--language", fix=fix)
    with contextlib.closing(Runs(folders)) as runs:
        site = Site(runs, gold=gold, questions=questions, annotator=annotator, language=language)
        for warning in site.warnings():
            print(f"warning: {warning}", file=sys.stderr, flush=True)
        server = Server(port, site)
        stopping = threading.Event()
        before = {
            number: signal.signal(number, lambda *_: stopping.set()) for number in (signal.SIGINT, signal.SIGTERM)
        }
        thread = threading.Thread(target=server.serve_forever, name="localjudge-view", daemon=True)
        try:
            thread.start()
            say(f"{len(runs.all())} run{'s' * (len(runs.all()) != 1)}; open this in a browser, Ctrl-C ends it:")
            say(server.url)
            stopping.wait()
        finally:
            server.shutdown()
            server.server_close()
            site.close()
            for number, handler in before.items():
                signal.signal(number, handler)
