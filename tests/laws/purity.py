"""Purity: functions write nothing they were given, and owning changes no value."""

from hypothesis import strategies as st

import fspec
from fspec.algorithms import step as step_module
from fspec.algorithms import verify as verify_module
from fspec.state import tree
from fspec.state.tree import copy
from fspec.types import Committed
from tests.laws.base import Law, Wrong, require
from tests.laws.scripted import scripted
from tests.laws.settings import Setting
from tests.laws.systems import ints, system

STEPS = 4
PROMPT = 40  # tokens, where no long ones are drawn


def check(data: st.DataObject, setting: Setting) -> None:
    """Run each function on a drawn state and compare the bytes before and after."""
    params, streams = system(data.draw(setting.variant()), setting)
    drafter = _draw_drafter(data, params, streams)
    state = _prefilled(data, setting, params, drafter, streams[0])
    before = copy(state)
    stepper = fspec.compose(drafter)
    _read_only(params, drafter, state)
    require(fspec.equal(state, before), "a function wrote what it was given")
    handle, pure = fspec.own(state), state
    for _ in range(STEPS):
        old = handle
        handle, owned_info = stepper.step_(params, handle)
        kept = copy(pure)
        pure_after, info = stepper.step(params, pure)
        require(fspec.equal(pure, kept), "a pure step wrote its state")
        pure = pure_after
        require(fspec.equal(info, owned_info), "owned and pure steps report otherwise")
        require(_consumed(old, stepper, params), "a consumed handle still works")
    require(fspec.equal(state, before), "an owned step wrote the state it came from")
    owned = handle.take()
    for a, b in ((owned.target, pure.target), (owned.drafter, pure.drafter)):
        same = fspec.equal(fspec.canonical(a, params), fspec.canonical(b, params))
        require(same, "owned and pure states differ")
    require(fspec.equal(owned.boundary, pure.boundary), "boundaries differ")


def _draw_drafter(data: st.DataObject, params, streams) -> fspec.Drafter:
    width = data.draw(st.integers(1, 15), "width")
    kind = data.draw(st.sampled_from(["none", "lookup", "mtp", "scripted"]), "drafter")
    if kind == "scripted":
        return scripted(width, [streams[0]] * 2, [0, 3, 15, 1], params.config.vocab)
    if kind == "none":
        return fspec.none()
    return {"lookup": fspec.lookup, "mtp": fspec.mtp}[kind](width)


def _prefilled(
    data: st.DataObject, setting: Setting, params, drafter, stream: list[int]
) -> fspec.DecodeState:
    batch = data.draw(st.integers(1, 2), "batch")
    sizes = [size for size in setting.pages if size != 4]
    state = fspec.init_decode(
        params,
        drafter,
        batch=batch,
        capacity=150 + setting.long,
        max_tokens=99,
        page_size=data.draw(st.sampled_from(sizes), "page size"),
    )
    counts = [data.draw(setting.counts(1, PROMPT)) for _ in range(batch)]
    tokens = ints(params, [stream[: max(PROMPT, *counts)]] * batch)
    known = ints(params, counts)
    state, _ = fspec.compose(drafter).prefill(params, state, tokens, known)
    return state._replace(boundary=ints(params, [stream[n] for n in counts]))


def _read_only(params, drafter: fspec.Drafter, state: fspec.DecodeState) -> None:
    target, draft, boundary, sampling = state
    proposal = drafter.propose(params, draft, boundary, sampling)
    block = fspec.form_block(boundary, proposal, sampling)
    verdict = fspec.verify(params, target, block, drafter.taps)
    acceptance = fspec.accept(verdict, sampling)
    rows = acceptance.rows
    fspec.commit(params, target, verdict, rows)
    hidden, features = verdict.hidden, verdict.features
    drafter.absorb(params, draft, Committed(block.tokens, hidden, features, rows))
    fspec.extend(params, target, block.tokens)
    fspec.commit_sampling(sampling, acceptance)
    fspec.canonical(target, params)
    length = target.pages.length[target.slots]
    fspec.cut(target, length)


def _consumed(handle: fspec.Owned, stepper: fspec.Step, params) -> bool:
    for use in (handle.look, handle.take, lambda: stepper.step_(params, handle)):
        try:
            use()
        except fspec.StateError:
            continue
        return False
    return True


def _verify_writes(right):
    def trunk(params, state, batch, tokens, taps):
        out = right(params, state, batch, tokens, taps)
        for i, (slot, length, *_) in enumerate(zip(*batch, strict=True)):
            size = state.pages.k.shape[2]
            page = state.pages.table[slot, length // size]
            state.pages.k[:, page, length % size] = out.k[:, i, 0]
        return out

    return trunk


def _commit_in_place(right):
    return step_module.commit_


def _shallow_own(right):
    return lambda tree: tree


def _never_consumed(right):
    return lambda handle: handle.look()


LAW = Law(
    "purity",
    check,
    (
        Wrong("verify writes a row", verify_module, "trunk", _verify_writes),
        Wrong("commit works in place", step_module, "commit", _commit_in_place),
        Wrong("own does not copy", tree, "copy", _shallow_own),
        Wrong("handles are never consumed", tree.Owned, "take", _never_consumed),
    ),
)
