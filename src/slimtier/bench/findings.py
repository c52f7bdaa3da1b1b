"""What a benchmark says in sentences: for slimtier, against it, and what makes the measurement doubtful."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slimtier.bench.doubts import Finding, bounds, counted, doubts, listed, percent, signed, times
from slimtier.bench.quality import LIKELIHOOD, Quality
from slimtier.bench.result_rows import System
from slimtier.bench.results import Results
from slimtier.bench.statistics import Interval, ratio_text
from slimtier.bench.summary import ALL, OURS, Answers, Group, Line, Summary, tokens_per_s
from slimtier.tiers import LOSSY

LEAST_PROMPTS = 6  # with fewer, all ratios on one side of 1 are not yet beyond chance at 5 % (2 · 0.5⁶)
MATTERS = 1.1  # by which factor memory or time to first token must differ to be told


@dataclass(frozen=True, slots=True)
class Findings:
    """`best`: the fastest of our systems that are not lossy (of all ours if all are), None where none answered."""

    best: str | None
    favour: tuple[Finding, ...]
    against: tuple[Finding, ...]
    doubts: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _Seen:
    """Everything findings are made of; `ours` and `others` are lines over all prompts, fastest first."""

    results: Results
    summary: Summary
    answers: Answers
    qualities: Sequence[Quality]
    ours: tuple[Line, ...]
    others: tuple[Line, ...]
    best: Line | None


@dataclass(frozen=True, slots=True)
class _Compared:
    """One system's tokens/s ÷ another's. `about`: the system or the group of prompts that a sentence names."""

    about: str
    ratio: Interval
    prompts: int

    @property
    def faster(self) -> bool:
        return self.prompts >= LEAST_PROMPTS and self.ratio.low > 1

    @property
    def slower(self) -> bool:
        return self.prompts >= LEAST_PROMPTS and self.ratio.high < 1

    def __str__(self) -> str:
        few = f", {counted(self.prompts, 'prompt')}" if self.prompts < LEAST_PROMPTS else ""
        return f"{self.about} ({ratio_text(self.ratio)}{few})"


def _compare(seen: _Seen, above: str, below: str, group: Group = ALL, about: str = "") -> _Compared | None:
    ratio = seen.answers.ratio(above, below, group=group)
    if ratio is None:
        return None
    return _Compared(about or group.name, ratio, len(seen.answers.prompt_ratios(above, below, tokens_per_s, group)))


def _by_leaf(seen: _Seen, above: str, below: str) -> list[_Compared]:
    return [one for group in seen.summary.leaves if (one := _compare(seen, above, below, group)) is not None]


def _noise(seen: _Seen) -> str:
    return percent(seen.summary.control.noise) if seen.summary.control else "not known"


def _beyond_noise(seen: _Seen, compared: _Compared | None) -> bool:
    """What is claimed for us must be more than what the baseline does to itself."""
    noise = seen.summary.control.noise if seen.summary.control else 0.0
    return compared is not None and compared.faster and compared.ratio.low > 1 + noise


def is_lossy(system: System) -> bool:
    """Whether its output may differ from the target's by its rule."""
    if system.lossless is not None:
        return not system.lossless
    if system.type != OURS:
        return False
    return system.options.get("verifier", "lossless") != "lossless" or system.options.get("tiers") in LOSSY


def plain_of(summary: Summary, system: System) -> str | None:
    """Our own plain decoding with the same weights as one of our systems; the baseline where there is none. None for
    what is plain itself."""
    if system.type == OURS and system.options.get("drafter") == "none":
        return None
    for other in summary.systems:
        same = all(other.options.get(name) == system.options.get(name) for name in ("precision", "runtime"))
        plain = other.type == OURS and other.options.get("drafter") == "none"
        if system.type == OURS and plain and same and summary.line(other.name):
            return other.name
    return None if system.name == summary.baseline else summary.baseline


def find(results: Results, summary: Summary, answers: Answers, qualities: Sequence[Quality]) -> Findings:
    """The sentences, the weightiest first."""
    lines = sorted((line for line in summary.lines if line.group == Group()), key=_speed, reverse=True)
    ours = tuple(line for line in lines if summary.system(line.system).type == OURS)
    others = tuple(line for line in lines if summary.system(line.system).type != OURS)
    candidates = [line for line in ours if not is_lossy(summary.system(line.system))] or list(ours)
    seen = _Seen(results, summary, answers, qualities, ours, others, candidates[0] if candidates else None)
    favour = tuple(_faster(seen)) or (Finding("none", "Nothing in these results shows slimtier to be faster."),)
    favour += tuple(_favour(seen))
    against = tuple(_against(seen)) or (Finding("none", "Nothing in these results speaks against slimtier."),)
    return Findings(seen.best.system if seen.best else None, favour, against, tuple(doubts(results, summary)))


def _speed(line: Line) -> float:
    return line.speed.speed_up.value if line.speed.speed_up else 0.0


def _faster(seen: _Seen) -> Iterator[Finding]:
    if seen.best is None:
        return
    best, baseline = seen.best.system, seen.summary.baseline
    plain = plain_of(seen.summary, seen.summary.system(best))
    for name, words in ((baseline, "the baseline"), (plain, "its own plain decoding")):
        if name in (None, best) or (name == baseline and words != "the baseline"):
            continue
        gain = _compare(seen, best, str(name))
        if gain is not None and _beyond_noise(seen, gain):
            factor, prompts = f"{gain.ratio.value:.2f}", counted(gain.prompts, "prompt")
            yield Finding(
                times(gain.ratio.value),
                f"{best}{_among(seen) if name == baseline else ''} decodes {factor} times as fast as {name}, {words} "
                f"({bounds(gain.ratio)}, {prompts}).",
            )
    yield from _slower_others(seen, best)


def _favour(seen: _Seen) -> Iterator[Finding]:
    if seen.best is None:
        return
    best, baseline = seen.best.system, seen.summary.baseline
    if best != baseline and seen.best.same_share == 1.0:
        yield Finding(percent(1.0), f"Every answer of {best} is token for token that of {baseline}.")
    yield from _exact(seen)
    yield from _good_quality(seen, best)


def _among(seen: _Seen) -> str:
    """That the best of several was chosen after the fact."""
    assert seen.best is not None
    lossy = is_lossy(seen.summary.system(seen.best.system))
    ours = [line.system for line in seen.ours if line.system != seen.summary.baseline]
    rivals = [name for name in ours if is_lossy(seen.summary.system(name)) == lossy]
    kind = "lossy" if lossy else "lossless"
    return f", the fastest of {len(rivals)} {kind} slimtier systems here," if len(rivals) > 1 else ""


def _slower_others(seen: _Seen, best: str) -> Iterator[Finding]:
    names = [line.system for line in seen.others if line.system != seen.summary.baseline]
    compared = [one for name in names if (one := _compare(seen, best, name, about=name)) and _beyond_noise(seen, one)]
    if not compared:
        return
    nearest, *rest = sorted(compared, key=lambda one: one.ratio.value)
    more = f"; also faster than {listed(map(str, rest))}" if rest else ""
    fastest = ", the fastest other system" if len(names) > 1 and nearest.about == names[0] else ""
    yield Finding(
        times(nearest.ratio.value),
        f"{best} decodes {nearest.ratio.value:.2f} times as fast as {nearest.about}{fastest} "
        f"({bounds(nearest.ratio)}){more}.",
    )


def _exact(seen: _Seen) -> Iterator[Finding]:
    rows, draws = seen.results.exactness, seen.results.draws
    compared, ties = sum(row.compared - row.lossy for row in rows), sum(row.near_ties for row in rows)
    if compared and not sum(row.defects for row in rows):
        tied = f"; {ties} part at a near-tie" if ties else ""
        yield Finding("0 defects", f"No defect in {compared} answers compared with plain decoding{tied}.")
    if draws and all(row.verdict != "defect" for row in draws):
        worst = min(row.p_value for row in draws)
        yield Finding(f"p ≥ {worst:.2g}", f"Sampled output follows the target's distribution ({len(draws)} tests).")


def _defects(seen: _Seen) -> Iterator[Finding]:
    for row in seen.results.exactness:
        if row.defects:
            words = f"{row.system} differs from {row.reference} with no near-tie to explain it"
            yield Finding(f"{row.defects} of {row.compared}", f"{words}: a defect.")
    for test in seen.results.draws:
        if test.verdict == "defect":
            words = f"Sampled output is not the target's where the drafter is accepted {test.accepts}"
            yield Finding(f"p = {test.p_value:.2g}", f"{words}: a defect.")


def _good_quality(seen: _Seen, best: str) -> Iterator[Finding]:
    judged = [row for row in seen.qualities if row.system == best and row.verdict and row.informative]
    good = [row for row in judged if row.verdict in ("better", "not worse")]
    if good and len(good) == len([row for row in judged if row.verdict != "the same"]):
        names = listed(f"{row.task} {row.measure} ({signed(row.difference.value)})" for row in good if row.difference)
        yield Finding("quality", f"{best} is not worse than the baseline by more than the margin on {names}.")


def _against(seen: _Seen) -> Iterator[Finding]:
    if seen.best is None:
        yield Finding("none", "No slimtier system answered anything.")
        return
    yield from _defects(seen)
    yield from _faster_others(seen, seen.best.system)
    for line in seen.ours:
        yield from _slower_than_plain(seen, line)
    yield from _other_measures(seen, seen.best)
    yield from _changed_outputs(seen)
    yield from _lost_quality(seen)


def _faster_others(seen: _Seen, best: str) -> Iterator[Finding]:
    for line in seen.others:
        one = _compare(seen, line.system, best)
        if one is None:
            continue
        factor = times(one.ratio.value)
        if one.faster:
            words = f"decodes {one.ratio.value:.2f} times as fast as {best}, our fastest ({bounds(one.ratio)})"
            yield Finding(factor, f"{line.system} {words}.")
            continue
        if not one.slower:
            words = f"{line.system} is not shown to be slower than {best}"
            yield Finding(factor, f"{words} ({bounds(one.ratio)}, {counted(one.prompts, 'prompt')}).")
        leaves = _by_leaf(seen, line.system, best)
        faster = [leaf for leaf in leaves if leaf.faster]
        if faster:
            where = f"{line.system} is faster than {best} on {listed(map(str, faster))}"
            yield Finding(f"{len(faster)} of {len(leaves)}", f"{where}.")


def _slower_than_plain(seen: _Seen, line: Line) -> Iterator[Finding]:
    name, plain = line.system, plain_of(seen.summary, seen.summary.system(line.system))
    whole = None if plain is None else _compare(seen, name, plain)
    if plain is None or whole is None:
        return
    if whole.slower:
        yield Finding(times(whole.ratio.value), f"{name} is slower than {plain} on the whole ({bounds(whole.ratio)}).")
        return
    leaves = _by_leaf(seen, name, plain)
    slower = [leaf for leaf in leaves if leaf.slower]
    if slower:
        where = listed(map(str, slower))
        yield Finding(f"{len(slower)} of {len(leaves)}", f"{name} is slower than {plain} on {where}.")
    unsure = [leaf for leaf in leaves if not leaf.slower and not leaf.faster]
    if line == seen.best and not _beyond_noise(seen, whole):
        words = f"{name} is not shown to be faster than {plain} on the whole"
        prompts = counted(whole.prompts, "prompt")
        yield Finding(times(whole.ratio.value), f"{words} ({bounds(whole.ratio)}, {prompts}, noise {_noise(seen)}).")
    elif unsure and line == seen.best:
        where = listed(map(str, unsure))
        yield Finding(f"{len(unsure)} of {len(leaves)}", f"{name} is not shown to be faster than {plain} on {where}.")


def _other_measures(seen: _Seen, best: Line) -> Iterator[Finding]:
    """Where somebody else needs less memory, or begins to answer sooner."""
    rest = [line for line in (*seen.ours, *seen.others) if line.system != best.system]
    firsts = [(time, line.system) for line in rest if (time := line.speed.time_to_first_token_s)]
    own = best.speed.time_to_first_token_s
    if own and firsts and own > MATTERS * min(firsts)[0]:
        time, name = min(firsts)
        yield Finding(
            times(own / time),
            f"The first token of {best.system} takes {own / time:.2f} times as long as that of {name} "
            f"({own * 1000:.0f} and {time * 1000:.0f} ms).",
        )
    memories = [(memory, line.system) for line in rest if (memory := line.peak_memory_bytes)]
    if best.peak_memory_bytes and memories and best.peak_memory_bytes > MATTERS * min(memories)[0]:
        memory, name = min(memories)
        yield Finding(
            times(best.peak_memory_bytes / memory),
            f"{best.system} needs {best.peak_memory_bytes / memory:.2f} times the memory of {name} at its peak "
            f"({best.peak_memory_bytes / 2**20:.0f} and {memory / 2**20:.0f} MiB).",
        )


def _changed_outputs(seen: _Seen) -> Iterator[Finding]:
    for line in seen.ours:
        lossy = is_lossy(seen.summary.system(line.system))
        if line.same_share is None or (line.same_share == 1.0 and not lossy):
            continue
        if seen.summary.temperature > 0 and not lossy:
            continue  # draws differ even where the distribution does not
        differ = (
            f"{percent(1 - line.same_share)} of its answers are not token for token those of {seen.summary.baseline}"
        )
        cause = "is lossy by its rule" if lossy else "is lossless by its rule"
        hint = "" if lossy else " (near-ties where kernels round otherwise, or a defect)"
        yield Finding(percent(1 - line.same_share), f"{line.system} {cause}, and {differ}{hint}.")


def _lost_quality(seen: _Seen) -> Iterator[Finding]:
    ours = {line.system for line in seen.ours}
    rows = [row for row in seen.qualities if row.system in ours and row.informative and row.difference]
    for name in dict.fromkeys(row.system for row in rows):
        judged = [row for row in rows if row.system == name]
        worse = [_loss(row) for row in judged if row.verdict == "worse"]
        if worse:
            yield Finding(
                f"{len(worse)} of {len(judged)}",
                f"{name} is worse than the baseline on {listed(worse)}, 95 % intervals in brackets.",
            )
    undecided = [f"{row.system} on {row.task} ({row.measure})" for row in rows if row.verdict == "undecided"]
    if undecided:
        yield Finding(
            f"{len(undecided)} of {len(rows)}",
            f"Too few pairs to say whether quality is lost by more than the margin: {listed(undecided)}.",
        )


def _loss(row: Quality) -> str:
    assert row.difference is not None
    unit = " nats a token" if row.measure == LIKELIHOOD else ""
    low, high = signed(row.difference.low), signed(row.difference.high)
    return f"{row.task} {row.measure} ({signed(row.difference.value)}{unit} [{low}, {high}], {row.pairs} pairs)"
