"""The numbers of a benchmark from its rows: what the live table, the command line and the report show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from slimtier.bench.result_rows import POSITIONS, SPLIT, Answer, Place, System
from slimtier.bench.results import Results
from slimtier.bench.statistics import Interval, bootstrap_ratio, median
from slimtier.bench.systems import OURS as OURS

NOISY = 0.05  # a baseline that answers twice and differs by more was disturbed

Prompt = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Group:
    """Prompts that are looked at together: all of them, a task's, or those of a task's category."""

    task: str | None = None
    category: str | None = None

    def __contains__(self, place: Place) -> bool:
        return self.task in (None, place.task) and self.category in (None, place.category)

    @property
    def name(self) -> str:
        return " · ".join(part for part in (self.task, self.category) if part is not None) or "all prompts"


ALL = Group()


@dataclass(frozen=True, slots=True)
class Speed:
    """Medians over the answers, seconds and tokens a second; ratios are paired with the baseline, prompt by prompt."""

    tokens_per_s: float | None
    end_to_end_tokens_per_s: float | None
    time_to_first_token_s: float | None
    time_per_output_token_s: float | None
    speed_up: Interval | None
    end_to_end_speed_up: Interval | None


@dataclass(frozen=True, slots=True)
class Work:
    """What decoding did, counted over all answers that tell; None and () where none does. `by_position`: accepted at
    draft position 1, 2, … ÷ drafts. `time_split_s`: seconds by part, of `split_rounds` rounds and `split_tokens`
    output tokens."""

    mean_acceptance_length: float | None
    acceptance_rate: float | None
    rejection_rate: float | None
    target_calls_per_token: float | None
    by_position: tuple[float, ...]
    time_split_s: Mapping[str, float]
    split_rounds: int
    split_tokens: int


@dataclass(frozen=True, slots=True)
class Line:
    """A system on a group of prompts. `same_share`: of the answers that are token for token the baseline's."""

    system: str
    group: Group
    prompts: int
    answers: int
    speed: Speed
    work: Work
    same_share: float | None
    loop_share: float | None
    peak_memory_bytes: float | None


@dataclass(frozen=True, slots=True)
class Control:
    """The second answers of the baseline against its first: their ratio, and that of each prompt."""

    ratio: Interval
    by_prompt: tuple[float, ...]

    @property
    def noise(self) -> float:
        return abs(self.ratio.value - 1.0)

    @property
    def noisy(self) -> bool:
        return self.noise > NOISY


@dataclass(frozen=True, slots=True)
class Summary:
    """`lines`: of each group, a line for each system with answers, in the order of the systems. `failures`: answers
    that were not given, by system."""

    model: str
    baseline: str
    temperature: float
    systems: tuple[System, ...]
    groups: tuple[Group, ...]
    lines: tuple[Line, ...]
    control: Control | None
    failures: Mapping[str, int]

    def line(self, system: str, group: Group = ALL) -> Line | None:
        return next((line for line in self.lines if (line.system, line.group) == (system, group)), None)

    def of(self, group: Group) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if line.group == group)

    def system(self, name: str) -> System:
        return next(system for system in self.systems if system.name == name)

    @property
    def leaves(self) -> tuple[Group, ...]:
        """The groups that share no prompt: categories where a task has several, else the task."""
        parents = {group.task for group in self.groups if group.category is not None}
        return tuple(
            group for group in self.groups if group.task and (group.category is not None or group.task not in parents)
        )


class Answers:
    """The answers of all systems, found by system and place."""

    def __init__(self, results: Results) -> None:
        self._by_system: dict[tuple[str, bool], dict[Place, Answer]] = {}
        for answer in results.answers:
            self._by_system.setdefault((answer.system, answer.control), {})[answer.place] = answer

    def of(self, system: str, group: Group = ALL, *, control: bool = False) -> list[Answer]:
        found = self._by_system.get((system, control), {})
        return [answer for place, answer in found.items() if place in group]

    def prompt_ratios(
        self,
        above: str,
        below: str,
        read: Callable[[Answer], float | None],
        group: Group = ALL,
        *,
        control: bool = False,
    ) -> dict[Prompt, float]:
        """What `read` gives for one system ÷ for the other, by prompt: the median over files and repeats, each paired
        with its own. `control`: the upper one is the control run. Prompts that lack either are left out."""
        theirs = self._by_system.get((below, False), {})
        ratios: dict[Prompt, list[float]] = {}
        for answer in self.of(above, group, control=control):
            other = theirs.get(answer.place)
            over, under = read(answer), read(other) if other is not None else None
            if over is not None and under:
                ratios.setdefault(answer.place.prompt, []).append(over / under)
        return {prompt: value for prompt, values in ratios.items() if (value := median(values)) is not None}

    def ratio(
        self, above: str, below: str, read: Callable[[Answer], float | None] | None = None, group: Group = ALL
    ) -> Interval | None:
        """Their median with its interval over the prompts; of tokens_per_s unless `read` says otherwise."""
        return _interval(self.prompt_ratios(above, below, read or tokens_per_s, group).values())

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """All prompts, then each task, with its categories where it has several."""
        categories: dict[str, dict[str, None]] = {}
        for answers in self._by_system.values():
            for place in answers:
                categories.setdefault(place.task, {})[place.category] = None
        groups = [ALL]
        for task in sorted(categories):
            groups.append(Group(task))
            if len(categories[task]) > 1:
                groups += [Group(task, category) for category in sorted(categories[task])]
        return tuple(groups)


def tokens_per_s(answer: Answer) -> float | None:
    return answer.times.tokens_per_s


def end_to_end(answer: Answer) -> float | None:
    return answer.times.end_to_end_tokens_per_s


def _interval(ratios: Iterable[float]) -> Interval | None:
    values = list(ratios)
    return bootstrap_ratio(values, [1.0] * len(values))


def summarise(results: Results, answers: Answers | None = None, *, groups: bool = True) -> Summary:
    """The numbers of all systems; without `groups` those over all prompts only, which takes milliseconds."""
    answers = answers or Answers(results)
    chosen = answers.groups if groups else (ALL,)
    baseline = results.run.baseline
    lines = [
        line
        for group in chosen
        for system in results.systems
        if (line := _line(system.name, group, baseline, answers)) is not None
    ]
    failures: dict[str, int] = {}
    for failure in results.failures:
        failures[failure.system] = failures.get(failure.system, 0) + 1
    return Summary(
        model=results.run.model,
        baseline=baseline,
        temperature=results.run.temperature,
        systems=results.systems,
        groups=chosen,
        lines=tuple(lines),
        control=_control(baseline, answers),
        failures=failures,
    )


def _control(baseline: str, answers: Answers) -> Control | None:
    ratios = tuple(answers.prompt_ratios(baseline, baseline, tokens_per_s, control=True).values())
    found = _interval(ratios)
    return None if found is None else Control(found, ratios)


def _line(system: str, group: Group, baseline: str, answers: Answers) -> Line | None:
    given = answers.of(system, group)
    if not given:
        return None
    times, outputs = [answer.times for answer in given], [answer.output for answer in given]
    same = [output.same_as_baseline for output in outputs if output.same_as_baseline is not None]
    loops = [output.loop_share for output in outputs if output.loop_share is not None]
    return Line(
        system=system,
        group=group,
        prompts=len({answer.place.prompt for answer in given}),
        answers=len(given),
        speed=Speed(
            tokens_per_s=median([each.tokens_per_s for each in times]),
            end_to_end_tokens_per_s=median([each.end_to_end_tokens_per_s for each in times]),
            time_to_first_token_s=median([each.time_to_first_token_s for each in times]),
            time_per_output_token_s=median([each.time_per_output_token_s for each in times]),
            speed_up=answers.ratio(system, baseline, tokens_per_s, group),
            end_to_end_speed_up=answers.ratio(system, baseline, end_to_end, group),
        ),
        work=_work(given),
        same_share=sum(same) / len(same) if same else None,
        loop_share=sum(loops) / len(loops) if loops else None,
        peak_memory_bytes=max((each.peak_memory_bytes or 0.0 for each in given), default=0.0) or None,
    )


def _work(answers: Sequence[Answer]) -> Work:
    stats = [answer.stats for answer in answers]
    accepted_of_drafts = _ratio(stats, "num_accepted_tokens", "num_drafts")
    accepted_of_examined = _ratio(stats, "num_accepted_tokens", "num_examined_tokens")
    calls = [answer for answer in answers if answer.stats.get("num_target_calls")]
    tokens = sum(answer.output.num_output_tokens for answer in calls)
    split = [answer for answer in answers if answer.times.time_split_s]
    seconds = {part: sum(answer.times.time_split_s.get(part, 0.0) for answer in split) for part in SPLIT}
    return Work(
        mean_acceptance_length=None if accepted_of_drafts is None else 1.0 + accepted_of_drafts,
        acceptance_rate=_ratio(stats, "num_accepted_tokens", "num_draft_tokens"),
        rejection_rate=None if accepted_of_examined is None else 1.0 - accepted_of_examined,
        target_calls_per_token=sum(each.stats["num_target_calls"] for each in calls) / tokens if tokens else None,
        by_position=_by_position(stats),
        time_split_s={part: value for part, value in seconds.items() if value > 0},
        split_rounds=sum(int(answer.stats.get("num_target_calls") or 0) for answer in split),
        split_tokens=sum(answer.output.num_output_tokens for answer in split),
    )


def _ratio(stats: Sequence[Mapping[str, Any]], above: str, below: str) -> float | None:
    """Sum ÷ sum over the answers that tell both."""
    both = [each for each in stats if each.get(above) is not None and each.get(below) is not None]
    total = sum(each[below] for each in both)
    return sum(each[above] for each in both) / total if total else None


def _by_position(stats: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    telling = [each for each in stats if each.get(POSITIONS) is not None and each.get("num_drafts")]
    drafts = sum(each["num_drafts"] for each in telling)
    counts = [0] * max((len(each[POSITIONS]) for each in telling), default=0)
    for each in telling:
        for position, count in enumerate(each[POSITIONS]):
            counts[position] += count
    return tuple(count / drafts for count in counts)
