"""`slimtier report`: the page, the Markdown and the table, made of rows only."""

from __future__ import annotations

import csv
import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from slimtier.bench.report import write_reports
from slimtier.bench.report.content import Report, report_of
from slimtier.bench.report.markdown import brief, markdown
from slimtier.bench.report.page import page
from slimtier.bench.report.plots import Scale, linear_scale, ratio_scale, stack
from slimtier.bench.report.samples import samples
from slimtier.bench.report.table_csv import table_csv
from slimtier.bench.report.words import COLUMNS, DEFINITIONS, OWN_DEFINITIONS, milliseconds, percent, significant
from slimtier.bench.results import from_rows
from slimtier.bench.statistics import Interval, first_difference
from slimtier.bench.summary import ALL
from slimtier.cli.main import app
from slimtier.errors import ConfigError, InputError
from tests.bench.made_results import ABSENT, BASELINE, SYSTEMS, Row, made_rows, write_rows

VOID = {"meta", "link", "wbr"}
WIDTHS, SCHEMES = (360, 1600), ("light", "dark")
GROUNDS = {"light": "rgb(251, 251, 249)", "dark": "rgb(19, 22, 25)"}


class Reader(HTMLParser):
    """What a page has; an element that is not closed in order is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.said: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.said.append(data)

    def classes(self, tag: str) -> set[str]:
        return {
            name for found, attributes in self.tags if found == tag for name in (attributes.get("class") or "").split()
        }


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return made_rows(8)


@pytest.fixture(scope="module")
def report(rows: list[Row]) -> Report:
    return report_of(from_rows(rows, "made.jsonl"))


@pytest.fixture(scope="module")
def text(report: Report) -> str:
    return page(report)


@pytest.fixture(scope="module")
def read(text: str) -> Reader:
    return Reader(text)


def test_the_page_needs_nothing_but_itself(text: str, read: Reader) -> None:
    assert "http" not in text.replace('http-equiv="Content', "").lower()
    assert "url(" not in text
    assert "@import" not in text
    assert not {tag for tag, _ in read.tags} & {"img", "iframe", "object", "embed", "video", "form"}
    sources = [value for _, attributes in read.tags for name, value in attributes.items() if name in ("src", "href")]
    assert [value for value in sources if value and not value.startswith("#")] == ["data:,"]
    policy = next(attributes["content"] for tag, attributes in read.tags if "http-equiv" in attributes)
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_the_same_rows_give_the_same_bytes(rows: list[Row], text: str) -> None:
    again = report_of(from_rows(json.loads(json.dumps(rows)), "made.jsonl"))
    assert page(again) == text
    assert table_csv(again) == table_csv(report_of(from_rows(rows)))


def test_both_sides_stand_at_the_top(report: Report, text: str) -> None:
    top = text[: text.index("<nav")]
    for findings in (report.findings.favour, report.findings.against, report.findings.doubts):
        assert findings
        for one in findings:
            assert html.escape(one.text) in top
    assert top.index("For slimtier") < top.index("Against slimtier") < top.index("Doubts")
    for _, _, state, reason in ABSENT:
        assert f"<dt>{state}</dt>" in top
        assert reason in top


def test_every_section_that_is_linked_is_there(read: Reader) -> None:
    links = [attributes["href"] for tag, attributes in read.tags if tag == "a"]
    ids = [f"#{attributes['id']}" for tag, attributes in read.tags if tag == "section" and "id" in attributes]
    assert links == ids
    assert len(ids) == 11


def test_numbers_are_those_of_the_summary(report: Report, read: Reader) -> None:
    said = "\n".join(read.said)
    for line in report.summary.of(ALL):
        assert line.system in said
        ratio = line.speed.speed_up
        assert ratio is not None
        if line.system != BASELINE:
            assert f"{ratio.value:.2f}×" in said
            assert f"{ratio.low:.2f} to {ratio.high:.2f}" in said
        for column in COLUMNS:
            value = column.read(line)
            assert value is None or column.write(value) in said
    assert [line.system for line in report.summary.of(ALL)][:2] == ["slimtier lenient", "slimtier"]  # fastest first


def test_nothing_is_told_by_colour_alone(text: str, read: Reader) -> None:
    assert {"t0", "t1", "t2", "split"} <= read.classes("span")
    for look in ("border-bottom: 2px solid", "border-bottom: 2px dashed", "border-bottom: 3px double", "outline: 2px"):
        assert look in text
    said = "".join(read.said)
    assert "the drafter (accepted), solid underline" in said
    pictures = [attributes for tag, attributes in read.tags if tag == "svg" and attributes.get("role") == "img"]
    assert len(pictures) > 20
    assert all(attributes.get("aria-label") for attributes in pictures)
    assert len({attributes["aria-label"] for attributes in pictures if attributes.get("class") == "bar"}) > 5


def test_what_systems_say_is_text(rows: list[Row]) -> None:
    evil = '<script>alert("x")</script>'
    changed = json.loads(json.dumps(rows).replace('"slimtier ngram"', json.dumps(f"ngram {evil}")))
    for row in changed:
        if row["kind"] == "failure":
            row["error"] = evil
        if row["kind"] == "system" and row["state"] == "skipped":
            row["reason"] = evil
        if row["kind"] == "run":
            row["model"] = evil
        if row["kind"] == "answer":
            row["prompt"] = evil
    text = page(report_of(from_rows(changed)))
    assert text.count("<script>") == 1
    assert text.count("&lt;script&gt;") > 10
    Reader(text)


def test_samples_are_the_usual_the_least_and_the_most(report: Report, text: str) -> None:
    chosen = samples(report)
    assert [one.why.split(",")[0] for one in chosen] == ["usual gain", "least gain", "most gain"]
    assert {answer.system for answer in chosen[0].answers} == {
        BASELINE, "slimtier", "llama.cpp plain", "slimtier lenient",
    }  # fmt: skip
    gains = [float(one.why.split()[3].rstrip("×")) for one in chosen]
    assert gains[1] < gains[0] < gains[2]
    assert "&lt;quickly&gt;" in text
    assert "differs from token " in text
    plain, ours = chosen[0].answers[:2]
    assert first_difference(ours.output.token_ids, plain.output.token_ids) is None
    lossy = next(
        answer
        for one in chosen
        for answer in one.answers
        if not answer.output.same_as_baseline and answer.output.deciders
    )
    reference = next(one.answers[0] for one in chosen if lossy in one.answers)
    place = first_difference(lossy.output.token_ids, reference.output.token_ids)
    assert place is not None
    assert lossy.output.num_output_tokens // 2 <= place < lossy.output.num_output_tokens  # ":" has no upper case


def test_what_is_not_told_is_left_out(rows: list[Row]) -> None:
    poor = [row for row in rows if row["kind"] not in ("score", "likelihood", "exactness", "failure")]
    for name in ("deciders", "pieces", "stats", "time_split_s", "peak_memory_bytes", "scores", "prompt"):
        poor = [{key: value for key, value in row.items() if key != name} for row in poor]
    only = [row for row in poor if row.get("task") in (None, "gsm8k") and not row.get("control")]
    text = page(report_of(from_rows(only)))
    Reader(text)
    for word in ('id="tasks"', 'id="acceptance"', 'id="time"', 'id="quality"', 'id="samples"', 'id="exactness"'):
        assert word not in text
    assert "the noise is not known" in text
    nothing = page(report_of(from_rows(rows[: 2 + len(SYSTEMS) + len(ABSENT)])))
    assert "No slimtier system answered" in nothing
    assert "gave no answer" in nothing
    Reader(nothing)


def test_batches_are_drawn_with_their_schedule(rows: list[Row]) -> None:
    speeds = {"slimtier plain": (10.0, 30.0, 80.0), "slimtier auto": (20.0, 35.0, 60.0)}
    told = [
        {"kind": "batch", "system": name, "batch": batch, "repeat": 0, "tokens_per_s": speed, "num_drafts": 3}
        for name, mine in speeds.items()
        for batch, speed in zip((1, 4, 16), mine, strict=True)
    ]
    schedule = {"kind": "schedule", "num_speculative_tokens_per_batch_size": [[1, 15, 3], [16, 16, 0]]}
    head = [row for row in rows if row["kind"] in ("provenance", "run", "system")]
    for given in ([*rows, *told, schedule], [*head, *told, schedule]):  # beside answers, and alone
        report = report_of(from_rows(given))
        shown = page(report)
        assert 'id="batches"' in shown
        assert "Fastest at batch 1 to 15: 3 drafted tokens, 16: no." in shown
        assert "| slimtier auto | 20 | 35 | 60 |" in markdown(report)
    assert 'id="batches"' not in page(report_of(from_rows(rows)))
    with pytest.raises(InputError, match="not three whole numbers"):
        from_rows([*rows, {**schedule, "num_speculative_tokens_per_batch_size": [[1, 2]]}])


def test_markdown_has_the_same_tables(report: Report) -> None:
    text = markdown(report)
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## Speed", "## Speed-up by task", "## Acceptance by draft position", "## Milliseconds of a round",
        "## Quality", "## Exactness", "## Noise", "## Systems that did not run", "## Where the numbers are from",
        "## Definitions",
    ]  # fmt: skip
    for one in (*report.findings.favour, *report.findings.against, *report.findings.doubts):
        assert f"- {one.figure}: {one.text}" in text
    assert "| slimtier lenient (lossy) |" in text
    assert "| gsm8k | accuracy | slimtier | 0.000 |" in text
    assert "uninformative: not above the floor" in text
    tables = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1
    assert brief(report).endswith(markdown(report).split("## Speed\n\n")[1].split("\n\n")[0])


def test_the_table_is_in_raw_units(report: Report) -> None:
    table = list(csv.DictReader(table_csv(report).splitlines()))
    assert len(table) == len(report.summary.lines) + len(ABSENT)
    ours = next(row for row in table if row["system"] == "slimtier" and not row["task"])
    line = report.summary.line("slimtier")
    assert line is not None
    assert line.speed.speed_up is not None
    assert float(ours["speed_up"]) == line.speed.speed_up.value
    assert float(ours["speed_up_low"]) == line.speed.speed_up.low
    assert float(ours["peak_memory_bytes"]) == 400 * 2**20
    assert float(ours["acceptance_position_1"]) == line.work.by_position[0]
    assert (ours["baseline"], ours["lossy"], ours["rouge1"]) == ("0", "0", "")
    whole = next(row for row in table if (row["system"], row["task"]) == ("slimtier lenient", "summarization"))
    assert float(whole["rouge1"]) == pytest.approx(0.26)
    assert float(whole["rouge1 high"]) < 0
    assert next(row for row in table if row["state"] == "skipped")["reason"] == ABSENT[0][3]


def test_definitions_are_those_of_the_docs(root: Path) -> None:
    table = (root / "docs" / "benchmarks.md").read_text().split("## Definitions")[1].split("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    found = {name.strip(): meaning.strip() for name, meaning in rows if name.strip() not in ("word", "---")}
    assert found == DEFINITIONS
    assert {column.defined for column in COLUMNS} <= {**DEFINITIONS, **OWN_DEFINITIONS}.keys()


def test_scales() -> None:
    scale = ratio_scale([Interval(1.5, 1.2, 2.4), None])
    assert 1.0 in scale.ticks
    assert 0 < scale.at(1.0) < scale.at(1.5) < scale.at(2.4) < 100
    assert scale.at(1e9) == 100
    double, half = ratio_scale([Interval(1, 0.25, 4)]), Scale(0.25, 4, (), logarithmic=True)
    assert set(double.ticks) >= {0.5, 1.0, 2.0}
    assert half.at(2.0) - half.at(1.0) == half.at(1.0) - half.at(0.5)
    assert ratio_scale([]).ticks
    linear = linear_scale([0.0, 0.79], down=True)
    assert linear.ticks == (0.0, 0.2, 0.4, 0.6, 0.8)
    assert (linear.at(0.0), linear.at(0.8)) == (100.0, 0.0)
    assert len(set(linear_scale([0.3, 0.3]).ticks)) >= 2
    assert linear_scale([0.0, 0.0]).high > 0
    assert stack([("p0", "a", 1.0), ("p3", "b", 3.0)], 8.0, "label").count('width="12.50%"') == 1


def test_numbers_as_text() -> None:
    assert [significant(value) for value in (123.4, 12.34, 1.234, 0.0)] == ["123", "12.3", "1.23", "0.00"]
    assert milliseconds(0.0214) == "21.4"
    assert [percent(value) for value in (1.0, 0.999, 0.5, 0.001, 0.0)] == ["100 %", "99.9 %", "50 %", "0.1 %", "0 %"]


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["report", *arguments])


def test_the_verb_writes_what_the_suffixes_say(rows: list[Row], tmp_path: Path) -> None:
    source = str(write_rows(tmp_path / "rows.jsonl", rows))
    outputs = [tmp_path / "new" / f"report.{suffix}" for suffix in ("html", "md", "csv")]
    result = run(source, *(word for path in outputs for word in ("-o", str(path))))
    assert result.exit_code == 0, result.output
    assert "Against slimtier" in result.stdout
    assert outputs[0].read_text().startswith("<!doctype html>")
    assert outputs[1].read_text().startswith("# Decoding smollm2-135m")
    assert outputs[2].read_text().startswith("model,task,category,system")
    assert str(tmp_path) not in outputs[0].read_text() + outputs[1].read_text()
    printed = run(source)
    assert printed.stdout == outputs[1].read_text()


def test_the_verb_refuses_in_one_line(rows: list[Row], tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows.jsonl", rows)
    result = run(str(source), "-o", str(tmp_path / "a.html"), "-o", str(tmp_path / "report.pdf"))
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        f"error: --output {tmp_path}/report.pdf: the suffix says what is written: choose one of .html, .md, .csv"
    ]
    assert not (tmp_path / "a.html").exists()
    assert "cannot read" in run(str(tmp_path / "none.jsonl")).output
    with pytest.raises(ConfigError, match="choose one of"):
        write_reports(from_rows(rows), [tmp_path / "report"])


def test_the_verb_says_that_a_line_was_cut_off(rows: list[Row], tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows.jsonl", rows[:-1])
    source.write_text(source.read_text() + '{"kind": "answ')
    result = run(str(source))
    assert result.exit_code == 0, result.output
    assert "its last line was cut off and is left out" in result.stderr
    assert "run that is not complete and its last line was cut off" in result.stdout


def test_help_has_an_example() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "slimtier report results.jsonl -o report.html" in " ".join(result.output.split())


WATCH = """<!doctype html><html style="color-scheme: SCHEME"><body style="margin: 0"><script>
const frame = document.createElement("iframe");
frame.style = "width: WIDTHpx; height: 900px; border: 0; color-scheme: SCHEME";
frame.srcdoc = PAGE;
frame.onload = () => {
  const inside = frame.contentDocument, root = inside.documentElement;
  const head = inside.querySelector("table.sorts thead th:nth-child(5) button");
  head.click();
  const sorted = [...inside.querySelector("table.sorts tbody").rows].map(row => Number(row.cells[4].dataset.value));
  document.body.dataset.seen = JSON.stringify({
    wide: root.scrollWidth, inner: root.clientWidth, tall: root.scrollHeight, sorted: sorted,
    ground: frame.contentWindow.getComputedStyle(inside.body).backgroundColor,
    flat: [...inside.querySelectorAll("svg.bar, svg.plot")].filter(one => one.clientWidth < 60).length,
  });
};
document.body.append(frame);
</script></body></html>"""


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_browser_shows_it(text: str, tmp_path: Path, width: int, scheme: str) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no chromium is installed")
    literal = json.dumps(text).replace("</", "<\\/")
    watch = tmp_path / "watch.html"
    watch.write_text(WATCH.replace("WIDTH", str(width)).replace("SCHEME", scheme).replace("PAGE", literal))
    shown = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=1700,1000",
         f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", "--dump-dom", watch.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in shown.stderr
    found = re.search(r'data-seen="([^"]*)"', shown.stdout)
    assert found, shown.stdout[:500]
    seen = json.loads(html.unescape(found[1]))
    assert width - 20 <= seen["inner"] <= width  # less the bar for scrolling down
    assert seen["wide"] <= seen["inner"]  # tables scroll sideways in their boxes, never the page
    assert seen["ground"] == GROUNDS[scheme]
    assert seen["tall"] > 3000
    assert seen["flat"] == 0
    assert seen["sorted"] == sorted(seen["sorted"], reverse=True)
