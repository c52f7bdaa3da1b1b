"""Is a draft what its config says, made for this target, and accepted in decoding as often as its network foresees?"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from slimtier.advise.acceptance import forced_lengths
from slimtier.advise.decoded import Text, captured, decode
from slimtier.advise.report import Finding, Position, Report
from slimtier.advise.suspects import SURE, Variant, chance, variants
from slimtier.checkpoint import PROVENANCE
from slimtier.drafters.eagle.load import DraftFiles, load_network, read_draft
from slimtier.drafters.eagle.open import open_drafter
from slimtier.drafters.eagle.target_record import TargetRecord
from slimtier.engine import Engine
from slimtier.errors import SlimtierError
from slimtier.loading import Loaded

PROMPTS = (
    "Explain in a few sentences why the sky is blue.",
    "Write a short story about a lighthouse keeper and a storm.",
    "List the steps to bake a simple loaf of bread.",
    "A train goes 60 km an hour for two and a half hours. How far does it go? Show how you get it.",
)
LEAST_GAP = 0.02  # tokens a draft: less is rounding, however sure
MOST_ODD = 0.2  # of the rounds may differ from what was foreseen, for it is worked out in other precisions
_FEW_ODD = 4
_FEW = 30  # places from which on it counts that nothing was ever right


@dataclass(frozen=True, slots=True)
class Trial:
    """How far a draft is decoded: `prompts` texts, messages or ids; tokens of an answer, of a draft."""

    prompts: Sequence[Any] = PROMPTS
    max_new_tokens: int = 64
    num_speculative_tokens: int = 5


def diagnose(
    path: Path | str,
    loaded: Loaded,
    *,
    trial: Trial | None = None,
    threads: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Examine the draft in the directory `path` beside its target. What is wrong is a finding, never raised."""
    info = loaded.target.info
    found: list[Finding] = []
    positions: tuple[Position, ...] = ()
    try:
        files = read_draft(path, info.num_layers)
        found += static_findings(files, loaded)
        with warnings.catch_warnings(action="ignore"):  # the notes, which are findings already
            drafter = open_drafter(path, loaded.target, loaded.tokenizer)
        trial = trial or Trial()
        engine = Engine(
            loaded.target,
            drafter,
            tokenizer=loaded.tokenizer,
            num_speculative_tokens=trial.num_speculative_tokens,
            threads=threads,
        )
        positions, more = dynamic_findings(files, engine, trial, progress)
        found += more
    except SlimtierError as error:
        found.append(Finding("draft", "error", str(error)))
    return Report(str(path), info.name, tuple(found), positions)


def static_findings(files: DraftFiles, loaded: Loaded) -> list[Finding]:
    """What can be said without running anything. `read_draft` has seen to it that the files are whole."""
    config, info = files.config, loaded.target.info
    marked = "as their hashes say" if (files.path / PROVENANCE).is_file() else "without hashes (of another program)"
    head = {
        "full": "full",
        "slim": f"slim, rank {config.head.rank}",
        "trimmed": f"trimmed, {config.head.size} tokens",
        "routed": f"routed, rank {config.head.rank}, {config.head.size} candidates",
    }[config.head.kind]
    norms = [name for name in ("before_residual", "before_fc", "fc", "output") if getattr(config.norms, name)]
    rope = f"rope {config.rope.type}, theta {config.rope.theta:g}"
    found = [
        Finding("files", "ok", f"layout {files.layout}, {len(files.tensors)} tensors, all accounted for, {marked}"),
        Finding("network", "ok", f"{config.num_layers} layer(s), norms {', '.join(norms) or 'as in EAGLE-3'}, {rope}"),
        Finding("layers", "ok", f"reads the outputs of {list(config.capture)} of {info.num_layers} layers"),
        Finding("head", "ok", f"{head}, over {config.head.vocab_size} tokens"),
        *(Finding("config", "note", note) for note in files.notes),
    ]
    broken = [name for name, tensor in files.tensors.items() if not bool(torch.isfinite(_dense(tensor)).all())]
    if broken:
        found.append(
            Finding("weights", "error", f"{broken[0]} has values that are not finite; train or fetch it again")
        )
    return found + _target_findings(files, loaded)


def _dense(tensor: Any) -> torch.Tensor:
    return torch.from_numpy(tensor.dense())


def _target_findings(files: DraftFiles, loaded: Loaded) -> list[Finding]:
    """The target that the draft records against the one it is used with."""
    recorded, here = files.target, TargetRecord.of(loaded.target.info, loaded.tokenizer)
    if recorded is None:
        return [Finding("target", "note", "the draft does not record its target's tokens: only their number is known")]
    found = []
    for name, what, state in (
        ("num_layers", "layers", "error"),
        ("vocab_sha256", "tokens", "error"),
        ("chat_template_sha256", "chat template", "note"),
    ):
        was, is_now = getattr(recorded, name), getattr(here, name)
        if was is None or is_now is None:
            found.append(Finding("target", "note", f"its {what} cannot be compared: one side does not have them"))
        elif was != is_now:
            values = f": {was}, not {is_now}" if name == "num_layers" else ""
            found.append(
                Finding("target", state, f"the draft was made for {recorded.name} with another {what}{values}")  # type: ignore[arg-type]
            )
    same = Finding("target", "ok", f"made for {recorded.name}, whose layers, tokens and chat template are these")
    return found or [same]


def dynamic_findings(
    files: DraftFiles, engine: Engine, trial: Trial, progress: Callable[[int, int], None]
) -> tuple[tuple[Position, ...], list[Finding]]:
    """Decode the trial's prompts, then hold what was accepted to what the network in torch foresees."""
    target, depth = engine.target, trial.num_speculative_tokens
    rope = getattr(getattr(target, "config", None), "rope", None)  # native's
    plain = Variant("its config", files.config)
    tried = [plain, *variants(files.config, target.info.num_layers, None if rope is None else rope.theta)]
    layers = sorted({layer for one in tried for layer in one.config.capture})
    total, done = len(trial.prompts) * (1 + len(tried)), 0
    head = target.weight("head").cpu() if files.head_source == "target" else None
    network = load_network(files, target.weight("embedding").cpu(), target.info.max_positions, head)
    networks = [one.network(network) for one in tried]
    seen = _Seen(depth, len(tried))
    for prompt in trial.prompts:
        chat = engine.tokenizer is not None and engine.tokenizer.has_chat_template and isinstance(prompt, str)
        text = decode(engine, [{"role": "user", "content": prompt}] if chat else prompt, trial.max_new_tokens)
        progress(done := done + 1, total)
        streams = captured(target, text.tokens, layers)
        first = max(text.num_prompt_tokens - 2, 0)
        for index, (one, its) in enumerate(zip(tried, networks, strict=True)):
            features = one.features(streams)
            seen.add(index, text, first, forced_lengths(its, text.tokens, features, depth, first, one.late))
            progress(done := done + 1, total)
    return seen.positions(), seen.findings(tried)


class _Seen:
    """Accepted lengths of drafts, decoded and foreseen by each variant (0: as the config says)."""

    def __init__(self, depth: int, num_variants: int) -> None:
        self.depth = depth
        self.everywhere: list[list[int]] = [[] for _ in range(num_variants)]  # at every place of the answers
        self.known: list[int] = []  # how many tokens of the text come after each of these places, `depth` at most
        self.rounds: list[list[tuple[int, int, int]]] = [[] for _ in range(num_variants)]  # known, decoded, foreseen

    def add(self, variant: int, text: Text, first: int, lengths: Sequence[int]) -> None:
        self.everywhere[variant] += lengths
        if not variant:
            self.known += [min(self.depth, after) for after in reversed(range(len(lengths)))]
        for one in text.rounds:
            slot = one.start - 2 - first
            if slot >= 0 and one.known:
                self.rounds[variant].append((one.known, one.accepted, min(lengths[slot], one.known)))

    def positions(self) -> tuple[Position, ...]:
        found = []
        for place in range(self.depth):
            rounds = [(decoded > place, forced > place) for known, decoded, forced in self.rounds[0] if known > place]
            lengths = zip(self.everywhere[0], self.known, strict=True)
            shares = [length > place for length, known in lengths if known > place]
            decoded, forced = (sum(pair[side] for pair in rounds) for side in (0, 1))
            found.append(Position(len(rounds), decoded, forced, sum(shares) / max(len(shares), 1)))
        return tuple(found)

    def findings(self, tried: Sequence[Variant]) -> list[Finding]:
        found = [self._misread(tried), self._gap(tried), self._idle()]
        return [finding for finding in found if finding is not None]

    def _misread(self, tried: Sequence[Variant]) -> Finding | None:
        """Whether the network itself foresees more when it is read otherwise: then the config is wrong."""
        plain, best, gain = self.everywhere[0], None, 0.0
        for index in range(1, len(tried)):
            pairs = list(zip(self.everywhere[index], plain, strict=True))
            gains, losses = (sum(sign * (one - other) > 0 for one, other in pairs) for sign in (1, -1))
            more = sum(one - other for one, other in pairs) / max(len(pairs), 1)
            if chance(gains, losses) < SURE / len(tried) and more > max(gain, LEAST_GAP):
                best, gain = index, more
        if best is None:
            return None
        was, would = (sum(self.everywhere[index]) / max(len(plain), 1) for index in (0, best))
        return Finding(
            "config",
            "error",
            f"with {tried[best].name} the network foresees {would:.2f} tokens a draft, as its config says {was:.2f}: "
            "the config is wrong there, or the draft was made for another target",
        )

    def _gap(self, tried: Sequence[Variant]) -> Finding:
        """Whether decoding accepts as many as the network foresees at the same places."""
        rounds = self.rounds[0]
        gains, losses = (sum(sign * (one[1] - one[2]) > 0 for one in rounds) for sign in (1, -1))
        decoded, forced = (sum(one[side] for one in rounds) / max(len(rounds), 1) for side in (1, 2))
        text = f"{decoded:.2f} tokens a draft accepted in decoding, {forced:.2f} foreseen ({len(rounds)} drafts)"
        if not rounds:
            return Finding("acceptance", "error", "nothing was drafted: give longer prompts, or more tokens")
        misses = [sum(one[1] != one[2] for one in self.rounds[index]) for index in range(len(tried))]
        less = chance(gains, losses) < SURE and abs(decoded - forced) > LEAST_GAP
        if not less and misses[0] <= max(MOST_ODD * len(rounds), _FEW_ODD):
            return Finding("acceptance", "ok", text)
        nearest = min(range(1, len(tried)), key=lambda index: misses[index])
        if misses[nearest] > misses[0] / 2:
            return Finding(
                "acceptance", "error", f"{text}: decoding runs another network, and no usual cause explains it"
            )
        return Finding("acceptance", "error", f"{text}: decoding behaves as if it read {tried[nearest].name}")

    def _idle(self) -> Finding | None:
        places = self.everywhere[0]
        if len(places) < _FEW or any(places):
            return None
        text = f"of {len(places)} drafts none would begin with the target's token: it was not made for this target"
        return Finding("acceptance", "error", text)
