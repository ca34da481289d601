"""Token ids to text and back: a tokenizer, streamed text, stop strings.

Text is a function of the ids alone: push ids one at a time or in blocks, the same
text comes out, and the concatenated deltas are a prefix of the final text at all
times. The states are values; nothing here is changed in place.
"""

import codecs
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import tokenizers

from fspec.errors import ConfigError, RequestError, UnsupportedError


def _byte_of_char() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for.

    Source: `bytes_to_unicode` of GPT-2, as in `tokenizers`' ByteLevel decoder.
    """
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }


_BYTES = _byte_of_char()


class Tokenizer(NamedTuple):
    """A byte-level tokenizer; build it with `load_tokenizer`.

    `special` holds the ids of special tokens (end of text, turn marks): they have
    no text. An id that the vocabulary lacks (a padded embedding row) has none
    either. Added tokens that are not special have their text.
    """

    inner: tokenizers.Tokenizer
    special: frozenset[int]

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, with what the tokenizer file adds around it.

        A special token spelled out in `text` becomes its id.

        Raises:
            RequestError: `text` has a lone surrogate, so it is not valid Unicode.
        """
        if not _is_unicode(text):
            raise RequestError("the text is not valid Unicode (a lone surrogate)")
        return self.inner.encode(text).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` without special tokens.

        Bytes that are not UTF-8 become U+FFFD, also an unfinished last character.
        """
        return push(self, TextState(), ids, final=True)[1]

    def piece(self, token: int) -> bytes:
        """Return the bytes of one token; none for a special or unknown id."""
        content = None if token in self.special else self.inner.id_to_token(token)
        if content is None:
            return b""
        if all(char in _BYTES for char in content):
            return bytes(_BYTES[char] for char in content)
        return content.encode()


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Return the tokenizer of a checkpoint folder, from its `tokenizer.json`.

    Raises:
        ConfigError: the file is missing, unreadable or damaged.
        UnsupportedError: its tokens do not stand for bytes.
    """
    path = Path(folder) / "tokenizer.json"
    try:
        text = path.read_bytes().decode()
        decoder = (json.loads(text).get("decoder") or {}).get("type")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{path} is not a tokenizer file: {error}") from error
    if decoder != "ByteLevel":
        raise UnsupportedError(f"{path}: decoder {decoder}; only ByteLevel is read")
    try:
        inner = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # noqa: BLE001, tokenizers raises no narrower class
        raise ConfigError(f"{path} is not a tokenizer file: {error}") from error
    added = inner.get_added_tokens_decoder()
    return Tokenizer(inner, frozenset(i for i, t in added.items() if t.special))


class TextState(NamedTuple):
    """What a stream of ids has left over: the bytes of an unfinished character."""

    pending: bytes = b""


def push(
    tokenizer: Tokenizer, state: TextState, ids: Sequence[int], final: bool = False
) -> tuple[TextState, str]:
    """Return the state after `ids` and the text that they settle.

    Text that a later id could still change, the bytes of an unfinished UTF-8
    character, is held back; nothing else is. With `final` it comes out as U+FFFD.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    data = state.pending + b"".join(map(tokenizer.piece, ids))
    text = decoder.decode(data, final)
    return TextState(decoder.getstate()[0]), text


class StopState(NamedTuple):
    """A stream of ids under stop strings, as far as it got.

    `held` is settled text that may be the start of a stop. `tokens` counts the ids
    taken: all pushed ones, or those up to and including the one that completed
    `matched`, the stop string found. A state with a match is final.
    """

    text: TextState = TextState()
    held: str = ""
    tokens: int = 0
    matched: str | None = None


def check_stops(stops: Sequence[str]) -> tuple[str, ...]:
    """Return `stops` as a tuple.

    Raises:
        RequestError: one is empty, or is not valid Unicode.
    """
    if isinstance(stops, str):
        raise RequestError("stop is one string; give a list of strings")
    for i, stop in enumerate(stops):
        if not stop:
            raise RequestError(f"stop string {i} is empty")
        if not _is_unicode(stop):
            raise RequestError(f"stop string {i} is not valid Unicode")
    return tuple(stops)


def push_stops(
    tokenizer: Tokenizer,
    stops: tuple[str, ...],
    state: StopState,
    ids: Sequence[int],
    final: bool = False,
) -> tuple[StopState, str]:
    """Return the state after `ids` and the text that can be shown now.

    The stop that ends first in the text wins; of several that end at the same
    character, the longest. So the result depends on the text up to there only, and
    a stop that contains an earlier-ending one is never reached. The text shown
    excludes the stop. A suffix that is a proper prefix of a stop is held until it
    is resolved; nothing longer is. After a match, ids are ignored: keep the first
    `state.tokens` ids of the stream.

    Args:
        tokenizer: gives the bytes of each id.
        stops: as `check_stops` returns them; none is allowed.
        state: `StopState()` at the start of the new text.
        ids: the next ids, any number of them.
        final: no more ids follow, so everything held comes out. Text that this
            completes (U+FFFD of an unfinished character) is searched too.
    """
    shown: list[str] = []
    for token in ids:
        if state.matched is not None:
            break
        text, delta = push(tokenizer, state.text, (token,))
        state = state._replace(text=text, tokens=state.tokens + 1)
        state, out = _search(stops, state, delta)
        shown.append(out)
    if final and state.matched is None:
        text, delta = push(tokenizer, state.text, (), final=True)
        state, out = _search(stops, state._replace(text=text), delta)
        shown += [out, state.held]
        state = state._replace(held="")
    return state, "".join(shown)


def _search(
    stops: tuple[str, ...], state: StopState, delta: str
) -> tuple[StopState, str]:
    """Return the state after the text `delta`, and what it releases."""
    text = state.held + delta
    found = [
        (text.find(stop) + len(stop), -len(stop)) for stop in stops if stop in text
    ]
    if found:
        end, length = min(found)
        start = end + length
        done = state._replace(text=TextState(), held="", matched=text[start:end])
        return done, text[:start]
    keep = _longest_start(stops, text)
    return state._replace(held=text[len(text) - keep :]), text[: len(text) - keep]


def _longest_start(stops: tuple[str, ...], text: str) -> int:
    """Return the length of the longest suffix of `text` that starts some stop."""
    longest = max((len(stop) - 1 for stop in stops), default=0)
    for length in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-length:]) for stop in stops):
            return length
    return 0


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)
