"""What the viewer answers: one page, the report's own with labelling added, and the data it asks for.

    /                                   the page
    /api/runs                           the runs and how far each is
    /api/RUN/overview, /rows, /detail   as `report.html.data` has them
    /api/RUN.RUN/...                    the same of several runs side by side
    /api/RUN/label/form, /next, /case   what a person is asked; the case to label next, or one that is named: blind,
                                        so without anything that the judge said, and without what it was not shown
    /api/RUN/label/save, /undo, /skip   (POST) what they say of it; the judge's verdict comes with the answer

RUN is a run's key. Knows runs, labels and the order of labelling; nothing of HTTP, of which `server` decides.
"""

from __future__ import annotations

import functools
import shlex
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from localjudge.errors import LocalJudgeError, RunError, did_you_mean
from localjudge.report.html.data import judge_data
from localjudge.view.beside import Beside
from localjudge.view.labels import GoldFile, Label, Refused, asked_of, check_name
from localjudge.view.queue import PICKS, Facts, Pick, can_pick, next_case
from localjudge.view.runs import Followed, Runs
from localjudge.view.server import Answer, NotFound
from localjudge.view.server import Asked as Request

HERE = Path(__file__).parent
GOLD = "gold.jsonl"
CHOSEN = "chosen"
"""How a case was picked that a person went to by themselves."""

MOST_COMPARED = 8

PAGE_CSP = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""Beside the policy that the page itself has, which names its scripts by their hashes: both hold."""


class Site:
    """Answers requests about some runs. gold: the file for all labels; by default each run has its own, in its
    folder. questions: what to label; by default what the judge asks."""

    def __init__(
        self,
        runs: Runs,
        *,
        gold: Path | None = None,
        questions: Sequence[str] = (),
        annotator: str | None = None,
        language: str = "en",
    ) -> None:
        """Raises LocalJudgeError for a gold file given that holds no labels, or questions that no judge asks."""
        self.runs, self.gold, self.language = runs, gold, language
        self.questions = list(questions)
        self.annotator = check_name(annotator) if annotator is not None else None
        self._files: dict[str, tuple[str, GoldFile]] = {}
        self._skipped: dict[tuple[str, str], set[str]] = {}
        self._beside: dict[str, Beside] = {}
        self._busy = threading.Lock()
        found = [run for run in runs.all() if self._asks(run)]
        if self.questions and not found:
            for run in runs.all():
                asked_of(run.spec, self.questions)  # raises, with what is near
        if gold is not None:
            for run in found:
                self._file(run)

    def _asks(self, run: Followed) -> bool:
        try:
            asked_of(run.spec, self.questions)
        except LocalJudgeError:
            return False
        return True

    def warnings(self) -> list[str]:
        """What is wrong with gold files of the runs' own: these are looked at all the same, but not labelled."""
        found = []
        for run in self.runs.all():
            if self._gold_path(run).exists() and self._asks(run):
                try:
                    self._file(run)
                except LocalJudgeError as error:
                    found.append(str(error))
        return found

    def __call__(self, asked: Request) -> Answer:
        """Raises NotFound, LocalJudgeError."""
        parts = asked.path.strip("/").split("/")
        match (asked.method, parts):
            case ("GET", [""]):
                return Answer(_page(self.language), "text/html", csp=PAGE_CSP)
            case ("GET", ["favicon.ico"]):
                return Answer(b"", "image/x-icon")
            case ("GET", ["api", "runs"]):
                return Answer.json({"runs": self.runs.states(), "annotator": self.annotator})
            case ("GET", ["api", key, ("overview" | "rows" | "detail") as what]) if "." in key:
                return Answer.json(self._compared(key.split("."), what, asked))
            case ("GET", ["api", key, ("overview" | "rows" | "detail") as what]):
                return Answer.json(getattr(self, f"_{what}")(self._run(key), asked))
            case ("GET", ["api", key, "label", ("form" | "next" | "case") as what]):
                return Answer.json(getattr(self, f"_label_{what}")(self._run(key), asked))
            case ("POST", ["api", key, "label", ("save" | "undo" | "skip") as what]):
                if not isinstance(asked.body, dict):
                    raise Refused("an object is wanted")
                return Answer.json(getattr(self, f"_label_{what}")(self._run(key), asked))
        raise NotFound("there is nothing here")

    def _run(self, key: str) -> Followed:
        run = self.runs.get(key)
        if run is None:
            raise NotFound("there is no such run any more", fix="go back to the list of runs")
        return run

    # Looking

    def _overview(self, run: Followed, asked: Request) -> Any:
        return run.do(lambda data: data.overview())

    def _rows(self, run: Followed, asked: Request) -> Any:
        rows = run.do(lambda data: list(data.cases()))
        given = self._given(run)
        for row in rows:
            if row["id"] in given:
                row["labels"] = {who: dict(label.answers) for who, label in given[row["id"]].items()}
        return rows

    def _given(self, run: Followed) -> dict[str, dict[str, Label]]:
        """id -> annotator -> label; none where the gold file cannot be read, which labelling tells."""
        try:
            file = self._file(run)
            file.refresh()
        except LocalJudgeError:
            return {}
        found: dict[str, dict[str, Label]] = {}
        for who in file.counts():
            for record_id, label in file.by(who).items():
                found.setdefault(record_id, {})[who] = label
        return found

    def _detail(self, run: Followed, asked: Request) -> Any:
        record_id = asked.one("id")
        shown = _found(run, record_id, blind=False)
        asked.seen.add((run.key, record_id))
        said = self._given(run).get(record_id, {})
        return {**shown, "labels": {who: dict(label.answers) for who, label in said.items()}}

    def _compared(self, keys: Sequence[str], what: str, asked: Request) -> Any:
        runs = [self._run(key) for key in dict.fromkeys(keys)]
        if not 2 <= len(runs) <= MOST_COMPARED:
            raise Refused(f"2 to {MOST_COMPARED} runs can be compared")
        known = ".".join(run.key for run in runs)
        with self._busy:
            if known not in self._beside:
                self._beside[known] = Beside([run.path for run in runs])
            beside = self._beside[known]
        if what == "detail":
            record_id = asked.one("id")
            asked.seen.update((run.key, record_id) for run in runs)
            return beside.detail(record_id)
        return beside.overview() if what == "overview" else beside.rows()

    def close(self) -> None:
        for beside in self._beside.values():
            beside.close()

    # Labelling

    def _gold_path(self, run: Followed) -> Path:
        return self.gold or run.path / GOLD

    def _file(self, run: Followed) -> GoldFile:
        """Raises LocalJudgeError for a broken one."""
        with self._busy:
            known = self._files.get(run.key)
            if known is None or known[0] != run.digest:
                known = run.digest, GoldFile(self._gold_path(run), asked_of(run.spec, self.questions))
                self._files[run.key] = known
            return known[1]

    def _others(self, run: Followed) -> list[Followed]:
        """Other runs of the same judge on the same records."""
        return [
            other
            for other in self.runs.all()
            if other is not run and other.spec.name == run.spec.name and other.records & run.records
        ]

    def _label_form(self, run: Followed, asked: Request) -> Any:
        file = self._file(run)
        file.refresh()
        facts = run.facts()
        gold = shlex.quote(str(file.path))
        return {
            "title": run.title,
            "judge": judge_data(run.spec),
            "asked": [one.form() for one in file.asked.values()],
            "picks": can_pick(facts.values(), bool(self._others(run))),
            "judged": sum(one.ok for one in facts.values()),
            "gold": str(file.path),
            "counts": file.counts(),
            "agree": f"localjudge agree {shlex.quote(str(run.path))} "
            + " ".join(f"--gold {name}={gold}:{name}" for name in file.asked),
            "told": file.torn,
        }

    def _label_next(self, run: Followed, asked: Request) -> Any:
        who = check_name(asked.one("annotator"))
        pick = _pick(asked.query.get("pick", ["random"])[-1])
        file = self._file(run)
        file.refresh()
        facts = run.facts()
        done = file.by(who)
        others: list[dict[str, Facts]] = []
        if pick == "disagreements":
            others = [other.facts() for other in self._others(run)]
        later = self._skipped.get((run.key, who), set())
        record_id = next_case(facts, pick, done=done, later=later, others=others)
        left = sum(one.ok and known not in done for known, one in facts.items())
        case = None if record_id is None else self._blind(run, record_id, asked)
        return {"id": record_id, "case": case, "left": left, "labelled": len(done)}

    def _label_case(self, run: Followed, asked: Request) -> Any:
        record_id = asked.one("id")
        said = self._file(run).of(record_id).get(check_name(asked.one("annotator")))
        answers = dict(said.answers) if said else {}
        picked = said.picked if said else CHOSEN
        return {"id": record_id, "case": self._blind(run, record_id, asked), "answers": answers, "picked": picked}

    def _blind(self, run: Followed, record_id: str, asked: Request) -> dict[str, Any]:
        """Only what the judge was shown: the other fields may say who wrote it, or what people said."""
        shown = _found(run, record_id, blind=True)
        fields = [field for field in shown["fields"] if field.get("input")]
        return {**shown, "fields": fields, "where": None, "seen": (run.key, record_id) in asked.seen}

    def _label_save(self, run: Followed, asked: Request) -> Any:
        body = asked.body
        who = check_name(body.get("annotator"))
        record_id, answers = body.get("id"), body.get("answers")
        if not isinstance(record_id, str) or not isinstance(answers, dict):
            raise Refused("an id and answers are wanted")
        if record_id not in run.facts():
            raise NotFound(f"there is no verdict on a record '{record_id}'")
        file = self._file(run)
        blind = (run.key, record_id) not in asked.seen
        picked = body.get("picked")
        file.add(Label(record_id, who, answers, blind, picked if picked == CHOSEN else _pick(picked)))
        shown = _found(run, record_id, blind=False)
        asked.seen.add((run.key, record_id))
        said = {name: dict(label.answers) for name, label in file.of(record_id).items()}
        return {"saved": record_id, "detail": {**shown, "labels": said}, "counts": file.counts(), "told": file.torn}

    def _label_undo(self, run: Followed, asked: Request) -> Any:
        label = self._file(run).undo(check_name(asked.body.get("annotator")))
        if label is None:
            return {"id": None}
        case = self._blind(run, label.id, asked)
        counts = self._file(run).counts()
        return {
            "id": label.id,
            "case": case,
            "answers": dict(label.answers),
            "picked": label.picked,
            "counts": counts,
        }

    def _label_skip(self, run: Followed, asked: Request) -> Any:
        who, record_id = check_name(asked.body.get("annotator")), asked.body.get("id")
        if isinstance(record_id, str) and record_id in run.facts():
            self._skipped.setdefault((run.key, who), set()).add(record_id)
        return {"skipped": record_id}


def _found(run: Followed, record_id: str, *, blind: bool) -> dict[str, Any]:
    try:
        return run.detail(record_id, blind=blind)
    except RunError as error:
        if record_id in run.facts():
            raise
        raise NotFound(error.what) from None


def _pick(text: Any) -> Pick:
    for pick in PICKS:
        if text == pick:
            return pick
    raise Refused(f"'{text}' is no way of picking", fix=did_you_mean(str(text), PICKS))


@functools.cache
def _page(language: str) -> bytes:
    from localjudge.report.html.build import page

    scripts = [(HERE / name).read_text(encoding="utf-8") for name in ("viewer.js", "label.js")]
    styles = [(HERE / "view.css").read_text(encoding="utf-8")]
    return page(language, title="localjudge", scripts=scripts, styles=styles, connect=True).encode()
