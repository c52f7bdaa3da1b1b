"""A tokenizer of bytes: ids 0-255 are bytes, 256 is the special end token. A chat is '<role>text' and so on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

END = 256
VOCAB = 257


class ByteTokenizer:
    eos_token_ids = (END,)

    def __init__(self, has_chat_template: bool = True) -> None:
        self.has_chat_template = has_chat_template

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return bytes(token for token in ids if token < 256).decode(errors="replace")

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        text = "".join(f"<{message['role']}>{message['content']}" for message in messages)
        return self.encode(text + "<assistant>")
