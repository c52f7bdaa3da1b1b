"""From a draft's directory and a target to a drafter that runs beside it."""

from __future__ import annotations

import hashlib
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from slimtier.drafters.eagle.drafter import EagleDrafter
from slimtier.drafters.eagle.load import DraftFiles, load_network, read_draft
from slimtier.drafters.eagle.target_record import vocabulary_hash
from slimtier.errors import ConfigError, VocabularyError
from slimtier.models.aliases import ALIASES
from slimtier.models.native import NativeTarget

if TYPE_CHECKING:
    from slimtier.drafters.eagle.runtime import Runtime
    from slimtier.drafters.eagle.runtime_native import DraftPrecision
    from slimtier.models.base import Target, TargetInfo
    from slimtier.models.tokenizer import Tokenizer

SHIPPED = Path(__file__).parents[2] / "drafts"  # a directory for each alias


def open_drafter(
    path: Path | str,
    target: Target,
    tokenizer: Tokenizer | None = None,
    *,
    confidence: float = 0.0,
    precision: str = "auto",
) -> EagleDrafter:
    """The draft in the directory `path` as a drafter for `target`. precision auto: q8 on the native CPU kernels, fp32
    elsewhere.

    Raises ModelFileError or UnsupportedError for a draft that cannot be read or run, VocabularyError or ConfigError for
    one that is not for this target.
    """
    files = read_draft(path, target.info.num_layers)
    _check(files, target.info, tokenizer)
    for note in files.notes:
        warnings.warn(f"{files.path}: {note}", stacklevel=2)
    kept = _kept(precision, target)
    which = partial(_digest, files.path, kept)
    return EagleDrafter(_runtime(files, target, kept), files.config.capture, confidence, which=which)


def shipped_draft(model: str) -> Path | None:
    """The draft that slimtier ships for the model, which is known by its alias, or by the name of the file that it
    stands for or of a directory of the original, such as HuggingFaceTB/SmolLM2-135M-Instruct."""
    for alias in ALIASES.values():
        if Path(model).name in (alias.name, alias.file_name, alias.original):
            path = SHIPPED / alias.name
            return path if path.is_dir() else None
    return None


def find_draft(draft: str, info: TargetInfo) -> Path:
    """The directory that the setting names; auto is the one shipped. Raises ConfigError where there is none."""
    if draft == "none":
        raise ConfigError("drafter eagle3 cannot do without a draft: give draft=DIRECTORY, or choose drafter ngram")
    if draft != "auto":
        return Path(draft).expanduser()
    shipped = shipped_draft(info.name)
    if shipped is None:
        raise ConfigError(
            f"no draft is shipped for {info.name}: give draft=DIRECTORY, or train one with `slimtier train`"
        )
    return shipped


def _digest(path: Path, precision: str) -> str:
    """Of the draft's files; large ones take a moment, so it is made when it is asked for."""
    digest = hashlib.sha256()
    for file in sorted(each for each in path.iterdir() if each.suffix in (".safetensors", ".bin")):
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return f"{digest.hexdigest()[:16]} at {precision}"


def _kept(precision: str, target: Target) -> DraftPrecision:
    """In what the drafter's weights are kept."""
    native = isinstance(target, NativeTarget)
    if precision == "q8" and not native:
        raise ConfigError("draft_precision q8 is for native on a CPU: choose fp32, or leave it out")
    return "q8" if native and precision != "fp32" else "fp32"


def _runtime(files: DraftFiles, target: Target, precision: DraftPrecision) -> Runtime:
    if isinstance(target, NativeTarget):
        from slimtier.drafters.eagle.runtime_native import NativeRuntime

        return NativeRuntime(files, target, precision)
    from slimtier.drafters.eagle.runtime_torch import TorchRuntime

    embedding = target.weight("embedding")
    head = target.weight("head") if files.head_source == "target" else None
    network = load_network(files, embedding, target.info.max_positions, head)
    return TorchRuntime(network.to(embedding.device))


def _check(files: DraftFiles, info: TargetInfo, tokenizer: Tokenizer | None) -> None:
    """Whether the draft's numbers and tokens are the target's."""
    config = files.config
    if config.target_hidden_size != info.hidden_size:
        raise ConfigError(
            f"{files.path} reads states of width {config.target_hidden_size} and {info.name} has {info.hidden_size}: "
            "give a draft that was trained for this model"
        )
    if config.head.vocab_size != info.vocab_size:
        raise VocabularyError(
            f"{files.path} has {config.head.vocab_size} tokens and {info.name} {info.vocab_size}: "
            "give a draft that was trained for this model"
        )
    # the file behind an alias is known by its hash, and its tokenizer need not be hashed again
    recorded = files.target.vocab_sha256 if files.target is not None and info.name not in ALIASES else None
    if recorded is not None and tokenizer is not None and vocabulary_hash(tokenizer) != recorded:
        raise VocabularyError(
            f"the tokens of {info.name} are not those that {files.path} was trained with: "
            "give a draft that was trained for this model"
        )
