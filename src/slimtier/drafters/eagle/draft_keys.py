"""Checked access to the config.json of a draft."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slimtier.errors import ModelFileError, UnsupportedError
from slimtier.models.hf_config import ConfigKeys


class DraftKeys(ConfigKeys):
    """A draft's config.json with checked access, its mends worded for a draft."""

    def unsupported(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"{self.path}: slimtier does not run a draft with {what}; choose another draft")

    def wrong(self, what: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: {what}; mend the config, or fetch or convert the draft again")

    def truth(self, name: str, default: bool = False) -> bool:
        value = self.config.get(name, default)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(f"{name} is {value!r}, not true or false")
        return value

    def block(self, name: str) -> Mapping[str, Any]:
        """The object under `name`, {} where there is none."""
        value = self.config.get(name) or {}
        if not isinstance(value, Mapping):
            raise self.wrong(f"{name} is {value!r}, not an object")
        return value
