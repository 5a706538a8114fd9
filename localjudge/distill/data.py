"""Runs become a training set: what is asked of each record, and how likely the teacher holds each label.

Rows know no student: a row has the messages up to the question, and recipe.json both ways in which the question's
labels can be shown, as themselves and as letters; which of them, a student's tokenizer decides. Groups of records
are never on both sides of a split, nor are texts that are all but the same. Knows nothing of training.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import string
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

import localjudge
from localjudge.distill.reasons import COLUMNS, Reason, reasons_of
from localjudge.engines.base import AskFailed
from localjudge.errors import JudgeError, RecordsError, RunError, did_you_mean
from localjudge.judge import pairwise
from localjudge.judge.asking import inputs_of, shown_of
from localjudge.judge.questions import BandQuestion, FlagsQuestion, Question, ScoreQuestion
from localjudge.judge.reading import own_labels, tail_of
from localjudge.judge.rubric import settled_of
from localjudge.judge.spec import JudgeSpec
from localjudge.records import BadRecord, Record, read_records, scan_records
from localjudge.run.export import replacing, with_templates
from localjudge.run.reports import records_file
from localjudge.run.store import VerdictsById
from localjudge.verdict import Answer, Verdict

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")
_SPLIT_NAMES: dict[str, Split] = {
    **{split: split for split in SPLITS},
    **dict.fromkeys(("validation", "valid", "val"), "dev"),
}

_OTHER = {"A": "B", "B": "A"}
_LOW_MASS = "low label mass"
_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|(?:(?![\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af])\w)+"
)


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataSettings(_Frozen):
    """How a training set is made of verdicts.

    group: the records' field whose value is never on both sides of a split; by default `group` where records have
        it, else the text of the judge's first input. split_field: the records' field that says train, dev or test;
        without it a share of the groups, dev and test, drawn by hash from `seed`.
    min_mass: verdicts whose label mass is lower are left out. inconsistent: the weight of a pair that its two
        orders disagree on, 0 to leave it out. smoothing: of a label without a distribution, how much goes to all
        labels.
    near: texts that share at least this much of their word triples (Jaccard) are the same; 1: equal texts alone.
    hard: of a distribution take the likeliest label alone.
    rationales: also keep the teacher's reasons, and what explain mode asks for them.
    """

    group: str | None = None
    split_field: str | None = None
    dev: float = Field(0.1, ge=0, lt=1)
    test: float = Field(0.1, ge=0, lt=1)
    seed: int = 0
    min_mass: float = Field(0.5, ge=0, le=1)
    inconsistent: float = Field(0.0, ge=0, le=1)
    smoothing: float = Field(0.0, ge=0, lt=1)
    near: float = Field(0.8, gt=0, le=1)
    hard: bool = False
    rationales: bool = False


class Form(_Frozen):
    """One way of showing a question's labels: as what, and the end of the user's message that does so."""

    labels: list[str]
    tail: str


class Asked(_Frozen):
    """One question, or one code of flags. worth: of each label from 0 to 1, None where it has none; None where the
    labels are no numbers. forms: the first that a student's tokenizer can read is taken."""

    question: str
    code: str | None
    labels: list[str]
    worth: list[float | None] | None
    forms: list[Form]


class Recipe(_Frozen):
    """recipe.json. left_out: why -> rows. balance: split -> question -> label -> the weight of the rows whose
    likeliest label it is. reasons: split -> how many. digest: sha256 of all rows, and reasons."""

    localjudge: str
    judge: dict[str, Any]
    teachers: list[dict[str, Any]]
    settings: DataSettings
    questions: dict[str, Asked]
    rows: dict[str, int]
    groups: dict[str, int]
    left_out: dict[str, int]
    balance: dict[str, dict[str, dict[str, float]]]
    reasons: dict[str, int] = {}
    digest: str


class Row(_Frozen):
    """One thing asked. asked: its key in the recipe's questions. target: a probability a label of it, in order.
    order: of a pair, which one stands first. text: the record's inputs, folded, by which equals are known; it is
    not written."""

    id: str
    asked: str
    order: Literal["straight", "swapped"] = "straight"
    system: str
    user: str
    target: list[float]
    weight: float = 1.0
    group: str
    text: str = Field("", exclude=True)


_COLUMNS = [name for name in Row.model_fields if name != "text"]


def make(
    runs: Sequence[Path],
    out: Path,
    settings: DataSettings,
    *,
    judge: JudgeSpec | None = None,
    records: Path | None = None,
    gold: Sequence[Path] = (),
    force: bool = False,
) -> Recipe:
    """Write a training set of these runs of one judge to the folder `out`: a `datasets.DatasetDict` of train, dev
    and test, recipe.json and, with rationales, another such set of them in `reasons`. It is whole or absent.

    judge: the runs' judge, needed where it has template files of its own. records: what the runs judged, where that
    is not in the file that they name, as with a batch's answers. gold: files whose records must not be in the
    training split, nor texts all but the same. Raises RunError, RecordsError.
    """
    if not runs:
        raise RunError("there is no run to learn from", fix="give the folder that `localjudge run -o` named")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        if not (out / "recipe.json").is_file():
            raise RunError("is there already, and is no training set", where=str(out), fix="give another -o")
        if not force:
            raise RunError("is there already", where=str(out), fix="give another -o, or --force to replace it")
    if settings.split_field is None and settings.dev + settings.test >= 1:
        raise RunError("--dev and --test leave nothing to train on", where="--dev", fix="give smaller shares")
    left_out: Counter[str] = Counter()
    rows: dict[Split, list[Row]] = {"train": [], "dev": [], "test": []}
    reasons: dict[Split, list[Reason]] = {"train": [], "dev": [], "test": []}
    mapping: dict[str, str] = {}
    spec: JudgeSpec | None = None
    teachers = []
    for path in runs:
        run = _read_run(path)
        if spec is None:
            spec = with_templates(path, run, judge)
            if spec.kind not in ("rubric", "pairwise"):
                what = f"'{spec.name}' is of the kind {spec.kind}: rubric and pairwise judges can be distilled"
                raise RunError(what, where=str(path))
        elif run["judge"]["digest"] != spec.digest:
            what = f"this run is of another judge ('{run['judge']['name']}') than {runs[0]}"
            raise RunError(what, where=str(path), fix="make a training set of each judge")
        before = sum(map(len, rows.values()))
        file = records or _own_records(path, spec, run)
        for split, own, why in _rows_of(path, file, spec, run, settings, left_out):
            rows[split] += own
            reasons[split] += why
        mapping |= run["settings"]["mapping"]
        teachers.append(
            {
                "run": str(path.resolve()),
                "model": run["model"],
                "mode": run["settings"].get("mode"),
                "records": {"path": str(file), **run["records"]},
                "rows": sum(map(len, rows.values())) - before,
            }
        )
    assert spec is not None
    _part(rows, settings, left_out)
    for file in gold:
        _refuse_gold(file, spec, rows["train"], mapping, settings.near)
    for split in SPLITS:
        ids = {row.id for row in rows[split]}
        reasons[split] = [reason for reason in reasons[split] if reason.id in ids]
    if settings.rationales and not reasons["train"]:
        raise RunError(
            "there is no rationale to keep", where="--rationales", fix="give runs in explain mode, or leave it out"
        )
    questions = questions_of(spec)
    balance = {split: _balance(rows[split], questions) for split in SPLITS}
    _refuse_unfit(rows["train"], balance["train"], left_out)
    recipe = Recipe(
        localjudge=localjudge.__version__,
        judge={**run["judge"], "spec": run["spec"]},
        teachers=teachers,
        settings=settings,
        questions=questions,
        rows={split: len(rows[split]) for split in SPLITS},
        groups={split: len({row.group for row in rows[split]}) for split in SPLITS},
        left_out=dict(left_out),
        balance=balance,
        reasons={split: len(reasons[split]) for split in SPLITS} if settings.rationales else {},
        digest=_digest(rows, reasons),
    )
    _write(out, rows, reasons, recipe)
    return recipe


def read_recipe(folder: Path) -> Recipe:
    """A training set's recipe. Raises RunError."""
    file = folder / "recipe.json"
    if not file.is_file():
        raise RunError(
            "this folder holds no training set", where=str(folder), fix="make one with `localjudge distill data`"
        )
    try:
        return Recipe.model_validate_json(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(
            f"its recipe cannot be read: {str(error).splitlines()[0]}", where=str(file), fix="make it anew"
        ) from None


def read_split(folder: Path, split: str) -> Any:
    """A split's rows, as a `datasets.Dataset` whose columns are those of `Row`. Raises RunError."""
    try:
        import datasets
    except ImportError as error:
        raise RunError("reading a training set needs a package", fix="pip install 'localjudge[train]'") from error
    try:
        return datasets.Dataset.load_from_disk(str(folder / split))
    except (OSError, ValueError) as error:
        raise RunError(f"its rows cannot be read: {error}", where=str(folder / split), fix="make it anew") from None


# What is asked


def asked_key(question: str, code: str | None) -> str:
    return question if code is None else f"{question}.{code}"


def questions_of(spec: JudgeSpec) -> dict[str, Asked]:
    """All that score mode asks, by key: a question's id, or question.code of flags."""
    found = {}
    for question in spec.own_questions:
        labels = own_labels(question)
        if not labels:
            continue
        letters = list(string.ascii_uppercase[: len(labels)])
        for code in question.codes if isinstance(question, FlagsQuestion) else (None,):
            forms = [
                Form(labels=form, tail=tail_of(spec, question, dict(zip(form, labels, strict=True)), code))
                for form in (labels, letters)
                if len(form) == len(labels)
            ]
            found[asked_key(question.id, code)] = Asked(
                question=question.id,
                code=code,
                labels=labels,
                worth=_worth(spec, question, labels),
                forms=forms,
            )
    if not found:
        raise RunError(
            f"'{spec.name}' has no labels to learn", fix="give runs of a judge with scores, choices or flags"
        )
    return found


def _worth(spec: JudgeSpec, question: Question, labels: Sequence[str]) -> list[float | None] | None:
    """What each label is worth, the least 0 and the greatest 1."""
    values: dict[str, float]
    if isinstance(question, FlagsQuestion):
        values = {"yes": 1.0, "no": 0.0}
    elif isinstance(question, ScoreQuestion):
        values = {str(label): float(label) for label in question.labels}
    elif isinstance(question, BandQuestion):
        values = {label: question.worth(label) for label in map(str, question.labels)}
    elif spec.kind == "pairwise":
        values = {"A": 1.0, "tie": 0.5, "B": 0.0}
    else:
        values = spec.scoring.values.get(question.id, {})
    if not values:
        return None
    own = {label: values[label] for label in labels if label in values}
    low, high = min(own.values()), max(own.values())
    return [(own[label] - low) / (high - low) if label in own and high > low else None for label in labels]


# Verdicts into rows


def _read_run(path: Path) -> dict[str, Any]:
    file = path / "run.json"
    if not file.is_file():
        raise RunError("this folder holds no run", where=str(path), fix="give the folder that `-o` named")
    try:
        run: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(f"run.json is broken: {error}", where=str(file)) from None
    return run


def _of_a_batch(run: Mapping[str, Any]) -> bool:
    return bool(run["settings"].get("format") == "openai-batch")


def _own_records(path: Path, spec: JudgeSpec, run: Mapping[str, Any]) -> Path:
    """The file that a run judged. Raises RunError, RecordsError where it is not what it was: the verdicts are of
    other texts."""
    if _of_a_batch(run):
        what = "a batch's answers came without the records that they are of"
        raise RunError(what, where=str(path), fix="give these with --records")
    file, kept = records_file(path, run), run["settings"]
    inputs = () if kept.get("mode") == "import" else spec.inputs
    if scan_records(file, inputs, mapping=kept["mapping"], limit=kept["limit"]).digest != run["records"]["digest"]:
        fix = "put them back; or give --records, if they say the same of what was judged"
        raise RecordsError("these are no longer the records of the run", where=str(file), fix=fix)
    return file


def _rows_of(
    path: Path,
    file: Path,
    spec: JudgeSpec,
    run: Mapping[str, Any],
    settings: DataSettings,
    left_out: Counter[str],
) -> Iterator[tuple[Split, list[Row], list[Reason]]]:
    """Each record's split, rows and reasons."""
    mapping = {} if _of_a_batch(run) else run["settings"]["mapping"]
    verdicts = VerdictsById(path)
    names = spec.names_for(spec.asked, reading=True)
    try:
        for record in read_records(file, spec.inputs, mapping=mapping, limit=run["settings"]["limit"]):
            verdict = verdicts.get(record.id)
            if verdict is None:
                left_out["no verdict"] += 1
            elif verdict.status != "ok":
                left_out[verdict.status] += 1
            elif isinstance(record, BadRecord):
                left_out["the record lacks what the judge asks about"] += 1
            else:
                for name in (settings.group, settings.split_field):
                    if name and name not in record.fields:
                        fix = did_you_mean(name, record.fields)
                        raise RecordsError(f"the record has no field '{name}'", where=record.where, fix=fix)
                text = folded(spec, record)
                group = str(record.fields[settings.group or "group"]) if _grouped(record, settings) else None
                group = folded_text(_as_text(record.fields.get(spec.inputs[0].name))) if group is None else group
                split = _split(record, group, settings)
                own = list(_rows(spec, names, record, verdict, group, settings, left_out))
                why = list(reasons_of(spec, record, verdict, group)) if settings.rationales and own else []
                yield split, [row.model_copy(update={"text": text}) for row in own], why
    finally:
        verdicts.close()


def _grouped(record: Record, settings: DataSettings) -> bool:
    return settings.group is not None or record.fields.get("group") is not None


def _split(record: Record, group: str, settings: DataSettings) -> Split:
    if settings.split_field is not None:
        told = str(record.fields[settings.split_field]).strip().lower()
        if told not in _SPLIT_NAMES:
            what = f"'{settings.split_field}' is '{told}', which is no split"
            raise RecordsError(what, where=record.where, fix="write train, dev or test")
        return _SPLIT_NAMES[told]
    digest = hashlib.sha256(f"{settings.seed}\0{group}".encode("utf-8", "surrogatepass")).hexdigest()
    drawn = int(digest[:13], 16) / 16**13
    if drawn < settings.test:
        return "test"
    return "dev" if drawn < settings.test + settings.dev else "train"


def _rows(
    spec: JudgeSpec,
    names: Mapping[str, Any],
    record: Record,
    verdict: Verdict,
    group: str,
    settings: DataSettings,
    left_out: Counter[str],
) -> Iterator[Row]:
    orders: list[tuple[Literal["straight", "swapped"], dict[str, Any]]]
    if spec.kind == "pairwise":
        shown = pairwise.orders_of(spec, record)
        orders = list(zip(("straight", "swapped"), shown, strict=False))
    else:
        orders = [("straight", inputs_of(spec, record))]
    for order, fields in orders:
        try:
            settled = settled_of(spec, record.fields) if spec.kind == "rubric" else {}
            messages = spec.templates.messages(shown_of(spec, fields), {**names, **settled})
        except (JudgeError, AskFailed):
            left_out["a template or a check fails on it"] += 1
            return
        if any(message.images for message in messages):
            left_out["it has pictures, and students read text"] += 1
            return
        system = "".join(message.text for message in messages if message.role == "system")
        for question in spec.own_questions:
            labels = own_labels(question)
            for code in question.codes if isinstance(question, FlagsQuestion) else (None,) if labels else ():
                found = _target(spec, question, code, verdict, settings)
                if isinstance(found, str):
                    left_out[found] += 1
                    continue
                likely, weight = found
                if settings.hard:
                    likeliest = max(likely, key=lambda label: likely[label])
                    likely = {label: float(label == likeliest) for label in likely}
                if order == "swapped":
                    likely = {_OTHER.get(label, label): p for label, p in likely.items()}
                yield Row(
                    id=record.id,
                    asked=asked_key(question.id, code),
                    order=order,
                    system=system,
                    user=messages[-1].text,
                    target=[likely.get(label, 0.0) for label in labels],
                    weight=weight,
                    group=group,
                )


def _target(
    spec: JudgeSpec, question: Question, code: str | None, verdict: Verdict, settings: DataSettings
) -> tuple[dict[str, float], float] | str:
    """Label -> probability and the row's weight; or why there is none. A panel's is the mixture of its members'."""
    members = [member for member in verdict.members or () if member.status == "ok"]
    if members:
        told = [_target(spec, question, code, member, settings) for member in members]
        known = [one for one in told if not isinstance(one, str)]
        if not known:
            return next(one for one in told if isinstance(one, str))
        mixed: dict[str, float] = defaultdict(float)
        for likely, _ in known:
            for label, p in likely.items():
                mixed[label] += p / len(known)
        return dict(mixed), sum(weight for _, weight in known) / len(known)
    answer = verdict.answers.get(question.id)
    if answer is None:
        return "not answered"
    if answer.mass is not None and answer.mass < settings.min_mass:
        return _LOW_MASS
    labels = own_labels(question)
    if spec.kind == "pairwise" and _inconsistent(verdict):
        if not settings.inconsistent:
            return "the orders disagree"
        if not answer.distribution:
            both = [_likely(question, code, order[question.id], labels, settings) for order in verdict.orders or ()]
            if not both or any(one is None for one in both):
                return "the orders disagree"
            return {x: math.fsum(one[x] for one in both if one) / len(both) for x in labels}, settings.inconsistent
    found = _likely(question, code, answer, labels, settings)
    if found is None:
        return "not answered"
    return found, settings.inconsistent if spec.kind == "pairwise" and _inconsistent(verdict) else 1.0


def _inconsistent(verdict: Verdict) -> bool:
    """Whether a pair's orders prefer different ones, whatever their mean came to."""
    if verdict.answers["preference"].value == "inconsistent":
        return True
    return len({order["preference"].value for order in verdict.orders or ()}) > 1


def _likely(
    question: Question, code: str | None, answer: Answer, labels: Sequence[str], settings: DataSettings
) -> dict[str, float] | None:
    if isinstance(question, FlagsQuestion):
        raised = (answer.distribution or {}).get(code or "")
        if raised is None:
            raised = _smoothed(["yes", "no"], "yes" if code in answer.value else "no", settings.smoothing)["yes"]
        return {"yes": raised, "no": 1 - raised}
    if answer.distribution and (whole := math.fsum(answer.distribution.get(label, 0.0) for label in labels)) > 0:
        return {label: answer.distribution.get(label, 0.0) / whole for label in labels}
    value = labels[-1] if answer.value is None and getattr(question, "cannot", False) else str(answer.value)
    return _smoothed(labels, value, settings.smoothing) if value in labels else None


def _smoothed(labels: Sequence[str], value: str, smoothing: float) -> dict[str, float]:
    return {label: (1 - smoothing) * (label == value) + smoothing / len(labels) for label in labels}


# Splits that do not leak


def folded_text(text: str) -> str:
    """A text's words, case, punctuation and spelling variants of characters aside."""
    return " ".join(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def folded(spec: JudgeSpec, record: Record) -> str:
    """The record's inputs as one folded text."""
    return " | ".join(
        folded_text(_as_text(value)) for value in inputs_of(spec, record).values() if value is not None
    )


def shingles(folded: str) -> frozenset[int]:
    """A text's word triples, hashed; of fewer words the whole."""
    words = folded.split()
    return frozenset(hash(" ".join(words[i : i + 3])) for i in range(max(1, len(words) - 2)))


def near_duplicates(texts: Sequence[frozenset[int]], of: Sequence[frozenset[int]], least: float) -> list[bool]:
    """Which of `texts` share at least `least` of their shingles with one of `of`: |a & b| / |a | b|.

    Exact, without comparing all with all: two such sets have one of their rarest |a| - ceil(least |a|) + 1 shingles
    in common (Bayardo, Ma and Srikant, WWW 2007, the prefix filter).
    """
    often = Counter(shingle for one in (*texts, *of) for shingle in one)

    def rarest(one: frozenset[int]) -> list[int]:
        in_order = sorted(one, key=lambda shingle: (often[shingle], shingle))
        return in_order[: len(one) - math.ceil(least * len(one) - 1e-9) + 1]

    at: dict[int, list[int]] = defaultdict(list)
    for place, one in enumerate(of):
        for shingle in rarest(one):
            at[shingle].append(place)
    return [
        any(
            len(one & of[place]) >= least * len(one | of[place]) - 1e-9
            for place in {place for shingle in rarest(one) for place in at.get(shingle, ())}
        )
        for one in texts
    ]


def twins_of(texts: set[str], known: set[str], near: float) -> set[str]:
    """Which of these folded texts are among those known, or all but the same as one of them."""
    distinct = sorted(texts - known)
    found = near_duplicates([shingles(text) for text in distinct], [shingles(text) for text in sorted(known)], near)
    return {text for text, twin in zip(distinct, found, strict=True) if twin} | (texts & known)


def _part(rows: dict[Split, list[Row]], settings: DataSettings, left_out: Counter[str]) -> None:
    """Take from train what is in dev or test as well, and from dev what is in test: groups, texts, near texts."""
    parts: list[tuple[Split, tuple[Split, ...]]] = [("train", ("dev", "test")), ("dev", ("test",))]
    for split, others in parts:
        theirs = [row for other in others for row in rows[other]]
        groups = {row.group for row in theirs}
        twins = twins_of({row.text for row in rows[split]}, {row.text for row in theirs}, settings.near)
        kept = []
        for row in rows[split]:
            if row.group in groups:
                left_out[f"its group is in {' or '.join(others)} too"] += 1
            elif row.text in twins:
                left_out[f"all but the same is in {' or '.join(others)} too"] += 1
            else:
                kept.append(row)
        rows[split] = kept


def _refuse_gold(
    file: Path, spec: JudgeSpec, train: Sequence[Row], mapping: Mapping[str, str], near: float
) -> None:
    """Raise RecordsError when a record of a gold file is one to train on, by its id or by its text, or when it says
    neither. mapping: of the runs, which holds where the file has what it maps from."""
    ids = {row.id for row in train}
    names = {item.name for item in spec.inputs}
    by_id: list[str] = []
    by_text: dict[str, list[str]] = defaultdict(list)
    for record in read_records(file, [], repeats=True):
        if isinstance(record, BadRecord):
            continue
        there = {name: source for name, source in mapping.items() if source in record.fields}
        fields = record.fields | {name: record.fields[source] for name, source in there.items()}
        # Rows without an id of their own have one made of all that they say, labels too: by it none is known.
        if "id" in fields and str(fields["id"]) in ids:
            by_id.append(record.where)
        elif any(fields.get(name) is not None for name in names):
            by_text[folded(spec, Record(record.id, fields, record.where))].append(record.where)
        elif "id" not in fields:
            raise RecordsError(
                "has neither an id nor what was judged, so nobody can tell whether it is in the training set",
                where=record.where,
                fix=f"give it an id, or {', '.join(sorted(names))}",
            )
    known = {row.text for row in train}
    met = by_id + [where for text in sorted(twins_of(set(by_text), known, near)) for where in by_text[text]]
    if met:
        more = f" and {len(met) - 3} more" if len(met) > 3 else ""
        raise RecordsError(
            f"{len(met)} of its records are in the training split ({', '.join(met[:3])}{more})",
            where=str(file),
            fix="a measure on them would mean nothing: keep them in dev or test with --split-field or --group, "
            "or out of the run",
        )


def _balance(rows: Iterable[Row], questions: Mapping[str, Asked]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        labels = questions[row.asked].labels
        counts = found.setdefault(row.asked, dict.fromkeys(labels, 0.0))
        counts[labels[max(range(len(labels)), key=row.target.__getitem__)]] += row.weight
    return found


def _refuse_unfit(train: Sequence[Row], balance: Mapping[str, Mapping[str, float]], left_out: Counter[str]) -> None:
    why = "; left out: " + ", ".join(f"{n} ({reason})" for reason, n in left_out.most_common()) if left_out else ""
    if not train:
        fix = "give runs with ok verdicts, or smaller --dev and --test"
        if left_out and max(left_out, key=left_out.__getitem__) == _LOW_MASS:
            fix = "give a smaller --min-mass, or a teacher that answers with the labels more often"
        raise RunError(f"the training set is empty{why}", fix=fix)
    if all(sum(weight > 0 for weight in counts.values()) < 2 for counts in balance.values()):
        only = next(label for counts in balance.values() for label, weight in counts.items() if weight > 0)
        raise RunError(
            f"every answer in the training set is '{only}': there is nothing to tell apart{why}",
            fix="give verdicts of records that differ",
        )


def _digest(rows: Mapping[Split, Sequence[Row]], reasons: Mapping[Split, Sequence[Reason]]) -> str:
    digest = hashlib.sha256()
    for split in SPLITS:
        for row in (*rows[split], *reasons[split]):
            digest.update(f"{split}{row.model_dump_json()}\n".encode())
    return digest.hexdigest()


def _write(
    out: Path, rows: Mapping[Split, Sequence[Row]], reasons: Mapping[Split, Sequence[Reason]], recipe: Recipe
) -> None:
    try:
        import datasets
    except ImportError as error:
        raise RunError("writing a training set needs a package", fix="pip install 'localjudge[train]'") from error

    texts = datasets.List(datasets.Value("string"))
    numbers = {"target": datasets.List(datasets.Value("float64")), "weight": datasets.Value("float64")}

    def table(of: Mapping[Split, Sequence[BaseModel]], columns: Sequence[str], kinds: Mapping[str, Any]) -> Any:
        features = datasets.Features({name: kinds.get(name, datasets.Value("string")) for name in columns})
        return datasets.DatasetDict(
            {
                split: datasets.Dataset.from_dict(
                    {name: [getattr(row, name) for row in of[split]] for name in columns}, features=features
                )
                for split in SPLITS
            }
        )

    shown = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        with replacing(out) as temporary:
            table(rows, _COLUMNS, numbers).save_to_disk(str(temporary), num_shards=dict.fromkeys(SPLITS, 1))
            if recipe.reasons:
                own = table(reasons, COLUMNS, {"names": texts, "texts": texts})
                own.save_to_disk(str(temporary / "reasons"), num_shards=dict.fromkeys(SPLITS, 1))
            (temporary / "recipe.json").write_text(recipe.model_dump_json(indent=1) + "\n", encoding="utf-8")
    finally:
        if shown:
            datasets.enable_progress_bars()
