"""What a user holds, on stub models: prompts of every kind, streams, reuse of the cache, and clear refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import slimtier
from slimtier.drafters.model import ModelDrafter
from slimtier.drafters.ngram import NgramDrafter
from slimtier.engine import Engine
from slimtier.errors import ConfigError, InputError, NonFiniteError, SlimtierError
from slimtier.result import Result
from slimtier.types import Draft, Route, SamplingParams
from slimtier.verifiers.lenient import LenientVerifier
from tests.byte_tokenizer import END, VOCAB, ByteTokenizer
from tests.stubs import ScriptedDrafter, StubCache, StubTarget, mixed, oracle, plain_tokens, wrong

PROMPT = [10, 3, 7, 42]
POEM = "Grüße 🙂, a poem: né à l'été. END of it"


def writer(text: str = POEM, **options: Any) -> StubTarget:
    """A target that, after '<assistant>' or 'Say:', writes the text and then ends."""

    def logits_of(history: tuple[int, ...]) -> torch.Tensor:
        data = bytes(token for token in history if token < END)
        start = max(
            data.rfind(mark) + len(mark) for mark in (b"<assistant>", b"Say:") if mark in data or mark == b"Say:"
        )
        script = [*text.encode(), END]
        return 9.0 * torch.eye(VOCAB)[script[min(max(0, len(data) - start), len(script) - 1)]]

    return StubTarget(VOCAB, logits_of=logits_of, eos_token_ids=(END,), **options)


def one(found: Result | list[Result]) -> Result:
    assert isinstance(found, Result)
    return found


def many(found: Result | list[Result]) -> list[Result]:
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize(
    "make", [oracle, wrong, mixed, lambda t: NgramDrafter(), lambda t: ModelDrafter(t, Route.skipping(4, [1, 2]))]
)
@pytest.mark.parametrize("k", [0, 1, 5])
def test_any_drafter_gives_the_plain_text(make: Any, k: int) -> None:
    target = writer()
    engine = Engine(target, make(target), tokenizer=ByteTokenizer(), num_speculative_tokens=k)
    result = one(engine.generate([{"role": "user", "content": "Write."}]))
    assert result.text == POEM
    assert result.finish_reason == "stop"
    assert result.token_ids == (*POEM.encode(), END)
    assert result.lossless
    assert result.stats.num_output_tokens == len(result.token_ids)
    assert result.run.drafter == engine.drafter.name


def test_text_messages_and_ids_alone_and_in_lists() -> None:
    engine = Engine(writer("ok"), tokenizer=ByteTokenizer())
    kinds = ["Say:", [{"role": "user", "content": "hello"}], list(b"Say:")]
    for prompt in kinds:
        assert one(engine.generate(prompt)).text == "ok"
    found = many(engine.generate(kinds))
    assert [result.text for result in found] == ["ok"] * 3
    assert [result.stats.num_prompt_tokens for result in found] == [4, len("<user>hello<assistant>"), 4]
    assert many(engine.generate(["Say:"]))[0].text == "ok"
    assert one(engine.generate(torch.tensor(list(b"Say:")))).text == "ok"


@pytest.mark.parametrize("stop", [(), ("END",), ("été", "END"), ("🙂",)])
@pytest.mark.parametrize("make", [oracle, mixed, wrong])
def test_a_stream_is_the_result_in_pieces(stop: tuple[str, ...], make: Any) -> None:
    target = writer()
    engine = Engine(target, make(target), tokenizer=ByteTokenizer())
    whole = one(engine.generate("Say:", stop=stop))
    stream = engine.stream("Say:", stop=stop)
    steps = list(stream)
    assert stream.result is not None
    assert "".join(step.text for step in steps) == stream.result.text == whole.text
    assert [token for step in steps for token in step.token_ids] == list(whole.token_ids)
    assert not any("\N{REPLACEMENT CHARACTER}" in step.text for step in steps)
    assert whole.text == POEM[: min([POEM.find(one) for one in stop], default=len(POEM))]


@pytest.mark.parametrize("budget", range(1, 24))
def test_what_was_held_back_comes_at_the_end(budget: int) -> None:
    target = writer()
    stream = Engine(target, oracle(target), tokenizer=ByteTokenizer()).stream(
        "Say:", stop=("Grüße 🙂!", "poems"), max_new_tokens=budget
    )
    assert "".join(step.text for step in stream) == POEM.encode()[:budget].decode(errors="replace")


def test_a_closed_stream_is_cancelled_and_the_next_request_is_fine() -> None:
    target = StubTarget()
    drafter = mixed(target)
    engine = Engine(target, drafter)
    plain = plain_tokens(target, PROMPT, 20)
    for rounds in range(4):
        with engine.stream(PROMPT, max_new_tokens=20) as stream:
            for _ in range(rounds):
                next(stream)
        assert stream.result is None
        assert list(stream) == []
        assert stream.result is None
        assert one(engine.generate(PROMPT, max_new_tokens=20)).token_ids == tuple(plain)
    assert {key for key, _ in drafter.proposed} == set(drafter.forgotten)


def test_interleaved_streams_do_not_disturb_each_other() -> None:
    target = StubTarget()
    engine = Engine(target, mixed(target))
    prompts = [PROMPT, PROMPT[:1], [5] * 9]
    streams = [engine.stream(prompt, max_new_tokens=12) for prompt in prompts]
    tokens: list[list[int]] = [[], [], []]
    for _ in range(12):
        for stream, found in zip(streams, tokens, strict=True):
            found += [token for step in [next(stream, None)] if step for token in step.token_ids]
    assert tokens == [plain_tokens(target, prompt, 12) for prompt in prompts]


def test_a_failing_drafter_leaves_no_result_and_a_good_engine() -> None:
    target = StubTarget()
    engine = Engine(target, ScriptedDrafter(lambda context, limit: Draft((96,)), "broken"))
    stream = engine.stream(PROMPT)
    with pytest.raises(InputError, match="96"):
        next(stream)
    assert list(stream) == []
    assert stream.result is None
    engine.drafter = oracle(target)
    assert list(one(engine.generate(PROMPT, max_new_tokens=9)).token_ids) == plain_tokens(target, PROMPT, 9)


def test_the_common_prefix_of_a_conversation_is_read_once() -> None:
    target = StubTarget()
    engine = Engine(target, mixed(target))
    first = one(engine.generate(PROMPT, max_new_tokens=10))
    second = [*PROMPT, *first.token_ids, 8, 9]
    target.calls.clear()
    result = one(engine.generate(second, max_new_tokens=10))
    assert result.stats.num_cached_tokens == len(PROMPT) + 9
    assert target.calls[0] == (2,)
    assert list(result.token_ids) == plain_tokens(target, second, 10)
    other = one(engine.generate([*PROMPT[:2], 50, 51], max_new_tokens=10))
    assert other.stats.num_cached_tokens == 2
    assert list(other.token_ids) == plain_tokens(target, [*PROMPT[:2], 50, 51], 10)
    assert one(engine.generate(PROMPT[:1], max_new_tokens=2)).stats.num_cached_tokens == 0


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(("alike", "shared"), [(7, 0), (8, 8), (70, 70), (80, 72)])
def test_what_all_prompts_of_a_batch_begin_with_is_read_once(alike: int, shared: int, n: int) -> None:
    """The shortest prompt has 73 tokens, the last of which is never in the cache beforehand."""
    target = StubTarget()
    start = list(range(20)) * 4
    prompts = [[*start[:alike], 40 + i, *start[alike:]][: 73 + i] for i in range(3)]
    results = Engine(target, mixed(target)).generate(prompts, max_new_tokens=10, n=n)
    assert isinstance(results, list)
    for i, result in enumerate(results):
        assert list(result.token_ids) == plain_tokens(target, prompts[i // n], 10)
        assert result.stats.num_cached_tokens == (shared if i >= n and i % n == 0 else 0)
    first = (min(64, shared), 0, 0) if shared else (64, 64, 64)
    assert target.calls[0] == first
    object.__setattr__(target.info, "exact", False)
    target.calls.clear()
    Engine(target, mixed(target)).generate(prompts, max_new_tokens=2)
    assert target.calls[0] == (64, 64, 64)


def test_the_cache_of_a_cancelled_or_failed_request_is_good() -> None:
    target = StubTarget()
    engine = Engine(target, oracle(target))
    with engine.stream(PROMPT, max_new_tokens=30) as stream:
        tokens = [*PROMPT, *next(stream).token_ids]
    again = one(engine.generate(tokens, max_new_tokens=10))
    assert again.stats.num_cached_tokens == len(tokens) - 1
    assert list(again.token_ids) == plain_tokens(target, tokens, 10)
    whole_head = target.head

    def broken_head(*_: Any) -> Any:
        raise NonFiniteError("not finite")

    target.head = broken_head  # type: ignore[method-assign]
    with pytest.raises(NonFiniteError):
        engine.generate(PROMPT)
    target.head = whole_head  # type: ignore[method-assign]
    for prompt in (PROMPT, tokens):
        assert list(one(engine.generate(prompt, max_new_tokens=10)).token_ids) == plain_tokens(target, prompt, 10)


def test_a_conversation_that_outgrows_its_cache_gets_a_larger_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slimtier.engine.ROOM", 16)
    target = StubTarget()
    engine = Engine(target)
    tokens = [1]
    for _ in range(6):
        result = one(engine.generate(tokens, max_new_tokens=12))
        assert list(result.token_ids) == plain_tokens(target, tokens, 12)
        tokens += [*result.token_ids, 3]


def test_a_target_that_is_not_exact_starts_afresh() -> None:
    target = StubTarget()
    object.__setattr__(target.info, "exact", False)
    engine = Engine(target)
    for _ in range(2):
        assert one(engine.generate(PROMPT, max_new_tokens=4)).stats.num_cached_tokens == 0


def test_several_answers_differ_and_repeat_with_their_seed() -> None:
    target = StubTarget()
    engine = Engine(target, mixed(target, lambda context, limit: limit // 2))
    for coupling in ("rejection", "gumbel"):
        options = {"temperature": 1.0, "max_new_tokens": 8, "coupling": coupling}
        found = many(engine.generate(PROMPT, n=3, seed=5, **options))
        assert len({result.token_ids for result in found}) == 3
        again = many(engine.generate([PROMPT, PROMPT], n=3, seed=5, **options))
        assert [result.token_ids for result in again] == [result.token_ids for result in found] * 2
        free = many(engine.generate([PROMPT] * 2, **options))
        assert free[0].seed != free[1].seed
        repeated = one(engine.generate(PROMPT, seed=free[1].seed, **options))
        assert repeated.token_ids == free[1].token_ids


def test_gumbel_coupling_gives_the_same_tokens_with_any_drafter() -> None:
    target = StubTarget()
    options = {"temperature": 1.0, "seed": 11, "coupling": "gumbel", "max_new_tokens": 20}
    want = one(Engine(target).generate(PROMPT, **options)).token_ids
    for drafter in (oracle(target), mixed(target), ModelDrafter(target, Route.skipping(4, [1]))):
        for k in (1, 4, 8):
            assert one(Engine(target, drafter, num_speculative_tokens=k).generate(PROMPT, **options)).token_ids == want


def test_an_encoder_decoder_reads_the_prompt_with_its_encoder() -> None:
    target = StubTarget()
    target.is_encoder_decoder, target.decoder_start_token_id = True, 0  # type: ignore[attr-defined]
    engine = Engine(target, ScriptedDrafter(lambda context, limit: Draft((1,) * limit)))
    found = many(engine.generate([PROMPT, [5]], n=2, max_new_tokens=7))
    plain = [plain_tokens(target, [0], 7, inputs=prompt) for prompt in (PROMPT, [5])]
    assert [list(result.token_ids) for result in found] == [plain[0], plain[0], plain[1], plain[1]]
    assert [result.stats.num_prompt_tokens for result in found] == [4, 4, 1, 1]


def test_no_tokens_asked_for_is_no_work() -> None:
    target = StubTarget()
    result = one(Engine(target).generate(PROMPT, max_new_tokens=0))
    assert (result.token_ids, result.finish_reason, target.calls) == ((), "length", [])
    stream = Engine(target).stream(PROMPT, max_new_tokens=0)
    assert list(stream) == []
    assert stream.result is not None


def test_lenient_is_reported() -> None:
    target = StubTarget(scale=0.5)
    result = one(Engine(target, wrong(target), LenientVerifier(target, 0.99)).generate(PROMPT, max_new_tokens=8))
    assert not result.lossless
    assert result.to_dict()["lossless"] is False
    assert list(result.token_ids) != plain_tokens(target, PROMPT, 8)


def test_a_result_is_json() -> None:
    target = StubTarget()
    result = one(Engine(target, oracle(target)).generate(PROMPT, max_new_tokens=6, logprobs=2, seed=1))
    found = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert found["token_ids"] == list(result.token_ids)
    assert found["stats"]["num_output_tokens"] == len(found["logprobs"]) == 6
    assert found["seed"] == 1
    assert len(result.logprobs) == len(result.token_ids) == len(result.deciders)


def test_torch_has_one_thread_while_a_native_cpu_target_decodes_and_its_own_outside() -> None:
    target = StubTarget()
    seen = []

    def script(context: Any, limit: int) -> Draft:
        seen.append(torch.get_num_threads())
        return Draft(())

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for _ in Engine(target, ScriptedDrafter(script)).stream(PROMPT, max_new_tokens=3):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 1, 1]


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("", {}, "prompt is empty"),
        ([], {}, "prompt is empty"),
        ([[]], {}, "prompt is empty"),
        ([PROMPT, ""], {}, "prompt is empty"),
        (list(range(90)) * 3, {}, "270 tokens and the model's context holds 256"),
        ([1, 96], {}, "token id 96 is outside"),
        ([-1], {}, "token id -1 is outside"),
        ([1, "a"], {}, "mixes whole prompts"),
        (7, {}, "not int"),
        ([{"role": "user"}], {}, "content"),
        ([{"role": "user", "content": 5}], {}, "content"),
        ("\udcff", {}, "UTF-8"),
        (PROMPT, {"max_new_tokens": -1}, "max_new_tokens is -1"),
        (PROMPT, {"max_new_tokens": 2.5}, "max_new_tokens is 2.5"),
        (PROMPT, {"temperature": float("nan")}, "temperature"),
        (PROMPT, {"temperature": -1}, "temperature"),
        (PROMPT, {"temperature": "hot"}, "temperature"),
        (PROMPT, {"top_p": 0}, "top_p"),
        (PROMPT, {"top_p": 1.5}, "top_p"),
        (PROMPT, {"n": 0}, "n is 0"),
        (PROMPT, {"logprobs": -1}, "logprobs is -1"),
        (PROMPT, {"logprobs": 97}, "only 96"),
        (PROMPT, {"stop": ""}, "stop"),
        (PROMPT, {"stop": ["a", 3]}, "stop"),
        (PROMPT, {"eos_token_ids": ["x"]}, "eos_token_ids"),
        (PROMPT, {"ignore_eos": "yes"}, "ignore_eos"),
        (PROMPT, {"logit_bias": {"x": 1}}, "logit_bias"),
        (PROMPT, {"logit_bias": {96: 1}}, "logit_bias"),
        (PROMPT, {"temprature": 1}, "did you mean 'temperature'"),
        (PROMPT, {"zzz": 1}, "known: "),
    ],
)
def test_what_cannot_be_served_is_refused_before_any_work(prompt: Any, options: dict[str, Any], message: str) -> None:
    target = StubTarget()
    engine = Engine(target, tokenizer=ByteTokenizer())
    for call in (engine.generate, engine.stream):
        if call == engine.stream and prompt in ([[]], [PROMPT, ""]):
            continue
        with pytest.raises((InputError, ConfigError), match=message) as caught:
            call(prompt, **options)
        assert "\n" not in str(caught.value)
    assert target.calls == []


def test_a_stream_is_of_one_answer() -> None:
    engine = Engine(StubTarget())
    with pytest.raises(InputError, match="one prompt"):
        engine.stream([PROMPT, PROMPT])
    with pytest.raises(InputError, match="one prompt"):
        engine.stream(PROMPT, n=2)


def test_text_needs_a_tokenizer() -> None:
    engine = Engine(StubTarget())
    for prompt, options in (("hi", {}), ([{"role": "user", "content": "hi"}], {}), (PROMPT, {"stop": "x"})):
        with pytest.raises(InputError, match=r"no tokenizer|has none"):
            engine.generate(prompt, **options)


def test_keywords_go_before_the_parameters_given_as_one() -> None:
    target = StubTarget()
    params = SamplingParams(logit_bias={5: 100.0})
    assert set(one(Engine(target).generate(PROMPT, params, max_new_tokens=3)).token_ids) == {5}
    assert set(one(Engine(target).generate(PROMPT, params, logit_bias={"6": 100}, max_new_tokens=3)).token_ids) == {6}


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"drafter": "ngrm"}, "did you mean 'ngram'"),
        ({"verifier": "lenien"}, "did you mean 'lenient'"),
        ({"verifier": "lenient"}, "needs the setting lenience"),
        ({"verifier": "lenient", "lenience": 1.0}, "lenience is 1.0"),
        ({"lenience": 0.5}, "--verifier lenient"),
        ({"drafter": "draft_model"}, "needs the setting draft_model"),
        ({"drafter": "ngram", "draft_model": "x"}, "--drafter draft_model"),
        ({"drafter": "layer_skip"}, "needs the setting skip_layers"),
        ({"drafter": "layer_skip", "skip_layers": "a"}, "skip_layers is 'a'"),
        ({"min_ngram": 0}, "n-gram size"),
        ({"min_ngrm": 2}, "did you mean 'min_ngram'"),
        ({"runtime": "nativ"}, "unknown runtime"),
        ({"precision": "fp8"}, "unknown precision"),
        ({"runtime": "hf", "precision": "q8"}, "fp32, bf16"),
        ({"threads": 0}, "threads is 0"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens is -1"),
    ],
)
def test_settings_are_checked_before_anything_is_loaded(
    choices: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*_: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("slimtier.engine.load", loaded)
    with pytest.raises(ConfigError, match=message):
        Engine.from_pretrained("smollm2-135m", **choices)


def test_importing_the_package_imports_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, slimtier; slimtier.SamplingParams(); assert 'torch' not in sys.modules, 'torch is imported'"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
    assert slimtier.Engine is Engine
    assert issubclass(ConfigError, SlimtierError)
    assert set(slimtier.__all__) <= set(dir(slimtier))


def test_a_cache_of_many_rows_is_as_large_as_its_longest_row_needs() -> None:
    capacities = []

    class Recording(StubTarget):
        def begin(self, num_rows: int, capacity: int, inputs: Any = None) -> StubCache:
            capacities.append(capacity)
            return super().begin(num_rows, capacity, inputs)

    target = Recording()
    Engine(target, oracle(target)).generate([PROMPT, PROMPT[:2]], max_new_tokens=6)
    assert capacities == [10]
