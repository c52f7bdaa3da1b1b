"""Which draft head suits a model on this machine: `slimtier advise head`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from slimtier.advise.cost_model import RoundCost, best_length, break_even, expected_tokens, gain, speed_up
from slimtier.advise.doctor import PROMPTS
from slimtier.advise.draft_trial import DraftTrial, Tried
from slimtier.advise.timing import HeadTime, Plan, Times, measure, usual_heads
from slimtier.drafters.eagle.config import HeadConfig
from slimtier.drafters.eagle.open import open_drafter
from slimtier.drafters.eagle.runtime_native import DraftPrecision, NativeRuntime
from slimtier.errors import ConfigError, UnsupportedError
from slimtier.models.native import NativeTarget

if TYPE_CHECKING:
    from slimtier.drafters.eagle.drafter import EagleDrafter
    from slimtier.loading import Loaded

Source = Literal["assumed", "measured"]
# a trained draft's acceptances where none is given to measure: 2.5 tokens a round at 5 drafted
ASSUMED_ACCEPTANCES = (0.65, 0.62, 0.60, 0.58, 0.56, 0.54, 0.52, 0.50)
# ρ_τ in SlimSpec's Table 3 (Llama 3.1 8B): slim by hidden ÷ rank; a rank of d/4 is taken to be no worse than d/8
_SLIM_RATIOS = {4: 0.99, 8: 0.99, 16: 0.98}
_ROUTED_RATIO, _TRIMMED_RATIO = 1.01, 1.00
_LEAST_HAD = 0.75  # with a smaller share of the processors numbers are doubtful


@dataclass(frozen=True, slots=True)
class HeadPlan(Plan):
    """And how far a trained draft is tried: tokens of an answer, and how many times each is taken the time of."""

    max_new_tokens: int = 64
    repeats: int = 3

    def __post_init__(self) -> None:
        Plan.__post_init__(self)
        if self.max_new_tokens < 2 or self.repeats < 1:
            raise ConfigError(
                f"max_new_tokens {self.max_new_tokens} and repeats {self.repeats} measure nothing: give 2 and 1 or more"
            )


@dataclass(frozen=True, slots=True)
class HeadRow:
    """A head at num_speculative_tokens: its share of a draft's and of a round's time, ρ_τ (`acceptance_ratio`, None:
    not known) and the gain ρ_TPS over the full head. `length` is the best draft length for it, with the speed-up over
    plain decoding there."""

    head: HeadConfig
    nbytes: int
    head_s: float
    nu: float
    break_even: float
    drafting_share: float
    round_share: float
    acceptance_ratio: float | None = None
    ratio_source: Source | None = None
    gain: float | None = None
    length: int | None = None
    speed_up: float | None = None


@dataclass(frozen=True, slots=True)
class DraftRow:
    """A trained draft at num_speculative_tokens: the speed-up over plain decoding that its times and acceptances
    predict, and the one measured; and its best length by the model."""

    path: str
    head: HeadConfig
    acceptances: tuple[float, ...]
    mean_acceptance_length: float
    predicted: float
    measured: float | None
    length: int
    speed_up: float

    @property
    def prediction_ratio(self) -> float | None:
        """predicted ÷ measured."""
        return None if self.measured is None else self.predicted / self.measured


@dataclass(frozen=True, slots=True)
class HeadAdvice:
    """What was found. `best`: the head whose best length is the fastest, of those whose ρ_τ is known; None where no
    draft pays. acceptances: by position in a draft, of the head that ρ_τ is relative to."""

    model: str
    precision: str
    draft_precision: str
    num_speculative_tokens: int
    kappa: float
    cost: RoundCost
    acceptances: tuple[float, ...]
    acceptance_source: Source
    heads: tuple[HeadRow, ...]
    drafts: tuple[DraftRow, ...]
    best: HeadRow | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        drafts = [{**asdict(draft), "prediction_ratio": draft.prediction_ratio} for draft in self.drafts]
        return {**asdict(self), "drafts": drafts}


def head_name(head: HeadConfig) -> str:
    """In a few words."""
    return {
        "full": "full",
        "slim": f"slim, rank {head.rank}",
        "trimmed": f"trimmed, {head.size} tokens",
        "routed": f"routed, rank {head.rank}, {head.size} rows",
    }[head.kind]


def advise_head(
    loaded: Loaded,
    plan: HeadPlan | None = None,
    *,
    precision: DraftPrecision = "q8",
    drafts: Sequence[Path | str] = (),
    prompts: Sequence[Any] = PROMPTS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> HeadAdvice:
    """Measure the parts of a round on this machine and say what each head would gain; `drafts` are directories of
    trained drafts, which are decoded with. `precision`: of all drafts.

    Raises UnsupportedError for a target that is not native on a CPU, and what `open_drafter` raises, before any work.
    """
    plan, target = plan or HeadPlan(), require_native(loaded)
    drafters = [open_drafter(path, target, loaded.tokenizer, precision=precision) for path in drafts]
    theirs = [_head_of(drafter) for drafter in drafters]
    heads = list(dict.fromkeys((*usual_heads(target.info.vocab_size, target.info.hidden_size), *theirs)))
    total = len(heads) + 1 + plan.rounds + len(drafters) * len(prompts) * (1 + plan.repeats)
    done = count(1)

    def tick() -> None:
        progress(next(done), total)

    trials = [_trial(loaded, drafter, prompts, plan) for drafter in drafters]
    for trial in trials:
        trial.look(tick)
    times = measure(target, heads, precision, plan, drafters, tick, _Turns(trials, len(prompts), plan, tick).after)
    found = [
        _draft_row(str(path), head, cost, trial.result(), plan)
        for path, head, cost, trial in zip(drafts, theirs, times.drafts, trials, strict=True)
    ]
    return _advice(target, precision, plan, times, found)


def _trial(loaded: Loaded, drafter: EagleDrafter, prompts: Sequence[Any], plan: HeadPlan) -> DraftTrial:
    return DraftTrial(
        loaded,
        drafter,
        prompts,
        num_speculative_tokens=plan.num_speculative_tokens,
        longest=plan.longest,
        max_new_tokens=plan.max_new_tokens,
    )


class _Turns:
    """The trials' turns spread over the rounds of the measurement, so that what is predicted and what is seen are of
    the same minutes."""

    def __init__(
        self, trials: Sequence[DraftTrial], prompts: int, plan: HeadPlan, progress: Callable[[], None]
    ) -> None:
        self._trials, self._progress = trials, progress
        self._wanted, self._rounds, self._had = plan.repeats * prompts, plan.rounds, 0

    def after(self, rounds: int) -> None:
        """Take the turns that are due after this many rounds; each time another trial begins."""
        while self._had < self._wanted * rounds // self._rounds:
            first = self._had % max(len(self._trials), 1)
            for trial in (*self._trials[first:], *self._trials[:first]):
                trial.turn()
                self._progress()
            self._had += 1


def require_native(loaded: Loaded) -> NativeTarget:
    """The target, whose kernels are those that are measured."""
    if not isinstance(loaded.target, NativeTarget):
        raise UnsupportedError(
            f"advise head measures our CPU kernels, and {loaded.target.info.name} runs on another runtime: "
            "load it with runtime native on a CPU"
        )
    return loaded.target


def _head_of(drafter: EagleDrafter) -> HeadConfig:
    assert isinstance(drafter.runtime, NativeRuntime)
    return drafter.runtime.config.head


def _draft_row(path: str, head: HeadConfig, cost: RoundCost, tried: Tried, plan: Plan) -> DraftRow:
    """`cost` has the draft's own steps, head included."""
    predicted = tried.mean_acceptance_length * cost.plain_s / cost.round_s(plan.num_speculative_tokens, 0.0)
    length = best_length(cost, 0.0, tried.acceptances)
    best = speed_up(cost, 0.0, tried.acceptances, length)
    return DraftRow(
        path, head, tried.acceptances, tried.mean_acceptance_length, predicted, tried.speed_up, length, best
    )


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of acceptance: by position for one head, and ρ_τ of the others relative to that one."""

    acceptances: tuple[float, ...]
    source: Source
    lengths: dict[HeadConfig, float]  # mean acceptance length of the heads of trained drafts
    reference: HeadConfig
    hidden_size: int

    @classmethod
    def of(cls, drafts: Sequence[DraftRow], full: HeadConfig, hidden_size: int) -> _Known:
        if not drafts:
            return cls(ASSUMED_ACCEPTANCES, "assumed", {}, full, hidden_size)
        lengths = {draft.head: draft.mean_acceptance_length for draft in reversed(drafts)}
        reference = next((draft for draft in drafts if draft.head == full), drafts[0])
        return cls(reference.acceptances, "measured", lengths, reference.head, hidden_size)

    def ratio(self, head: HeadConfig) -> tuple[float, Source] | tuple[None, None]:
        """ρ_τ against the full head and where it is from; nothing where nobody measured it."""
        if self.reference.kind == "full" and head in self.lengths:
            return self.lengths[head] / self.lengths[self.reference], "measured"
        assumed = _assumed_ratio(head, self.hidden_size)
        return (None, None) if assumed is None else (assumed, "assumed")

    def to_reference(self) -> float:
        """ρ_τ of the head that the acceptances are of (1 where nobody measured it)."""
        return self.ratio(self.reference)[0] or 1.0


def _assumed_ratio(head: HeadConfig, hidden_size: int) -> float | None:
    if head.kind == "slim":
        ratios = {max(1, hidden_size // divisor): ratio for divisor, ratio in _SLIM_RATIOS.items()}
        return ratios.get(head.rank)
    if head.kind == "trimmed":  # the paper's has half of the vocabulary
        return _TRIMMED_RATIO if 2 * head.size >= head.vocab_size else None
    return _ROUTED_RATIO if head.kind == "routed" else 1.0


def _advice(target: NativeTarget, precision: str, plan: Plan, times: Times, drafts: Sequence[DraftRow]) -> HeadAdvice:
    full = times.heads[0]
    known = _Known.of(drafts, full.head, target.info.hidden_size)
    rows = tuple(_head_row(one, full, times.cost, known, plan.num_speculative_tokens) for one in times.heads)
    pays = [row for row in rows if row.length]
    return HeadAdvice(
        model=target.info.name,
        precision=target.info.precision,
        draft_precision=precision,
        num_speculative_tokens=plan.num_speculative_tokens,
        kappa=times.cost.kappa(plan.num_speculative_tokens, full.seconds),
        cost=times.cost,
        acceptances=known.acceptances,
        acceptance_source=known.source,
        heads=rows,
        drafts=tuple(drafts),
        best=max(pays, key=lambda row: row.speed_up or 0.0, default=None),
        notes=tuple(_notes(times, rows, known)),
    )


def _head_row(one: HeadTime, full: HeadTime, cost: RoundCost, known: _Known, length: int) -> HeadRow:
    kappa, nu = cost.kappa(length, full.seconds), one.seconds / full.seconds
    ratio, source = known.ratio(one.head)
    row = HeadRow(
        head=one.head,
        nbytes=one.nbytes,
        head_s=one.seconds,
        nu=nu,
        break_even=break_even(kappa, nu),
        drafting_share=one.seconds / (cost.body_s + one.seconds),
        round_share=length * one.seconds / cost.round_s(length, one.seconds),
    )
    if ratio is None:
        return row
    relative = ratio / known.to_reference()
    best = best_length(cost, one.seconds, known.acceptances, relative)
    return replace(
        row,
        acceptance_ratio=ratio,
        ratio_source=source,
        gain=gain(ratio, kappa, nu),
        length=best,
        speed_up=speed_up(cost, one.seconds, known.acceptances, best, relative),
    )


def _notes(times: Times, rows: Sequence[HeadRow], known: _Known) -> list[str]:
    notes = []
    if times.had < _LEAST_HAD:
        notes.append(
            f"other programs were running (this one had {times.had:.0%} of its threads' time), and the times are "
            "theirs too: measure again when nothing else runs"
        )
    if known.source == "assumed":
        tokens = expected_tokens(known.acceptances, 5)
        notes.append(
            f"acceptance is assumed ({tokens:.1f} tokens a round at 5 drafted), and so is ρ_τ (SlimSpec's Table 3): "
            "give --draft DIR to measure"
        )
    unknown = [head_name(row.head) for row in rows if row.acceptance_ratio is None]
    if unknown:
        notes.append(f"no ρ_τ is known for {'; '.join(unknown)}: what they need is under break-even")
    return notes
