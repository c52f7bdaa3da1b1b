"""Text to token ids and back, for whatever kind of model files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimtier.errors import InputError, ModelFileError
from slimtier.models.aliases import cache_dir
from slimtier.models.end_tokens import directory_end_ids, read_json, spelt_end_ids
from slimtier.models.gguf_header import GgufHeader, read_header
from slimtier.models.gguf_tokenizer import gguf_tokenizer, save_beside
from slimtier.models.resolve import ModelFiles

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")
_GGUF_NAMES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


@dataclass(frozen=True)
class Tokenizer:
    """A model's tokenizer over the `tokenizers` library.

    `special_tokens` maps bos_token, eos_token, ... to their spelling; `eos_token_ids` end an answer: the tokenizer's
    own, the generation config's and those of an end of turn.
    """

    backend: Backend = field(repr=False)
    special_tokens: Mapping[str, str]
    eos_token_ids: tuple[int, ...]
    chat_template: str | None = field(repr=False)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; `add_special_tokens` puts BOS before it where the model wants one."""
        return list(self.backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`; ids outside the vocabulary are nothing, broken UTF-8 becomes U+FFFD."""
        return str(self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def render_chat(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        """The model's own text form of a conversation of {"role", "content"} messages.

        Raises InputError when the model has no chat template or its template refuses the messages.
        """
        if self.chat_template is None:
            raise InputError("this model has no chat template (a base model?); pass a plain prompt instead of messages")
        from slimtier.models.chat_template import render

        return render(self.chat_template, messages, self.special_tokens, add_generation_prompt)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation, ready for an answer; a template writes BOS itself, so none is added."""
        return self.encode(self.render_chat(messages), add_special_tokens=False)

    @property
    def has_chat_template(self) -> bool:
        return self.chat_template is not None

    @property
    def bos_token_id(self) -> int | None:
        token = self.special_tokens.get("bos_token")
        return None if token is None else self.backend.token_to_id(token)

    @cached_property
    def vocab_size(self) -> int:
        """Number of tokens the tokenizer knows (a model may have more rows, as padding)."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a control token, which `decode` leaves out."""
        return token_id in self._special_ids

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        added = self.backend.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in added.items() if token.special)


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """The tokenizer of `files`. A GGUF's is built once and kept in the cache directory.

    Raises ModelFileError when the files have none or a damaged one, UnsupportedError for an unknown kind in a GGUF.
    """
    if files.kind == "gguf":
        return _from_gguf(read_header(files.path))
    return _from_directory(files.path)


def _from_gguf(header: GgufHeader) -> Tokenizer:
    backend = gguf_tokenizer(header)
    special = {}
    for name, key in _GGUF_NAMES.items():
        token_id = header.metadata.get(f"tokenizer.ggml.{key}_token_id")
        token = None if token_id is None else backend.id_to_token(token_id)
        if token is not None:
            special[name] = token
    template = header.metadata.get("tokenizer.chat_template")
    return Tokenizer(backend, special, spelt_end_ids(header.metadata, backend.token_to_id), template)


def _from_directory(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer as Backend

    config = read_json(path / "tokenizer_config.json")
    source = path / "tokenizer.json"
    if source.is_file():
        try:
            backend = Backend.from_file(str(source))
        except Exception as error:  # tokenizers raises Exception itself
            raise ModelFileError(f"{source} is damaged ({error}); fetch it again") from error
        backend.no_truncation()
        backend.no_padding()
    else:
        backend = _converted(path)
    special = {name: _spelling(config.get(name)) for name in _SPECIAL_NAMES}
    known = {name: token for name, token in special.items() if token is not None}
    declared = [backend.token_to_id(known["eos_token"])] if "eos_token" in known else []
    ends = [*directory_end_ids(path), *(token_id for token_id in declared if token_id is not None)]
    return Tokenizer(backend, known, tuple(dict.fromkeys(ends)), _template(path, config))


def _spelling(token: Any) -> str | None:
    """A special token in tokenizer_config.json is a string or an object with its content."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _template(path: Path, config: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, else the config's own: a string, or named ones of which `default` is taken."""
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {entry.get("name"): entry.get("template") for entry in template}.get("default")
    return template if isinstance(template, str) else None


def _converted(path: Path) -> Backend:
    """A slow tokenizer's files (tokenizer.model, vocab.json + merges.txt), converted by transformers and kept."""
    from tokenizers import Tokenizer as Backend

    names = ("tokenizer.model", "vocab.json", "merges.txt", "tokenizer_config.json", "config.json")
    parts = [file for name in names if (file := path / name).is_file()]
    digest = hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()[:32]
    kept = cache_dir() / "tokenizers" / f"{digest}.json"
    if kept.is_file():
        return Backend.from_file(str(kept))
    try:
        from transformers import AutoTokenizer

        backend: Backend = AutoTokenizer.from_pretrained(str(path), local_files_only=True).backend_tokenizer
    except Exception as error:  # whatever a converter meets in foreign files
        cause = " ".join(str(error).split())[:200]
        raise ModelFileError(
            f"{path} has no tokenizer.json and transformers cannot make one ({cause}); add the model's tokenizer.json"
        ) from error
    save_beside(backend, kept)
    return backend
