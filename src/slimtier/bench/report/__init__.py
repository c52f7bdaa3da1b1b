"""Pages and tables of a benchmark, each a pure function of its results files: HTML, Markdown and CSV."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from slimtier.bench.report.content import Report, report_of
from slimtier.bench.report.markdown import markdown
from slimtier.bench.report.page import page
from slimtier.bench.report.table_csv import table_csv
from slimtier.bench.results import Results
from slimtier.errors import ConfigError
from slimtier.files import writing

_WRITERS: dict[str, Callable[[Report], str]] = {".html": page, ".md": markdown, ".csv": table_csv}


def check_suffix(path: Path) -> None:
    """Raises ConfigError for a suffix that is none of .html, .md, .csv."""
    if path.suffix.lower() not in _WRITERS:
        raise ConfigError(f"--output {path}: the suffix says what is written: choose one of {', '.join(_WRITERS)}")


def write_reports(results: Results, paths: Sequence[Path]) -> Report:
    """Write a file for each path, each whole or not at all.

    Raises ConfigError for an unknown suffix before anything is written, InputError when the disk does not take it.
    """
    for path in paths:
        check_suffix(path)
    report = report_of(results)
    for path in paths:
        text = _WRITERS[path.suffix.lower()](report)
        with writing(path) as file:
            file.write(text)
    return report
