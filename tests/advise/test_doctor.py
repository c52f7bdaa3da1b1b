"""The doctor: a sound draft is called sound, and each usual fault is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file

from slimtier.advise import doctor
from slimtier.advise.acceptance import forced_lengths
from slimtier.advise.decoded import Round, captured, decode
from slimtier.advise.doctor import Trial, diagnose
from slimtier.advise.report import Finding, Report
from slimtier.advise.suspects import chance, variants
from slimtier.checkpoint import write_checkpoint
from slimtier.drafters.eagle.config import EagleConfig, HeadConfig, NormConfig
from slimtier.drafters.eagle.drafter import EagleDrafter
from slimtier.drafters.eagle.network import EagleNetwork
from slimtier.drafters.eagle.runtime import Stretch
from slimtier.drafters.eagle.runtime_torch import TorchRuntime
from slimtier.drafters.eagle.save import save_draft
from slimtier.drafters.eagle.target_record import TargetRecord
from slimtier.engine import Engine
from slimtier.loading import Loaded
from slimtier.models.config import RopeConfig
from slimtier.models.tokenizer import Tokenizer
from tests.advise.drafts import DEPTH, PROMPTS, TOKENS, Taught, features_of
from tests.drafters.eagle.drafts import make_network, naive_logits
from tests.small_tokenizer import small_tokenizer

TRIAL = Trial(PROMPTS, TOKENS, DEPTH)
SHORT = Trial(PROMPTS[:2], TOKENS, DEPTH)


def findings(report: Report, state: str = "error") -> list[Finding]:
    return [finding for finding in report.findings if finding.state == state]


def decoder_of(network: EagleNetwork) -> EagleDrafter:
    return EagleDrafter(TorchRuntime(network), network.config.capture)


@pytest.fixture
def examine(draft: Taught, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Report]:
    """Diagnose a directory (the taught draft's), decoding with `decoder` (one that is right)."""

    def run(path: Path | None = None, decoder: Any = None, tokenizer: Any = None, trial: Trial = TRIAL) -> Report:
        made = decoder or decoder_of(draft.network)
        monkeypatch.setattr(doctor, "open_drafter", lambda path, target, tokenizer: made)
        return diagnose(path or draft.path, Loaded(draft.target, tokenizer), trial=trial)

    return run


def rewritten(draft: Taught, path: Path, **fields: Any) -> Path:
    """The taught draft with other fields in its config.json; None removes one."""
    config = json.loads((draft.path / "config.json").read_text())
    config = {name: value for name, value in (config | fields).items() if value is not None}
    write_checkpoint(path, config, load_file(draft.path / "model.safetensors"), {})
    return path


def test_a_sound_draft(examine: Callable[..., Report]) -> None:
    report = examine()
    assert report.healthy
    assert not findings(report)
    assert [one.about for one in findings(report, "ok")] == ["files", "network", "layers", "head", "acceptance"]
    for place, one in enumerate(report.positions):
        assert one.rounds >= len(PROMPTS) * (TOKENS - 4 - place) // 4
        assert one.decoded == one.forced  # the same arithmetic, so not one differs
        assert one.everywhere > 0.95
        assert one.decoded > 0.95 * one.rounds
    assert json.loads(json.dumps(report.to_dict()))["healthy"]


def test_progress_ends_at_its_total(draft: Taught) -> None:
    seen: list[tuple[int, int]] = []
    engine = Engine(draft.target, decoder_of(draft.network), num_speculative_tokens=DEPTH)
    files = doctor.read_draft(draft.path, 4)
    doctor.dynamic_findings(files, engine, SHORT, lambda *move: seen.append(move))
    assert [done for done, _ in seen] == list(range(1, len(seen) + 1))
    assert {total for _, total in seen} == {len(seen)}


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("norms", [NormConfig(), NormConfig(output=True, before_residual=True)])
@pytest.mark.parametrize("num_layers", [1, 2])
def test_foreseen_is_what_a_chain_from_scratch_gives(
    draft: Taught, norms: NormConfig, num_layers: int, late: int
) -> None:
    """Held against drafting each place anew, without a cache and without unrolling."""
    network = make_network(draft.target, norms=norms, num_layers=num_layers, head=HeadConfig("full", 96))
    with torch.no_grad():  # sharp attention, so that every key and its position count
        for name, parameter in network.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
                parameter.mul_(3)
    text = [37 * place % 96 for place in range(18)]
    features = features_of(draft.target, network, text)
    for slot in range(2, 14, 5):  # three tokens as the network drafts them, then two that it does not
        for after in range(3):
            text[slot + 2 + after] = naive(network, text, features, slot, text[slot + 2 : slot + 2 + after], late)
    wanted = []
    for slot in range(2, len(text) - 1):
        length = 0
        while length < 3 and slot + 2 + length < len(text):
            fed = text[slot + 2 : slot + 2 + length]
            if naive(network, text, features, slot, fed, late) != text[slot + 2 + length]:
                break
            length += 1
        wanted.append(length)
    assert wanted.count(3) >= 3
    assert forced_lengths(network, text, features, 3, 2, late) == wanted


@torch.no_grad()
def naive(
    network: EagleNetwork, text: list[int], features: torch.Tensor, slot: int, drafted: list[int], late: int
) -> int:
    """What comes after `drafted` in a draft that begins at the slot."""
    after = [text[0], *text] if late else text  # naive_logits takes slot t's token from t + 1
    return int(naive_logits(network, after[: slot + 2], features[: slot + 1], drafted).argmax())


def test_rounds_are_those_of_the_engine(draft: Taught) -> None:
    engine = Engine(draft.target, decoder_of(draft.network), num_speculative_tokens=DEPTH)
    for prompt in PROMPTS[:4]:
        text = decode(engine, prompt, TOKENS)
        result = engine.generate(prompt, max_new_tokens=TOKENS)
        assert text.tokens == (*prompt, *result.token_ids)  # type: ignore[union-attr]
        assert text.num_prompt_tokens == len(prompt)
        stats = result.stats  # type: ignore[union-attr]
        assert sum(one.accepted for one in text.rounds) == stats.num_accepted_tokens
        assert text.rounds[0].start == len(prompt)
        assert all(one.accepted <= one.known <= DEPTH for one in text.rounds)


def test_a_cut_draft_tells_less(draft: Taught) -> None:
    """An end of text inside a draft: of what would have come nothing is known."""
    engine = Engine(draft.target, decoder_of(draft.network), num_speculative_tokens=DEPTH)
    texts = {tuple(prompt): decode(engine, prompt, TOKENS) for prompt in PROMPTS}
    starts = {prompt: text.tokens[3:5] for prompt, text in texts.items() if text.rounds[0].accepted == DEPTH}
    prompt, (first, end) = next((prompt, pair) for prompt, pair in starts.items() if pair[0] != pair[1])
    target, info = draft.target, draft.target.info
    target.info = replace(info, eos_token_ids=(end,))
    try:
        text = decode(engine, prompt, TOKENS)
    finally:
        target.info = info
    assert text.tokens == (*prompt, first, end)
    assert text.rounds == (Round(len(prompt), known=2, accepted=2),)


def test_captured_states_are_a_plain_forwards(draft: Taught) -> None:
    tokens = [token % 96 for token in range(3, 150)]
    streams = captured(draft.target, tokens, [0, 2, 3])
    cache = draft.target.begin(1, 200)
    _, wanted = draft.target.forward(tokens[:-1], cache, [len(tokens) - 1], capture=[0, 2, 3])
    for layer, stream in zip([0, 2, 3], wanted, strict=True):
        assert torch.equal(streams[layer], stream)


class Late(TorchRuntime):
    """Feeds the token of a position with its features, instead of the one after it."""

    def __init__(self, network: EagleNetwork) -> None:
        super().__init__(network)
        self.before: dict[int, int] = {}

    def forward(self, stretches: Any, fed_back: bool) -> Any:
        if not fed_back:
            stretches = [self._moved(stretch) for stretch in stretches]
        return super().forward(stretches, fed_back)

    def _moved(self, stretch: Stretch) -> Stretch:
        store = id(stretch.store)
        tokens = [self.before.get(store, 0) if stretch.start else 0, *stretch.tokens[:-1]]
        self.before[store] = stretch.tokens[-1]
        return replace(stretch, tokens=tokens)


class Shifted(TorchRuntime):
    """Reads the features of one position before."""

    def __init__(self, network: EagleNetwork) -> None:
        super().__init__(network)
        self.before: dict[int, torch.Tensor] = {}

    def forward(self, stretches: Any, fed_back: bool) -> Any:
        if not fed_back:
            stretches = [self._moved(stretch) for stretch in stretches]
        return super().forward(stretches, fed_back)

    def _moved(self, stretch: Stretch) -> Stretch:
        store, rows = id(stretch.store), stretch.inputs
        first = self.before[store] if stretch.start else rows[:1]
        self.before[store] = rows[-1:]
        return replace(stretch, inputs=torch.cat([first, rows[:-1]]))


@dataclass(frozen=True)
class Fault:
    """What a decoder does wrong, as the doctor must call it."""

    name: str
    said: str


FAULTS = [
    Fault("capture", "the outputs of layers [1, 2, 3]"),
    Fault("before_residual", "norm_before_residual = true"),
    Fault("output", "norm_output = true"),
    Fault("late", "the token of the features' own position, not the one after it"),
    Fault("shift", "the features of one position before"),
]


def broken_decoder(network: EagleNetwork, fault: str) -> EagleDrafter:
    if fault == "late":
        return EagleDrafter(Late(network), network.config.capture)
    if fault == "shift":
        return EagleDrafter(Shifted(network), network.config.capture)
    if fault == "capture":
        return EagleDrafter(TorchRuntime(network), (1, 2, 3))
    (variant,) = [one for one in variants(network.config, 4, None) if f"norm_{fault}" in one.name]
    return decoder_of(variant.network(network))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_of_decoding_is_named(draft: Taught, examine: Callable[..., Report], fault: Fault) -> None:
    """The network foresees what it should, decoding accepts less, and the cause is found by trying it."""
    report = examine(decoder=broken_decoder(draft.network, fault.name))
    (error,) = findings(report)
    assert error.about == "acceptance"
    assert error.text.endswith(f"decoding behaves as if it read {fault.said}")
    assert report.positions[-1].decoded < report.positions[-1].forced


def test_a_fault_that_is_none_of_the_usual(draft: Taught, examine: Callable[..., Report]) -> None:
    other = make_network(draft.target, head=HeadConfig("slim", 96, rank=24), capture=(0, 1, 2), seed=9)
    (error,) = findings(examine(decoder=decoder_of(other)))
    assert "no usual cause explains it" in error.text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {
                "eagle_aux_hidden_state_layer_ids": [2, 3, 4],
                "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]},
            },
            "with the outputs of layers [0, 1, 2] the network foresees",
        ),
        ({"norm_before_residual": True}, "with norm_before_residual = false the network foresees"),
        ({"norm_output": True}, "with norm_output = false the network foresees"),
        ({"rope_theta": 3.0}, "with rope_theta = 10000, the target's the network foresees"),
    ],
    ids=["capture", "before_residual", "output", "rope"],
)
def test_a_wrong_config_is_named(
    draft: Taught, examine: Callable[..., Report], tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    """Decoding does just what the config says, so nothing differs: but read otherwise the network knows more."""
    path = rewritten(draft, tmp_path / "draft", **fields)
    wrong = doctor.load_network(doctor.read_draft(path, 4), draft.network.embedding, 256)
    report = examine(path, decoder=decoder_of(wrong))
    (error,) = findings(report)
    assert error.about == "config"
    assert said in error.text


def test_a_draft_that_is_never_right(draft: Taught, examine: Callable[..., Report], tmp_path: Path) -> None:
    network = make_network(draft.target, capture=(0, 1, 2), seed=3)
    with torch.no_grad():  # whatever it reads it proposes one of two tokens, which never come
        network.head.up.zero_()
        network.head.up[95] = 1e-3
    record = TargetRecord.of(draft.target.info)
    save_draft(network.state_dict(), network.config, tmp_path / "draft", {}, target=record)
    (error,) = findings(examine(tmp_path / "draft", decoder=decoder_of(network)))
    assert "none would begin with the target's token" in error.text


def test_nothing_was_drafted(examine: Callable[..., Report]) -> None:
    (error,) = findings(examine(trial=replace(TRIAL, prompts=PROMPTS[:1], max_new_tokens=1)))
    assert "nothing was drafted" in error.text


def test_a_draft_that_cannot_be_read(draft: Taught, examine: Callable[..., Report], tmp_path: Path) -> None:
    (error,) = findings(examine(rewritten(draft, tmp_path / "draft", lm_head_rank=25)))
    assert "has shape [24, 64], its config asks for [25, 64]" in error.text
    (error,) = findings(examine(tmp_path / "nowhere"))
    assert "there is no directory" in error.text


def with_target(draft: Taught, path: Path, **fields: Any) -> Path:
    """The taught draft, its record of the target changed; `fields` None: without one."""
    own = json.loads((draft.path / "config.json").read_text())["slimtier"]
    return rewritten(draft, path, slimtier={**own, "target": {**own["target"], **fields}})


def tokenizer(size: int = 67, template: str | None = "{{ messages }}") -> Tokenizer:
    return Tokenizer(small_tokenizer(size).backend_tokenizer, {}, (), template)


def test_the_same_target(draft: Taught, examine: Callable[..., Report], tmp_path: Path) -> None:
    record = TargetRecord.of(draft.target.info, tokenizer()).to_dict()
    report = examine(with_target(draft, tmp_path / "draft", **record), tokenizer=tokenizer(), trial=SHORT)
    assert Finding("target", "ok", "made for tiny, whose layers, tokens and chat template are these") in report.findings


@pytest.mark.parametrize(
    ("fields", "state", "said"),
    [
        ({"num_layers": 9}, "error", "with another layers: 9, not 4"),
        ({"vocab_sha256": "ab"}, "error", "with another tokens"),
        ({"chat_template_sha256": "ab"}, "note", "with another chat template"),
    ],
)
def test_another_target(
    draft: Taught, examine: Callable[..., Report], tmp_path: Path, fields: dict[str, Any], state: str, said: str
) -> None:
    record = TargetRecord.of(draft.target.info, tokenizer()).to_dict() | fields
    report = examine(with_target(draft, tmp_path / "draft", **record), tokenizer=tokenizer(), trial=SHORT)
    assert [said in one.text for one in findings(report, state) if one.about == "target"] == [True]


def test_a_draft_of_another_program(draft: Taught, examine: Callable[..., Report], tmp_path: Path) -> None:
    path = rewritten(draft, tmp_path / "draft", slimtier=None)
    config = json.loads((path / "config.json").read_text())
    del config["slimtier"]
    (path / "config.json").write_text(json.dumps(config | {"colour": "red"}))
    (path / "provenance.json").unlink()
    report = examine(path, trial=SHORT)
    assert report.healthy
    notes = [finding.text for finding in findings(report, "note")]
    assert notes == [
        "config.json: colour is not known and was not used",
        "the draft does not record its target's tokens: only their number is known",
    ]
    assert "without hashes" in report.findings[0].text


def test_weights_that_are_not_finite(draft: Taught, examine: Callable[..., Report], tmp_path: Path) -> None:
    tensors = load_file(draft.path / "model.safetensors")
    tensors["norm.weight"][3] = float("nan")
    config = json.loads((draft.path / "config.json").read_text())
    write_checkpoint(tmp_path / "draft", config, tensors, {})
    assert "norm.weight has values that are not finite" in findings(examine(tmp_path / "draft", trial=SHORT))[0].text


def test_suspects_that_cannot_be() -> None:
    """No layer that the target has not, no rope that is the draft's own."""
    config = EagleConfig(64, 48, 1, 4, 2, 8, 64, (0, 1, 3), 1e-5, RopeConfig(), HeadConfig("full", 96))
    names = [one.name for one in variants(config, 4, 10000.0)]
    assert names == [
        "norm_before_residual = true",
        "norm_output = true",
        "the token of the features' own position, not the one after it",
        "the features of one position before",
    ]
    assert len(variants(replace(config, capture=(1, 2, 3)), 5, 5e5)) == 7


def test_a_variant_shares_the_weights(draft: Taught) -> None:
    network = draft.network
    for one in variants(network.config, 4, 5e5):
        changed = one.network(network)
        assert changed.fc.weight is network.fc.weight
        assert changed.config == one.config
        assert all(layer.config == one.config for layer in changed.layers)
    assert network.config.norms == NormConfig()
    assert torch.equal(network.cos, make_network(draft.target).cos)


@pytest.mark.parametrize(
    ("gains", "losses", "wanted"), [(0, 0, 1.0), (1, 0, 1.0), (5, 0, 2 / 32), (0, 5, 2 / 32), (8, 2, 112 / 1024)]
)
def test_chance(gains: int, losses: int, wanted: float) -> None:
    assert chance(gains, losses) == pytest.approx(wanted)
    assert chance(3000, 2000) < 1e-9
