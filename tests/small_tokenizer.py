"""A tokenizer with a file: ids 0-2 are special, 3-28 are letters, 29 is a space, then come pairs of letters."""

from __future__ import annotations

import itertools
from string import ascii_lowercase
from typing import Any

import transformers
from tokenizers import Tokenizer, decoders, models

SPECIAL = ("<pad>", "<bos>", "<eos>")


def small_tokenizer(vocab_size: int = 67) -> Any:
    """As a transformers tokenizer; `save_pretrained` writes its files. Any text of lower-case letters and spaces."""
    single = [*SPECIAL, *ascii_lowercase, " "]
    pairs = list(itertools.islice(itertools.product("abcdefgh", "etaoinsr"), vocab_size - len(single)))
    words = [*single, *("".join(pair) for pair in pairs)]
    backend = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, pairs))
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(list(SPECIAL))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )
