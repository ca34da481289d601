"""Typed access to the fields of a JSON file, with errors that name key and file."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fspec.errors import ConfigError


@dataclass(frozen=True)
class Fields:
    """One object of a JSON file; a null value counts as an absent key."""

    values: Mapping[str, Any]
    where: str

    def get(self, key: str) -> Any:
        """Return the value of `key`, or None where it is absent or null."""
        return self.values.get(key)

    def require(self, key: str) -> Any:
        """Return the value of `key`.

        Raises:
            ConfigError: the key is absent or null.
        """
        value = self.get(key)
        if value is None:
            raise ConfigError(
                f"{self.where}: key {key!r} is missing; add it as in the published "
                "config.json of this model"
            )
        return value

    def size(self, key: str) -> int:
        """Return the positive integer under `key`.

        Raises:
            ConfigError: the key is absent, or its value is no positive integer.
        """
        value = self.require(key)
        if type(value) is not int or value < 1:
            raise self.wrong(key, value, "a positive integer")
        return value

    def number(self, key: str, least: float) -> float:
        """Return the finite number under `key`, at least `least`.

        Raises:
            ConfigError: the key is absent, or its value is no such number.
        """
        value = self.require(key)
        try:
            number = float(value) if type(value) in (int, float) else math.nan
        except OverflowError:
            number = math.inf
        if not math.isfinite(number) or number < least:
            raise self.wrong(key, value, f"a finite number >= {least:g}")
        return number

    def flag(self, key: str, default: bool) -> bool:
        """Return the boolean under `key`, or `default` where it is absent.

        Raises:
            ConfigError: the value is no boolean.
        """
        value = self.get(key)
        if value is None:
            return default
        if type(value) is not bool:
            raise self.wrong(key, value, "true or false")
        return value

    def section(self, key: str) -> "Fields | None":
        """Return the object under `key`, or None where it is absent.

        Raises:
            ConfigError: the value is no object.
        """
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(key, value, "an object")
        return Fields(value, f"{self.where}, {key}")

    def wrong(self, key: str, value: object, expected: str) -> ConfigError:
        """Return the error for a value that is not as expected; the caller raises."""
        return ConfigError(f"{self.where}: {key} is {value!r}, expected {expected}")


def agreed(places: Sequence[Fields], key: str) -> Fields | None:
    """Return the first of `places` that has `key`, or None where none has it.

    Raises:
        ConfigError: two places have different values.
    """
    holders = [place for place in places if place.get(key) is not None]
    for other in holders[1:]:
        if other.get(key) != holders[0].get(key):
            raise ConfigError(
                f"{key} is {holders[0].get(key)!r} in {holders[0].where} but "
                f"{other.get(key)!r} in {other.where}; remove the wrong one"
            )
    return holders[0] if holders else None


def read_fields(file: Path) -> Fields:
    """Return the object that `file` holds.

    Raises:
        ConfigError: the file is absent, unreadable, or holds no JSON object.
    """
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{file}: no such file; expected a checkpoint's JSON"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: cannot be read as JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(
            f"{file}: holds a {type(values).__name__}, expected an object"
        )
    return Fields(values, str(file))
