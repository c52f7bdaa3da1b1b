"""How good the answers are, in pairs with the baseline's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from slimtier.bench.result_rows import Score
from slimtier.bench.results import Results
from slimtier.bench.statistics import Interval, bootstrap_difference
from slimtier.bench.summary import Answers, Group

LIKELIHOOD = "log-likelihood"
SCORE_MARGIN = 0.02  # two points in a hundred
LIKELIHOOD_MARGIN = 0.05  # nats a token: a perplexity 5 % higher
LEAST_PAIRS = 10  # intervals from fewer are too narrow to clear a system

Verdict = Literal["the same", "better", "worse", "not worse", "undecided"]
Values = Mapping[tuple[str, str], float]  # by task and item


@dataclass(frozen=True, slots=True)
class Quality:
    """A system's value on a task by one measure: a metric of the task's (0 to 1), or log-likelihood (nats a token).

    `informative`: the baseline is above the floor, so that there is something to lose. `difference`: system minus
    baseline, mean over `pairs` items, None where items have no scores. `value` of a metric is that of the whole task,
    of log-likelihood the mean over items.
    """

    system: str
    task: str
    measure: str
    value: float
    floor: float | None
    informative: bool
    difference: Interval | None
    pairs: int

    @property
    def margin(self) -> float:
        """What a system may lose and still count as not worse."""
        return LIKELIHOOD_MARGIN if self.measure == LIKELIHOOD else SCORE_MARGIN

    @property
    def verdict(self) -> Verdict | None:
        if self.difference is None:
            return None
        if self.difference == (0.0, 0.0, 0.0):
            return "the same"
        if self.difference.high < 0:
            return "worse"
        if self.pairs < LEAST_PAIRS:
            return "undecided"
        if self.difference.low > 0:
            return "better"
        return "not worse" if self.difference.low > -self.margin else "undecided"


def qualities(results: Results, answers: Answers | None = None) -> tuple[Quality, ...]:
    """All tasks' metrics, then their log-likelihoods, for each system that has them."""
    answers = answers or Answers(results)
    tasks = sorted({score.task for score in results.scores} | {row.task for row in results.likelihoods})
    return tuple(quality for task in tasks for quality in (*_metrics(results, answers, task), *_likely(results, task)))


def shown(found: Iterable[Quality]) -> tuple[Quality, ...]:
    """One measure a task: its first metric that is informative, else log-likelihood, else the first metric."""
    measures: dict[str, str] = {}
    rows = tuple(found)
    for row in sorted(rows, key=_rank):
        measures.setdefault(row.task, row.measure)
    return tuple(row for row in rows if measures[row.task] == row.measure)


def _rank(row: Quality) -> int:
    if row.measure == LIKELIHOOD:
        return 1
    return 0 if row.informative else 2


def _metrics(results: Results, answers: Answers, task: str) -> Iterable[Quality]:
    scores = {score.system: score for score in results.scores if score.task == task}
    baseline = scores.get(results.run.baseline)
    for metric in dict.fromkeys(metric for score in scores.values() for metric in score.metrics):
        informative = _informative(scores if baseline is None else {baseline.system: baseline}, metric)
        theirs = _item_scores(answers, results.run.baseline, task, metric)
        for system in results.systems:
            score = scores.get(system.name)
            if score is None or metric not in score.metrics:
                continue
            difference, pairs = _paired(_item_scores(answers, system.name, task, metric), theirs)
            yield Quality(
                system.name,
                task,
                metric,
                score.metrics[metric],
                score.floor.get(metric),
                informative,
                difference,
                pairs,
            )


def _informative(scores: Mapping[str, Score], metric: str) -> bool:
    return any(score.metrics.get(metric, 0.0) > score.floor.get(metric, 0.0) for score in scores.values())


def _item_scores(answers: Answers, system: str, task: str, metric: str) -> Values:
    """The means over repeats."""
    values: dict[tuple[str, str], list[float]] = {}
    for answer in answers.of(system, Group(task)):
        if metric in answer.scores:
            values.setdefault(answer.place.prompt, []).append(answer.scores[metric])
    return {prompt: sum(several) / len(several) for prompt, several in values.items()}


def _likely(results: Results, task: str) -> Iterable[Quality]:
    values: dict[str, dict[tuple[str, str], float]] = {}
    for row in results.likelihoods:
        if row.task == task:
            for name in row.systems:
                values.setdefault(name, {})[task, row.item] = row.log_likelihood
    theirs = values.get(results.run.baseline, {})
    for system in results.systems:
        own = values.get(system.name)
        if own:
            difference, pairs = _paired(own, theirs)
            mean = sum(own.values()) / len(own)
            yield Quality(system.name, task, LIKELIHOOD, mean, None, True, difference, pairs)


def _paired(own: Values, theirs: Values) -> tuple[Interval | None, int]:
    both = [prompt for prompt in own if prompt in theirs]
    return bootstrap_difference([own[prompt] for prompt in both], [theirs[prompt] for prompt in both]), len(both)
