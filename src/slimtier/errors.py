"""Every error a user can meet, one line each: the cause, then the mend.

SlimtierError
├── InputError          a request that cannot be served as asked (prompt, sampling parameter, option)
├── ConfigError         an unknown or contradictory setting
├── ModelError          a model that cannot be loaded or run
│   ├── ModelFileError      a missing, truncated or wrong-hash file, a missing tensor
│   └── UnsupportedError    an architecture, quantisation or rope type that native does not run
├── VocabularyError     two models whose token ids do not mean the same
├── NonFiniteError      NaN or infinity where a probability is needed
└── MissingDependencyError   an extra that is not installed
"""

from __future__ import annotations


class SlimtierError(Exception):
    """Base of all errors that slimtier raises on purpose; `str()` is one line for a person."""


class InputError(SlimtierError, ValueError):
    """A request that cannot be served as asked."""


class ConfigError(SlimtierError, ValueError):
    """An unknown or contradictory setting."""


class ModelError(SlimtierError):
    """A model that cannot be loaded or run."""


class ModelFileError(ModelError):
    """A missing, truncated or wrong-hash file, or a missing tensor."""


class UnsupportedError(ModelError):
    """What the native runtime does not run; the message offers `--runtime hf`."""


class VocabularyError(SlimtierError):
    """Two models whose token ids do not mean the same."""


class NonFiniteError(SlimtierError, ArithmeticError):
    """NaN or infinity where a probability is needed."""


class MissingDependencyError(SlimtierError, ImportError):
    """An optional dependency that is not installed; the message gives the install command."""
