"""The template language, and that the lists are written in it."""

from __future__ import annotations

import re
from collections import Counter
from random import Random

import pytest

from tools.prompt_mix.grammar import LISTS, Grammar, entries, read_grammar, slots
from tools.prompt_mix.mix import KINDS

TOPS = {*KINDS, *(kind.follow_ups for kind in KINDS.values())} - {"plain", "long"} | {
    "summarize",
    "summarize_reviews",
    "rag",
    "title_question",
}


def drawn(text: str, section: str, times: int = 200) -> Counter[str]:
    grammar, random = Grammar([text]), Random(0)
    return Counter(grammar.expand(section, random) for _ in range(times))


def test_a_slot_is_any_line_of_its_section() -> None:
    found = drawn("# a\nsee {b}\n// see nothing\n\n# b;\none; {c}\n# c\ntwo {d}\n# d\nthree", "a")
    assert set(found) == {"see one", "see two three"}


def test_a_digit_binds_a_line_and_differs_from_other_digits() -> None:
    found = drawn("# a\n{b1}{b1.1} {b2}{b2.1} {^b1}\n# b;\nx | 1; y | 2", "a")
    assert set(found) == {"x1 y2 X", "y2 x1 Y"}
    assert set(drawn("# a\n{b}{b.1}\n# b;\nx | 1; y | 2", "a")) == {"x1", "x2", "y1", "y2"}


def test_numbers_breaks_and_weights() -> None:
    assert set(drawn("# a\n{2..4}\\n{10..30/10}", "a")) == {f"{i}\n{j}" for i in (2, 3, 4) for j in (10, 20, 30)}
    found = drawn("# a\n9* x\ny", "a", 2000)
    assert found["x"] == pytest.approx(1800, abs=60)


def test_sections_of_several_files_are_joined() -> None:
    grammar = Grammar(["# a\n{b}", "# b\nx", "# b\ny"])
    assert grammar.sections["b"] == ["x", "y"]


def test_a_slot_without_a_section_is_refused() -> None:
    with pytest.raises(ValueError, match="no section 'c'"):
        Grammar(["# a\n{c}"])


def test_more_digits_than_lines_are_refused() -> None:
    with pytest.raises(ValueError, match="'b' has too few lines"):
        drawn("# a\n{b1} {b2}\n# b\nx", "a")


def test_no_line_is_written_twice() -> None:
    written = Counter(entry for path in LISTS.glob("*.txt") for entry in entries(path.read_text(encoding="utf-8")))
    assert [entry for entry, times in written.items() if times > 1] == []


def test_every_list_is_used() -> None:
    grammar = read_grammar()
    used = {name for lines in grammar.sections.values() for line in lines for name in slots(line)}
    assert set(grammar.sections) - used == TOPS - used
    assert used | TOPS == set(grammar.sections)


def test_every_template_can_be_filled() -> None:
    """Each line of each section, a few times: no slot is left, no field is missing."""
    grammar, random = read_grammar(), Random(1)
    tops = dict(grammar.sections)
    for name in TOPS:
        for line in set(tops[name]):
            for _ in range(20):
                text = grammar.fill(line, random)
                assert not re.search(r"\{\^?[a-z_]+\d?(\.\d)?\}|\d\.\.\d", text), (line, text)
                assert " | " not in text, (line, text)
    for name, lines in tops.items():
        for line in set(lines):
            assert grammar.fill(line, random), (name, line)


def test_the_lists_are_long_enough() -> None:
    sections = read_grammar().sections
    follow_ups = {line for name in TOPS if name.startswith("follow") for line in sections[name]}
    asked_about = "country person book film event invention animal substance food sight city river organ science"
    assert len(follow_ups) >= 60
    assert len(set(sections["code_task"])) >= 150
    assert len(set(sections["signature"])) >= 60
    assert sum(len(set(sections[name])) for name in asked_about.split()) >= 300
    assert len(set(sections["german_sentence"])) >= 120


@pytest.mark.parametrize("kind", ["math", "question", "code", "writing", "translation"])
def test_templated_prompts_rarely_repeat(kind: str) -> None:
    grammar, random = read_grammar(), Random(2)
    assert len({grammar.expand(kind, random) for _ in range(500)}) > 400
