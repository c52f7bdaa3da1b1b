"""What the documentation tells a reader to run is what CI runs, and it runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from benchmarks.readme_table import readme_table
from slimtier.cli.main import app
from slimtier.jsonl import read_rows
from slimtier.registry import DRAFTERS, VERIFIERS


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page that are marked as `language`."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def test_the_two_commands_are_those_of_ci(root: Path) -> None:
    commands = [block.strip() for block in blocks(root / "README.md", "sh")]
    assert commands == [
        'pip install . && slimtier generate "Explain why the sky is blue."',
        "pip install '.[test]' && pytest",
    ]
    lines = (root / ".ci" / "run").read_text().splitlines()
    for command in commands:
        assert f"({command})" in lines


def test_every_verb_drafter_and_verifier_is_named(root: Path) -> None:
    text = (root / "README.md").read_text()
    command: Any = get_command(app)
    for verb in command.commands:
        assert f"`slimtier {verb}" in text
    for name in (*DRAFTERS, *VERIFIERS):
        assert f"| `{name}` |" in text


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/*.md"])
def test_links_lead_somewhere(page: str, root: Path) -> None:
    pages = list(root.glob(page))
    assert pages
    for found in pages:
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", found.read_text()):
            assert (found.parent / link).exists(), f"{found.name} links to {link}"


def test_what_the_tree_names_is_there(root: Path) -> None:
    (tree,) = [block for block in blocks(root / "README.md", "text") if block.startswith("src/")]
    for line in tree.splitlines():
        names = re.split(r"\s{2,}", line.strip())[0].split()
        folder = root / "src/slimtier" if line.startswith("  ") else root
        for name in names:
            assert (folder / name).exists(), name


def test_the_figures_are_those_of_the_results(root: Path) -> None:
    text = (root / "README.md").read_text()
    assert readme_table(root / "results" / "main.jsonl") in text
    words = " ".join(text.split())
    steps = [row for row in read_rows(root / "results" / "roofline.jsonl") if row.get("work") == "a plain step"]
    shares = ", ".join(f"{row['fraction']:.0%} ({row['system'].split()[-1]})" for row in steps).replace("%", " %")
    assert f"reaches {' and '.join(shares.rsplit(', ', 1))} of the rate" in words
    batches = [row for row in read_rows(root / "results" / "scaling.jsonl") if row.get("batch") == 64]
    speeds = {row["system"]: round(row["tokens_per_s"]) for row in batches}
    assert (
        f"at 64, {speeds['slimtier fp32 plain']} tokens/s plain and {speeds['slimtier fp32 auto']} with `auto`; "
        f"vLLM has {speeds['vLLM fp32 plain']}"
    ) in words


@pytest.mark.parametrize("name", ["main", "gemma"])
def test_the_reports_are_those_of_the_results(name: str, root: Path, tmp_path: Path) -> None:
    written = tmp_path / f"{name}.md"
    done = CliRunner().invoke(app, ["report", str(root / "results" / f"{name}.jsonl"), "-o", str(written)])
    assert done.exit_code == 0, done.output
    assert written.read_text() == (root / "results" / f"{name}.md").read_text()


def test_what_auto_gains_beside_the_table_is_that_of_the_results(root: Path) -> None:
    from slimtier.bench.statistics import bootstrap_ratio

    rows = [row for row in read_rows(root / "results" / "main.jsonl") if row["kind"] == "answer"]
    said = {}
    for precision in ("fp32", "q8", "q4"):
        of = {
            drafter: [row["tokens_per_s"] for row in rows if row["system"] == f"slimtier {precision} {drafter}"]
            for drafter in ("auto", "plain")
        }
        found = bootstrap_ratio(of["auto"], of["plain"])
        assert found is not None
        said[precision] = f"{found[0]:.2f}×"
    words = " ".join((root / "README.md").read_text().split())
    assert f"On the eight of the table fp32 gains {said['fp32']}, q8 {said['q8']} and q4 {said['q4']}" in words


def test_what_the_draft_gains_is_that_of_the_results(root: Path) -> None:
    from benchmarks.slimspec import acceptance_length, ratio

    rows = [row for row in read_rows(root / "results" / "slimspec.jsonl") if row["kind"] == "answer"]
    words = " ".join((root / "README.md").read_text().split())
    assert f"yields {acceptance_length(rows, 'q8 slim K=5'):.2f} tokens a round" in words
    gains = {precision: ratio(rows, f"{precision} auto", f"{precision} plain") for precision in ("q8", "q4", "fp32")}
    said = {precision: f"{found[0]:.2f}×" for precision, found in gains.items() if found}
    assert f"q8 gains {said['q8']} by `auto`, q4 {said['q4']}, fp32 {said['fp32']}" in words
    for name, before, precision in (
        ("slimspec_floats", "where fp32 is floats in memory", "fp32"),
        ("slimspec_t1", "at temperature 1 `auto` gains", "q8"),
    ):
        rows = [row for row in read_rows(root / "results" / f"{name}.jsonl") if row["kind"] == "answer"]
        found = ratio(rows, f"{precision} auto", f"{precision} plain")
        assert found is not None
        assert f"{before} {found[0]:.2f}×" in words


def test_what_is_not_so_good_is_that_of_the_results(root: Path) -> None:
    from benchmarks.slimspec import ratio
    from slimtier.bench.statistics import bootstrap_ratio

    words = " ".join((root / "README.md").read_text().split())
    rows = [row for row in read_rows(root / "results" / "slimspec_t1.jsonl") if row["kind"] == "answer"]
    drawn = ratio(rows, "fp32 auto", "fp32 plain")
    rows = [row for row in read_rows(root / "results" / "slimspec_batch.jsonl") if row["kind"] == "answer"]
    speeds = [[row["tokens_per_s"] for row in rows if row["arm"] == f"q8 {name}"] for name in ("auto", "plain")]
    batch = bootstrap_ratio(*speeds)
    assert drawn is not None
    assert batch is not None
    assert f"at q8 and {drawn[0]:.2f}× at fp32" in words
    assert f"at q8 `auto` has {batch[0]:.2f}× plain there" in words


def test_what_tiers_gain_is_that_of_the_results(root: Path) -> None:
    from benchmarks.viasd import a_token, ratio_of

    words = " ".join((root / "README.md").read_text().split())
    said: dict[tuple[str, str], str] = {}
    for name in ("viasd", "viasd_full_precision"):
        rows = [row for row in read_rows(root / "results" / f"{name}.jsonl") if row["kind"] == "answer"]
        assert all(row["same_as_plain"] for row in rows if row["arm"].startswith("exact"))
        for arm in dict.fromkeys(row["arm"] for row in rows):
            gain = ratio_of(rows, arm, "two tiers")
            assert gain is not None
            share = (
                "" if arm.startswith("exact") else f" with {a_token(rows, arm, 'divergence'):.2%}".replace("%", " %")
            )
            said[name, arm] = f"{gain[0]:.2f}×{share}"
    floats = {arm: text for (name, arm), text in said.items() if name == "viasd_full_precision"}
    assert f"q4 between gives the same tokens {floats['exact, q4']} as fast, q8 {floats['exact, q8']}" in words
    assert f"close: calibrated tiers {floats['calibrated']} of the tokens not fp32's" in words
    assert f"q8 as the target {floats['q8 alone']}, q4 as the target {floats['q4 alone']}" in words
    assert f"the paper's gate on q4 {floats['paper, default']}" in words
    over = ratio_of(rows, "exact, q4", "transformers")
    assert over is not None
    assert f"that is {over[0]:.2f}× transformers" in words
    codes = {arm: text for (name, arm), text in said.items() if name == "viasd"}
    assert f"exact tiers on q4 have {codes['exact, q4']}, calibrated tiers {codes['calibrated']}," in words
    assert f"and q8 as the target {codes['q8 alone']}:" in words
    alone = [row for row in read_rows(root / "results" / "viasd_alone.jsonl") if row["kind"] == "answer"]
    beside = ratio_of(alone, "calibrated", "q8 alone")
    assert beside is not None
    shares = [f"{a_token(alone, arm, 'divergence'):.2%}".replace("%", " %") for arm in ("calibrated", "q8 alone")]
    assert f"{beside[0]:.2f}× [{beside[1]:.2f}, {beside[2]:.2f}] with {shares[0]} against {shares[1]}" in words


def test_what_the_pages_say_of_routes_is_what_was_found(root: Path) -> None:
    found = json.loads((root / "results" / "route_skip.json").read_text())["found"]
    page = (root / "docs" / "routes.md").read_text()
    names = {
        "search": "best of the search",
        "greedy_once": "greedy, once",
        "uniform": "uniform",
        "first_n": "the last layers",
    }
    for name, words in names.items():
        (line,) = [line for line in page.splitlines() if line.startswith(f"| {words} |")]
        value = found["searched"]["value"] if name == "search" else found["baselines"][name]["value"]
        held_out = found["held_out"][name]
        cells = [float(cell) for cell in re.findall(r"\| ([0-9.]+)(?= \|)", line)]
        assert cells[1] == float(f"{value:.{2 if value < 9 else 1}f}")
        assert cells[-2:] == [float(f"{held_out[key]:.{2 if held_out[key] < 5 else 1}f}") for key in ("r", "kl")]
    best, mean = found["random"]["best"], found["random"]["mean"]
    assert (
        f"| best of its {found['random']['trials']} random trials | {found['random']['trials']} | {best:.2f} |" in page
    )
    assert f"| mean of these | {found['random']['trials']} | {mean:.2f} |" in page


def test_what_the_pages_say_of_a_calibration_is_what_was_found(root: Path) -> None:
    found = json.loads((root / "results" / "route_calibrated.json").read_text())["calibrated"]
    page = (root / "docs" / "calibrate.md").read_text()
    rows = {(row["route"], row["name"]): row for row in found["grid"]}
    names = {"margin 0": "accept 1.0", "the paper's default": "default"}
    names |= {f"margin {margin}": f"accept 1.0, margin {margin}, reread 12" for margin in (0.1, 0.05, 0.03)}
    for route in ("q8", "q4"):
        for words, name in names.items():
            row = rows[route, name]
            figures = f"{row['mean_loss']:.2%}".replace("%", " %"), f"{row['speed_ratio']:.2f}×"
            said = f"| {route} | {words} | {figures[0]} | {figures[1]} | {row['target_calls_per_token']:.3f} |"
            assert said + (" yes" if row["certified"] else "") in page


def test_what_the_page_says_of_scores_is_what_was_found(root: Path, tmp_path: Path) -> None:
    written = tmp_path / "tiers.md"
    CliRunner().invoke(app, ["report", str(root / "results" / "tiers.jsonl"), "-o", str(written)])
    lines = [line for line in written.read_text().splitlines() if "slimtier fp32 calibrated" in line]
    verdicts = [line for line in lines if re.search("rouge|chrf|log-likelihood", line) and line.startswith("| ")]
    assert len(verdicts) == 6
    assert all(line.endswith(("| not worse |", "| better |")) and "| 40 |" in line for line in verdicts)
    row = next(line for line in lines if line.startswith("| slimtier fp32 calibrated (lossy)"))
    speed = row.split("|")[2].split()[0]
    assert f"at {speed} two tiers" in " ".join((root / "docs" / "calibrate.md").read_text().split())


def test_what_the_page_says_of_a_calibration_beside_floats_is_what_was_found(root: Path) -> None:
    found = json.loads((root / "results" / "route_calibrated_floats.json").read_text())["calibrated"]
    words = " ".join((root / "docs" / "calibrate.md").read_text().split())
    assert (found["gate"]["margin"], found["gate"]["reread"]) == (0.03, 12)
    assert f"has {found['mean_loss']:.2%} and {found['speed_ratio']:.2f}× two tiers".replace("% ", " % ") in words


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_python_of_a_page_runs(page: str, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in blocks(root / page, "python"):
        exec(block, names)
    assert capsys.readouterr().out.strip()
