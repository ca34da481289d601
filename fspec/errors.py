"""The errors of fspec: one class for each kind of bad input.

Every message says what was given, what was expected and what to do. An error is
raised before anything is changed, so the caller's values are as they were.
"""


class FspecError(Exception):
    """Base of all errors that fspec raises on purpose."""


class ConfigError(FspecError):
    """A `config.json` is unreadable, incomplete or contradicts itself."""


class WeightError(FspecError):
    """A tensor is missing, unexpected, mis-shaped, or holds no trained payload."""


class UnsupportedError(FspecError):
    """A valid request for something that fspec does not do."""


class ShapeError(FspecError):
    """An argument has another shape, dtype or range than the function takes."""


class CapacityError(FspecError):
    """A state, pool or context has no room for what was asked."""


class StateError(FspecError):
    """A state is used against its rules: consumed, or cut below its reach."""


class RequestError(FspecError):
    """A request's parameters are out of range or contradict each other."""
