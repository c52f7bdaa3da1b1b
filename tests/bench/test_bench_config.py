"""What a benchmark is told: systems by their words, settings from a file and over it."""

from __future__ import annotations

from pathlib import Path

import pytest

from slimtier.bench.config import QUICK, Settings, read_config
from slimtier.bench.systems import parse_system, read_system
from slimtier.errors import ConfigError


def test_a_system_from_a_command_line() -> None:
    plain = parse_system("slimtier:drafter=none,precision=q8")
    assert (plain.name, plain.type) == ("slimtier none q8", "slimtier")
    assert plain.loading() == {"precision": "q8", "runtime": "auto"}
    answering = {"drafter": "none", "verifier": "lossless", "num_speculative_tokens": 0, "tiers": "", "route": ""}
    assert plain.answering() == {**answering, "settings": {}}
    skipping = parse_system("slimtier:drafter=layer_skip,skip_layers=[5,16],num_speculative_tokens=3")
    assert skipping.settings == {"skip_layers": [5, 16]}
    assert skipping.name == "slimtier layer_skip skip_layers=[5, 16] num_speculative_tokens=3"
    assert parse_system("llama.cpp").answering() == {"method": "plain", "num_pred_tokens": 2}
    assert skipping.lossless is True
    assert parse_system("slimtier:verifier=lenient,lenience=0.3").lossless is False
    assert parse_system("transformers").lossless is None


def test_systems_that_load_alike_share_a_process() -> None:
    words = ["slimtier:precision=q8,drafter=none", "slimtier:precision=q8", "slimtier:precision=q4", "vllm"]
    first, second, third, other = (parse_system(text).process() for text in words)
    assert first == second
    assert len({first, third, other}) == 3
    assert parse_system("vllm:method=ngram").process() != other  # a server's speculation is fixed when it starts


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lama.cpp", "unknown system 'lama.cpp': did you mean 'llama.cpp'"),
        ("slimtier:draftr=none", "unknown setting 'draftr'"),
        ("slimtier:drafter=nonne", "unknown drafter 'nonne': did you mean 'none'"),
        ("slimtier:drafter=ngram,skip_layers=3", "not used by drafter ngram"),
        ("slimtier:precision=q5", "unknown precision 'q5'"),
        ("slimtier:drafter", "'drafter' is not OPTION=VALUE"),
        ("transformers:methd=lookup", "did you mean 'method'"),
        ("transformers:method=lokup", "has no method 'lokup': choose one of plain, lookup"),
        ("transformers:num_assistant_tokens=many", "give a whole number"),
        ("llama.cpp:num_pred_tokens=-1", "give 0 or more"),
        ("slimtier:type=vllm", "before the colon"),
    ],
)
def test_a_system_that_cannot_be(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_system(text)


def test_a_file_with_the_command_line_over_it(tmp_path: Path) -> None:
    file = tmp_path / "bench.toml"
    file.write_text(
        'tasks = ["gsm8k"]\nitems = 5\nthreads = 1\n[python]\n"llama.cpp" = "/p/python"\n'
        '[[systems]]\nname = "ours"\ndrafter = "none"\n[[systems]]\ntype = "llama.cpp"\nmethod = "lookup"\n'
    )
    config = read_config(file, {"items": 7, "seed": 3})
    assert [system.name for system in config.systems] == ["ours", "llama.cpp lookup"]
    assert config.settings == Settings(tasks=("gsm8k",), items=7, threads=1, seed=3)
    assert config.python == {"llama.cpp": "/p/python"}
    assert config.to_dict()["systems"]["llama.cpp lookup"]["options"]["num_pred_tokens"] == 2
    quick = read_config(file, {}, quick=True).settings
    assert (quick.items, quick.max_new_tokens) == (5, QUICK["max_new_tokens"])  # what the file says stands


def test_places_are_not_part_of_a_result() -> None:
    config = read_config(None, {"tasks": ["qa=/home/me/mine.jsonl"], "data": "/home/me/eval"})
    assert "/home" not in str(config.to_dict())
    drafted = {"model": "/home/me/model.gguf", "systems": [{"drafter": "eagle3", "draft": str(Path.home())}]}
    told = read_config(None, drafted).to_dict()
    assert told["model"] == "model.gguf"
    assert str(Path.home()) not in str(told)
    assert config.to_dict()["tasks"] == ["qa=mine.jsonl"]


@pytest.mark.parametrize(
    ("over", "error", "words"),
    [
        ({"itms": 3}, ConfigError, "did you mean 'items'"),
        ({"tasks": ["gsm9k"]}, ConfigError, "unknown task 'gsm9k': did you mean 'gsm8k'"),
        ({"tasks": []}, ConfigError, "no task"),
        ({"systems": []}, ConfigError, "at least one"),
        ({"systems": [{"drafter": "none"}, {"drafter": "none"}]}, ConfigError, "two systems are called"),
        ({"python": {"lama": "x"}}, ConfigError, "unknown type of system"),
        ({"max_new_tokens": 0}, ConfigError, "give 1 or more"),
        ({"temperature": -1.0}, ConfigError, "temperature"),
        ({"temperature": 1.0, "systems": [{"type": "llama.cpp"}]}, ConfigError, "most probable token only"),
        ({"items": "three"}, ConfigError, "give a whole number"),
    ],
)
def test_settings_that_cannot_be(over: dict[str, object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        read_config(None, over)


def test_files_that_are_no_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the config .*none\.toml: No such file"):
        read_config(tmp_path / "none.toml", {})
    broken = tmp_path / "broken.toml"
    broken.write_text("items = [")
    with pytest.raises(ConfigError, match=r"cannot read the config .*broken\.toml: .+; give a TOML file"):
        read_config(broken, {})
    assert read_system({"type": "slimtier", "name": "mine"}).name == "mine"
