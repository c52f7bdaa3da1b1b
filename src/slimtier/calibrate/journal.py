"""The answers of a calibration as they come, in a file beside the result: a run goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slimtier.config import read_dataclass
from slimtier.errors import ConfigError, InputError
from slimtier.files import append_line, telling
from slimtier.jsonl import numbered_rows
from slimtier.types import Decider


@dataclass(frozen=True, slots=True)
class Answer:
    """One prompt's answer under one gate: its tokens, how many differ from the target's argmax, and the worst
    shortfall among them (see `Audit`); what it took. Speeds are of decoding only, None for what came in one block;
    two_tier_tokens_per_s: of the same prompt without a slim verifier."""

    tokens: int
    differing: int
    worst_shortfall: float
    decided_target: int
    decided_slim: int
    decided_drafter: int
    target_calls: int
    slim_calls: int
    tokens_per_s: float | None = None
    two_tier_tokens_per_s: float | None = None

    def decided(self, by: Decider) -> int:
        """How many of the tokens it chose."""
        return int(getattr(self, f"decided_{by}"))

    @property
    def speed_ratio(self) -> float | None:
        """Against two tiers, where both speeds are known."""
        if self.tokens_per_s is None or self.two_tier_tokens_per_s is None:
            return None
        return self.tokens_per_s / self.two_tier_tokens_per_s


def digest(value: Any) -> str:
    """A short name of what JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


class Journal:
    """Rows {run, gate, prompt, answer}: `run` names the conditions under which a row counts, `prompt` the token ids."""

    def __init__(self, path: Path, conditions: Mapping[str, Any]) -> None:
        """Reads the rows that are there. Raises InputError for a file that is none of ours."""
        self.path = path
        self.run = digest(conditions)
        self.answers: dict[tuple[str, str], Answer] = {}
        with telling(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_file():
                self._mend()
                self._read()

    def find(self, gate: Mapping[str, Any], prompt: Sequence[int]) -> Answer | None:
        """The answer that a run before has given."""
        return self.answers.get((digest(gate), digest(prompt)))

    def add(self, gate: Mapping[str, Any], prompt: Sequence[int], answer: Answer) -> None:
        """Keep an answer. Raises InputError when the disk does not take it."""
        key = digest(gate), digest(prompt)
        self.answers[key] = answer
        row = {"run": self.run, "gate": gate, "prompt": key[1], "answer": asdict(answer)}
        append_line(self.path, json.dumps(row))

    def _mend(self) -> None:
        """Cut off a last line that was not written whole."""
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            with self.path.open("rb+") as file:
                file.truncate(whole)

    def _read(self) -> None:
        for number, row in numbered_rows(self.path):
            try:
                run, key = row["run"], (digest(row["gate"]), row["prompt"])
                answer = read_dataclass(Answer, row["answer"], "an answer") if run == self.run else None
            except (KeyError, TypeError, ConfigError):
                raise InputError(
                    f"line {number} of {self.path} is no answer of a calibration: name another file, or remove this one"
                ) from None
            if answer is not None:
                self.answers[key] = answer
