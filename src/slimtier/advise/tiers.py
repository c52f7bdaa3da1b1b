"""Whether a slim verifier pays for a model on this machine, and which: `slimtier advise tiers`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from operator import mul
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from slimtier.advise.doctor import PROMPTS
from slimtier.advise.tier_model import Inner, LossyBlock, StepTimes
from slimtier.engine import Engine
from slimtier.errors import ConfigError
from slimtier.models.route_file import find_route
from slimtier.models.slim import SlimTarget
from slimtier.tiers import join

if TYPE_CHECKING:
    from slimtier.drafters.base import Drafter
    from slimtier.loading import Loaded
    from slimtier.models.base import Target
    from slimtier.result import Result
    from slimtier.stats import Stats
    from slimtier.types import Verdict
    from slimtier.verifiers.base import Verifier

_COUNTS = (1, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 32)
_TIMED = 7  # of each step, the median taken
_PROBED = 8  # the flush length at which the slim verifier's tokens are timed, in place: after a pass of the target
_WORTH = 1.03  # a speed-up below this is no reason to take tiers


@dataclass(frozen=True, slots=True)
class TierPlan:
    """How much is measured: answers of `max_new_tokens` to `prompts` prompts of our own, `repeats` times; flush lengths
    up to `longest`; the gate of the lossy tiers."""

    max_new_tokens: int = 96
    prompts: int = len(PROMPTS)
    repeats: int = 2
    longest: int = 24
    gate: str = "default"

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "prompts", "repeats", "longest"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: give 1 or more")
        if self.prompts > len(PROMPTS):
            raise ConfigError(f"prompts is {self.prompts}: there are {len(PROMPTS)}")


@dataclass(frozen=True, slots=True)
class RouteRow:
    """A route as a slim verifier. Rates are tokens a second while decoding, ratios are to two tiers in the same run.

    cost: its step ÷ the target's. agreement: how often its most probable token is the target's, on the target's
    answers. alone: the route decoded as if it were the target (not lossless). lossy_cost < lossy_gain: lossy tiers
    would pay; see `tier_model`.
    """

    route: str
    cost: float
    agreement: float
    extra_memory: float
    alone: float
    flush: int
    predicted: float
    measured: float
    identical: bool
    lossy_cost: float
    lossy_gain: float
    lossy_measured: float


@dataclass(frozen=True, slots=True)
class TierAdvice:
    """What was found: rates of plain and two-tier decoding, a row for each route, the best one or None."""

    model: str
    precision: str
    drafter: str
    plain: float
    two_tiers: float
    step_s: dict[int, float]
    rows: tuple[RouteRow, ...]
    best: RouteRow | None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def usual_routes(target: Target) -> tuple[str, ...]:
    """Routes that are worth a look without any search."""
    if target.info.runtime != "native":
        return ("skip:0.1", "skip:0.2")
    lower = {"q8": ("q4",), "q4": ()}.get(target.info.precision, ("q8", "q4"))
    return (*lower, "skip:0.1")


def advise_tiers(
    loaded: Loaded,
    make: Callable[[], Drafter],
    num_speculative_tokens: int,
    plan: TierPlan,
    routes: Sequence[str] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> TierAdvice:
    """Measure each route beside plain and two-tier decoding of the same answers, at temperature 0. `make` makes the
    drafter: each way to decode has one of its own, for it may learn what its rounds cost.

    Raises ConfigError for a route that does not fit, before anything is measured."""
    target, names = loaded.target, tuple(routes) or usual_routes(loaded.target)
    for name in names:
        find_route(name, target)
    bench = _Bench(loaded, make, num_speculative_tokens, plan)
    total = 2 + len(names)
    two = bench.race({"plain": bench.engine(target, None), "two": bench.engine(target)})
    progress(1, total)
    steps = bench.step_times(target)
    progress(2, total)
    rows = []
    for done, name in enumerate(names, 3):
        rows.append(_row(bench, name, steps, two))
        progress(done, total)
    paying = [row for row in rows if row.identical and row.measured >= _WORTH]
    info = target.info
    best = max(paying, key=lambda row: row.measured, default=None)
    rates = two.rates
    return TierAdvice(
        info.name,
        info.precision,
        make().name,
        rates["plain"],
        rates["two"],
        dict(steps.seconds),
        tuple(rows),
        best,
    )


def _row(bench: _Bench, name: str, steps: StepTimes, two: Race) -> RouteRow:
    target = bench.target
    route, _ = find_route(name, target)
    slim = SlimTarget(target, route)
    slim_steps = bench.step_times(slim)
    agreement = bench.agreement(slim, two.answers["two"])
    probe = bench.joined("exact", name, {"flush": _PROBED})
    alone = bench.race({"two": bench.engine(target), "alone": bench.engine(slim), "probe": probe})
    inner = Inner(agreement, alone.drafted_s("probe"), alone.round_lengths("alone"))
    flush = inner.best_flush(steps, bench.plan.longest)
    settings = {"gate": bench.plan.gate}
    engines = {
        "exact": bench.joined("exact", name, {"flush": flush}),
        "paper": bench.joined("paper", name, settings),
    }
    raced = bench.race({"two": bench.engine(target), **engines})
    block, drafted = bench.observe(name, settings)
    cost, gain = block.break_even(slim_steps.at(drafted + 1), steps, drafted)
    return RouteRow(
        route=name,
        cost=slim_steps.at(1) / steps.at(1),
        agreement=agreement,
        extra_memory=1.0 + slim.extra_bytes / max(1, target.info.weight_bytes),
        alone=alone.ratio("alone"),
        flush=flush,
        predicted=inner.rate(steps, flush) / alone.rates["two"],
        measured=raced.ratio("exact"),
        identical=raced.answers["exact"] == raced.answers["two"],
        lossy_cost=cost,
        lossy_gain=gain,
        lossy_measured=raced.ratio("paper"),
    )


@dataclass(frozen=True, slots=True)
class Race:
    """The same prompts answered by several engines in turn: what each request took, lap by lap, and the answers. A
    first round ends what is called the time to the first token: neither its seconds nor its tokens are of decoding."""

    laps: dict[str, list[list[Stats]]]
    answers: dict[str, list[tuple[int, ...]]]

    @property
    def rates(self) -> dict[str, float]:
        """Tokens a second; the median lap's."""
        return {name: median(map(_rate, laps)) for name, laps in self.laps.items()}

    def ratio(self, name: str) -> float:
        """Of rates to that of two tiers: the median over the laps, each with its own baseline."""
        pairs = zip(map(_rate, self.laps[name]), map(_rate, self.laps["two"]), strict=True)
        return median(one / two for one, two in pairs)

    def round_lengths(self, name: str) -> Counter[int]:
        """How often a round brought so many tokens."""
        return sum((_round_lengths(one) for lap in self.laps[name] for one in lap), Counter())

    def drafted_s(self, name: str) -> float:
        """Seconds that a drafted token took."""
        requests = [one for lap in self.laps[name] for one in lap]
        tokens = sum(one.num_draft_tokens for one in requests)
        return max(sum(one.time_split_s["draft"] for one in requests) / max(tokens, 1), 1e-9)


def _rate(requests: Sequence[Stats]) -> float:
    """Tokens a second, after the first round of each."""
    seconds = [one.total_s - one.time_to_first_token_s for one in requests]
    tokens: float = sum(map(mul, seconds, [one.tokens_per_s or 0.0 for one in requests]))
    return max(tokens, 1.0) / max(sum(seconds), 1e-9)


def _round_lengths(stats: Stats) -> Counter[int]:
    """How many rounds brought so many tokens."""
    at_least = [stats.num_target_calls, *stats.accepted_per_position, 0]
    return Counter({length: more - most for length, (more, most) in enumerate(pairwise(at_least), 1) if more > most})


class _Bench:
    """The model, its drafter and the prompts."""

    def __init__(self, loaded: Loaded, make: Callable[[], Drafter], count: int, plan: TierPlan) -> None:
        self.target, self.tokenizer = loaded.target, loaded.tokenizer
        self.make, self.count, self.plan = make, count, plan
        chat = self.tokenizer is not None and self.tokenizer.has_chat_template
        asked = PROMPTS[: plan.prompts]
        self.prompts: list[Any] = [[{"role": "user", "content": one}] if chat else one for one in asked]

    def engine(self, target: Target, drafter: Drafter | str | None = "same", *rest: Any) -> Engine:
        """An engine with a drafter of its own, unless one is given; `rest`: verifier, num_speculative_tokens."""
        chosen = self.make() if isinstance(drafter, str) else drafter
        verifier: Verifier | None = rest[0] if rest else None
        count = rest[1] if rest else self.count
        return Engine(target, chosen, verifier, tokenizer=self.tokenizer, num_speculative_tokens=count)

    def joined(self, tiers: str, route: str, settings: dict[str, Any]) -> Engine:
        """An engine with a slim verifier, and a drafter of its own."""
        one = join(self.target, self.make(), self.count, tiers, route, settings)
        return self.engine(self.target, one.drafter, one.verifier, one.num_speculative_tokens)

    def race(self, engines: dict[str, Engine]) -> Race:
        race = Race({name: [] for name in engines}, {name: [] for name in engines})
        for lap in range(self.plan.repeats + 1):  # the first one warms up, and gives the answers
            spent: dict[str, list[Stats]] = {name: [] for name in engines}
            for prompt in self.prompts:
                for name in list(engines)[:: 1 if lap % 2 else -1]:
                    result: Result = engines[name].generate(prompt, max_new_tokens=self.plan.max_new_tokens)  # type: ignore[assignment]
                    spent[name].append(result.stats)
                    if not lap:
                        race.answers[name].append(result.token_ids)
            for name, requests in spent.items() if lap else ():
                race.laps[name].append(requests)
        return race

    def step_times(self, target: Target) -> StepTimes:
        """Of steps in place: after a prompt, each after one of the whole target, as in a round."""
        tokens = [token % target.info.vocab_size for token in range(100, 100 + 64 + self.plan.longest + 1)]
        cache = self.target.begin(1, len(tokens) + 1)
        self.target.forward(tokens[:64], cache, [64])
        found: dict[int, float] = {}
        for count in [one for one in _COUNTS if one <= self.plan.longest + 1]:
            laps = []
            for _ in range(_TIMED):
                self.target.forward(tokens[64:65], cache, [1])
                cache.crop([64])
                begun = time.perf_counter()
                hidden, _ = target.forward(tokens[64 : 64 + count], cache, [count])
                target.head(hidden, "argmax")
                laps.append(time.perf_counter() - begun)
                cache.crop([64])
            found[count] = median(laps)
        return StepTimes(found)

    def agreement(self, slim: Target, answers: Sequence[tuple[int, ...]]) -> float:
        """How often the slim verifier's most probable token is the answer's, teacher-forced."""
        same = total = 0
        for prompt, answer in zip(self._ids(), answers, strict=True):
            cache = self.target.begin(1, len(prompt) + len(answer))
            self.target.forward(prompt[:-1], cache, [len(prompt) - 1])
            fed = [prompt[-1], *answer[:-1]]
            hidden, _ = slim.forward(fed, cache, [len(fed)])
            own = slim.head(hidden, "argmax")
            same += sum(one == other for one, other in zip(own, answer, strict=True))
            total += len(answer)
        return same / total

    def _ids(self) -> list[list[int]]:
        from slimtier.prompts import encode_prompt

        return [encode_prompt(one, self.tokenizer, self.target.info.vocab_size) for one in self.prompts]

    def observe(self, route: str, settings: dict[str, Any]) -> tuple[LossyBlock, float]:
        """What the gate would have done with the blocks of two-tier decoding, and how long their drafts are."""
        joined = join(self.target, self.make(), self.count, "observe", route, settings)
        log = _Log(joined.verifier)
        engine = self.engine(self.target, joined.drafter, log, self.count)
        for prompt in self.prompts:
            engine.generate(prompt, max_new_tokens=self.plan.max_new_tokens)
        seen = [one for one in log.verdicts if one.examined]
        if not seen:
            return LossyBlock(1.0, 1.0, 0.0, 1.0), 0.0
        kept = [next((i for i, who in enumerate(one.gated) if who != "drafter"), len(one.gated)) for one in seen]
        asked = [place < len(one.gated) and one.gated[place] == "target" for place, one in zip(kept, seen, strict=True)]
        share, tokens, drafted = mean(asked), mean(kept) + 1.0, mean(one.examined for one in seen)
        catch_up = tokens / share if share else tokens
        return LossyBlock(tokens, mean(one.accepted for one in seen) + 1.0, share, catch_up + drafted), drafted


class _Log:
    """A verifier that keeps what another one decided."""

    def __init__(self, verifier: Verifier) -> None:
        self.verifier = verifier
        self.name, self.lossless, self.steady = verifier.name, verifier.lossless, verifier.steady
        self.wants_draft_probs = verifier.wants_draft_probs
        self.verdicts: list[Verdict] = []

    def verify(self, *arguments: Any, **keywords: Any) -> list[Verdict]:
        """See `Verifier.verify`."""
        found = self.verifier.verify(*arguments, **keywords)
        self.verdicts += found
        return found
