"""Generate law: with any drafter, `generate` is one-token greedy decoding."""

import sys
from functools import cache

from hypothesis import strategies as st

import fspec
from fspec.algorithms import step as step_module
from fspec.kernels import kernels_on
from fspec.types import Block
from tests.laws.base import Law, Wrong, require
from tests.laws.scripted import scripted
from tests.laws.settings import Setting
from tests.laws.systems import ints, system, with_kernels

LONGEST = 24  # new tokens


@cache
def one_at_a_time(
    variant: int, setting: Setting, prompt: int
) -> tuple[list[int], list]:
    """Decode greedily by single rows from the first prompt token on.

    Returns:
        The new tokens, and the canonical state before each of them was run.
    """
    params, streams = system(variant, setting)
    one = ints(params, [1])
    state = fspec.init_target(params, capacity=prompt + LONGEST, width=0)
    tokens, states = streams[0][:prompt], []
    for position in range(prompt + LONGEST):
        if position >= prompt:
            states.append(fspec.canonical(state, params))
        block = Block(ints(params, [[tokens[position]]]), one)
        verdict = fspec.verify(params, state, block)
        state = fspec.commit(params, state, verdict, one)
        if position + 1 == len(tokens):
            tokens.append(int(verdict.choice[0, 0]))
    return tokens[prompt:-1], states


def check(data: st.DataObject, setting: Setting) -> None:
    """Generate from a drawn prompt with a drawn drafter; stops anywhere in a block."""
    variant = data.draw(setting.variant(), "variant")
    params, streams = system(variant, setting)
    few = setting.prompts  # each costs as many single steps
    length = data.draw(st.sampled_from(few) if few else st.integers(1, 40), "prompt")
    prompt = streams[0][:length]
    free, states = one_at_a_time(variant, setting, length)
    count = data.draw(st.integers(1, LONGEST), "max tokens")
    # stops that really come up, at a drawn place
    stops = tuple(data.draw(st.lists(st.sampled_from(free), max_size=2), "stops"))
    tokens = _until(free[:count], stops)
    for drafter in _draw_drafters(data, params, prompt + free):
        seen: list[int] = []
        got = fspec.generate(
            params,
            prompt,
            drafter,
            max_tokens=count,
            stop_ids=stops,
            on_tokens=seen.extend,
        )
        name = drafter.name
        require(got.token_ids == tokens, f"{name}: {got.token_ids} is not {tokens}")
        require(seen == tokens, f"{name}: streamed {seen}, returned {tokens}")
        stopped = tokens[-1] in stops
        require((got.finish_reason == "stop") == stopped, f"{name}: finish reason")
        state = fspec.canonical(got.state.target, params)
        same = fspec.equal(state, states[len(tokens) - 1])
        require(same, f"{name}: the state is not that of single steps")


def _until(tokens: list[int], stops: tuple[int, ...]) -> list[int]:
    ends = [i for i, token in enumerate(tokens) if token in stops]
    return tokens[: ends[0] + 1] if ends else tokens


def _draw_drafters(data: st.DataObject, params, truth: list[int]) -> tuple:
    width = data.draw(st.integers(1, 15), "width")
    pattern = data.draw(st.lists(st.integers(0, width), min_size=1, max_size=4))
    return (
        fspec.none(),
        fspec.lookup(width),
        fspec.mtp(width),
        scripted(width, [truth], pattern, params.config.vocab),
    )


def _accept_one_more(right):
    def accept(verdict, sampling):
        shifted = verdict.choice.clone()
        shifted[:, 0] = verdict.block.tokens[:, min(1, shifted.shape[1] - 1)]
        return right(verdict._replace(choice=shifted), sampling)

    return accept


def _stop_at_block_end_only(right):
    def accept(verdict, sampling):
        plain = right(verdict, sampling._replace(stop_ids=sampling.stop_ids * 0 - 1))
        ends = (plain.boundary[:, None] == sampling.stop_ids).any(1)
        return plain._replace(finished=plain.finished | ends)

    return accept


def _limit_ignored(right):
    def accept(verdict, sampling):
        much = sampling.remaining + 3 * (sampling.remaining > 0)
        return right(verdict, sampling._replace(remaining=much))

    return accept


def _last_of_equal(right):
    def argmax(hidden, w):
        logits = kernels_on(hidden.device).product(hidden, w).flip(-1)
        return logits.shape[1] - 1 - logits.argmax(-1)

    return argmax


LAW = Law(
    "generate",
    check,
    (
        Wrong("first draft always kept", step_module, "accept", _accept_one_more),
        Wrong(
            "stops seen last only",
            step_module,
            "accept",
            _stop_at_block_end_only,
            ("fp32", "cuda-fp32"),
        ),
        Wrong("runs past the limit", step_module, "accept", _limit_ignored),
        Wrong(
            "the highest id of equal logits",
            sys.modules[__name__],
            "system",
            with_kernels(argmax=_last_of_equal),
            ("bf16", "cuda-bf16", "cuda-toy"),
        ),
    ),
)
