"""Advice on heads: from known times, and for a draft that is really decoded with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slimtier.advise import head as head_module
from slimtier.advise.cost_model import RoundCost, expected_tokens
from slimtier.advise.draft_trial import DraftTrial, Tried, conditional
from slimtier.advise.head import ASSUMED_ACCEPTANCES, HeadAdvice, HeadPlan, advise_head
from slimtier.advise.head_text import text_of
from slimtier.advise.timing import HeadTime, Times
from slimtier.drafters.eagle.config import HeadConfig
from slimtier.drafters.eagle.open import open_drafter
from slimtier.drafters.eagle.save import save_draft
from slimtier.drafters.eagle.target_record import TargetRecord
from slimtier.engine import Engine
from slimtier.errors import ConfigError, InputError, SlimtierError, UnsupportedError
from slimtier.loading import Loaded
from slimtier.types import Draft
from tests.advise.drafts import PROMPTS, TOKENS, Taught
from tests.drafters.eagle.drafts import make_network
from tests.stubs import ScriptedDrafter, StubTarget, mixed

HEAD_S = {"full": 4.0, "slim": 1.0, "trimmed": 2.0, "routed": 2.0}
COST = RoundCost((20.0, 22.0, 24.0, 26.0, 28.0, 30.0, 32.0, 34.0, 36.0), 1.0, 5.0, 2.0)


def times_of(heads: list[HeadConfig], drafts: int = 0, had: float = 1.0) -> Times:
    found = tuple(HeadTime(head, 100, HEAD_S[head.kind]) for head in heads)
    return Times(COST, found, (RoundCost(COST.target_s, 2.0, 5.0, 2.0),) * drafts, had)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Times as above instead of measured ones; how a draft is accepted by its directory's name."""
    given: dict[str, Any] = {"had": 1.0, "tried": {}}

    def measure(target: Any, heads: Any, precision: str, plan: Any, drafters: Any, *calls: Any) -> Times:
        return times_of(list(heads), len(drafters), given["had"])

    class Told:
        def __init__(self, loaded: Loaded, drafter: Any, *args: Any, **options: Any) -> None:
            self.name = drafter.name

        def look(self, progress: Any) -> None:
            pass

        def result(self) -> Tried:
            return given["tried"][self.name]  # type: ignore[no-any-return]

    def open_it(path: Any, target: Any, tokenizer: Any, precision: str) -> Any:
        drafter = open_drafter(path, target, tokenizer, precision=precision)
        drafter.name = Path(path).name
        return drafter

    monkeypatch.setattr(head_module, "measure", measure)
    monkeypatch.setattr(head_module, "DraftTrial", Told)
    monkeypatch.setattr(head_module, "open_drafter", open_it)
    return given


def row_of(advice: HeadAdvice, kind: str, rank: int = 0) -> Any:
    return next(row for row in advice.heads if row.head.kind == kind and (not rank or row.head.rank == rank))


def test_numbers_by_hand(known: dict[str, Any], draft: Taught) -> None:
    advice = advise_head(Loaded(draft.target, None))
    # K = 5: the rest of a round is 30 + 5 · 1 + 5 = 40, the full head's 5 · 4 = 20
    assert advice.kappa == 0.5
    full, slim, half = row_of(advice, "full"), row_of(advice, "slim", 8), row_of(advice, "slim", 4)
    assert (full.nu, full.gain, full.break_even, full.acceptance_ratio) == (1.0, 1.0, 1.0, 1.0)
    assert (full.drafting_share, full.round_share) == (4 / 5, 20 / 60)
    assert (slim.nu, slim.break_even) == (0.25, 1.125 / 1.5)
    assert (slim.acceptance_ratio, slim.ratio_source) == (0.99, "assumed")
    assert slim.gain == pytest.approx(0.99 * 1.5 / 1.125)
    assert half.gain == pytest.approx(0.98 * 1.5 / 1.125)
    assert row_of(advice, "routed").gain == pytest.approx(1.01 * 1.5 / 1.25)
    thin = row_of(advice, "slim", 2)
    assert (thin.gain, thin.length, thin.speed_up, thin.ratio_source) == (None, None, None, None)
    # plain 22; a round of K with the slim head 20 + 2 K + 2 K + 5
    rates = [0.99 * expected_tokens(ASSUMED_ACCEPTANCES, k) * 22 / (25 + 4 * k) for k in range(1, 9)]
    assert slim.speed_up == pytest.approx(max(rates))
    assert slim.length == rates.index(max(rates)) + 1
    assert advice.best == row_of(advice, "slim", 16)  # as fast as d/8, and before it
    assert advice.acceptance_source == "assumed"
    assert json.loads(json.dumps(advice.to_dict()))["best"]["head"]["rank"] == 16


def test_notes(known: dict[str, Any], draft: Taught) -> None:
    known["had"] = 0.4
    text = text_of(advise_head(Loaded(draft.target, None)))
    assert "other programs were running (this one had 40% of its threads' time)" in text
    assert "acceptance is assumed (2.5 tokens a round at 5 drafted)" in text
    assert "no ρ_τ is known for slim, rank 2: what they need" in text
    assert "recommended: head slim, rank 16, num_speculative_tokens 2: " in text
    assert "κ = 0.500" in text


def save_random(draft: Taught, path: Path, head: HeadConfig) -> Path:
    network = make_network(draft.target, head=head)
    state = network.state_dict()
    save_draft(state, network.config, path, {}, target=TargetRecord.of(draft.target.info), dtype="fp32")
    return path


def test_measured_acceptance_takes_the_place_of_assumed(known: dict[str, Any], draft: Taught, tmp_path: Path) -> None:
    full = save_random(draft, tmp_path / "full", HeadConfig("full", 96))
    slim = save_random(draft, tmp_path / "slim", HeadConfig("slim", 96, rank=8))
    odd = save_random(draft, tmp_path / "odd", HeadConfig("slim", 96, rank=5))
    known["tried"] = {
        "full": Tried((0.8,) * 8, 3.0, 1.5),
        "slim": Tried((0.7,) * 8, 2.7, 1.4),
        "odd": Tried((0.6,) * 8, 2.1, None),
    }
    advice = advise_head(Loaded(draft.target, None), drafts=[slim, full, odd])
    assert (advice.acceptances, advice.acceptance_source) == ((0.8,) * 8, "measured")
    row = row_of(advice, "slim", 8)
    assert (row.acceptance_ratio, row.ratio_source) == (pytest.approx(2.7 / 3.0), "measured")
    assert row_of(advice, "slim", 5).acceptance_ratio == pytest.approx(0.7)  # timed beside the usual heads
    assert row_of(advice, "slim", 4).ratio_source == "assumed"
    one = advice.drafts[0]
    # a round of 5 takes 30 + 5 · 2 + 5
    assert one.predicted == pytest.approx(2.7 * 22 / 45)
    assert one.prediction_ratio == pytest.approx(one.predicted / 1.4)
    assert advice.drafts[2].prediction_ratio is None
    text = text_of(advice)
    assert f"predicted {one.predicted:.3f}, measured 1.400 (predicted ÷ measured 0.943)" in text
    assert "not measured: the answers were too short" in text
    assert "acceptance that is measured" in text
    assert json.loads(json.dumps(advice.to_dict()))["drafts"][0]["prediction_ratio"] == one.prediction_ratio


def test_without_a_full_draft_the_ratio_of_the_given_head_is_assumed(
    known: dict[str, Any], draft: Taught, tmp_path: Path
) -> None:
    slim = save_random(draft, tmp_path / "slim", HeadConfig("slim", 96, rank=8))
    known["tried"] = {"slim": Tried((0.5, 0.5), 1.75, 1.0)}
    advice = advise_head(Loaded(draft.target, None), drafts=[slim])
    row, full = row_of(advice, "slim", 8), row_of(advice, "full")
    assert (row.acceptance_ratio, row.ratio_source) == (0.99, "assumed")
    assert row.speed_up == pytest.approx(max(1.0, *(t * 22 / r for t, r in ((1.5, 29), (1.75, 33)))))
    best = [t / 0.99 * 22 / r for t, r in ((1.5, 22 + 5 + 5), (1.75, 24 + 10 + 5))]
    assert full.speed_up == pytest.approx(max(1.0, *best))


@pytest.mark.parametrize(("size", "ratio"), [(47, None), (48, 1.0)])
def test_a_trimmed_head_is_as_good_as_the_papers_from_half_the_vocabulary_on(
    known: dict[str, Any], draft: Taught, tmp_path: Path, size: int, ratio: float | None
) -> None:
    path = save_random(draft, tmp_path / "trimmed", HeadConfig("trimmed", 96, size=size))
    known["tried"] = {"trimmed": Tried((0.5,), 1.5, 1.0)}
    row = row_of(advise_head(Loaded(draft.target, None), drafts=[path]), "trimmed")
    assert row.acceptance_ratio == ratio


def test_no_draft_pays(known: dict[str, Any], draft: Taught, tmp_path: Path) -> None:
    slim = save_random(draft, tmp_path / "slim", HeadConfig("slim", 96, rank=8))
    known["tried"] = {"slim": Tried((0.01,), 1.01, 0.7)}
    advice = advise_head(Loaded(draft.target, None), drafts=[slim])
    assert advice.best is None
    assert "recommended: no draft; none pays at the acceptance that is measured" in text_of(advice)


def test_a_trained_draft_on_the_kernels(draft: Taught) -> None:
    """It was taught the answers by heart, so nearly all is accepted, and the time model's two sides are there."""
    ticks: list[tuple[int, int]] = []
    plan = HeadPlan(3, 3, 2, max_new_tokens=TOKENS, repeats=2)
    advice = advise_head(
        Loaded(draft.target, None),
        plan,
        precision="fp32",
        drafts=[draft.path],
        prompts=PROMPTS[:3],
        progress=lambda done, total: ticks.append((done, total)),
    )
    (one,) = advice.drafts
    assert one.head == HeadConfig("slim", 96, rank=24)
    assert one.mean_acceptance_length > 3.5
    assert all(share > 0.9 for share in one.acceptances)
    assert one.predicted > 0.0
    assert one.measured is not None
    assert one.measured > 0.0
    total = len(advice.heads) + 1 + 2 + 3 * 3
    assert ticks == [(number, total) for number in range(1, total + 1)]


def try_draft(drafter: Any, prompts: list[list[int]], *, repeats: int = 1, length: int, most: int) -> Tried:
    trial = DraftTrial(
        Loaded(StubTarget(), None),  # type: ignore[arg-type]
        drafter,
        prompts,
        num_speculative_tokens=length,
        longest=length,
        max_new_tokens=most,
    )
    trial.look()
    for _ in range(repeats * len(prompts)):
        trial.turn()
    return trial.result()


def test_what_a_trial_counts() -> None:
    """A drafter that is right for exactly two of four tokens."""
    target: Any = StubTarget()
    drafter = mixed(target, lambda context, limit: min(2, limit))
    tried = try_draft(drafter, [[3, 4], [5, 6]], length=4, most=31)
    assert tried.acceptances == (1.0, 1.0, 0.0)
    assert tried.mean_acceptance_length == 3.0
    assert tried.speed_up is not None


def test_a_trial_of_one_block_has_no_speed() -> None:
    target: Any = StubTarget()
    drafter = mixed(target, lambda context, limit: limit)
    tried = try_draft(drafter, [[3, 4]], length=2, most=3)
    assert (tried.mean_acceptance_length, tried.speed_up) == (3.0, None)


def test_a_trial_in_which_nothing_is_drafted() -> None:
    drafter = ScriptedDrafter(lambda context, limit: Draft(()))
    with pytest.raises(InputError, match="no draft of 2 tokens was made"):
        try_draft(drafter, [[3, 4]], length=2, most=9)


def test_the_race_takes_seconds_from_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    """The speed-up is plain seconds ÷ drafting seconds over all prompts, of each the median of its turns."""
    target: Any = StubTarget()
    drafter = mixed(target, lambda context, limit: 1)
    rates = {"none": iter([10.0, 20.0, 10.0, 20.0, 10.0, 20.0]), "mixed": iter([20.0, 20.0, 40.0, 40.0, 10.0, 10.0])}
    generate = Engine.generate

    def paced(engine: Engine, *args: Any, **options: Any) -> Any:
        result = generate(engine, *args, **options)
        object.__setattr__(result.stats, "tokens_per_s", next(rates[engine.drafter.name]))  # type: ignore[union-attr]
        return result

    monkeypatch.setattr(Engine, "generate", paced)
    tried = try_draft(drafter, [[3, 4], [5, 6]], length=2, most=20, repeats=3)
    # plain 20/10 + 20/20 s; drafting 1, 1/2 and 2 s for each
    assert tried.speed_up == pytest.approx(1.5)


def test_turns_are_spread_over_the_rounds_and_none_is_left_out() -> None:
    order: list[Any] = []

    class Noted:
        def __init__(self, name: str) -> None:
            self.name = name

        def turn(self) -> None:
            order.append(self.name)

    trials: Any = [Noted("a"), Noted("b")]
    turns = head_module._Turns(trials, 3, HeadPlan(rounds=4, repeats=2), lambda: None)
    for rounds in range(1, 5):
        turns.after(rounds)
        order.append(rounds)
    assert order == [*"ab", 1, *"ba", *"ab", 2, *"ba", 3, *"ab", *"ba", 4]


def test_conditional() -> None:
    assert conditional([0, 1, 3, 3], 3) == (3 / 4, 2 / 3, 1.0)
    assert conditional([0, 0], 3) == (0.0,)


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*args: Any, **options: Any) -> None:
        raise AssertionError("measured before all was checked")

    monkeypatch.setattr(head_module, "measure", measure)


def test_errors_come_before_any_work(no_work: None, draft: Taught, tmp_path: Path) -> None:
    stub: Any = StubTarget()
    with pytest.raises(UnsupportedError, match="measures our CPU kernels, and stub runs on another runtime"):
        advise_head(Loaded(stub, None))
    with pytest.raises(SlimtierError, match="there is no directory"):
        advise_head(Loaded(draft.target, None), drafts=[tmp_path / "none"])
    other = make_network(StubTarget(80))
    save_draft(other.state_dict(), other.config, tmp_path / "other", {}, target=TargetRecord.of(StubTarget(80).info))
    with pytest.raises(SlimtierError, match="give a draft that was trained for this model"):
        advise_head(Loaded(draft.target, None), drafts=[tmp_path / "other"])
    with pytest.raises(ConfigError, match="measure nothing"):
        HeadPlan(repeats=0)
