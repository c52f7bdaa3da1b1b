"""Whether speculation changed the output: token streams against plain decoding, and every first difference explained.

Two runs of the same model may part where two tokens are as good as equal: rounding differs between one token at a time
and several, or between engines. Such a near-tie is told from a defect by the logits after the common beginning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from slimtier.bench.asked import Asked
from slimtier.bench.config import BenchConfig
from slimtier.bench.contestants import Contestants
from slimtier.bench.journal import Key
from slimtier.bench.statistics import first_difference
from slimtier.bench.systems import OURS, System

LIMIT = 2e-3  # by how much two float32 engines may differ in a logit; measured: 2e-4
Verdict = Literal["near-tie", "defect", "lossy"]


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first position where two answers to a prompt part. `token` None: the answer ended there. `gap`: by how much
    the reference's logits prefer its own token; `own_gap`: the same of the system's; `difference`: the most that the
    two differ in a logit. All three are None where an answer ended early, or is lossy."""

    system: str
    reference: str
    task: str
    item: str
    position: int
    token: int | None
    wanted: int | None
    gap: float | None
    own_gap: float | None
    difference: float | None
    verdict: Verdict


def with_references(config: BenchConfig) -> BenchConfig:
    """The same with what its systems are compared with: each of ours plain, ours plain in float32, and transformers."""
    systems = list(config.systems)
    wanted = [_plain(system) for system in systems if system.type == OURS]
    wanted += [
        System("slimtier fp32 plain", OURS, {"precision": "fp32", "drafter": "none"}),
        System("transformers", "transformers"),
    ]
    for system in wanted:
        if not any(_alike(system, other) for other in systems):
            systems.append(system)
    return replace(config, systems=tuple(systems))


def pairs(systems: Sequence[System]) -> list[tuple[System, System]]:
    """(system, reference): ours against itself without speculation, and plain float32 against transformers' plain."""
    found = []
    theirs = [
        system for system in systems if system.type == "transformers" and _alike(system, System("", "transformers"))
    ]
    for system in systems:
        if system.type != OURS:
            continue
        twin = next((other for other in systems if _alike(other, _plain(system))), None)
        if twin is not None and twin is not system:
            found.append((system, twin))
        if twin is system and system.loading()["precision"] == "fp32":
            found += [(system, other) for other in theirs]
    return found


def judge(gap: float, own_gap: float, difference: float) -> Verdict:
    """A near-tie is a preference on both sides that the difference between the logits explains."""
    near = difference <= LIMIT and max(gap, own_gap) <= 2 * difference
    return "near-tie" if near else "defect"


def exactness_rows(
    contestants: Contestants, asked: Sequence[Asked], answers: Mapping[Key, Mapping[str, Any]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows, with their kinds: every divergence, and the counts of each pair."""
    for system, reference in pairs(contestants.ready):
        counts = {"compared": 0, "identical": 0, "near_ties": 0, "defects": 0, "lossy": 0}
        for one in asked:
            keys = [(each.name, False, one.task, one.item.name, 0) for each in (system, reference)]
            if not all(key in answers for key in keys):
                continue
            counts["compared"] += 1
            mine, wanted = (list(answers[key]["token_ids"]) for key in keys)
            position = first_difference(mine, wanted)
            if position is None:
                counts["identical"] += 1
                continue
            found = _explained(contestants, system, reference, one, mine, wanted, position)
            counts[{"near-tie": "near_ties", "defect": "defects", "lossy": "lossy"}[found.verdict]] += 1
            yield "divergence", asdict(found)
        yield "exactness", {"system": system.name, "reference": reference.name, **counts}


def _explained(
    contestants: Contestants,
    system: System,
    reference: System,
    one: Asked,
    mine: Sequence[int],
    wanted: Sequence[int],
    position: int,
) -> Divergence:
    token, other = (tokens[position] if position < len(tokens) else None for tokens in (mine, wanted))
    place = (system.name, reference.name, one.task, one.item.name, position, token, other)
    if not system.lossless:
        return Divergence(*place, None, None, None, "lossy")
    if token is None or other is None:  # they agree as far as both go, so one ended where it should not
        return Divergence(*place, None, None, None, "defect")
    row = [*one.token_ids, *wanted[:position]]
    # one token after the other, as plain decoding does, against all at once, as a draft is verified
    theirs, ours = contestants.logits(reference, row, stepwise=True), contestants.logits(system, row, stepwise=False)
    difference = max(abs(a - b) for a, b in zip(theirs, ours, strict=True))
    gap, own_gap = theirs[other] - theirs[token], ours[token] - ours[other]
    return Divergence(*place, gap, own_gap, difference, judge(gap, own_gap, difference))


def _plain(system: System) -> System:
    loading = {key: value for key, value in system.loading().items() if value != system.kind.load[key]}
    name = " ".join(["slimtier", *map(str, loading.values()), "plain"])
    return System(name, OURS, {**loading, "drafter": "none"})


def _alike(one: System, other: System) -> bool:
    return (one.type, one.loading(), one.answering()) == (other.type, other.loading(), other.answering())
