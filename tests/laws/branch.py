"""Branch law: what starts from one state goes on as if it were alone.

Two blocks with other boundaries, in slots that share pages and are committed in place
in one batch, end where each ends from a state of its own; drafters asked side by side
at one state answer as they do alone.
"""

import torch
from hypothesis import strategies as st

import fspec
from fspec.algorithms.accept import greedy
from fspec.algorithms.commit import commit_
from fspec.state import deltanet as deltanet_module
from fspec.state import pool as pool_module
from fspec.types import Block, Committed
from tests.laws.base import Law, Wrong, require
from tests.laws.settings import Setting
from tests.laws.systems import canaries_live, ints, poisoned, random_tokens, system

CAPACITY = 120  # beside what a setting's long prompts take


def check(data: st.DataObject, setting: Setting) -> None:
    """Branch a drawn state inside one arena and compare with separate runs."""
    params, streams = system(data.draw(setting.variant()), setting)
    width = data.draw(st.integers(1, 15), "width")
    drafters = fspec.mtp(width), fspec.lookup(width)
    page_size = data.draw(setting.page_size(), "page size")
    count = data.draw(setting.counts(1, 70), "prompt")
    made = poisoned(
        params,
        drafters,
        batch=2,
        capacity=CAPACITY + setting.long,
        width=width,
        page_size=page_size,
        seed=data.draw(st.integers(0, 99), "places"),
    )
    pool, states, slots = _lone(params, drafters, *made, streams[0][:count])
    blocks = [_block(data, params, width) for _ in slots]
    alone = [_finish(params, drafters, states, block) for block in blocks]
    parent = fspec.canonical(states, params)
    _compare_drafters(params, drafters, states, blocks[0])
    pool, both = fspec.branch(pool, states, slots[0], slots[1])
    for slot in slots:
        pool, both = fspec.reserve_(pool, both, slot, count + width + 1)
    both = tuple(x._replace(slots=ints(params, slots)) for x in both)
    require(
        fspec.equal(fspec.canonical(both, params)[0][1], parent[0][0]), "the branch"
    )
    tokens = torch.cat([block.tokens for block in blocks])
    counts = torch.cat([block.counts for block in blocks])
    merged = _finish(params, drafters, both, Block(tokens, counts), commit_, "absorb_")
    for kind, state in enumerate(fspec.canonical(merged, params)):
        for row in (0, 1):
            wanted = fspec.canonical(alone[row], params)[kind][0]
            require(fspec.equal(state[row], wanted), f"branch {row}, state {kind}")
    require(canaries_live(merged), "a canary page was written")
    _released(pool, merged, slots)


def _lone(params, drafters, pool, states, tokens: list[int]):
    # one request with a prompt; the other slot's pages go back to the pool
    slots = states[0].slots.tolist()
    pool, states = fspec.release(pool, states, slots[1])
    states = tuple(x._replace(slots=ints(params, slots[:1])) for x in states)
    known = ints(params, [tokens])
    target, hidden, features = fspec.extend(params, states[0], known)
    committed = Committed(known, hidden, features, ints(params, [len(tokens)]))
    absorbed = _absorb(params, drafters, states[1:], committed, "absorb")
    return pool, (target, *absorbed), slots


def _block(data: st.DataObject, params, width: int) -> Block:
    seed = data.draw(st.integers(0, 999), "tokens")
    tokens = random_tokens(params, 1, width + 1, seed=seed)
    count = data.draw(st.integers(1, width + 1), "count")
    return Block(tokens, ints(params, [count]))


def _finish(params, drafters, states, block, commit=fspec.commit, absorb="absorb"):
    verdict = fspec.verify(params, states[0], block)
    committed = Committed(block.tokens, verdict.hidden, verdict.features, block.counts)
    target = commit(params, states[0], verdict, block.counts)
    return target, *_absorb(params, drafters, states[1:], committed, absorb)


def _absorb(params, drafters, states, committed, name: str):
    pairs = zip(drafters, states, strict=True)
    return tuple(getattr(d, name)(params, state, committed) for d, state in pairs)


def _compare_drafters(params, drafters, states, block: Block) -> None:
    sampling = greedy(1, width=15, max_tokens=9, room=99, like=params.embed)
    boundary = block.tokens[:, 0]

    def ask() -> list:
        pairs = zip(drafters, states[1:], strict=True)
        return [d.propose(params, state, boundary, sampling) for d, state in pairs]

    first = ask()
    fspec.verify(params, states[0], block)
    require(fspec.equal(first, ask()), "a drafter's answer depends on who asked before")


def _released(pool, states, slots: list[int]) -> None:
    for slot in slots:
        pool, states = fspec.release(pool, states, slot)
    held = int(pool.references.sum())
    require(held == 2, f"{held - 2} page references leaked")  # the two canaries


def _no_copy_on_write(right):
    def plan(pool, states, slot, end):
        single = pool.references.clamp(max=1)
        made = right(fspec.PagePool(single), states, slot, end)
        references = made.pool.references + pool.references - single
        return made._replace(pool=fspec.PagePool(references))

    return plan


def _copies_nothing(right):
    def apply(plan, states, slot):
        none = plan.old[:0]
        return right(plan._replace(old=none, new=none), states, slot)

    return apply


def _pages_alone(right):
    # the branch forgets the raw rows: pages alone do not make a state
    def fork_slot(x, axis, source, target):
        return x if x.dim() == 4 else right(x, axis, source, target)

    return fork_slot


LAW = Law(
    "branch",
    check,
    (
        Wrong("no copy on write", pool_module, "_plan", _no_copy_on_write),
        Wrong("new pages left empty", pool_module, "_apply_", _copies_nothing),
        Wrong(
            "raw rows not branched",
            deltanet_module,
            "copy_slot",
            _pages_alone,
        ),
    ),
)
