"""A run's verdicts as a flat table, and a judge's asks as an OpenAI batch, for other tools to take up.

Each verdict becomes one row whose columns follow from the judge alone, so that all rows, and all runs of one judge,
have the same; only probabilities are there if the engine gave any. Rows are streamed: a million take no more memory
than a few thousand.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from localjudge.decoding.grammar import QUOTA
from localjudge.engines.base import AskFailed, openai_content
from localjudge.errors import JudgeError, LocalJudgeError, RecordsError, RunError, did_you_mean
from localjudge.judge import pairwise
from localjudge.judge.asking import inputs_of, rationale_of, shown_of
from localjudge.judge.loading import judge_names, load_judge
from localjudge.judge.questions import FindingsQuestion, FlagsQuestion, ScoreQuestion, TextQuestion
from localjudge.judge.rubric import settled_of
from localjudge.judge.spec import JudgeSpec
from localjudge.records import BadRecord, read_records, scan_records
from localjudge.run.importing import SWAPPED_ID
from localjudge.run.preferences import LEAST_MARGIN, Preferences
from localjudge.run.rewards import Rewards
from localjudge.run.runner import judge_of, own_seed
from localjudge.run.store import RunDirectory, read_verdicts
from localjudge.verdict import Answer, Verdict

FORMS = ("jsonl", "parquet", "hf", "rewards", "preferences", "openai-batch")

_BATCH = 2000  # rows of a table made at a time
_ORDERS = ("straight", "swapped")
_OWN = ("run.json", "verdicts.jsonl", "summary.json", "report.md")


@dataclass(frozen=True)
class Exported:
    """rows: written. left_out: records that there is no request, pair or reward of, as they lack what the judge
    asks about or were not judged; first_left_out: where the first is, and why."""

    rows: int
    left_out: int = 0
    first_left_out: str | None = None


@dataclass(frozen=True)
class Column:
    """kind: an Arrow type's name, or `codes`, a list of texts. of: its value for a verdict, or None."""

    name: str
    kind: str
    of: Callable[[Verdict], Any]


def export(
    directory: Path,
    form: str,
    out: Path,
    *,
    force: bool = False,
    model_name: str | None = None,
    judge: JudgeSpec | None = None,
    margin: float = LEAST_MARGIN,
) -> Exported:
    """Write a run's verdicts in one of FORMS; `openai-batch` writes the requests that ask its judge of its records.

    out: a file (gzipped if it ends in .gz), or for `hf` the folder that `datasets.load_from_disk` reads. force:
    replace it if it is there. model_name: whom the requests are for; by default the run's model. judge: the run's
    judge, for requests; needed only when it has template files of its own. margin: of preferences, how far apart
    two responses must be, 0 to 1; they are Parquet where `out` ends so, else JSON lines.

    Raises RunError: no run here, a run in use, something in the place of `out`, another judge than the run's;
    LocalJudgeError: `out` is named like a file of another form.
    """
    if form not in FORMS:
        raise LocalJudgeError(f"'{form}' is not a known form", where="--to", fix=did_you_mean(form, FORMS))
    if not (directory / "run.json").is_file():
        raise RunError("this folder holds no run", where=str(directory), fix="give the folder that `-o` named")
    if out.resolve().parent == directory.resolve() and out.name in _OWN:
        raise RunError("is the run's own file", where=str(out), fix="give another -o")
    _refuse_misnamed(form, out)
    _refuse_existing(form, out, force)
    with contextlib.closing(RunDirectory(directory)) as held:
        run = held.read_run()
        assert run is not None
        if form == "openai-batch":
            if (kind := run["judge"]["kind"]) in ("checklist", "dual_control"):
                what = f"a {kind} judge's asks follow from the answers to others, so no batch holds them"
                raise RunError(what, where="--to openai-batch", fix="judge with `localjudge run --engine server`")
            asks = _Asks(with_templates(held.path, run, judge), run, model_name or run["model"]["name"])
            with replacing(out) as temporary:
                rows = _write_lines(temporary, out, asks.requests())
            return Exported(rows, asks.left_out, asks.first_left_out)
        spec = judge_of(held.path, run)
        if form == "preferences":
            found = Preferences(directory, run, spec, margin)
            with replacing(out) as temporary:
                if out.suffix.lower() == ".parquet":
                    rows = _write_parquet(temporary, found.rows())
                else:
                    rows = _write_lines(temporary, out, found.rows())
            return Exported(rows, found.left_out, found.first_left_out)
        if form == "rewards":
            earned = Rewards(directory, run, spec)
            with replacing(out) as temporary:
                rows = _write_lines(temporary, out, earned.rows())
            return Exported(rows, earned.left_out, earned.first_left_out)
        table = _Table(columns(spec, _labels(spec, read_verdicts(directory))), directory)
        with replacing(out) as temporary:
            if form == "jsonl":
                rows = _write_lines(temporary, out, table.rows())
            elif form == "parquet":
                rows = table.write_parquet(temporary)
            else:
                rows = table.write_dataset(temporary)
        return Exported(rows)


def _refuse_misnamed(form: str, out: Path) -> None:
    """What reads a file goes by how its name ends."""
    end = out.suffix.lower()
    if form == "parquet" and end in (".jsonl", ".json", ".gz"):
        what, better = "Parquet", ".parquet"
    elif form in ("jsonl", "rewards", "openai-batch") and end == ".parquet":
        what, better = "JSON lines", ".jsonl"
    else:
        return
    fix = f"give -o {out.with_suffix(better)}"
    raise LocalJudgeError(
        f"'{form}' writes {what}, which nobody would look for under this name", where=str(out), fix=fix
    )


def _refuse_existing(form: str, out: Path, force: bool) -> None:
    if not out.exists():
        return
    if not force:
        raise RunError("is there already", where=str(out), fix="give another -o, or --force to replace it")
    ours = (out / "dataset_info.json").is_file() if form == "hf" else out.is_file()
    if not ours:
        what = "is not a dataset's folder" if form == "hf" else "is not a file"
        raise RunError(f"{what}, so it is not replaced", where=str(out), fix="give another -o")


@contextlib.contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """Where to write what then takes the place of `out`, whole or not at all."""
    temporary = out.with_name(f".{out.name}.tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _remove(temporary)
        yield temporary
        if out.is_dir():
            _remove(out)
        temporary.replace(out)
    except OSError as error:
        what = f"cannot be written: {error.strerror or error}"
        raise RunError(what, where=str(out), fix="make room for it, or give another -o") from error
    finally:
        with contextlib.suppress(OSError):
            _remove(temporary)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _write_lines(path: Path, named: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """JSON lines; gzipped when the name that they will have says so."""
    count = 0
    plain = named.suffix.lower() != ".gz"
    with cast(
        "IO[str]", path.open("w", encoding="utf-8") if plain else gzip.open(path, "wt", encoding="utf-8")
    ) as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
            count += 1
    return count


def _write_parquet(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Preference pairs."""
    import pyarrow as pa
    from pyarrow import parquet

    messages = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    schema = pa.schema(
        [
            *((name, messages) for name in ("prompt", "chosen", "rejected")),
            ("persona", pa.string()),
            ("margin", pa.float64()),
            *((name, pa.string()) for name in ("case", "chosen_id", "rejected_id")),
            *((name, pa.float64()) for name in ("chosen_score", "rejected_score")),
        ]
    )
    count, left = 0, iter(rows)
    with parquet.ParquetWriter(path, schema) as writer:
        while some := list(itertools.islice(left, _BATCH)):
            writer.write_table(pa.Table.from_pylist(some, schema))
            count += len(some)
    return count


# Verdicts as a table


def _labels(spec: JudgeSpec, verdicts: Iterable[Verdict]) -> dict[tuple[str, str], list[str]]:
    """Which probabilities there are: (order or nothing, question) -> labels, in the question's own order."""
    met: dict[tuple[str, str], dict[str, None]] = {}
    for verdict in verdicts:
        for order, answers in [("", verdict.answers), *zip(_ORDERS, verdict.orders or [], strict=False)]:
            for question, answer in answers.items():
                if answer.distribution:
                    met.setdefault((order, question), {}).update(dict.fromkeys(answer.distribution))
    own = {
        question.id: list(question.codes)
        if isinstance(question, FlagsQuestion)
        else list(map(str, question.labels))
        for question in spec.own_questions
        if not isinstance(question, TextQuestion | FindingsQuestion)
    }
    if spec.checklist:  # whose items are each task's own
        return {}
    asked = [question.id for question in spec.asked]
    return {
        (order, question): [label for label in own.get(question, []) if label in met[order, question]]
        + [label for label in met[order, question] if label not in own.get(question, [])]
        for order, question in sorted(met, key=lambda key: (asked.index(key[1]), key[0]))
    }


def columns(spec: JudgeSpec, labels: Mapping[tuple[str, str], list[str]] | None = None) -> list[Column]:
    """The columns of a judge's verdicts.

    id, status, overall, passed, score_<name>, grade and measure_<name> where the judge has them, answer_<question>,
    unsure, rationale, red_lines (codes, with commas), error, judge, model, asks, prompt_tokens, cached_tokens,
    written_tokens. Flags are answered by the list of codes raised, findings by their JSON. Of pairs also
    preference_straight, preference_swapped and the two rationales, where A and B are the record's own in
    preferences but exchanged in the swapped order's text.

    labels: what there are probabilities of, as (order or nothing, question) -> labels: a column each,
    p_<question>_<label>, or p_<order>_<question>_<label>. Raises RunError when two columns would have one name.
    """
    found = [
        Column("id", "string", lambda v: v.id),
        Column("status", "string", lambda v: v.status),
        Column("overall", "float64", lambda v: v.overall),
        Column("passed", "bool_", lambda v: v.passed),
    ]
    for name in ["preference_a"] if spec.kind == "pairwise" else spec.scales:
        found.append(Column(f"score_{name}", "float64", _score(name)))
    if spec.scoring.grades:
        found.append(Column("grade", "string", lambda v: v.grade))
    for name in spec.scoring.measures:
        found.append(Column(f"measure_{name}", "float64", _measure(name)))
    if spec.checklist:
        found.append(Column("items", "string", lambda v: v.items and json.dumps([i.model_dump() for i in v.items])))
    for question in spec.own_questions if not spec.checklist else ():
        kind = "int64" if isinstance(question, ScoreQuestion) else "string"
        kind = "codes" if isinstance(question, FlagsQuestion) else kind
        value = _answer("", question.id)
        value = _as_json(value) if isinstance(question, FindingsQuestion) else value
        found.append(Column(f"answer_{question.id}", kind, value))
    if spec.kind == "pairwise":
        for order in _ORDERS[: 2 if spec.orders == "both" else 1]:
            found.append(Column(f"preference_{order}", "string", _answer(order, "preference")))
            found.append(Column(f"rationale_{order}", "string", _rationale(spec, order)))
    for (order, name), own in (labels or {}).items():
        for label in own:
            of = f"{order}_{name}" if order else name
            found.append(Column(f"p_{of}_{label}", "float64", _probability(order, name, label)))
    found += [
        Column("unsure", "bool_", lambda v: v.unsure),
        Column("rationale", "string", lambda v: v.rationale),
        Column("red_lines", "string", lambda v: ",".join(v.red_lines) if v.status == "ok" else None),
        Column("error", "string", lambda v: v.error),
        Column("judge", "string", lambda v: v.judge),
        Column("model", "string", lambda v: v.model),
        Column("asks", "int64", lambda v: v.usage.asks),
        Column("prompt_tokens", "int64", lambda v: v.usage.prompt),
        Column("cached_tokens", "int64", lambda v: v.usage.cached),
        Column("written_tokens", "int64", lambda v: v.usage.written),
    ]
    names = [column.name for column in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise RunError(
            f"two columns would be called '{twice[0]}'", fix="give the judge's questions or labels other names"
        )
    return found


def _answers(verdict: Verdict, order: str) -> Mapping[str, Answer]:
    """What one order was answered; without an order, the verdict's own. One asked alone is the straight one."""
    if not order or (verdict.orders is None and order == "straight"):
        return verdict.answers
    return verdict.orders[_ORDERS.index(order)] if verdict.orders else {}


def _score(name: str) -> Callable[[Verdict], Any]:
    return lambda verdict: verdict.scores.get(name)


def _measure(name: str) -> Callable[[Verdict], Any]:
    return lambda verdict: (found := verdict.measures.get(name)) and found.value


def _as_json(of: Callable[[Verdict], Any]) -> Callable[[Verdict], Any]:
    def text(verdict: Verdict) -> Any:
        value = of(verdict)
        return None if value is None else json.dumps(value, ensure_ascii=False)

    return text


def _answer(order: str, question: str) -> Callable[[Verdict], Any]:
    def of(verdict: Verdict) -> Any:
        answer = _answers(verdict, order).get(question)
        return answer and answer.value

    return of


def _rationale(spec: JudgeSpec, order: str) -> Callable[[Verdict], Any]:
    return lambda verdict: rationale_of(spec, _answers(verdict, order))


def _probability(order: str, question: str, label: str) -> Callable[[Verdict], Any]:
    def of(verdict: Verdict) -> Any:
        answer = _answers(verdict, order).get(question)
        return answer and answer.distribution and answer.distribution.get(label)

    return of


class _Table:
    def __init__(self, made_of: list[Column], directory: Path) -> None:
        self._columns, self._directory = made_of, directory

    def rows(self) -> Iterator[dict[str, Any]]:
        for verdict in read_verdicts(self._directory):
            yield {column.name: column.of(verdict) for column in self._columns}

    def _schema(self) -> Any:
        import pyarrow as pa

        kinds = {"codes": pa.list_(pa.string())}
        return pa.schema([(c.name, kinds.get(c.kind) or getattr(pa, c.kind)()) for c in self._columns])

    def _write(self, writer: Any, schema: Any) -> int:
        import pyarrow as pa

        count, rows = 0, self.rows()
        while some := list(itertools.islice(rows, _BATCH)):
            writer.write_table(pa.Table.from_pylist(some, schema))
            count += len(some)
        return count

    def write_parquet(self, path: Path) -> int:
        from pyarrow import parquet

        schema = self._schema()
        with parquet.ParquetWriter(path, schema) as writer:
            return self._write(writer, schema)

    def write_dataset(self, path: Path) -> int:
        """What `datasets.load_from_disk` reads. By way of an Arrow file of our own: `datasets` would keep a copy of
        rows that it takes from a generator in the user's cache."""
        import pyarrow as pa

        try:
            import datasets
        except ImportError as error:
            raise RunError("--to hf needs a package that is missing", fix="pip install datasets") from error

        schema = self._schema()
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".localjudge-") as folder:
            arrow = Path(folder) / "rows.arrow"
            with pa.OSFile(str(arrow), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
                count = self._write(writer, schema)
            shown = datasets.is_progress_bar_enabled()
            datasets.disable_progress_bars()
            try:
                # Of no rows `datasets` writes no file, and then cannot load what it wrote: a shard is asked for.
                datasets.Dataset.from_file(str(arrow)).save_to_disk(str(path), num_shards=None if count else 1)
            finally:
                if shown:
                    datasets.enable_progress_bars()
        return count


# A judge's asks as an OpenAI batch


def with_templates(path: Path, run: Mapping[str, Any], given: JudgeSpec | None = None) -> JudgeSpec:
    """The run's judge with its templates, as run.json keeps them; of a run made before it did, those that come with
    localjudge, if they are the same."""
    digest = run["judge"]["digest"]
    if given is not None:
        if given.digest == digest:
            return given
        what = f"the judge '{given.name}' is not the one that made this run ({digest[:12]})"
        raise RunError(what, where=str(path), fix="give it as it was then, with its --set")
    judge_of(path, run)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "judge.yaml").write_text(json.dumps(run["spec"]), encoding="utf-8")
        built_in = judge_names().get(run["judge"]["name"])
        for template in built_in.glob("*.j2") if built_in and "templates" not in run else ():
            shutil.copy(template, folder)
        for role, text in run.get("templates", {}).items():
            if re.fullmatch(r"[a-z_]+", role):
                (folder / f"{role}.j2").write_text(text, encoding="utf-8")
        with contextlib.suppress(JudgeError):
            spec = load_judge(folder)
            if spec.digest == digest:
                return spec
    what = f"the templates of '{run['judge']['name']}' are not those that come with localjudge"
    raise RunError(what, where=str(path), fix="give the judge's file with --judge, and its --set")


class _Asks:
    """Every ask of a run's judge about its records. left_out, first_left_out: as in Exported, so far."""

    def __init__(self, spec: JudgeSpec, run: Mapping[str, Any], model: str) -> None:
        self._spec, self._model = spec, model
        self._settings = run["settings"]
        self._path = Path(run["paths"]["records"])
        self.left_out = 0
        self.first_left_out: str | None = None
        options = {"mapping": self._settings["mapping"], "limit": self._settings["limit"]}
        found = scan_records(self._path, spec.inputs, **options)
        if found.digest != run["records"]["digest"]:
            raise RecordsError("these are no longer the records of the run", where=str(self._path))
        if found.bad == found.total:
            first = found.first_bad[0]
            what = f"none of its {found.total} records has what the judge asks about: {first.problem}"
            raise RecordsError(what, where=first.where)

    def _leave_out(self, why: str) -> None:
        self.left_out += 1
        self.first_left_out = self.first_left_out or why

    def requests(self) -> Iterator[dict[str, Any]]:
        settings = self._settings
        warm = settings.get("temperature", 0.0) > 0
        for record in read_records(
            self._path, self._spec.inputs, mapping=settings["mapping"], limit=settings["limit"]
        ):
            if isinstance(record, BadRecord):
                self._leave_out(f"{record.where}: {record.problem}")
                continue
            spec = self._spec
            orders = pairwise.orders_of(spec, record) if spec.kind == "pairwise" else [inputs_of(spec, record)]
            if len(orders) > 1 and record.id.endswith(SWAPPED_ID):
                what = f"the id ends in '{SWAPPED_ID}', which tells a pair's second request from its first"
                raise RecordsError(what, where=record.where, fix="give the record another id")
            try:
                asked = []
                for fields in orders:
                    names = {**spec.template_names, **settled_of(spec, fields)}
                    asked.append(spec.templates.messages(shown_of(spec, fields), names))
            except JudgeError as error:  # a template finds no place in this record
                self._leave_out(f"{record.where}: {error.where}: {error.what}")
                continue
            except AskFailed as failure:  # nor can a check read it
                self._leave_out(f"{record.where}: {failure.why}")
                continue
            for end, messages in zip(("", SWAPPED_ID), asked, strict=False):
                yield {
                    "custom_id": record.id + end,
                    "method": "POST",
                    "url": "/v1/chat/completions",
                    "body": {
                        "model": self._model,
                        "messages": [
                            {"role": message.role, "content": openai_content(message)} for message in messages
                        ],
                        "temperature": settings.get("temperature", 0.0),
                        "seed": own_seed(settings.get("seed", 0), messages) if warm else settings.get("seed", 0),
                        "response_format": {
                            "type": "json_schema",
                            "json_schema": {
                                "name": re.sub(r"[^A-Za-z0-9_-]", "_", spec.name)[:64],
                                "strict": True,
                                "schema": _portable(spec.answer_schema),
                            },
                        },
                    },
                }


def _portable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema in what OpenAI's strict mode takes: a type everywhere, no least length and no quotas. What comes
    back is validated in full all the same."""
    found = {key: value for key, value in schema.items() if key not in (QUOTA, "minLength")}
    if "enum" in found:
        kinds = sorted({"string" if isinstance(label, str) else "integer" for label in found["enum"]})
        found["type"] = kinds[0] if len(kinds) == 1 else kinds
    if "properties" in found:
        found["properties"] = {name: _portable(inner) for name, inner in found["properties"].items()}
    if "items" in found:
        found["items"] = _portable(found["items"])
    return found
