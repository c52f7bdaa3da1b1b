"""The float32 checkpoint of a quantised file."""

from __future__ import annotations

from pathlib import Path

import pytest

from slimtier.models.native import load_native
from slimtier.models.resolve import resolve
from slimtier.models.route_file import ModelIdentity
from slimtier.models.tokenizer import load_tokenizer
from tools.full_precision import main


@pytest.mark.slow
def test_it_is_the_same_model_in_floats(tmp_path: Path) -> None:
    smollm2 = resolve("smollm2-135m")
    main([str(smollm2.path), str(tmp_path / "floats")])
    floats = resolve(str(tmp_path / "floats"))
    ours, theirs = (load_native(files, precision="fp32", threads=1) for files in (smollm2, floats))
    assert ModelIdentity.of(ours).digest == ModelIdentity.of(theirs).digest
    assert ours.info.weight_bytes < theirs.info.weight_bytes / 4
    text = "Hello there, 123 äö\n\n <|im_start|>user"
    assert load_tokenizer(floats).encode(text) == load_tokenizer(smollm2).encode(text)
    assert theirs.info.eos_token_ids == ours.info.eos_token_ids
    with pytest.raises(SystemExit):
        main([str(smollm2.path), str(tmp_path / "floats")])
