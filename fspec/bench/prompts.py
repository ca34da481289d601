"""What the bench continues: Python that was written for it, and fspec's own source.

The short prompts are constants, so that numbers of two commits can be compared. The
long text only has to be long: time does not depend on what it says.
"""

from importlib import resources

from fspec.text import Tokenizer

PROMPTS = (
    '''\
def read_lines(path, encoding="utf-8"):
    """Yield the lines of a text file without their line ends."""
    with open(path, encoding=encoding) as file:
        for line in file:
            yield line.rstrip("\\n")


def count_words(path):
    """Return a dictionary from each word to how often it occurs."""
    counts = {}
''',
    """\
import unittest

from shapes import Circle, Rectangle, Square


class TestRectangle(unittest.TestCase):
    def setUp(self):
        self.rectangle = Rectangle(width=3, height=4)

    def test_area(self):
        self.assertEqual(self.rectangle.area(), 12)

    def test_perimeter(self):
        self.assertEqual(self.rectangle.perimeter(), 14)

    def test_negative_width(self):
        with self.assertRaises(ValueError):
            Rectangle(width=-1, height=4)


class TestSquare(unittest.TestCase):
    def setUp(self):
""",
    '''\
"""Intervals on a line, and sets of them."""

from dataclasses import dataclass
from typing import Iterable, Iterator, List, Optional


@dataclass(frozen=True, order=True)
class Interval:
    """The numbers from `start` to `end`, the end excluded."""

    start: float
    end: float

    def __post_init__(self) -> None:
        if self.end < self.start:
            raise ValueError(f"end {self.end} is before start {self.start}")

    def __contains__(self, value: float) -> bool:
        return self.start <= value < self.end

    def __len__(self) -> int:
        return int(self.end - self.start)

    def overlaps(self, other: "Interval") -> bool:
        """Return whether the two have a number in common."""
        return self.start < other.end and other.start < self.end

    def intersection(self, other: "Interval") -> Optional["Interval"]:
        """Return what the two have in common, or None."""
        if not self.overlaps(other):
            return None
        return Interval(max(self.start, other.start), min(self.end, other.end))

    def union(self, other: "Interval") -> "Interval":
''',
    '''\
import argparse
import json
import logging
import os
import sys

logger = logging.getLogger(__name__)

DEFAULTS = {
    "host": "localhost",
    "port": 8080,
    "debug": False,
    "workers": 4,
    "timeout": 30.0,
}


class ConfigError(Exception):
    """Raised when the configuration cannot be used."""


def load_config(path):
    """Read a JSON file and merge it with the defaults.

    Args:
        path: The file to read.

    Returns:
        A dictionary with every key of ``DEFAULTS``.

    Raises:
        ConfigError: If the file is missing or is not valid JSON.
    """
    if not os.path.exists(path):
        raise ConfigError("no such file: %s" % path)
    with open(path) as file:
        try:
            data = json.load(file)
        except ValueError as error:
            raise ConfigError("%s is not valid JSON: %s" % (path, error))
    unknown = set(data) - set(DEFAULTS)
    if unknown:
        raise ConfigError("unknown keys: %s" % ", ".join(sorted(unknown)))
    config = dict(DEFAULTS)
    config.update(data)
    return config


def parse_args(argv=None):
    parser = argparse.ArgumentParser(description="Run the server.")
    parser.add_argument("--config", help="path of the configuration file")
    parser.add_argument("--host", help="host to listen on")
    parser.add_argument("--port", type=int, help="port to listen on")
''',
    '''\
"""A small expression language: tokens, a parser, an evaluator."""

import operator
import re

TOKEN = re.compile(r"\\s*(?:(\\d+\\.?\\d*)|([A-Za-z_]\\w*)|(.))")

OPERATORS = {
    "+": (1, operator.add),
    "-": (1, operator.sub),
    "*": (2, operator.mul),
    "/": (2, operator.truediv),
}


class ParseError(ValueError):
    """The text is not an expression."""

    def __init__(self, message, position):
        super().__init__("%s at position %d" % (message, position))
        self.position = position


class Node:
    """Base class of the nodes of a syntax tree."""

    def evaluate(self, names):
        raise NotImplementedError


class Number(Node):
    def __init__(self, value):
        self.value = value

    def evaluate(self, names):
        return self.value


class Name(Node):
    def __init__(self, name):
        self.name = name

    def evaluate(self, names):
        try:
            return names[self.name]
        except KeyError:
            raise NameError("name %r is not defined" % self.name)


class Binary(Node):
    def __init__(self, symbol, left, right):
        self.symbol = symbol
        self.left = left
        self.right = right

    def evaluate(self, names):
        left = self.left.evaluate(names)
        right = self.right.evaluate(names)
        return OPERATORS[self.symbol][1](left, right)


class Parser:
    def __init__(self, text):
        self.text = text
        self.tokens = list(self.tokenize(text))
        self.index = 0

    def tokenize(self, text):
        for match in TOKEN.finditer(text):
            number, name, symbol = match.groups()
            if number:
                yield "number", float(number), match.start()
            elif name:
                yield "name", name, match.start()
''',
)


def long_text(tokenizer: Tokenizer, tokens: int) -> list[int]:
    """Return `tokens` ids of fspec's own source, repeated where it ends."""
    package = resources.files("fspec")
    names = ("generation.py", "text.py", "config.py", "checkpoint.py")
    source = "".join(package.joinpath(name).read_text("utf-8") for name in names)
    ids = tokenizer.encode(source)
    return (ids * (tokens // len(ids) + 1))[:tokens]
