"""The training config is read strictly."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from slimtier.errors import ConfigError
from slimtier.train.config import TrainConfig, config_of, read_config


def test_a_file_and_pairs_change_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text('[drafter]\nhead = "full"\n[unroll]\nphases = [[1, 0.8], [3, 0.2]]\n[optimisation]\nlr = 1\n')
    config = read_config(path, ["optimisation.lr=2e-3", "loss.kind=lk", "init.layer=29"])
    assert config.drafter.head == "full"
    assert config.unroll.phases == ((1, 0.8), (3, 0.2))
    assert config.optimisation.lr == 2e-3
    assert config.loss.kind == "lk"
    assert config.init.layer == "29"
    assert read_config(None) == TrainConfig()


def test_it_survives_being_stored() -> None:
    config = read_config(None, ["unroll.phases=[[1,1],[3,2]]", "drafter.head=trimmed", "drafter.size=8"])
    assert config_of(config.to_dict()) == config


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ("optimisation.lrr=1", "unknown setting .* 'lrr': did you mean 'lr'"),
        ("optimization.lr=1", "did you mean 'optimisation'"),
        ("lr=1", "is not TABLE.KEY=VALUE"),
        ("loss.kind=kld", "choose one of kl, ce, tv, lk"),
        ("optimisation.steps=1.5", "give a whole number"),
        ("optimisation.warmup=2", "optimisation.warmup is 2.0: give 0 to 1"),
        ("optimisation.batch_tokens=0", "give 1 or more"),
        ("unroll.phases=[[0,1]]", "give pairs of draft steps and share"),
        ("unroll.phases=[[1.5,1]]", "give pairs of draft steps and share"),
        ("unroll.phases=[]", "give pairs of draft steps and share"),
        ("drafter.head=trimmed", "needs drafter.size"),
        ("init.layer=last", "give token, random, or the number of a layer"),
    ],
)
def test_what_cannot_be_is_refused(pair: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_config(None, [pair])


@pytest.mark.parametrize("norm", ["norm_before_fc", "fc_norm"])
def test_contradictions_are_refused(norm: str) -> None:
    with pytest.raises(ConfigError, match="ridge is solved on features without a norm"):
        read_config(None, [f"drafter.{norm}=true"])
    with pytest.raises(ConfigError, match="exclude each other"):
        read_config(None, ["drafter.norm_before_fc=true", "drafter.fc_norm=true"])
    with pytest.raises(ConfigError, match=r"init.layer token is solved together with fc"):
        read_config(None, [f"drafter.{norm}=true", "init.fc=random"])
    assert read_config(None, [f"drafter.{norm}=true", "init.fc=random", "init.layer=random"])


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the config .*none.toml"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[loss\n")
    with pytest.raises(ConfigError, match=r"cannot read the config .*bad.toml"):
        read_config(tmp_path / "bad.toml")


def test_every_key_has_a_table() -> None:
    assert [part.name for part in fields(TrainConfig)] == [
        "drafter",
        "init",
        "optimisation",
        "unroll",
        "loss",
        "run",
        "answers",
    ]
