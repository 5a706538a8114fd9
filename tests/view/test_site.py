"""Looking and labelling through the viewer's own requests: blind until the person has said, and kept."""

from __future__ import annotations

import asyncio
import html
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from localjudge import cli
from localjudge.errors import LocalJudgeError
from localjudge.run.store import read_verdicts
from localjudge.view.runs import Runs
from localjudge.view.site import Site
from tests.conftest import REPOSITORY
from tests.scripted import ScriptedEngine
from tests.view.conftest import Browser, Job, Opened, lines_of, pair_rows, truth_rows, write_rows

SECRET = "only the judge has said this"


@pytest.fixture
def job(tmp_path: Path) -> Job:
    rows = [{**row, "author": "a secret model", "human": 1} for row in truth_rows(6)]
    job = Job(tmp_path, "truthfulness", rows)
    job.run()
    lines = lines_of(job.out / "verdicts.jsonl")
    for line in lines:
        line["rationale"] = SECRET
        for answer in line["answers"].values():
            answer["value"] = (
                SECRET if isinstance(answer["value"], str) and " " in answer["value"] else answer["value"]
            )
    write_rows(job.out / "verdicts.jsonl", lines)
    return job


def question_of(job: Job) -> tuple[str, list[object]]:
    """The judge's question and its labels."""
    from localjudge.agreement.join import open_run
    from localjudge.view.labels import asked_of

    [asked] = asked_of(open_run(job.out).spec)
    return asked.name, [value for value, _, _ in asked.options]


def test_nothing_of_the_verdict_is_sent_before_the_person_has_given_theirs(job: Job, opened: Opened) -> None:
    browser = opened(job.out)
    name, labels = question_of(job)
    form = browser.get(f"/api/{browser.key}/label/form")
    first = browser.get(f"/api/{browser.key}/label/next?annotator=ann&pick=random")
    told = first.json()
    again = browser.get(f"/api/{browser.key}/label/case?annotator=ann&id={told['id']}")
    for reply in (form, first, again):
        assert SECRET not in reply.text
        assert "a secret model" not in reply.text, "what the judge was not shown may tell who wrote it"
    assert set(told["case"]) == {"id", "where", "fields", "pairs", "blind", "seen"}
    assert {field["name"] for field in told["case"]["fields"]} == {"question", "answer"}
    saved = browser.save(told["id"], **{name: labels[0]})
    assert SECRET in saved.text
    assert saved.json()["detail"]["status"] == "ok"
    assert (told["left"], browser.next()["left"], browser.next()["labelled"]) == (6, 5, 1)


def test_a_label_after_a_look_at_the_verdict_says_so(job: Job, opened: Opened) -> None:
    browser = opened(job.out)
    name, labels = question_of(job)
    shown = browser.next()["id"]
    assert SECRET in browser.get(f"/api/{browser.key}/detail?id={shown}").text
    assert browser.next()["case"]["seen"] is True
    browser.save(shown, **{name: labels[0]})
    other = browser.next()["id"]
    browser.save(other, **{name: labels[0]})
    browser.post(f"/api/{browser.key}/label/undo", {"annotator": "ann"})
    browser.save(other, **{name: labels[1]})  # after the first answer was saved, the verdict was shown
    assert [line["blind"] for line in lines_of(job.out / "gold.jsonl")] == [False, True, True, False]


def test_people_label_in_one_order_each_their_own(job: Job, opened: Opened) -> None:
    browser = opened(job.out)
    name, labels = question_of(job)
    orders: dict[str, list[str]] = {"ann": [], "bob": []}
    for _ in range(3):
        for who, order in orders.items():
            order.append(browser.next(who)["id"])
            assert browser.save(order[-1], who, **{name: labels[0]}).status == 200
    assert orders["ann"] == orders["bob"]
    skipped = browser.next()["id"]
    browser.post(f"/api/{browser.key}/label/skip", {"annotator": "ann", "id": skipped})
    assert browser.next()["id"] != skipped
    assert browser.next("bob")["id"] == skipped
    undone = browser.post(f"/api/{browser.key}/label/undo", {"annotator": "bob"}).json()
    assert (undone["id"], undone["answers"]) == (orders["bob"][-1], {name: labels[0]})
    assert undone["counts"] == {"ann": 3, "bob": 2}
    assert browser.post(f"/api/{browser.key}/label/undo", {"annotator": "eve"}).json() == {"id": None}
    rows = {row["id"]: row.get("labels") for row in browser.get(f"/api/{browser.key}/rows").json()}
    assert rows[orders["ann"][0]] == {"ann": {name: labels[0]}, "bob": {name: labels[0]}}
    assert rows[skipped] is None


def test_agree_takes_what_was_labelled(
    job: Job, opened: Opened, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    browser = opened(job.out)
    name, _ = question_of(job)
    judged = {verdict.id: verdict.answers[name].value for verdict in read_verdicts(job.out)}
    while (record_id := browser.next()["id"]) is not None:
        assert browser.save(record_id, **{name: judged[record_id]}).status == 200
    command = browser.get(f"/api/{browser.key}/label/form").json()["agree"].split()
    monkeypatch.setattr(sys, "argv", [*command, "--no-figures"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    [held] = json.loads((job.out / "agreement.json").read_text())["held"]
    assert held["counts"]["used"] == 6
    assert next(figure["value"] for figure in held["figures"] if figure["name"] == "accuracy") == 1.0


def test_what_is_no_label_of_this_run_is_refused(job: Job, opened: Opened) -> None:
    browser = opened(job.out)
    name, labels = question_of(job)
    good = {"id": "t1", "annotator": "ann", "picked": "random", "answers": {name: labels[0]}}
    path = f"/api/{browser.key}/label/save"
    for change, status in (
        ({"id": "t99"}, 404),
        ({"id": 7}, 409),
        ({"id": None}, 409),
        ({"annotator": ""}, 409),
        ({"annotator": "x" * 99}, 409),
        ({"picked": "best"}, 409),
        ({"answers": []}, 409),
        ({"answers": {}}, 409),
        ({"answers": {name: "nonsense"}}, 409),
        ({"answers": {"verdict": "yes"}}, 409),
    ):
        reply = browser.post(path, {**good, **change})
        assert (reply.status, change) == (status, change)
        assert reply.json()["error"]
    assert browser.post(path, ["t1"]).status == 409
    for wrong in ("0" * 12, "..", "%2e%2e", browser.key.upper() + "x"):
        assert browser.post(f"/api/{wrong}/label/save", good).status == 404
    assert browser.get(f"/api/{browser.key}/detail?id=../../run.json").status == 404
    assert browser.get(f"/api/{browser.key}/detail").status == 404
    assert browser.get(f"/api/{browser.key}/gold.jsonl").status == 404
    assert not (job.out / "gold.jsonl").exists()
    assert browser.post(path, good).status == 200


def test_a_gold_file_edited_into_nonsense_is_told_and_what_was_answered_is_not_lost(
    job: Job, opened: Opened, tmp_path: Path
) -> None:
    gold = tmp_path / "people.jsonl"
    browser = opened(job.out, gold=gold)
    name, labels = question_of(job)
    assert browser.save("t1", **{name: labels[0]}).status == 200
    whole = gold.read_text()
    gold.write_text(whole + "oops\n")
    for reply in (browser.save("t2", **{name: labels[0]}), browser.get(f"/api/{browser.key}/label/form")):
        assert reply.status == 409
        assert reply.json()["where"] == f"{gold}:2"
        assert "is no label" in reply.json()["error"]
    assert browser.get(f"/api/{browser.key}/rows").status == 200, "it can be looked at all the same"
    assert browser.get(f"/api/{browser.key}/detail?id=t1").status == 200
    assert gold.read_text() == whole + "oops\n"
    runs = Runs([job.out])
    with pytest.raises(LocalJudgeError, match=r"people\.jsonl:2"):
        Site(runs, gold=gold)
    (job.out / "gold.jsonl").write_text("oops\n")
    [warning] = Site(runs).warnings()
    assert "gold.jsonl:1: this line is no label" in warning
    runs.close()
    gold.write_text(whole)
    assert browser.save("t2", **{name: labels[0]}).status == 200


def test_two_runs_on_the_same_records_are_compared_and_their_disagreements_labelled_first(
    tmp_path: Path, opened: Opened
) -> None:
    job = Job(
        tmp_path,
        "answer-quality",
        [{"id": f"q{i}", "instruction": f"say {i}", "response": str(i)} for i in range(8)],
    )
    for out, settings in (("one", {}), ("two", {"x": 1})):
        job.run(ScriptedEngine(settings=settings), out=tmp_path / out, shared_cache=False)
    browser = opened(tmp_path)
    told = browser.get("/api/runs").json()["runs"]
    one, two = (run["key"] for run in told)
    assert browser.get(f"/api/{one}/label/form").json()["picks"] == ["random", "disagreements"]
    overalls = [{verdict.id: verdict for verdict in read_verdicts(tmp_path / name)} for name in ("one", "two")]
    apart = {
        name: 1.0 if mine.passed != overalls[1][name].passed else abs(mine.overall - overalls[1][name].overall) / 4  # type: ignore[operator]
        for name, mine in overalls[0].items()
    }
    assert apart[browser.next(pick="disagreements")["id"]] == max(apart.values())
    pair = f"/api/{one}.{two}"
    assert len(browser.get(f"{pair}/rows").json()) == 8
    assert browser.get(f"{pair}/overview").json()["parts"]
    detail = browser.get(f"{pair}/detail?id=q3").json()
    assert len(detail["sides"]) == 2
    assert browser.get(f"{pair}/detail?id=nothing").status in (404, 409)
    assert browser.get(f"/api/{one}.{one}/rows").status == 409
    assert browser.get(f"/api/{one}.nothing/rows").status == 404
    assert browser.get(f"/api/{one}/label/case?annotator=ann&id=q3").json()["case"]["seen"] is True


def test_other_things_than_the_judges_questions_can_be_labelled(tmp_path: Path, opened: Opened) -> None:
    job = Job(tmp_path, "answer-quality", [{"id": "q", "instruction": "say", "response": "said"}])
    job.run()
    browser = opened(job.out, questions=["overall", "passed"])
    assert browser.save("q", overall=4.5, passed=True).status == 200
    assert browser.save("q", overall=9).status == 409
    runs = Runs([job.out])
    with pytest.raises(LocalJudgeError, match="did you mean 'overall'"):
        Site(runs, questions=["overal"])
    runs.close()


def test_the_page_runs_its_own_scripts_alone(tmp_path: Path, opened: Opened) -> None:
    job = Job(tmp_path, "pairwise", pair_rows(1))
    job.run()
    reply = opened(job.out).get("/")
    page = html.unescape(reply.text)
    assert reply.headers["content-type"].startswith("text/html")
    assert "frame-ancestors 'none'" in reply.headers["content-security-policy"]
    policy = page.partition("<style")[0]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy
    assert "<script src" not in page


# From the command line


def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the command says is wrong."""
    monkeypatch.setattr(sys, "argv", ["localjudge", "view", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_the_command_says_where_to_look_and_ends_on_a_signal(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the guard on, as the command always is."""
    process = subprocess.Popen(
        [sys.executable, "-m", "localjudge", "view", str(job.out), "--port", "0", "--annotator", "ann"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("1 run;")
    url = urlsplit(process.stdout.readline().strip())
    browser = Browser(url.port or 0, url.query.removeprefix("token=")).enter()
    assert browser.get("/api/runs").json()["annotator"] == "ann"
    message = told(monkeypatch, capsys, str(job.out), "--port", str(url.port))
    assert message.startswith(f"error: 127.0.0.1: port {url.port} is in use\n  give another")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0


def test_the_command_says_what_is_wrong(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "gold.jsonl").write_text('{"id": "t1", "score": 4}\n')
    for arguments, wanted in (
        (
            [str(tmp_path / "empty")],
            "empty: no run is in this folder, or below it\n  give the folder that `-o` named",
        ),
        ([str(tmp_path / "nowhere")], "nowhere: there is no such folder"),
        ([str(job.out), "--gold", str(tmp_path / "gold.jsonl")], "gold.jsonl:1: this line is no label: it has no"),
        ([str(job.out), "--annotator", " "], "annotator: ' ' is no name"),
        ([str(job.out), "--question", "overal"], "did you mean 'overall'?"),
        ([str(job.out), "--language", "fr"], "--language: there are no labels in 'fr'"),
    ):
        message = told(monkeypatch, capsys, *arguments)
        assert message.startswith("error: ")
        assert wanted in message
    assert (tmp_path / "gold.jsonl").read_text() == '{"id": "t1", "score": 4}\n'


def test_a_run_is_looked_at_and_labelled_while_it_goes_on(tmp_path: Path, opened: Opened) -> None:
    job = Job(tmp_path, "truthfulness", truth_rows(60))
    slow = job.prepare(ScriptedEngine(delay=0.02, concurrency=1))
    running = threading.Thread(target=lambda: asyncio.run(slow.go()))
    running.start()
    while not (job.out / "verdicts.jsonl").exists():
        time.sleep(0.01)
    browser = opened(job.out)
    [asked] = browser.get(f"/api/{browser.key}/label/form").json()["asked"]
    counts = []
    while running.is_alive():
        counts.append(browser.get("/api/runs").json()["runs"][0]["judged"])
        assert len(browser.get(f"/api/{browser.key}/rows").json()) >= counts[-1]
        if (record_id := browser.next()["id"]) is not None and len(counts) % 5 == 1:
            assert browser.save(record_id, **{asked["name"]: asked["options"][0]["value"]}).status == 200
    running.join()
    assert counts == sorted(counts)
    assert len(set(counts)) > 2
    assert len(list(read_verdicts(job.out))) == 60
    [told] = browser.get("/api/runs").json()["runs"]
    assert (told["judged"], told["state"]) == (60, "done")
