"""Acceptance by table: every count, stops anywhere, limits, idle requests."""

import itertools

import pytest
import torch

import fspec
from fspec.types import Block, SamplingState, Verdict


def verdict(
    blocks: list[list[int]], choices: list[list[int]], counts: list[int]
) -> Verdict:
    nothing = torch.zeros(0)
    block = Block(torch.tensor(blocks), torch.tensor(counts))
    choice = torch.tensor(choices)
    return Verdict(
        block, nothing, choice, nothing, nothing, nothing, nothing, nothing, [], nothing
    )


def sampling(
    batch: int, remaining: int = 99, stops: tuple[int, ...] = ()
) -> SamplingState:
    return fspec.greedy(batch, width=15, max_tokens=remaining, room=99, stop_ids=stops)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_every_pattern_of_agreement(width: int):
    # BR-007: a target that is a table; the tokens are the run and then its own word
    for right in itertools.product([True, False], repeat=width):
        choices = list(range(10, 11 + width))
        drafts = [c if ok else c + 50 for c, ok in zip(choices, right, strict=False)]
        got = fspec.accept(verdict([[1, *drafts]], [choices], [width + 1]), sampling(1))
        run = (list(right) + [False]).index(False)
        assert got.accepted.tolist() == [run]
        assert got.tokens[0].tolist() == choices[: run + 1] + [-1] * (width - run)
        assert got.rows.tolist() == [run + 1]
        assert got.boundary.tolist() == [choices[run]]
        assert got.finished.tolist() == [False]


@pytest.mark.parametrize("at", range(4))
def test_stop_inside_the_block(at: int):
    # BR-089: as a draft or as the bonus token; acceptance counts as if none had come
    choices = [10, 11, 12, 13]
    stops = (77, choices[at])
    got = fspec.accept(
        verdict([[1, 10, 11, 12]], [choices], [4]), sampling(1, stops=stops)
    )
    assert got.accepted.tolist() == [3]
    assert got.tokens[0].tolist() == choices[: at + 1] + [-1] * (3 - at)
    assert got.rows.tolist() == [at + 1]
    assert got.finished.tolist() == [True]


@pytest.mark.parametrize("remaining", range(1, 6))
def test_limit_inside_the_block(remaining: int):
    got = fspec.accept(
        verdict([[1, 10, 11, 12]], [[10, 11, 12, 13]], [4]), sampling(1, remaining)
    )
    assert got.rows.tolist() == [min(remaining, 4)]
    assert got.finished.tolist() == [remaining <= 4]


def test_a_stop_behind_a_rejected_draft_does_not_count():
    got = fspec.accept(
        verdict([[1, 99, 5]], [[10, 5, 7]], [3]), sampling(1, stops=(5,))
    )
    assert got.rows.tolist() == [1]
    assert got.finished.tolist() == [False]


def test_ragged_and_idle_rows():
    # rows past a request's count never agree; an idle request keeps its boundary
    blocks = [[1, 10, 11], [2, 10, 11], [3, 0, 0]]
    choices = [[10, 11, 12]] * 3
    state = sampling(3)
    got = fspec.accept(verdict(blocks, choices, [3, 2, 0]), state)
    assert got.accepted.tolist() == [2, 1, 0]
    assert got.rows.tolist() == [3, 2, 0]
    assert got.boundary.tolist() == [12, 11, 3]
    assert got.finished.tolist() == [False, False, True]
    after = fspec.commit_sampling(state, got)
    assert after.remaining.tolist() == [96, 97, 0]
    assert after.room.tolist() == [96, 97, 99]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ties_go_to_the_lowest_id(dtype: torch.dtype):
    # BR-002: verify's choice and the chain's both come from argmax over a row
    for low, high, vocab in ((7, 90, 128), (1023, 1024, 4096), (0, 248319, 248320)):
        row = torch.zeros(1, vocab, dtype=dtype) - 1
        row[0, [low, high]] = 3
        assert row.argmax(-1).tolist() == [low]


def test_greedy_draws_nothing():
    before = torch.get_rng_state()
    fspec.accept(verdict([[1, 10]], [[10, 11]], [2]), sampling(1))
    assert torch.equal(before, torch.get_rng_state())
