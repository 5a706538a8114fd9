"""Small runs to look at, judged by a scripted engine whose completions are found again as those of a real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from localjudge.engines.base import Ask, Completion
from localjudge.engines.inprocess import ask_key, key_base
from tests.browser import apart
from tests.run.conftest import Job
from tests.scripted import ScriptedEngine


class KeptEngine(ScriptedEngine):
    """Its keys are those of the engines that hold a model. asks: every prompt that it was sent."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.asks: list[list[tuple[str, str]]] = []
        self.texts: list[str] = []

    def key(self, ask: Ask) -> str:
        return ask_key(ask, key_base(self.identity))

    async def complete(self, ask: Ask) -> Completion:
        completion = await super().complete(ask)
        self.asks.append([(message.role, message.text) for message in ask.messages])
        self.texts.append(completion.text)
        return completion


def judged(
    path: Path, judge: str, rows: list[dict[str, Any]], engine: ScriptedEngine | None = None, **settings: Any
) -> Path:
    """A finished run's folder."""
    path.mkdir(parents=True, exist_ok=True)
    job = Job(path, judge, rows)
    apart(job.run, engine, shared_cache=False, model={"context": 100_000}, **settings)
    return job.out


def pairs(n: int) -> list[dict[str, Any]]:
    """Pairs of named models, whose texts differ by some words."""
    names = ("alpha", "beta", "gamma")
    return [
        {
            "id": f"p{i}",
            "instruction": f"Why is the sky blue? ({i})",
            "response_a": "Air scatters blue light more than red light.",
            "response_b": "Air scatters blue light far more than red.",
            "model_a": names[i % 3],
            "model_b": names[(i + 1) % 3],
        }
        for i in range(n)
    ]


HOSTILE = {
    "id": '"><img src=x onerror=alert(1)>',
    "question": "<script>alert(1)</script></script><svg onload=alert(1)>",
    "answer": "# Title\n\n[click](javascript:alert(1)) ![pixel](https://tracker.example/p.png)\n"
    "<img src=x onerror=alert(1)>\n\n<https://tracker.example/> `</script>` &lt;b&gt; **bold**\n\n- one\n- two\n\n"
    "| a | b |\n|---|--:|\n| 1 | 2 |\n",
    "nested": {"deep": ["</script><script>alert(1)</script>", {"<b>": "<!-- <script> -->"}]},
    "bidi": "user \u202e\u2066// admin\u2069 \u200b\x07 end",
    "svg": "data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9ImFsZXJ0KDEpIi8+",
    "line": "x" * 2_000_000,
    "__proto__": {"polluted": True},
}

FINDING_JUDGE = """
name: claims
inputs: [text, {name: facts, type: json}]
rationale: 40
questions:
  - id: claims
    type: findings
    ask: Which claims are wrong?
    fields: {why_wrong: {type: text}}
  - id: good
    type: score
    ask: How good is it?
    anchors: {1: bad, 3: fair, 5: good}
red_lines:
  - {code: R1, text: it is rude}
  - {code: R2, text: it is empty}
scoring: {pass: 3}
"""


def with_findings(path: Path) -> Path:
    """A run with one claim that is in the record's text, one in its JSON, and one in neither."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "judge.yaml").write_text(FINDING_JUDGE, encoding="utf-8")
    (path / "report.md.j2").write_text(
        "# Report on {{ record.id }}\n\nIt has **{{ verdict.overall }}**.\n", encoding="utf-8"
    )
    row = {
        "id": "one",
        "text": "The moon is made\n of  ﬁne cheese. So they say.",
        "facts": {"moon": {"stuff": "rock and dust"}},
    }
    out = judged(path, str(path / "judge.yaml"), [row])
    file = out / "verdicts.jsonl"
    verdict = json.loads(file.read_text(encoding="utf-8"))
    verdict["answers"]["claims"]["value"] = [
        {"quote": "made of fine cheese", "why_wrong": "it is rock", "verified": True},
        {"quote": "rock and dust", "why_wrong": "is right", "verified": True},
        {"quote": "the sun is cold", "why_wrong": "nobody said so", "verified": False},
    ]
    verdict["red_lines"], verdict["passed"] = ["R1"], False
    verdict["decisions"] = {
        "R1": {"stands": True, "by": "model", "why": "it is"},
        "R2": {"stands": False, "by": "code", "why": ""},
    }
    file.write_text(json.dumps(verdict, ensure_ascii=False) + "\n", encoding="utf-8")
    return out
