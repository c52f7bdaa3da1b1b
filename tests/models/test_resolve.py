"""From what the user names to files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slimtier.errors import ModelFileError
from slimtier.models import resolve as resolving
from slimtier.models.resolve import ModelFiles, resolve

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty local hub cache, and no network."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def put_on_hub(hub: Path, name: str, *files: str) -> Path:
    repository = hub / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for file in files:
        (snapshot / file).write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    return snapshot


def directory(path: Path, *files: str) -> Path:
    path.mkdir()
    for file in files:
        (path / file).write_text("{}")
    return path


def test_alias(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resolving, "fetch", lambda alias: tmp_path / alias.file_name)
    files = resolve("smollm2-135m")
    assert files == ModelFiles("smollm2-135m", "gguf", tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.mark.parametrize(
    "files", [("config.json", "model.safetensors"), ("config.json", "model.safetensors.index.json", "a.safetensors")]
)
def test_directory_of_safetensors(tmp_path: Path, files: tuple[str, ...]) -> None:
    path = directory(tmp_path / "m", *files, "ignored.gguf")
    assert resolve(str(path)) == ModelFiles(str(path), "safetensors", path)


def test_gguf_file_and_its_directory(tmp_path: Path) -> None:
    path = directory(tmp_path / "m", "a.gguf")
    assert resolve(str(path)).path == path / "a.gguf"
    assert resolve(str(path / "a.gguf")) == ModelFiles(str(path / "a.gguf"), "gguf", path / "a.gguf")


def test_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    directory(tmp_path / "m", "a.gguf")
    assert resolve("~/m").path == tmp_path / "m" / "a.gguf"


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ((), "no weights"),
        (("config.json", "pytorch_model.bin"), r"only as \.bin"),
        (("config.json", "pytorch_model.bin.index.json"), r"only as \.bin"),
        (("model.safetensors",), r"no config\.json"),
        (("a.gguf", "b.gguf"), r"2 \.gguf files; name one, such as .*a\.gguf"),
    ],
)
def test_directories_that_are_no_model(tmp_path: Path, files: tuple[str, ...], named: str) -> None:
    path = directory(tmp_path / "m", *files)
    with pytest.raises(ModelFileError, match=named):
        resolve(str(path))


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/m", "m.gguf", "a/b.gguf", "~/none"])
def test_paths_that_are_not_there(name: str) -> None:
    with pytest.raises(ModelFileError, match=r"there is no .*check the path"):
        resolve(name)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_text("x")
    with pytest.raises(ModelFileError, match=r"is no \.gguf file"):
        resolve(str(tmp_path / "weights.bin"))


@pytest.mark.parametrize("name", ["", "  ", "gpt", "a/b/c", "what is this?"])
def test_anything_else_lists_what_can_be_named(name: str) -> None:
    with pytest.raises(ModelFileError, match=r"smollm2-135m, gemma3-270m.*\.gguf file.*hub id"):
        resolve(name)


@pytest.mark.parametrize("name", ["smollm2", "SmolLM2-135M", "smollm-135m"])
def test_a_near_alias_is_suggested(name: str) -> None:
    with pytest.raises(ModelFileError, match=r"did you mean smollm2-135m\?"):
        resolve(name)


def test_hub_id_in_the_local_cache(hub: Path) -> None:
    snapshot = put_on_hub(hub, "org/tiny", "config.json", "model.safetensors", "tokenizer.json")
    assert resolve("org/tiny") == ModelFiles("org/tiny", "safetensors", snapshot)


def test_hub_ids_that_are_no_model(hub: Path) -> None:
    with pytest.raises(ModelFileError, match=r"org/none is not in the local hub cache.*network.*smollm2-135m"):
        resolve("org/none")
    put_on_hub(hub, "org/pickles", "config.json", "pytorch_model.bin.index.json")
    with pytest.raises(ModelFileError, match=r"org/pickles has its weights only as \.bin"):
        resolve("org/pickles")


def test_what_is_asked_of_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Weights once, in safetensors; never pickles or the same weights in another framework's form."""
    import fnmatch

    import huggingface_hub

    asked: list[str] = []
    path = directory(tmp_path / "m", "config.json", "model.safetensors")

    def snapshot_download(name: str, allow_patterns: list[str]) -> str:
        asked.extend(allow_patterns)
        return str(path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert resolve("org/m").path == path

    def wanted(file: str) -> bool:
        return any(fnmatch.fnmatch(file, pattern) for pattern in asked)

    names = ("config.json", "model-00001-of-00002.safetensors", "tokenizer.model", "chat_template.jinja", "merges.txt")
    assert [name for name in names if not wanted(name)] == []
    assert not [name for name in ("pytorch_model.bin", "model.onnx", "tf_model.h5", "README.md") if wanted(name)]


@pytest.mark.parametrize(
    ("error", "named"),
    [
        ("GatedRepoError", r"is gated: accept its terms"),
        ("RepositoryNotFoundError", "the hub has no model org/m"),
        ("HfHubHTTPError", "cannot fetch org/m from the hub: 503 busy; try again"),
    ],
)
def test_what_the_hub_answers(monkeypatch: pytest.MonkeyPatch, error: str, named: str) -> None:
    import httpx2
    import huggingface_hub
    from huggingface_hub import errors

    response = httpx2.Response(503, request=httpx2.Request("GET", "https://hub.test"))
    raised = getattr(errors, error)("503 busy\nand more", response=response)

    def snapshot_download(*_: object, **__: object) -> str:
        raise raised

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(ModelFileError, match=named) as caught:
        resolve("org/m")
    assert "\n" not in str(caught.value)


def test_index_of_a_shard_elsewhere(tmp_path: Path) -> None:
    """A weight map may not lead out of its directory."""
    from slimtier.models.safetensors_file import open_safetensors

    path = directory(tmp_path / "m", "config.json")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    sizes |= {"vocab_size": 8, "max_position_embeddings": 8}
    (path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], **sizes}))
    index = {"weight_map": {"model.norm.weight": "../secret.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match=r"\.\./secret\.safetensors, which is no file beside it"):
        open_safetensors(path)
