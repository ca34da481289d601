"""States: what is refused, what a slot keeps, what a pool counts."""

import pytest
import torch

import fspec
from fspec.layers.attention import AttentionParams, attention_rows, key_value_rows
from fspec.layers.rope import rotation
from fspec.state import pool as pool_module
from fspec.types import Block, Committed
from tests.laws.systems import poisoned, system

FP32 = torch.float32


@pytest.fixture(scope="module")
def toy():
    return system(0, FP32)


def prefilled(toy, count: int = 20, width: int = 3, capacity: int = 60):
    params, streams = toy
    state = fspec.init_target(params, capacity=capacity, width=width)
    tokens = torch.tensor([streams[0][:count]])
    return fspec.extend(params, state, tokens)[0]


def block(*tokens: int) -> Block:
    return Block(torch.tensor([tokens]), torch.tensor([len(tokens)]))


def test_commit_refuses_rows_out_of_range(toy):
    # BR-031: 0 rows change nothing; -1 or one too many are errors, before any write
    state = prefilled(toy)
    verdict = fspec.verify(toy.params, state, block(1, 2, 3))
    before = fspec.canonical(state, toy.params)
    for rows in (-1, 4):
        with pytest.raises(fspec.ShapeError, match="between 0 and"):
            fspec.commit(toy.params, state, verdict, torch.tensor([rows]))
    none = fspec.commit(toy.params, state, verdict, torch.tensor([0]))
    assert fspec.equal(fspec.canonical(none, toy.params), before)


def test_verify_refuses_wide_blocks_and_unknown_ids(toy):
    state = prefilled(toy)
    with pytest.raises(fspec.ShapeError, match="up to 4"):
        fspec.verify(toy.params, state, block(1, 2, 3, 4, 5))
    for bad in (-1, toy.params.config.vocab):
        with pytest.raises(fspec.ShapeError, match="token ids"):
            fspec.verify(toy.params, state, block(1, bad))
    with pytest.raises(fspec.ShapeError, match="taps"):
        fspec.verify(toy.params, state, block(1), taps=(4,))


def test_extend_without_pages_changes_nothing(toy):
    state = prefilled(toy, count=20, capacity=64)
    before = fspec.canonical(state, toy.params)
    with pytest.raises(fspec.CapacityError, match="reserve"):
        fspec.extend(toy.params, state, torch.ones(1, 50, dtype=torch.int64))
    assert fspec.equal(fspec.canonical(state, toy.params), before)


def test_cut_keeps_to_its_reach(toy):
    # BR-044: twice in a row, then further than was recorded
    params, streams = toy
    state = prefilled(toy, count=20)
    for start in (20, 24):
        tokens = streams[0][start : start + 4]
        verdict = fspec.verify(params, state, block(*tokens))
        state = fspec.commit(params, state, verdict, torch.tensor([4]))
    for length in (25, 23, 21, 20):
        state = fspec.cut(state, torch.tensor([length]))
        wanted = fspec.canonical(prefilled(toy, length), params)
        assert fspec.equal(fspec.canonical(state, params), wanted)
    for length in (19, 21):
        with pytest.raises(fspec.StateError, match="reaches back two commits"):
            fspec.cut(state, torch.tensor([length]))


def test_a_new_request_in_a_used_slot_is_a_fresh_one(toy):
    # BR-041: whatever the old tenant left behind
    params, streams = toy
    drafters = (fspec.mtp(3), fspec.lookup(3))
    pool, states = poisoned(
        params, drafters, batch=1, capacity=60, width=3, page_size=16, seed=3
    )
    for prompt in (1, 2, 3, 16, 17):
        slot = int(states[0].slots[0])
        pool, states = fspec.release(pool, states, slot)
        pool, states = fspec.reserve(pool, states, slot, 40)
        tokens = torch.tensor([streams[1][:prompt]])
        target, hidden, features = fspec.extend(params, states[0], tokens)
        committed = Committed(tokens, hidden, features, torch.tensor([prompt]))
        states = (
            target,
            *(
                d.absorb(params, s, committed)
                for d, s in zip(drafters, states[1:], strict=True)
            ),
        )
        fresh = fspec.init_target(params, capacity=40, width=3)
        fresh, _, _ = fspec.extend(params, fresh, tokens)
        assert fspec.equal(
            fspec.canonical(states[0], params), fspec.canonical(fresh, params)
        )


def test_a_verdict_belongs_to_its_state(toy):
    state = prefilled(toy)
    verdict = fspec.verify(toy.params, state, block(1, 2, 3))
    later = fspec.commit(toy.params, state, verdict, torch.tensor([2]))
    with pytest.raises(fspec.StateError, match="that was verified"):
        fspec.commit(toy.params, later, verdict, torch.tensor([1]))


def test_slots_of_a_batch_differ(toy):
    params, _ = toy
    state = fspec.init_target(params, batch=2, capacity=20, width=3)
    tokens = torch.ones(2, 3, dtype=torch.int64)
    for slots in ([0, 0], [0, 2], [-1, 0]):
        wrong = state._replace(slots=torch.tensor(slots))
        with pytest.raises(fspec.ShapeError, match="different ones"):
            fspec.extend(params, wrong, tokens)


def test_a_shared_page_is_never_written(toy):
    # a cut may reach below what a reserve copied: then the next write is refused
    params, streams = toy
    pool, (state,) = poisoned(
        params, (), batch=1, capacity=100, width=7, page_size=64, seed=1
    )
    slot = int(state.slots[0])
    state, _, _ = fspec.extend(params, state, torch.tensor([streams[0][:60]]))
    verdict = fspec.verify(params, state, block(*streams[0][60:68]))
    state = fspec.commit(params, state, verdict, torch.tensor([8]))
    before = fspec.canonical(state, params)
    pool, states = fspec.branch(pool, (state,), slot, 0)
    pool, states = fspec.reserve(pool, states, 0, 100)
    other = states[0]._replace(slots=torch.tensor([0]))
    other = fspec.cut(other, torch.tensor([60]))
    verdict = fspec.verify(params, other, block(1, 2, 3, 4))
    with pytest.raises(fspec.CapacityError, match="shares a page"):
        fspec.commit(params, other, verdict, torch.tensor([4]))
    pool, (other,) = fspec.reserve(pool, (other,), 0, 100)
    other = fspec.commit(params, other, verdict, torch.tensor([4]))
    both = other._replace(slots=torch.tensor([slot]))
    assert fspec.equal(fspec.canonical(both, params), before)
    with pytest.raises(fspec.CapacityError, match="holds pages"):
        fspec.branch(pool, (other,), slot, 0)


def test_mtp_cuts_no_further_than_its_hidden_rows(toy):
    params, streams = toy
    drafter = fspec.mtp(2)
    state = fspec.init_decode(params, drafter, capacity=80, max_tokens=9)
    tokens = torch.tensor([streams[0][:60]])
    step = fspec.compose(drafter)
    state, _ = step.prefill(params, state, tokens, torch.tensor([60]))
    with pytest.raises(fspec.StateError, match="reaches back"):
        fspec.cut(state.drafter, torch.tensor([50]))
    with pytest.raises(fspec.CapacityError, match="room"):
        step.prefill(params, state, tokens, torch.tensor([60]))


def test_pool_counts_references():
    pool = fspec.page_pool(3)
    with pytest.raises(fspec.CapacityError, match="4 pages were asked for"):
        pool_module.take_pages(pool, 4)
    taken, pages = pool_module.take_pages(pool, 2)
    assert pool.references.tolist() == [0, 0, 0]
    assert taken.references.tolist() == [1, 1, 0]
    freed = pool_module.release_pages(taken, pages)
    with pytest.raises(fspec.CapacityError, match="some are free"):
        pool_module.release_pages(freed, pages)


def test_drafters_without_their_weights_are_refused(toy):
    params = toy.params._replace(mtp=None)
    with pytest.raises(fspec.UnsupportedError, match="no mtp"):
        fspec.generate(params, [1], fspec.mtp(3), max_tokens=4)
    for make in (fspec.mtp, fspec.lookup):
        for width in (0, 16):
            with pytest.raises(fspec.ShapeError, match="1…15"):
                make(width)


@pytest.mark.parametrize("width", [1, 7, 15])
def test_drafts_stop_at_the_context_limit(toy, width: int):
    # BR-147: no block looks past the last position, and the text is the plain one
    limit = toy.params.config.max_positions
    prompt = (toy.streams[0] * 4)[: limit - 9]
    plain = fspec.generate(toy.params, prompt, fspec.none(), max_tokens=9, stop_ids=())
    fast = fspec.generate(
        toy.params, prompt, fspec.mtp(width), max_tokens=9, stop_ids=()
    )
    assert fast.token_ids == plain.token_ids
    assert len(fast.token_ids) == 9


def test_mtp_reads_the_targets_rotation_far_out():
    # BR-140: a head with a trunk layer's weights gives that layer's K/V at any place
    params, _ = system(5, FP32)
    assert params.mtp is not None
    mixer = params.mtp.layer.mixer
    assert isinstance(mixer, AttentionParams)
    x = torch.randn(3, params.config.hidden)
    at = torch.tensor([0, 4095, 300_000])
    by = rotation(params.inv_freq, params.config.rope.attention_factor, at)
    rows = attention_rows(params.kernels, mixer, x, by, 1e-6)
    k, v = key_value_rows(params.kernels, mixer, x, by, 1e-6)
    torch.testing.assert_close(k, rows.k)
    torch.testing.assert_close(v, rows.v)
