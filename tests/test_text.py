"""Streamed text and stop strings: laws over random ids, groupings and stops.

The oracle is `tokenizers` itself, decoding every prefix from scratch.
"""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

import fspec.text as text_module
from fspec.errors import ConfigError, RequestError, UnsupportedError
from fspec.text import StopState, TextState, Tokenizer, check_stops, load_tokenizer

TARGET = Path(text_module.__file__).parent / "models/tiny/target"
TOKENIZER = load_tokenizer(TARGET)
BYTES = [
    next(i for i in range(8, 264) if TOKENIZER.piece(i) == bytes([b]))
    for b in range(256)
]
EXAMPLES = settings(max_examples=100, deadline=None)


def spelled(text):
    """One id a byte: every boundary inside a character is a boundary of ids."""
    return [BYTES[byte] for byte in text.encode()]


WORDS = ["a", "b", "aab", "é", "漢", "😀", "\ufffd", "\nUser:", "END", "def f(x):\n"]
# Encoded here: beartype draws random numbers, which strategies must not do.
WORD_IDS = [spelled(word) for word in WORDS] + [TOKENIZER.encode(w) for w in WORDS]
runs = st.one_of(
    st.sampled_from(WORD_IDS),
    st.binary(min_size=1, max_size=3).map(lambda data: [BYTES[b] for b in data]),
    st.integers(0, 4200).map(lambda token: [token]),
)
narrow = st.sampled_from([spelled("a"), spelled("b"), TOKENIZER.encode("aab")])
streams = st.one_of(
    st.lists(runs, max_size=12), st.lists(narrow, min_size=1, max_size=12)
).map(lambda parts: sum(parts, []))
groups = st.lists(st.integers(0, 5), max_size=12)
stop_sets = st.lists(
    st.one_of(
        st.text("ab", min_size=1, max_size=4),
        st.sampled_from([*WORDS, "é漢", "\nU", "\ufffda"]),
    ),
    max_size=3,
).map(tuple)


def blocks(ids, sizes):
    """Cut `ids` into blocks of the given sizes; the rest is the last block."""
    for size in sizes:
        yield ids[:size]
        ids = ids[size:]
    yield ids


def decoded(ids):
    return TOKENIZER.inner.decode(list(ids), skip_special_tokens=True)


def settled(ids):
    """The text of `ids` that no continuation can change, by trying them."""
    text = decoded(ids)
    lasting = all(
        decoded([*ids, BYTES[byte]]) == text + "\ufffd" for byte in range(128, 192)
    )
    return text if lasting else text[:-1]


def first_stop(text, stops):
    """Read `text` character by character until it ends with a stop."""
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            stop = max(hits, key=len)
            return stop, text[: end - len(stop)]
    return None


def expected(ids, stops):
    """(text, ids kept, stop found) by decoding every prefix from scratch."""
    for count in range(1, len(ids) + 1):
        if hit := first_stop(settled(ids[:count]), stops):
            return hit[1], count, hit[0]
    hit = first_stop(decoded(ids), stops)
    return (hit[1], len(ids), hit[0]) if hit else (decoded(ids), len(ids), None)


def text_law(push, ids, sizes):
    """At all times the shown text is what is settled, and all of it at the end."""
    state, shown, seen = TextState(), "", []
    for block in blocks(ids, sizes):
        state, delta = push(TOKENIZER, state, block)
        shown, seen = shown + delta, seen + block
        assert shown == settled(seen)
    state, delta = push(TOKENIZER, state, [], final=True)
    assert shown + delta == decoded(ids)
    assert state == TextState()


def stop_law(push_stops, ids, stops, sizes):
    """Shown text is a prefix of the final text, and holds back only stop starts."""
    final_text, kept, stop = expected(ids, stops)
    state, shown, seen = StopState(), "", []
    for block in blocks(ids, sizes):
        state, delta = push_stops(TOKENIZER, stops, state, block)
        shown, seen = shown + delta, seen + block
        if stop is not None and len(seen) >= kept and state.matched:
            assert (shown, state.tokens, state.matched) == (final_text, kept, stop)
            continue
        assert state.matched is None
        assert state.tokens == len(seen)
        text = settled(seen)
        tails = [text[i:] for i in range(len(text)) if starts_stop(text[i:], stops)]
        assert shown + max(tails, key=len, default="") == text
        assert final_text.startswith(shown)
    state, delta = push_stops(TOKENIZER, stops, state, [], final=True)
    assert (shown + delta, state.tokens, state.matched) == (final_text, kept, stop)
    assert state.held == ""


def starts_stop(tail, stops):
    return any(stop.startswith(tail) and stop != tail for stop in stops)


@EXAMPLES
@given(streams, groups)
def test_text_is_settled_and_complete(ids, sizes):
    text_law(text_module.push, ids, sizes)


@EXAMPLES
@given(streams, stop_sets, groups)
def test_stops_are_found_whatever_the_grouping(ids, stops, sizes):
    stop_law(text_module.push_stops, ids, stops, sizes)


@EXAMPLES
@given(streams)
def test_decode_is_that_of_tokenizers(ids):
    assert TOKENIZER.decode(ids) == decoded(ids)


@EXAMPLES
@given(st.text(max_size=30))
def test_decode_inverts_encode(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def push_alone(tokenizer, state, ids, final=False):
    """Wrong: decodes each block by itself."""
    return state, decoded(ids)


def push_hurried(tokenizer, state, ids, final=False):
    """Wrong: shows an unfinished character as U+FFFD at once."""
    return text_module.push(tokenizer, state, ids, final=True)


@pytest.mark.parametrize("wrong", [push_alone, push_hurried])
def test_text_law_rejects(wrong):
    assert rejects(st.tuples(streams, groups), lambda case: text_law(wrong, *case))


def stops_unheld(tokenizer, stops, state, ids, final=False):
    """Wrong: looks for a stop in the new text only and shows the rest."""
    state, delta = text_module.push_stops(tokenizer, stops, state, ids, final)
    return state._replace(held=""), delta + state.held


def stops_last_token(tokenizer, stops, state, ids, final=False):
    """Wrong: keeps all ids of the block in which the stop was found."""
    after, delta = text_module.push_stops(tokenizer, stops, state, ids, final)
    return after._replace(tokens=state.tokens + len(ids)), delta


def stops_whole(tokenizer, stops, state, ids, final=False):
    """Wrong: holds back the longest stop's length, prefix of a stop or not."""
    longest = max(map(len, stops), default=1) - 1
    after, delta = text_module.push_stops(tokenizer, stops, state, ids, final)
    text = delta + after.held
    if final or after.matched or not longest:
        return after, delta
    return after._replace(held=text[-longest:]), text[:-longest]


@pytest.mark.parametrize("wrong", [stops_unheld, stops_last_token, stops_whole])
def test_stop_law_rejects(wrong):
    cases = st.tuples(streams, stop_sets, groups)
    assert rejects(cases, lambda case: stop_law(wrong, *case))


def rejects(cases, law):
    """True if `law` fails on one of 100 drawn cases (`find` raises if none)."""

    def fails(case):
        try:
            law(case)
        except AssertionError:
            return True
        return False

    find(cases, fails, settings=settings(max_examples=100, deadline=None))
    return True


STOPS = [
    ("aaab!", ("aab",), "a", "aab"),
    ("x\nUse the", ("\nUser:", "END"), "x\nUse the", None),
    ("x\nUser: y", ("\nUser:", "END"), "x", "\nUser:"),
    ("xabcd", ("ab", "abc"), "x", "ab"),
    ("xabcd", ("abcd", "bc"), "xa", "bc"),
    ("xabcd", ("bc", "abc", "c"), "x", "abc"),
    ("né漢😀!", ("漢😀",), "né", "漢😀"),
    ("né漢", ("漢😀",), "né漢", None),
    ("END", ("END",), "", "END"),
    ("xEN", ("END",), "xEN", None),
    ("aXbbYa", ("Y", "X"), "a", "X"),
]


@pytest.mark.parametrize(("text", "stops", "shown", "stop"), STOPS)
@pytest.mark.parametrize("encode", [spelled, TOKENIZER.encode])
def test_stop_cases(text, stops, shown, stop, encode):
    ids = encode(text)
    state, delta = text_module.push_stops(
        TOKENIZER, stops, StopState(), ids, final=True
    )
    assert (delta, state.matched) == (shown, stop)
    if stop:
        upto = (shown + stop).encode()
        lengths = [
            len(b"".join(map(TOKENIZER.piece, ids[:n]))) for n in range(len(ids))
        ]
        assert state.tokens == sum(length < len(upto) for length in lengths)
    else:
        assert state.tokens == len(ids)


@pytest.mark.parametrize("at", [2, 4])
def test_stop_inside_a_block_keeps_whole_tokens_only(at):
    """BR-088: the match ends inside a token; ids end with that token."""
    ids = spelled("x" * (at - 1)) + TOKENIZER.encode("def") + spelled("yz")
    assert len(ids) == at + 2
    state, delta = text_module.push_stops(TOKENIZER, ("xde",), StopState(), ids)
    assert (delta, state.tokens) == ("x" * (at - 2), at)
    assert TOKENIZER.decode(ids[: state.tokens]).startswith(delta)


def test_nothing_follows_a_match():
    state, delta = text_module.push_stops(
        TOKENIZER, ("b",), StopState(), spelled("abab")
    )
    assert (delta, state.tokens) == ("a", 2)
    for final in (False, True):
        again = text_module.push_stops(
            TOKENIZER, ("b",), state, spelled("more"), final=final
        )
        assert again == (state, "")


def test_special_and_unknown_ids_have_no_text():
    assert TOKENIZER.decode([*spelled("a"), 0, 2, 4095 + 9, *spelled("b")]) == "ab"
    split = spelled("é")
    assert TOKENIZER.decode([split[0], 7, split[1]]) == "é"
    assert TOKENIZER.encode("<|im_end|>") == [2]


def test_bad_stops_and_texts_are_refused():
    assert check_stops(["a", "\0"]) == ("a", "\0")
    with pytest.raises(RequestError, match="stop string 1 is empty"):
        check_stops(["a", ""])
    with pytest.raises(RequestError, match="stop string 0"):
        check_stops(["\ud800"])
    with pytest.raises(RequestError, match="surrogate"):
        TOKENIZER.encode("a\ud800")


def test_added_tokens_have_their_text(tmp_path):
    """An added token that is not special keeps its text, spaces and all."""
    spec = json.loads((TARGET / "tokenizer.json").read_text())
    added = dict(spec["added_tokens"][0], id=4096, content="<à b>", special=False)
    spec["added_tokens"].append(added)
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    loaded = load_tokenizer(tmp_path)
    assert loaded.encode("x<à b>y")[1] == 4096
    assert loaded.decode([4096]) == loaded.inner.decode([4096])


@pytest.mark.parametrize("content", [None, b"\xff{", b"[1]", b"{}", b'{"decoder": {}}'])
def test_damaged_tokenizer_files_are_named(tmp_path, content):
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises((ConfigError, UnsupportedError), match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_cut_short_is_named(tmp_path):
    shutil.copy(TARGET / "tokenizer.json", tmp_path)
    file = tmp_path / "tokenizer.json"
    spec = json.loads(file.read_text())
    del spec["model"]["merges"]
    file.write_text(json.dumps(spec))
    with pytest.raises(ConfigError, match="not a tokenizer file"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_is_a_value():
    assert isinstance(TOKENIZER, Tokenizer)
    assert load_tokenizer(TARGET).special == TOKENIZER.special == frozenset(range(8))
