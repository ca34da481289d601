"""The race: equal tokens first, then interleaved runs."""

from collections.abc import Sequence
from typing import NamedTuple

from fspec.bench.contenders import BASELINE, Contender, Outcome
from fspec.bench.stats import Spread, ratios, spread


class RedCheckError(Exception):
    """Contenders gave different tokens, so there is nothing to time."""


class Speed(NamedTuple):
    """A contender's tokens per second over the runs.

    decode: tokens after the first, over the time after the first.
    end_to_end: all tokens over all the time, prefill included.
    decode_ratio, end_to_end_ratio: over transformers', paired by run.
    acceptance_length: accepted drafts + 1, averaged; None without cycles.
    """

    decode: Spread
    end_to_end: Spread
    decode_ratio: Spread
    end_to_end_ratio: Spread
    acceptance_length: float | None


def race(
    contenders: Sequence[Contender], prompts: Sequence[list[int]], runs: int
) -> dict[str, Speed]:
    """Time every contender on every prompt, once all of them give the same tokens.

    Args:
        contenders: `BASELINE` is one of them.
        prompts: ids; a run is all of them.
        runs: 1 or more. Each run starts with another contender.

    Raises:
        RedCheckError: two contenders differ in a token, at first or in any run.
    """
    expected = agreed(contenders, prompts)
    timed: dict[str, list[list[Outcome]]] = {c.name: [] for c in contenders}
    for run in range(runs):
        turn = run % len(contenders)
        for contender in (*contenders[turn:], *contenders[:turn]):
            done = [contender.run(prompt) for prompt in prompts]
            _check(contender.name, [outcome.tokens for outcome in done], expected)
            timed[contender.name].append(done)
    base = timed[BASELINE]
    return {name: _speed(mine, base) for name, mine in timed.items()}


def agreed(
    contenders: Sequence[Contender], prompts: Sequence[list[int]]
) -> list[list[int]]:
    """Run every contender once and return the tokens that all of them gave.

    Raises:
        RedCheckError: they differ.
    """
    first, *others = contenders
    expected = [first.run(prompt).tokens for prompt in prompts]
    for contender in others:
        got = [contender.run(prompt).tokens for prompt in prompts]
        _check(contender.name, got, expected)
    return expected


def decode_rate(run: Sequence[Outcome]) -> float:
    """Tokens after the first of each prompt, per second after the first."""
    tokens = sum(len(outcome.tokens) - 1 for outcome in run)
    return tokens / sum(outcome.seconds_decode for outcome in run)


def end_to_end_rate(run: Sequence[Outcome]) -> float:
    """All tokens per second, prefill included."""
    seconds = sum(outcome.seconds_prefill + outcome.seconds_decode for outcome in run)
    return sum(len(outcome.tokens) for outcome in run) / seconds


def _speed(mine: list[list[Outcome]], base: list[list[Outcome]]) -> Speed:
    decode, whole = ([rate(run) for run in mine] for rate in _RATES)
    their_decode, their_whole = ([rate(run) for run in base] for rate in _RATES)
    accepted = [count for outcome in mine[0] for count in outcome.accepted]
    length = sum(accepted) / len(accepted) + 1 if accepted else None
    return Speed(
        spread(decode),
        spread(whole),
        ratios(decode, their_decode),
        ratios(whole, their_whole),
        length,
    )


_RATES = (decode_rate, end_to_end_rate)


def _check(name: str, got: list[list[int]], expected: list[list[int]]) -> None:
    for number, (mine, theirs) in enumerate(zip(got, expected, strict=True), 1):
        if mine != theirs:
            pairs = enumerate(zip(mine, theirs, strict=False))
            same = next((at for at, (a, b) in pairs if a != b), None)
            where = min(len(mine), len(theirs)) if same is None else same
            raise RedCheckError(
                f"{name} gives other tokens than fspec none on prompt {number}, from "
                f"new token {where} on; nothing was timed for the report"
            )
