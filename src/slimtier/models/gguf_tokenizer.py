"""A `tokenizers` tokenizer from a GGUF file's metadata, and its copy in the cache.

Two vocabularies occur: byte-level BPE (`gpt2`: SmolLM, Llama 3, Qwen, Mistral Nemo) with its merges in the file, and
SentencePiece BPE (`llama`: Llama 2, Mistral, Gemma) with a score for each token, from which the merges follow.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from slimtier.errors import ModelFileError, UnsupportedError
from slimtier.models.aliases import cache_dir
from slimtier.models.gguf_header import GgufHeader

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # llama.cpp's token types
_BUILD = 1  # part of the cache key: raise it whenever this file builds something else
_SPACE = "\u2581"

# How text is cut before merging, by tokenizer.ggml.pre (each model's own tokenizer.json has it so).
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS = {
    "gpt-2": "",
    "smollm": "",
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _TEKKEN,
}
_BEGINS_WITH_BOS = (_LLAMA3, _TEKKEN)  # unless the file says otherwise, as llama.cpp has it


def gguf_tokenizer(header: GgufHeader) -> Backend:
    """The tokenizer of the file: from the cache, or built (seconds) and put there.

    Raises UnsupportedError for a kind of vocabulary that is not known, ModelFileError for an incomplete one.
    """
    from tokenizers import Tokenizer as Backend

    path = cache_dir() / "tokenizers" / f"{_identity(header)}.json"
    if path.is_file():
        return Backend.from_file(str(path))
    backend = build(header)
    save_beside(backend, path)
    return backend


def save_beside(backend: Backend, path: Path) -> None:
    """Write `backend` to `path` under a passing name first. A cache that cannot be written is done without."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, passing = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError:
        return
    os.close(handle)
    try:
        Path(passing).write_text(backend.to_str(), encoding="utf-8")
        os.replace(passing, path)
    except OSError:
        Path(passing).unlink(missing_ok=True)


def _identity(header: GgufHeader) -> str:
    """A hash of everything before the first tensor: the metadata, vocabulary included, and the tensor table."""
    end = min((entry.start for entry in header.tensors.values()), default=len(header.data))
    digest = hashlib.sha256(memoryview(header.data)[:end])
    digest.update(str(_BUILD).encode())
    return digest.hexdigest()[:32]


def build(header: GgufHeader) -> Backend:
    """Build the tokenizer of the file from its metadata."""
    kind = header.metadata.get("tokenizer.ggml.model")
    tokens = header.strings("tokenizer.ggml.tokens")
    if not tokens:
        raise ModelFileError(f"{header.path} has no vocabulary (tokenizer.ggml.tokens); fetch or convert it again")
    if kind == "gpt2":
        backend = _byte_level(header, tokens)
    elif kind == "llama":
        backend = _sentencepiece(header, tokens)
    else:
        raise UnsupportedError(
            f"{header.path}: no tokenizer for a vocabulary of kind {kind!r} (known: gpt2, llama); "
            "name a directory that has tokenizer.json"
        )
    _add_whole_tokens(header, tokens, backend)
    _begin_with_bos(header, tokens, backend)
    return backend


def _byte_level(header: GgufHeader, tokens: list[str]) -> Backend:
    from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    name = header.metadata.get("tokenizer.ggml.pre")
    split = _SPLITS.get(str(name))
    if split is None:
        raise UnsupportedError(
            f"{header.path}: no rule for tokenizer.ggml.pre {name!r} (known: {', '.join(_SPLITS)}); "
            "name a directory that has tokenizer.json"
        )
    pairs = [tuple(merge.split(" ")) for merge in header.strings("tokenizer.ggml.merges")]
    merges = [(pair[0], pair[1]) for pair in pairs if len(pair) == 2]
    vocab = {token: index for index, token in enumerate(tokens)}
    try:
        # a piece that is a token as it stands is not merged step by step in these two
        backend = Backend(models.BPE(vocab=vocab, merges=merges, ignore_merges=split in _BEGINS_WITH_BOS))
    except Exception as error:  # tokenizers raises Exception itself
        raise ModelFileError(f"{header.path}: merges do not fit the vocabulary ({error}); fetch it again") from error
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not split)
    if name == "smollm":
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    elif split:
        cut = pre_tokenizers.Split(Regex(split), behavior="isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([cut, byte_level])
    else:
        backend.pre_tokenizer = byte_level
    if split == _QWEN2:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(header: GgufHeader, tokens: list[str]) -> Backend:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers

    vocab = {token: index for index, token in enumerate(tokens)}
    unknown = header.metadata.get("tokenizer.ggml.unknown_token_id")
    backend = Backend(
        models.BPE(
            vocab=vocab,
            merges=_merges(header, tokens, vocab),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", _SPACE)
    decoding = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if header.metadata.get("tokenizer.ggml.add_space_prefix", True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        decoding.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = spaces
    backend.decoder = decoders.Sequence(decoding)
    return backend


def _merges(header: GgufHeader, tokens: list[str], vocab: dict[str, int]) -> list[tuple[str, str]]:
    """All ways to make a normal token of two tokens, the best-scored token first.

    SentencePiece joins the neighbours whose union scores best; BPE joins the pair that comes first in a list.
    """
    scores = header.metadata.get("tokenizer.ggml.scores")
    types = header.metadata.get("tokenizer.ggml.token_type")
    if scores is None or types is None or not len(scores) == len(types) == len(tokens):
        raise ModelFileError(f"{header.path}: its vocabulary lacks scores or token types; fetch or convert it again")
    normal = [
        (-score, token)
        for score, kind, token in zip(scores.tolist(), types.tolist(), tokens, strict=True)
        if kind == _NORMAL and len(token) > 1
    ]
    normal.sort(key=lambda item: item[0])  # stable: the lower id first
    return [
        (token[:cut], token[cut:])
        for _, token in normal
        for cut in range(len(token) - 1, 0, -1)
        if token[:cut] in vocab and token[cut:] in vocab
    ]


def _add_whole_tokens(header: GgufHeader, tokens: list[str], backend: Backend) -> None:
    """Control tokens (special) and user-defined tokens are found whole in the text, before anything else."""
    from tokenizers import AddedToken

    types = header.metadata.get("tokenizer.ggml.token_type", ())
    marked = [(token, kind) for token, kind in zip(tokens, types, strict=False) if token]
    backend.add_special_tokens([AddedToken(t, normalized=False, special=True) for t, k in marked if k == _CONTROL])
    backend.add_tokens([AddedToken(t, normalized=False, special=False) for t, k in marked if k == _USER_DEFINED])


def _begin_with_bos(header: GgufHeader, tokens: list[str], backend: Backend) -> None:
    """Begin every text with BOS where the model wants it. EOS is never appended: a prompt is there to be continued."""
    from tokenizers.processors import TemplateProcessing

    metadata = header.metadata
    split = _SPLITS.get(str(metadata.get("tokenizer.ggml.pre")))
    usual = metadata.get("tokenizer.ggml.model") == "llama" or split in _BEGINS_WITH_BOS
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    if bos is not None and metadata.get("tokenizer.ggml.add_bos_token", usual):
        backend.post_processor = TemplateProcessing(single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)])
