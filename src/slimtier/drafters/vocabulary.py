"""Whether two models' token ids mean the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from slimtier.errors import VocabularyError

if TYPE_CHECKING:
    from slimtier.models.base import TargetInfo


def check_vocabulary(
    draft: TargetInfo,
    target: TargetInfo,
    draft_tokens: Mapping[int, str] | None = None,
    target_tokens: Mapping[int, str] | None = None,
) -> None:
    """Raises VocabularyError unless `draft` may draft for `target`.

    `draft_tokens` and `target_tokens` map token id to token, as the two tokenizers have them; an id that both name
    must be the same token, and ids that only one names (padding, added tokens) are left to verification. Without both
    maps all that can be compared is the number of tokens, which then has to be equal.
    """
    if draft_tokens is None or target_tokens is None:
        if draft.vocab_size != target.vocab_size:
            raise VocabularyError(
                f"{draft.name} has {draft.vocab_size} tokens and {target.name} {target.vocab_size}: "
                "use a draft model of the same family, or give both tokenizers so that padding can be told apart"
            )
        return
    shared = sorted(draft_tokens.keys() & target_tokens.keys())
    if not shared:
        raise VocabularyError(
            f"{draft.name} and {target.name} have no token id in common: use a draft model of the same family"
        )
    for token in shared:
        if draft_tokens[token] != target_tokens[token]:
            raise VocabularyError(
                f"token {token} is {draft_tokens[token]!r} for {draft.name} and {target_tokens[token]!r} for "
                f"{target.name}: use a draft model of the same family"
            )
