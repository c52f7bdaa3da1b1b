"""What `slimtier doctor` found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["ok", "note", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: a note is worth knowing, an error makes the draft worse than it is."""

    about: str
    state: State
    text: str


@dataclass(frozen=True, slots=True)
class Position:
    """Of the `rounds` whose draft had a token at this position: in how many it and all before it were the target's,
    in decoding and by the network teacher-forced at the same places. `everywhere`: the share of all places."""

    rounds: int
    decoded: int
    forced: int
    everywhere: float


@dataclass(frozen=True, slots=True)
class Report:
    """All findings; `positions`, the draft's first, second, … token, are () when nothing was decoded."""

    draft: str
    model: str
    findings: tuple[Finding, ...]
    positions: tuple[Position, ...] = ()

    @property
    def healthy(self) -> bool:
        return all(finding.state != "error" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "healthy": self.healthy}
