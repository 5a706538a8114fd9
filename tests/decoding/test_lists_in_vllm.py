"""Lists in real vLLM: whatever a model of random weights does, its findings are whole, and its own choice."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import jsonschema
import pytest

from localjudge.decoding.grammar import follows
from localjudge.engines.base import Ask, Message
from tests.conftest import Loop
from tests.decoding.test_closing import text
from tests.decoding.test_grammar import a_list, an_object

pytestmark = pytest.mark.vllm

ITEM = an_object(quote=text(16), kind={"enum": ["逻辑", "fact", "😀"]}, why=text(10), severe={"type": "boolean"})
SCHEMA = an_object(reason=text(20), findings=a_list(ITEM, 90), notes=a_list(text(6), 30), score={"enum": [1, 2, 3]})


def test_findings_of_a_random_model_are_valid_in_any_budget(random_engine: Any, loop: Loop) -> None:
    grammar = random_engine.grammar(SCHEMA)

    async def all_of(budget: int) -> list[Any]:
        asks = [Ask((Message("user", "Say anything."),), SCHEMA, budget, 1.0, seed) for seed in range(60)]
        return await asyncio.gather(*map(random_engine.complete, asks))

    for budget in (grammar.least, max(64, grammar.least + 1), 160, grammar.full):
        scores, kinds, lengths = Counter[int](), Counter[str](), Counter[int]()
        beyond_ascii = 0
        for completion in loop.run(all_of(budget)):
            answer = json.loads(completion.text)
            jsonschema.validate(answer, SCHEMA)
            assert follows(SCHEMA, completion.text)
            assert completion.written_tokens <= budget
            scores[answer["score"]] += 1
            lengths[len(answer["findings"])] += 1
            kinds.update(item["kind"] for item in answer["findings"])
            beyond_ascii += any(not item["quote"].isascii() for item in answer["findings"])
        assert set(scores) == {1, 2, 3}, "a score that is never given"
        assert set(kinds) == {"逻辑", "fact", "😀"}, "a kind that is never given"
        assert lengths[0] and lengths[1], "whether anything is found is the model's to say, at the least budget too"
        if budget == grammar.full:
            assert beyond_ascii
            assert max(lengths) > 1
