"""What the answers are worth by the tasks' own metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slimtier.bench.asked import Asked
from slimtier.bench.tasks import TASKS
from slimtier.errors import MissingDependencyError

# At or below this a metric tells nothing of a system: it is what a text gets that has little to do with the reference
# (function words in common), or what guessing gives.
FLOORS = {
    "exact_match": 0.05, "pass@1": 0.02, "f1": 0.05, "answered": 0.10, "rouge1": 0.15, "rouge2": 0.03, "rougeL": 0.12,
    "bleu": 0.03, "chrf": 0.20,
}  # fmt: skip


def score_of(asked: Asked, text: str) -> dict[str, float] | None:
    """The metrics of one answer; None where there is no reference, or the package that scores is missing."""
    if asked.item.reference is None:
        return None
    try:
        return dict(TASKS[asked.task].score(asked.item, text))
    except MissingDependencyError:
        return None


def total_scores(asked: Sequence[Asked], answers: Mapping[Any, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row for each task and system that can be scored: the metrics over all first answers."""
    items = {(one.task, one.item.name): one.item for one in asked}
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for (system, control, task, item, repeat), row in answers.items():
        if not control and repeat == 0 and (task, item) in items and items[task, item].reference is not None:
            groups.setdefault((task, system), []).append(row)
    for (task, system), rows in groups.items():
        try:
            metrics = TASKS[task].total([items[task, row["item"]] for row in rows], [row["text"] for row in rows])
        except MissingDependencyError:
            continue
        floors = {metric: FLOORS[metric] for metric in metrics}
        yield {"system": system, "task": task, "metrics": dict(metrics), "floor": floors, "items": len(rows)}


def without_metrics(asked: Sequence[Asked]) -> dict[str, tuple[str, ...]]:
    """The tasks some of whose prompts have no reference, with the metrics that these cannot give."""
    poor = dict.fromkeys(one.task for one in asked if one.item.reference is None)
    return {task: TASKS[task].metrics for task in poor if TASKS[task].metrics}
