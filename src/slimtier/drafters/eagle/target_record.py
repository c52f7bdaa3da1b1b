"""What a draft records of the model it was made for, to be compared with the model it is used with."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slimtier.models.base import TargetInfo
    from slimtier.models.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TargetRecord:
    """A target. The hashes (sha256) are of its tokens by id and of its chat template; None: it had none at hand."""

    name: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    max_positions: int
    vocab_sha256: str | None = None
    chat_template_sha256: str | None = None

    @classmethod
    def of(cls, info: TargetInfo, tokenizer: Tokenizer | None = None) -> TargetRecord:
        """That of a loaded target. A path is cut to its last part: where a file lies is no property of a draft."""
        name = Path(info.name).name if Path(info.name).is_absolute() else info.name
        template = None if tokenizer is None else tokenizer.chat_template
        return cls(
            name,
            info.num_layers,
            info.hidden_size,
            info.vocab_size,
            info.max_positions,
            None if tokenizer is None else vocabulary_hash(tokenizer),
            None if template is None else hashlib.sha256(template.encode()).hexdigest(),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def vocabulary_hash(tokenizer: Tokenizer) -> str:
    """sha256 of all tokens in the order of their ids, those added to the vocabulary included."""
    tokens = tokenizer.backend.get_vocab(with_added_tokens=True)
    lines = (f"{token_id} {token!r}\n" for token, token_id in sorted(tokens.items(), key=lambda item: item[1]))
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogatepass")).hexdigest()
