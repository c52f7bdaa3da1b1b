"""The mix of prompts: its shares, its turns, what is kept out of it, and that a seed fixes it."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from slimtier.train.overlap import HeldOut, split_words
from slimtier.train.prompts import Conversation, read_prompts
from tools.prompt_mix.documents import Document
from tools.prompt_mix.mix import KINDS, SECOND_TURN, Mix, spaced
from tools.training_prompts import brief, main

NEWS = "The mayor of the town opened a bridge on Monday and said that it would serve everybody well for many years"
DOCUMENTS = [
    Document("wiki", f"Town {n}", tuple(f"In {n} the council of Grand Town {n}{k} met. " * 12 for k in range(9)))
    for n in range(6)
]


def rows(count: int = 700) -> list[tuple[str, str]]:
    sums = [("gsm8k:train", f"What is {n} plus {n + 1}?") for n in range(count)]
    plain = [("t0:other", f"Tell me about the number {n}.") for n in range(count)]
    return [*sums, *plain, *[("t0:xsum_x", f"Summarize: In {n}, {NEWS}. {NEWS}, {NEWS}.") for n in range(20)]]


def mixed(count: int = 600, held_out: HeldOut | None = None, seed: int = 3) -> tuple[Mix, list[Conversation]]:
    mix = Mix(rows(), DOCUMENTS, held_out or HeldOut([]), Random(seed))
    return mix, list(mix.conversations(count))


def kind_of(one: Conversation) -> str:
    origin, _, kind = one.source.split("+")[0].partition(":")
    return {"gsm8k": "math", "t0": "plain", "long": "long", "template": kind}[origin]


def test_the_shares_add_up() -> None:
    assert sum(kind.share for kind in KINDS.values()) == pytest.approx(1)


def test_every_prefix_has_the_mix() -> None:
    mix, conversations = mixed()
    assert len(conversations) == 600
    counts: Counter[str] = Counter()
    for number, one in enumerate(conversations, 1):
        counts[kind_of(one)] += 1
        for kind, given in KINDS.items():
            assert abs(counts[kind] - given.share * number) < 2, (number, kind)
    assert mix.counts == counts


def test_other_shares_make_another_mix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mix = Mix(rows(), DOCUMENTS, HeldOut([]), Random(3), {"question": 3, "plain": 1})
    counts = Counter(kind_of(one) for one in mix.conversations(200))
    assert counts == {"question": 150, "plain": 50}
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Hello"}\n')
    given = [str(prompts), "--eval", str(tmp_path), "--out", str(tmp_path / "out.jsonl"), "--shares"]
    for pair in ("poem=1", "question", "question=0", "question=nan"):
        assert main([*given, pair]) == 1
        assert f"--shares {pair} is not KIND=SHARE with a KIND of plain, math" in capsys.readouterr().err


def test_some_have_further_turns_and_say_so() -> None:
    _, conversations = mixed()
    longer = [one for one in conversations if len(one.turns) > 1]
    assert len(longer) / len(conversations) == pytest.approx(SECOND_TURN, abs=0.06)
    assert {len(one.turns) for one in longer} == {2, 3}
    for one in conversations:
        assert one.source.count("+turn") == len(one.turns) - 1
        assert len(set(one.turns)) == len(one.turns)


def test_no_prompt_comes_twice() -> None:
    mix, conversations = mixed()
    firsts = [tuple(split_words(one.turns[0])) for one in conversations]
    assert len(set(firsts)) == len(firsts)
    doubled = Mix([*rows(30), *rows(30)], DOCUMENTS, HeldOut([]), Random(0))
    list(doubled.conversations(300))
    assert doubled.repeats["plain"] == 50  # 30 and 20 reports
    assert mix.repeats["plain"] == 0


def test_held_out_text_stays_out_of_every_turn() -> None:
    held_out = HeldOut(["the number 17", "the council of", "Are you sure?", "Translate German to English"], run=3)
    mix, conversations = mixed(held_out=held_out)
    assert conversations
    assert not any(held_out.any_overlaps(one.turns) for one in conversations)
    assert mix.overlaps["translation"] > 5
    assert mix.overlaps["long"] > 5


def test_a_seed_fixes_the_mix_and_a_longer_one_begins_alike() -> None:
    _, first = mixed(200)
    _, again = mixed(300)
    _, other = mixed(200, seed=4)
    assert first == again[:200]
    assert first != other


def test_others_fill_the_share_of_what_is_exhausted() -> None:
    mix = Mix(rows(20), DOCUMENTS, HeldOut([]), Random(0))
    assert len(list(mix.conversations(400))) == 400
    assert mix.counts["plain"] + mix.repeats["plain"] <= 40
    assert "400 rows" in mix.report()


def test_without_texts_long_prompts_are_made_of_the_reports_in_the_prompts() -> None:
    mix = Mix(rows(50), [], HeldOut([]), Random(0))
    long = [one for one in mix.conversations(100) if one.source.startswith("long")]
    assert len(long) == round(100 * KINDS["long"].share)
    assert all(NEWS in one.turns[0] for one in long)


def test_without_any_text_there_are_no_long_prompts() -> None:
    mix = Mix([("t0:x", f"number {n}") for n in range(50)], [], HeldOut([]), Random(0))
    assert not any(one.source.startswith("long") for one in islice(mix.conversations(100), 100))


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Translate German to English: Ja, um 20.15 Uhr.", "Translate German to English: Ja , um 20.15 Uhr ."),
        ("Translate German to English: „So“, sagte er.", "Translate German to English: „ So “ , sagte er ."),
        ("Translate German to English: Am 5. Mai!", "Translate German to English: Am 5. Mai !"),
        ("English, please: Ja, gut.", "English, please: Ja, gut."),
    ],
)
def test_some_translations_are_spaced_like_tokenised_corpora(prompt: str, expected: str) -> None:
    assert spaced(prompt) == expected


def test_the_tool_writes_a_file_that_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts, texts, held_out, out = (tmp_path / name for name in ("p.jsonl", "t.jsonl", "eval", "out/mix.jsonl"))
    held_out.mkdir()
    (held_out / "e.jsonl").write_text(json.dumps({"turns": ["Tell me about the number 5."]}) + "\n")
    given = [{"source": source, "prompt": text} for source, text in rows(60)]
    given += [{"turns": ["a", "b"]}, {"prompt": ""}]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in given))
    texts.write_text(json.dumps({"source": "s", "title": "t", "text": "A paragraph. " * 90 + "\n\n" + "Other. " * 90}))
    arguments = [str(prompts), "--texts", str(texts), "--eval", str(held_out), "--out", str(out), "--count", "150"]
    assert main(arguments) == 0
    written = out.read_bytes()
    assert len(read_prompts(out).conversations) == 150
    printed = capsys.readouterr().out
    assert "1 rows left out: an empty text" in printed
    assert "1 rows left out: more than a single prompt" in printed
    assert "1 dropped for overlap" in printed
    assert main(arguments) == 0
    assert out.read_bytes() == written
    assert [path.name for path in out.parent.iterdir()] == ["mix.jsonl"]


def test_an_error_leaves_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts, out = tmp_path / "p.jsonl", tmp_path / "mix.jsonl"
    prompts.write_text('{"prompt": "a"}\n')
    assert main([str(prompts), "--eval", str(tmp_path / "none"), "--out", str(out)]) == 1
    assert "has no .jsonl" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [prompts]


def test_a_brief_mix_leaves_out_what_takes_long_to_read() -> None:
    long = [Conversation("long:rag", ("x" * 4000,)) for _ in range(200)]
    tasks = [Conversation("t0:a", ("x" * 401,)), Conversation("t0:b", ("x" * 100, "y" * 200))]
    others = [Conversation("gsm8k:train", ("x" * 1000,))]
    kept = list(brief([*long, *tasks, *others], Random(1)))
    assert kept[-2:] == [tasks[1], others[0]]
    assert 80 < len(kept) - 2 < 120  # half of them
