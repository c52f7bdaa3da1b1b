"""Tokenizers from GGUF files and from transformers directories."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors

from slimtier.errors import InputError, ModelFileError, UnsupportedError
from slimtier.models.gguf_header import read_header
from slimtier.models.gguf_tokenizer import build
from slimtier.models.resolve import ModelFiles, resolve
from slimtier.models.tokenizer import Tokenizer, load_tokenizer
from tests.models.model_files import Recipe, write_gguf

TEXTS = [
    "Hello world",
    "  two leading,   three inside, two trailing  ",
    "tabs\t\there\n\n\nnew\r\nlines",
    "12345 67 3.14 x1y2   8",
    "def f(a, b):\n    return {'k': [a + b]}  # ok\n\n\tx = f(1, 2)\n",
    "naïve café 日本語テキスト 한국어 العربية हिन्दी ∑∫√",
    "😀👩‍👩‍👧‍👦 emoji 🏳️‍🌈 🤷🏽‍♂️",
    "I'll we've DON'T 's",
    "\x00\x01\x7f\u00a0\u2003",
    "",
    " ",
    "\n",
]
CHAT = [{"role": "user", "content": "Why is the sky blue?"}]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


@pytest.fixture(scope="session")
def tokenizer(smollm2: ModelFiles) -> Tokenizer:
    return load_tokenizer(smollm2)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLIMTIER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(st.characters(codec="utf-8", max_codepoint=0x1FFFF, exclude_categories=["Cc"]), max_size=60))
def test_round_trip_of_anything(tokenizer: Tokenizer, text: str) -> None:
    """Of text: SmolLM2 has no token for some control characters, nor for the first bytes of planes without text."""
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


def test_what_smollm2_says_of_itself(tokenizer: Tokenizer) -> None:
    assert (tokenizer.eos_token_ids, tokenizer.bos_token_id, tokenizer.vocab_size) == ((2,), 1, 49152)
    assert tokenizer.is_special(2)
    assert not tokenizer.is_special(2683)
    assert tokenizer.encode("user") == [4093]  # no BOS: the model was not trained with one
    assert tokenizer.encode("<|im_end|>") == [2]
    assert tokenizer.decode([4093, 2, 999_999]) == "user"


def test_digits_stand_alone(tokenizer: Tokenizer) -> None:
    """The model's own tokenizer cuts before each digit, so the spaces before a number are one token."""
    tokens = [tokenizer.backend.id_to_token(i) for i in tokenizer.encode("  12")]
    assert tokens == ["ĠĠ", "1", "2"]


def test_chat(tokenizer: Tokenizer) -> None:
    assert tokenizer.has_chat_template
    text = tokenizer.render_chat(CHAT)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n")
    assert text.startswith(tokenizer.render_chat(CHAT, add_generation_prompt=False))
    ids = tokenizer.encode_chat(CHAT)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert ids[:2] == [1, 9690]  # one <|im_start|>, then `system`


@pytest.mark.parametrize("messages", [[], ["hi"], [{"role": "user"}], [{"content": "x"}], [{"role": 3, "content": ""}]])
def test_malformed_messages(tokenizer: Tokenizer, messages: list[Any]) -> None:
    with pytest.raises(InputError):
        tokenizer.render_chat(messages)


def test_a_later_load_is_quick_and_does_without_transformers(smollm2: ModelFiles, tokenizer: Tokenizer) -> None:
    code = (
        "import sys, time; from slimtier.models.resolve import resolve; from slimtier.models.tokenizer import "
        "load_tokenizer; begun = time.perf_counter(); t = load_tokenizer(resolve('smollm2-135m')); "
        "print(time.perf_counter() - begun, 'transformers' in sys.modules, 'torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, transformers, torch = run.stdout.split()
    assert (transformers, torch) == ("False", "False")
    assert float(seconds) < 2.0  # 0.15 s on an idle machine


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_like_transformers_except_before_digits(smollm2: ModelFiles, tokenizer: Tokenizer) -> None:
    """transformers leaves the cut before digits out when it reads this file; all else is the same."""
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(str(smollm2.path.parent), gguf_file=smollm2.path.name)
    for text in TEXTS:
        if "   8" not in text:
            assert tokenizer.encode(text) == reference(text)["input_ids"], text
    assert tokenizer.render_chat(CHAT) == reference.apply_chat_template(
        CHAT, tokenize=False, add_generation_prompt=True
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_gemma3(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    files = resolve("gemma3-270m")
    tokenizer = load_tokenizer(files)
    assert (tokenizer.eos_token_ids, tokenizer.bos_token_id, tokenizer.vocab_size) == ((1, 106), 2, 262144)
    reference = AutoTokenizer.from_pretrained(str(files.path.parent), gguf_file=files.path.name)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == reference(text)["input_ids"], text
        assert ids[0] == 2
        assert tokenizer.decode(ids) == text
    with pytest.raises(InputError, match="plain prompt"):
        tokenizer.render_chat(CHAT)


def sentencepiece_meta(add_space_prefix: bool | None = None) -> dict[str, Any]:
    pieces = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL), ("<think>", 0.0, USER_DEFINED)]
    pieces += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    ranked = ["ab", "bc", "\u2581a", "abc", "a", "b", "c", "\u2581"]
    pieces += [(piece, -float(rank), NORMAL) for rank, piece in reversed(list(enumerate(ranked)))]
    pieces += [("ca", 0.0, UNUSED)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [piece for piece, _, _ in pieces],
        "tokenizer.ggml.scores": [score for _, score, _ in pieces],
        "tokenizer.ggml.token_type": [kind for _, _, kind in pieces],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": add_space_prefix,
    }


def gguf_pieces(path: Path, meta: dict[str, Any], text: str) -> list[str]:
    write_gguf(path, Recipe(meta=meta))
    return build(read_header(path)).encode(text).tokens


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("abc", ["<s>", "\u2581", "abc"]),  # ab scores best, then abc; not \u2581a
        ("a a", ["<s>", "\u2581a", "\u2581a"]),
        ("bc", ["<s>", "\u2581", "bc"]),
        ("ca", ["<s>", "\u2581", "c", "a"]),  # an unused token is never made
        ("é", ["<s>", "\u2581", "<0xC3>", "<0xA9>"]),
        ("a<think>b", ["<s>", "\u2581a", "<think>", "\u2581", "b"]),
    ],
)
def test_sentencepiece(tmp_path: Path, text: str, pieces: list[str]) -> None:
    assert gguf_pieces(tmp_path / "m.gguf", sentencepiece_meta(), text) == pieces


def test_sentencepiece_without_a_space_before(tmp_path: Path) -> None:
    assert gguf_pieces(tmp_path / "m.gguf", sentencepiece_meta(add_space_prefix=False), "bc a") == [
        "<s>",
        "bc",
        "\u2581a",
    ]


def byte_level_meta(pre: str) -> dict[str, Any]:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<|begin|>", "<|eot_id|>", *alphabet, "Ġ1", "12", "123", "ll", "'ll"]
    merges = ["Ġ 1", "1 2", "12 3", "l l", "' ll"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL, CONTROL, *([NORMAL] * (len(tokens) - 2))],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 0,
    }


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["'ll", "Ġ1", "2", "3", "4"]),
        ("smollm", ["'ll", "Ġ", "1", "2", "3", "4"]),
        ("llama-bpe", ["<|begin|>", "'ll", "Ġ", "123", "4"]),
        ("qwen2", ["'ll", "Ġ", "1", "2", "3", "4"]),
        ("tekken", ["<|begin|>", "'ll", "Ġ", "1", "2", "3", "4"]),
    ],
)
def test_byte_level_cuts(tmp_path: Path, pre: str, pieces: list[str]) -> None:
    assert gguf_pieces(tmp_path / "m.gguf", byte_level_meta(pre), "'ll 1234") == pieces


def test_end_of_turn_of_a_gguf(tmp_path: Path, cache: Path) -> None:
    write_gguf(tmp_path / "m.gguf", Recipe(meta=byte_level_meta("gpt-2")))
    tokenizer = load_tokenizer(ModelFiles("m", "gguf", tmp_path / "m.gguf"))
    assert tokenizer.eos_token_ids == (2, 1)
    assert len(list((cache / "tokenizers").iterdir())) == 1
    again = load_tokenizer(ModelFiles("m", "gguf", tmp_path / "m.gguf"))
    assert again.encode("'ll 12") == tokenizer.encode("'ll 12")
    write_gguf(tmp_path / "m.gguf", Recipe(meta=byte_level_meta("smollm")))
    assert load_tokenizer(ModelFiles("m", "gguf", tmp_path / "m.gguf")).encode(" 1") != tokenizer.encode(" 1")


@pytest.mark.parametrize(
    ("meta", "error", "named"),
    [
        ({}, ModelFileError, "no vocabulary"),
        (byte_level_meta("bloom"), UnsupportedError, "bloom"),
        (byte_level_meta("gpt-2") | {"tokenizer.ggml.model": "t5"}, UnsupportedError, "t5"),
        (byte_level_meta("gpt-2") | {"tokenizer.ggml.merges": ["x nothing"]}, ModelFileError, "merges"),
        (sentencepiece_meta() | {"tokenizer.ggml.scores": None}, ModelFileError, "scores"),
    ],
)
def test_vocabularies_that_cannot_be_used(
    tmp_path: Path, cache: Path, meta: dict[str, Any], error: type[Exception], named: str
) -> None:
    write_gguf(tmp_path / "m.gguf", Recipe(meta=meta))
    with pytest.raises(error, match=named):
        load_tokenizer(ModelFiles("m", "gguf", tmp_path / "m.gguf"))
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, cache: Path) -> None:
    cache.write_text("a file where a directory should be")
    write_gguf(tmp_path / "m.gguf", Recipe(meta=byte_level_meta("gpt-2")))
    assert load_tokenizer(ModelFiles("m", "gguf", tmp_path / "m.gguf")).encode("1") != []


def write_directory(directory: Path, **config: Any) -> ModelFiles:
    """A directory with a byte-level tokenizer.json and the given tokenizer_config."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>", "<|im_end|>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    backend.enable_truncation(4)
    directory.mkdir(exist_ok=True)
    backend.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return ModelFiles("m", "safetensors", directory)


def test_directory(tmp_path: Path) -> None:
    files = write_directory(tmp_path, bos_token={"content": "<s>"}, eos_token="</s>", chat_template="{{ bos_token }}x")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [258, 257]}')
    tokenizer = load_tokenizer(files)
    assert tokenizer.bos_token_id == 256
    assert tokenizer.eos_token_ids == (258, 257)
    assert len(tokenizer.encode("longer than four")) == 17  # a stored truncation does not cut prompts
    assert tokenizer.encode("x", add_special_tokens=False) == tokenizer.encode("x")[1:]
    assert tokenizer.encode_chat(CHAT).count(256) == 1  # the template's own
    (tmp_path / "chat_template.jinja").write_text("from the file")
    assert load_tokenizer(files).render_chat(CHAT) == "from the file"


def test_named_templates(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    assert load_tokenizer(write_directory(tmp_path, chat_template=named)).render_chat(CHAT) == "yes"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[5].content.x }}",
        "{{ 1 / 0 }}",
        "{% if %}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}{{ ().__class__.__bases__[0].__subclasses__() }}",
    ],
)
def test_no_template_leaks_its_errors(tmp_path: Path, template: str) -> None:
    tokenizer = load_tokenizer(write_directory(tmp_path, chat_template=template))
    with pytest.raises(InputError, match="chat template refuses") as caught:
        tokenizer.render_chat(CHAT)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore")
def test_templates_have_what_transformers_gives_them(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    template = (
        "{% for message in messages %}\n    {% generation %}{{ message | tojson }}{% endgeneration %}\n"
        "    {% if loop.index > 1 %}{% break %}{% endif %}\n{% endfor %}{{ bos_token }}{{ strftime_now('%Y')[:2] }}"
        "{% set space = namespace(n=1) %}{{ space.n }}{% if add_generation_prompt %}go{% endif %}{{ tools is none }}"
    )
    files = write_directory(tmp_path, bos_token="<s>", chat_template=template)
    reference = PreTrainedTokenizerFast(tokenizer_file=str(files.path / "tokenizer.json"), bos_token="<s>")
    messages = [{"role": "user", "content": f"<é & {i}>"} for i in range(4)]
    wanted = reference.apply_chat_template(messages, chat_template=template, tokenize=False, add_generation_prompt=True)
    assert load_tokenizer(files).render_chat(messages) == wanted


def test_no_template(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no chat template.*plain prompt"):
        load_tokenizer(write_directory(tmp_path)).encode_chat(CHAT)


def test_damaged_and_missing_tokenizers(tmp_path: Path, cache: Path) -> None:
    files = write_directory(tmp_path / "m")
    (files.path / "tokenizer.json").write_text('{"version": ')
    with pytest.raises(ModelFileError, match=r"tokenizer\.json is damaged"):
        load_tokenizer(files)
    (files.path / "tokenizer.json").unlink()
    with pytest.raises(ModelFileError, match=r"add the model's tokenizer\.json"):
        load_tokenizer(files)


@pytest.mark.filterwarnings("ignore")
def test_a_slow_tokenizer_is_converted_once(tmp_path: Path, cache: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    (tmp_path / "vocab.json").write_text(
        json.dumps({token: i for i, token in enumerate([*alphabet, "<|endoftext|>", "ab"])})
    )
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"}'
    )
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    files = ModelFiles("m", "safetensors", tmp_path)
    tokenizer = load_tokenizer(files)
    assert tokenizer.encode("ab") == [257]
    assert tokenizer.eos_token_ids == (256,)
    begun = time.perf_counter()
    assert load_tokenizer(files).encode("ab") == [257]
    assert time.perf_counter() - begun < 1.0
    shutil.rmtree(cache)


def test_token_types_as_numpy(tmp_path: Path) -> None:
    """Types and scores come as arrays of numbers, whatever their width in the file."""
    header_meta = sentencepiece_meta()
    write_gguf(tmp_path / "m.gguf", Recipe(meta=header_meta))
    metadata = read_header(tmp_path / "m.gguf").metadata
    assert isinstance(metadata["tokenizer.ggml.scores"], np.ndarray)
    assert metadata["tokenizer.ggml.token_type"].tolist() == header_meta["tokenizer.ggml.token_type"]
