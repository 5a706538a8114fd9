"""What an ordinary user gets: the wheel, in an environment of its own, away from the checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from localjudge.judge.loading import judge_names
from tests.conftest import REPOSITORY

JUDGES = set(judge_names())


def run(*command: str | Path, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    finished = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False)
    assert not check or finished.returncode == 0, finished.stdout + finished.stderr
    return finished


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that has the wheel and its own requirements, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, REPOSITORY, cwd=folder)
    [wheel] = folder.glob("*.whl")
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    bin_folder = folder / "venv" / "bin"
    got = run(
        bin_folder / "python", "-m", "pip", "--quiet", "--retries", "1", "install", wheel, cwd=folder, check=False
    )
    if got.returncode and "No matching distribution" in got.stderr and "localjudge" not in got.stderr.split()[-1]:
        pytest.skip(f"no package registry can be reached: {got.stderr.strip().splitlines()[-1]}")
    assert got.returncode == 0, got.stderr
    return bin_folder


def test_the_judges_and_cards_came_along(installed: Path, tmp_path: Path) -> None:
    listed = run(installed / "localjudge", "judges", cwd=tmp_path).stdout
    assert {line.split()[0] for line in listed.splitlines() if line[:1].strip()} == JUDGES
    assert "qwen3-8b" in run(installed / "localjudge", "models", cwd=tmp_path).stdout
    assert "preference" in run(installed / "localjudge", "judges", "show", "pairwise", cwd=tmp_path).stdout
    code = "import localjudge, pathlib; print(pathlib.Path(localjudge.__file__).parent)"
    package = Path(run(installed / "python", "-c", code, cwd=tmp_path).stdout.strip())
    assert REPOSITORY not in package.parents
    assert (package / "py.typed").is_file()
    assert (package / "report" / "report.md.j2").is_file()
    assert (package / "_data" / "prompts" / "pairwise" / "examples" / "records.jsonl").is_file()
    for card in (REPOSITORY / "models").glob("*/card.yaml"):
        assert (package / "_data" / "models" / card.parent.name / "adapter.safetensors").is_file()


def test_a_judge_is_checked_without_torch_or_a_model(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "python", "-c", "import torch", cwd=tmp_path, check=False).returncode != 0
    judge = tmp_path / "judge.yaml"
    judge.write_text(
        "name: polite\ninputs: [response]\nrationale: 40\nquestions:\n"
        "  - id: polite\n    type: score\n    ask: How polite is it?\n    anchors: {1: rude, 5: warm}\n"
    )
    checked = run(installed / "localjudge", "judges", "check", judge, cwd=tmp_path).stdout
    assert "valid rubric judge" in checked
    assert "least budget" in checked


def test_without_an_engine_a_run_says_what_to_install(
    installed: Path, tmp_path: Path, random_model: object
) -> None:
    records = tmp_path / "records.jsonl"
    records.write_text('{"id": "1", "question": "Is water wet?", "answer": "Yes."}\n')
    model = str(random_model.path)  # type: ignore[attr-defined]
    finished = run(
        *(installed / "localjudge", "run", "truthfulness", records, "-m", model, "-o", tmp_path / "run"),
        cwd=tmp_path,
        check=False,
    )
    assert finished.returncode == 2
    assert "pip install 'localjudge[vllm]'" in finished.stderr
    assert "Traceback" not in finished.stderr
