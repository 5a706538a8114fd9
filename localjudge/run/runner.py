"""Records x judge x engine: many at once, each failure its own record's, resumable at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

import localjudge
from localjudge.decoding.closing import Grammar
from localjudge.decoding.grammar import follows
from localjudge.decoding.vocabulary import Vocabulary
from localjudge.engines.base import Ask, AskFailed, Completion, Engine, Message
from localjudge.engines.chat import TAGS, thinking_tags
from localjudge.errors import JudgeError, ModelError, RecordsError, RunError, did_you_mean
from localjudge.judge import checklist, dual_control, pairwise, panel, rubric
from localjudge.judge.asking import Correction
from localjudge.judge.embedding import check_embedding
from localjudge.judge.items import Checklist, Kept, hash_of
from localjudge.judge.panel import Combine
from localjudge.judge.reading import Plan, confidence, plan_labels, tied
from localjudge.judge.spec import JudgeSpec
from localjudge.models import LocalModel, ServedModel, cards, sees
from localjudge.paths import cache_dir
from localjudge.records import BadRecord, Record, Scan, read_records, scan_records
from localjudge.report.markdown import markdown
from localjudge.report.record import RecordReport
from localjudge.report.summary import Cascade, Summary, summarize
from localjudge.rows import Source
from localjudge.run.checklists import Checklists, refuse_other_tasks, shared_folder
from localjudge.run.progress import RunProgress
from localjudge.run.reports import write_reports
from localjudge.run.store import (
    CompletionCache,
    RunDirectory,
    differences,
    may_mend,
    read_verdicts,
    write_atomically,
)
from localjudge.verdict import Usage, Verdict

T = TypeVar("T")

PANEL = "panel.json"
"""What tells a panel's folder from that of one model."""
CASCADE = "cascade.json"
"""What tells a cascade's."""

Kind = Callable[..., Awaitable[Verdict]]
"""`(spec, record, complete, model, plan, correct) -> Verdict`, as each of KINDS."""

KINDS: dict[str, Kind] = {
    "checklist": checklist.judge,
    "dual_control": dual_control.judge,
    "pairwise": pairwise.judge,
    "rubric": rubric.judge,
}


class Settings(BaseModel):
    """How to judge.

    mode: 'explain' (a reason, then labels) or 'score' (nothing written, the labels' probabilities read).
    max_tokens: the most to write an ask, None for what the judge's own budgets need.
    min_mass, min_confidence: below these a verdict that was read is marked unsure.
    samples: how many times each record is judged, with seeds from `seed` on; their panel is the verdict.
    combine: how a panel's scores become one.
    think: the most tokens that the model may think before each answer, in its own tags; 0 for not at all.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Literal["explain", "score"] = "explain"
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = 0.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    mapping: dict[str, str] = Field(default_factory=dict)
    limit: Annotated[int, Field(ge=1)] | None = None
    skip_invalid: bool = False
    min_mass: Annotated[float, Field(ge=0, le=1)] = 0.0
    min_confidence: Annotated[float, Field(ge=0, le=1)] = 0.0
    samples: Annotated[int, Field(ge=1, le=1000)] = 1
    combine: Combine = "mean"
    think: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _samples_differ(self) -> Settings:
        if self.samples > 1 and (self.mode == "score" or not self.temperature):
            why = "score mode reads probabilities" if self.mode == "score" else "temperature is 0"
            raise ValueError(f"{self.samples} samples would all be the same, since {why}")
        return self

    @classmethod
    def of(cls, **settings: Any) -> Settings:
        """Raises RunError for what is not a setting, or not a value of one."""
        try:
            return cls(**settings)
        except ValidationError as error:
            first = error.errors()[0]
            if not first["loc"]:
                what = first["msg"].removeprefix("Value error, ")
                raise RunError(what, fix="give a temperature such as 0.7, in explain mode") from None
            name = str(first["loc"][0])
            fix = did_you_mean(name, cls.model_fields) if first["type"] == "extra_forbidden" else None
            what = "is not a setting" if fix else f"cannot be {first['input']!r}: {first['msg'].lower()}"
            raise RunError(f"'{name}' {what}", fix=fix) from None


def own_seed(seed: int, messages: Sequence[Message]) -> int:
    """An ask's own seed: the same again for the same ask, and another for every other. With one seed for all, all
    records would be decided by the same few draws."""
    told = json.dumps([seed, *(message.content for message in messages)])
    return int.from_bytes(hashlib.sha256(told.encode()).digest()[:7])


class Asker:
    """`complete` for one record: the cache first, then the engine; counts what it took."""

    def __init__(self, engine: Engine, cache: CompletionCache | None, settings: Settings) -> None:
        self._engine, self._cache, self._settings = engine, cache, settings
        self.usage = Usage()

    async def __call__(self, ask: Ask) -> Completion:
        settings = self._settings
        temperature = ask.temperature or settings.temperature
        ask = dataclasses.replace(
            ask,
            budget=ask.budget or settings.max_tokens,
            temperature=temperature,
            seed=own_seed(settings.seed + ask.seed, ask.messages) if temperature else settings.seed,
            think=settings.think,
        )
        key = self._engine.key(ask) if self._cache else ""
        completion = self._cache.get(key) if self._cache else None
        reused = completion is not None
        if completion is None:
            completion = await self._engine.complete(ask)
            # What is not valid is not kept: tried again, it is asked again.
            if self._cache and (ask.labels or follows(ask.schema, completion.text)):
                self._cache.put(key, completion)
        self.usage = self.usage + Usage(
            asks=1,
            reused=int(reused),
            prompt=completion.prompt_tokens,
            cached=completion.cached_tokens,
            written=completion.written_tokens,
        )
        return completion


async def judge_record(
    spec: JudgeSpec,
    record: Record | BadRecord,
    engine: Engine,
    model: str,
    settings: Settings,
    cache: CompletionCache | None = None,
    plan: Plan | None = None,
    correct: Correction | None = None,
    how: Kind | None = None,
) -> Verdict:
    """One record's verdict, whatever happens to its asks; with a plan, by reading labels. Of several samples, their
    panel's. how: the judge's kind, where it is bound to something, as a checklist judge to its shelf.

    Raises EngineError when no ask can be answered.
    """
    if isinstance(record, BadRecord):
        error = f"{record.where}: {record.problem}"
        return Verdict(id=record.id, status="invalid_record", error=error, judge=spec.name, model=model)
    if settings.samples == 1:
        return await _judge_once(spec, record, engine, model, settings, cache, plan, correct, how)
    samples = [
        settings.model_copy(update={"seed": settings.seed + i, "samples": 1}) for i in range(settings.samples)
    ]
    members = await asyncio.gather(
        *(
            _judge_once(spec, record, engine, f"{model}#{i}", sample, cache, plan, correct, how)
            for i, sample in enumerate(samples, 1)
        )
    )
    return panel.combine(spec, record.id, members, settings.combine, model)


async def _judge_once(
    spec: JudgeSpec,
    record: Record,
    engine: Engine,
    model: str,
    settings: Settings,
    cache: CompletionCache | None,
    plan: Plan | None,
    correct: Correction | None,
    how: Kind | None,
) -> Verdict:
    asker = Asker(engine, cache, settings)
    try:
        verdict = await (how or KINDS[spec.kind])(spec, record, asker, model, plan, correct)
    except AskFailed as failure:
        verdict = Verdict(id=record.id, status=failure.status, error=failure.why, judge=spec.name, model=model)
    unsure = any(
        (answer.mass is not None and answer.mass < settings.min_mass)
        or (answer.distribution is not None and confidence(answer) < settings.min_confidence)
        or (answer.mass is not None and tied(answer))
        for answers in (verdict.answers, *(verdict.orders or ()))
        for answer in answers.values()
    )
    unsure = unsure or (correct is not None and correct.unsure(verdict.answers))
    return verdict.model_copy(update={"usage": asker.usage, "unsure": unsure or verdict.unsure})


def label_plan(spec: JudgeSpec, engine: Engine, settings: Settings) -> dict[str, dict[str, str]] | None:
    """How labels are shown to this model in score mode; None in explain mode. Raises JudgeError."""
    return plan_labels(spec, engine.one_token) if settings.mode == "score" else None


def shelf_of(
    spec: JudgeSpec,
    model: LocalModel | ServedModel,
    settings: Settings,
    folder: Path | None,
    copies: Path | None = None,
    given: Kept | Checklist | None = None,
) -> Checklists:
    """Where a checklist judge's lists are kept. The last three as of Checklists."""
    made_with = {
        "model": model.fingerprint,
        "seed": settings.seed,
        "think": settings.think,
        "max_tokens": settings.max_tokens,
    }
    return Checklists(spec, model.name, made_with, folder, copies, given)


def bound_kind(spec: JudgeSpec, shelf: Checklists) -> Kind:
    """The judge's kind, as `judge_record` takes it: a checklist judge's with its shelf."""
    kind = KINDS[spec.kind]
    return functools.partial(kind, shelf=shelf) if spec.checklist else kind


async def judge_stream(
    judge: Callable[[Record | BadRecord], Awaitable[T]],
    records: Iterator[Record | BadRecord],
    keep: Callable[[T], None],
    concurrency: int,
) -> None:
    """Judge records as they come, `concurrency` at a time, in their order so that shared prefixes meet.

    Cancel it to stop: what is in flight is dropped, what is kept stays. An error of one worker ends all.
    """

    async def work() -> None:
        for record in records:
            keep(await judge(record))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None


def scan(path: Source, spec: JudgeSpec, settings: Settings) -> Scan:
    """Read the records through once. Raises RecordsError for bad ones, unless they are to be skipped."""
    found = scan_records(path, spec.inputs, mapping=settings.mapping, limit=settings.limit)
    if found.bad and not settings.skip_invalid:
        alike: dict[str, list[BadRecord]] = {}
        for bad in found.first_bad:
            alike.setdefault(bad.problem, []).append(bad)
        shown = "\n  ".join(
            f"{first.where}: {problem}" + (f" (and {len(others)} like it)" if others else "")
            for problem, (first, *others) in alike.items()
        )
        more = f"\n  and {found.bad - len(found.first_bad)} more" if found.bad > len(found.first_bad) else ""
        raise RecordsError(
            f"{found.bad} of {found.total} records cannot be judged\n  {shown}{more}",
            fix="mend them, or judge the rest with --skip-invalid",
        )
    return found


def check_model(spec: JudgeSpec, model: LocalModel | ServedModel, settings: Settings) -> None:
    """What can be refused before the model is loaded, by its tokenizer. Raises JudgeError when max_tokens cannot
    hold the shortest answer, or score mode is asked of a judge that has to write; ModelError when the model has no
    tags to think between."""
    if spec.kind == "dual_control" and settings.mode == "score":
        raise JudgeError(
            f"'{spec.name}' holds claims against their evidence, which score mode does not write",
            where="--mode",
            fix="judge with --mode explain",
        )
    if spec.dual_control and spec.dual_control.embedding:
        folder = Path(spec.dual_control.embedding.model).expanduser()
        if not (folder / "config.json").is_file():
            fix = "give a model's folder, or leave the embedding out: the model then judges relevance"
            raise ModelError("there is no embedding model here", where=str(folder), fix=fix)
    if spec.checklist and spec.checklist.embedding:
        check_embedding(spec.checklist.embedding)
    if settings.think:
        _check_thinking(model)
    if settings.max_tokens is None or settings.mode == "score" or model.path is None:
        return
    vocabulary = Vocabulary.from_folder(model.path)
    least = max(Grammar(schema, vocabulary).least for schema in spec.schemas)
    if settings.max_tokens < least:
        raise JudgeError(
            f"{settings.max_tokens} tokens are too few for an answer to '{spec.name}'",
            where="--max-tokens",
            fix=f"give {least} or more; without it the judge's own budgets hold",
        )


def check_sees(model: LocalModel | ServedModel, found: Scan) -> None:
    """Raises ModelError when records hold pictures and the model cannot be shown any. What a server that is not
    localjudge's own can take is not known before it is asked."""
    if found.pictured is None or not isinstance(model, LocalModel) or sees(model):
        return
    lacks = "lacks the preprocessor_config.json of its vision" if model.vision else "takes no pictures"
    known = [name for name, card in cards().items() if card.vision]
    raise ModelError(
        f"{model.name} {lacks}, and records hold some (first at {found.pictured})",
        fix=f"judge with a vision model, such as {', '.join(known)}",
    )


def _check_thinking(model: LocalModel | ServedModel) -> None:
    if model.path is None:
        raise ModelError(
            "how a model thinks is up to a server that is not localjudge's own",
            where="--think",
            fix="serve the model with `localjudge serve`, or leave --think out",
        )
    if thinking_tags((model.path / "tokenizer.json").read_text(encoding="utf-8")) is None:
        raise ModelError(
            f"{model.name} has no tags to think between ({', '.join(tag for tag, _ in TAGS)}, ...)",
            where="--think",
            fix="leave it out: this model gives its reasons in the rationale",
        )


@dataclass
class Run:
    """One sitting of a run: from a checked judge, model and records to a directory of verdicts.

    start_engine is called only when something is left to judge.
    correct, corrected_by: what is made of answers before they come to a verdict, and what run.json says of it.
    checklist: of a checklist judge, the one that every record is graded by; by default each task's own.
    judging: the engine is up, so that the run is stopped by cancelling `go`; before and after, any moment will do.
    """

    spec: JudgeSpec
    records: Path
    model: LocalModel | ServedModel
    directory: Path
    settings: Settings
    start_engine: Callable[[], Awaitable[Engine]]
    shared_cache: bool = True
    retry_failed: bool = False
    correct: Correction | None = None
    corrected_by: Mapping[str, Any] | None = None
    checklist: Kept | Checklist | None = None
    say: Callable[[str], None] = lambda text: None
    judging: bool = field(default=False, init=False)
    stopping: bool = field(default=False, init=False)

    def stop(self) -> None:
        """Say that `go` is about to be cancelled: what fails from now on fails because of that, and is not kept."""
        self.stopping = True

    def _made_by(self, found: Scan) -> dict[str, Any]:
        """What decides the verdicts, as far as it is known before the engine starts."""
        given = self.checklist
        return {
            "judge": {
                "name": self.spec.name,
                "version": self.spec.version,
                "digest": self.spec.digest,
                "kind": self.spec.kind,
                "language": self.spec.language,
            },
            "model": {
                "name": self.model.name,
                "fingerprint": self.model.fingerprint,
                "chat_template": self.model.template_hash,
            },
            "records": {"digest": found.digest, "total": found.total},
            "settings": self.settings.model_dump(),
            "calibration": self.corrected_by,
            **({"checklist": given and hash_of(given.rubric())} if self.spec.checklist else {}),
        }

    def _read(self) -> Iterator[Record | BadRecord]:
        settings = self.settings
        return read_records(self.records, self.spec.inputs, mapping=settings.mapping, limit=settings.limit)

    async def go(self) -> Summary:
        """Judge what is not judged yet, then summarise. Raises LocalJudgeError; verdicts reached are kept."""
        stamp = _stamp(self.records)
        check_model(self.spec, self.model, self.settings)
        if self.spec.report:
            RecordReport(self.spec, self.spec.report)  # a broken template is told before anything is judged
        found = scan(self.records, self.spec, self.settings)
        check_sees(self.model, found)
        if self.checklist is not None:
            refuse_other_tasks(self.checklist, "--checklist", self.spec, self._read())
        for file, whose, option in ((PANEL, "panel", "all of its -m"), (CASCADE, "cascade", "--escalate-to")):
            if (self.directory / file).is_file():
                fix = f"give another -o, or {option}"
                raise RunError(f"this folder holds a {whose}'s run", where=str(self.directory), fix=fix)
        directory = RunDirectory(self.directory)
        try:
            return await self._go(directory, found, stamp)
        finally:
            directory.close()

    async def _go(self, directory: RunDirectory, found: Scan, stamp: Stamp | None) -> Summary:
        made_by = self._made_by(found)
        run = directory.read_run()
        # What has judged nothing yet binds to nothing: its folder may be had for another judge or model.
        done = directory.read_done(retry_failed=self.retry_failed) if directory.verdicts_file.exists() else 0
        if run is None or not done:
            run = {
                **made_by,
                "localjudge": localjudge.__version__,
                "started": datetime.now(UTC).isoformat(timespec="seconds"),
                "engine": None,
                "spec": self.spec.model_dump(mode="json", by_alias=True),
                "report": list(self.spec.report) if self.spec.report else None,
                "templates": self.spec.template_texts,
                "paths": {
                    "records": str(self.records.resolve()),
                    "model": str(self.model.path) if self.model.path else None,
                },
                "sessions": [],
            }
            directory.write_run(run)
        else:
            self._refuse_changes("run that was made otherwise", {key: run.get(key) for key in made_by}, made_by)
        if done:
            self.say(f"{done} of {found.total} records are judged already")
        try:
            if done < found.total:
                await self._judge_the_rest(directory, run, found.total, done)
                self._refuse_moved_records(found, stamp)
        except BaseException:
            with contextlib.suppress(RunError):  # what ended the run is what to tell
                write_summary(self.directory, self.spec, run)
            raise
        summary = write_summary(self.directory, self.spec, run)
        if self.spec.report and (failed := write_reports(self.directory, self.spec, run)):
            self.say(f"warning: {failed}")
        return summary

    def _refuse_changes(self, what: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        if changed := differences(old, new):
            raise RunError(
                f"this folder holds a {what}:\n  " + "\n  ".join(changed),
                where=str(self.directory),
                fix="give another -o, or run with what made it",
            )

    def _refuse_moved_records(self, found: Scan, stamp: Stamp | None) -> None:
        """Records are read as they are judged, which may take days: see that they are still those scanned."""
        now = _stamp(self.records)
        if now not in (None, stamp) and scan(self.records, self.spec, self.settings).digest != found.digest:
            raise RecordsError(
                "the records changed while they were judged",
                where=str(self.records),
                fix="judge them anew, with another -o",
            )

    async def _judge_the_rest(self, directory: RunDirectory, run: dict[str, Any], total: int, done: int) -> None:
        # What another's server holds under a name may change: no other run is to have its completions.
        shared = self.shared_cache and self.model.path is not None
        cache_file = (cache_dir() if shared else self.directory) / "completions.sqlite"
        # All that can be refused early comes before the engine, which may load for minutes.
        with contextlib.closing(CompletionCache(cache_file)) as cache:
            engine = await self.start_engine()
            self.judging = True
            try:
                identity = dict(engine.identity)
                if run["engine"] is not None:
                    self._refuse_changes("run of another engine", run["engine"]["identity"], identity)
                run["engine"] = {"identity": identity, **engine.provenance}
                plan = label_plan(self.spec, engine, self.settings)
                run["labels"] = plan
                directory.write_run(run)
                directory.open(retry_failed=self.retry_failed)
                await self._judge_with(engine, cache, directory, run, RunProgress(total, done), plan)
            finally:
                await engine.close()
                self.judging = False

    async def _judge_with(
        self,
        engine: Engine,
        cache: CompletionCache,
        directory: RunDirectory,
        run: dict[str, Any],
        progress: RunProgress,
        plan: Plan | None,
    ) -> None:
        async def judge(record: Record | BadRecord) -> Verdict:
            return await judge_record(
                self.spec, record, engine, self.model.name, self.settings, cache, plan, self.correct, how
            )

        def keep(verdict: Verdict) -> None:
            # An engine process in the same terminal gets the same Ctrl-C, and fails its asks before we are done.
            if self.stopping and may_mend(verdict):
                return
            directory.append(verdict)
            progress.add(verdict.status)

        folder = shared_folder() if self.shared_cache and self.model.path is not None else None
        copies = self.directory / "checklists"
        how = bound_kind(self.spec, shelf_of(self.spec, self.model, self.settings, folder, copies, self.checklist))
        left = (record for record in self._read() if not directory.is_done(record.id))
        started = time.monotonic()
        try:
            with progress:
                await judge_stream(judge, left, keep, engine.concurrency)
        finally:
            seconds = time.monotonic() - started
            run["sessions"].append({"judged": progress.judged, "seconds": round(seconds, 3)})
            directory.write_run(run)


Stamp = tuple[int, int]


def _stamp(path: Path) -> Stamp | None:
    """Another one when a file was written to; None of a folder, and of a file that is gone."""
    if not path.is_file():
        return None
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def judge_of(path: Path, run: Mapping[str, Any]) -> JudgeSpec:
    """The judge in a folder's run.json, without its templates. Raises RunError."""
    try:
        return JudgeSpec.model_validate(run["spec"])
    except ValidationError as error:
        raise RunError(
            f"run.json holds a judge that this localjudge does not know: {error.errors()[0]['msg'].lower()}",
            where=str(path / "run.json"),
            fix=f"use localjudge {run.get('localjudge', '')}, which made it",
        ) from None


def write_summary(directory: Path, spec: JudgeSpec, run: Mapping[str, Any]) -> Summary:
    """Write summary.json and report.md from what is judged so far."""
    judged = sum(session["judged"] for session in run["sessions"])
    seconds = sum(session["seconds"] for session in run["sessions"])
    records = run["records"]["total"]
    try:
        summary = summarize(read_verdicts(directory), spec, seconds or None, judged or None, records)
    except KeyError as error:
        raise RunError(f"a verdict does not fit the judge in run.json: {error}", where=str(directory)) from None
    if told := run.get("cascade"):
        summary = summary.model_copy(update={"cascade": Cascade.model_validate(told)})
    write_atomically(directory / "summary.json", summary.model_dump_json(indent=1) + "\n")
    write_atomically(directory / "report.md", markdown(summary, run))
    return summary
