"""`generate`: a prompt in, tokens out, with any drafter and the same bytes."""

import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch

from fspec.algorithms.step import DecodeState, Step, compose
from fspec.errors import RequestError
from fspec.layers.decoder import TargetParams
from fspec.start import init_decode
from fspec.state.protocol import cut
from fspec.state.tree import Owned, own
from fspec.text import StopState, Tokenizer, check_stops, push_stops
from fspec.types import Drafter

PREFILL_CHUNK = 256  # tokens of a prompt a call; any size gives the same bytes


class Generation(NamedTuple):
    """What a generation came to.

    token_ids: the new tokens, the one that ended it included.
    text: their text without the stop string; empty without a tokenizer.
    finish_reason: `stop` (a stop id or string) or `length`.
    accepted, drafted: drafts kept and offered in each cycle, before any stop cut.
    prompt_tokens: length of the prompt.
    seconds_prefill: until the first token was known.
    seconds_decode: from there on.
    state: after everything but the last token, which is its boundary. Made in
        inference mode: `own` it to go on in place or to differentiate.
    """

    token_ids: list[int]
    text: str
    finish_reason: Literal["stop", "length"]
    accepted: list[int]
    drafted: list[int]
    prompt_tokens: int
    seconds_prefill: float
    seconds_decode: float
    state: DecodeState

    @property
    def cycles(self) -> int:
        """Verifications that were run."""
        return len(self.accepted)


@torch.inference_mode()
def generate(
    params: TargetParams,
    prompt_ids: Sequence[int],
    drafter: Drafter,
    *,
    max_tokens: int,
    stop_ids: tuple[int, ...] | None = None,
    tokenizer: Tokenizer | None = None,
    stop: Sequence[str] = (),
    on_tokens: Callable[[list[int]], None] | None = None,
    on_text: Callable[[str], None] | None = None,
) -> Generation:
    """Continue a prompt greedily; the tokens do not depend on the drafter.

    Args:
        params: the target.
        prompt_ids: at least one id of the vocabulary.
        drafter: `none()`, `lookup(width)`, `mtp(width)` or one of your own.
        max_tokens: most new tokens; prompt and new tokens must fit the context.
        stop_ids: ids that end the text; the checkpoint's own where it is None.
        tokenizer: gives text; needed for `stop` and `on_text`.
        stop: strings that end the text; excluded from it.
        on_tokens: called with the new ids of each cycle, none behind the end.
        on_text: called with each piece of text that can no longer change.

    Raises:
        RequestError: a parameter is out of range; nothing has been run.
        UnsupportedError: the checkpoint lacks the drafter's weights.
    """
    stops = _check(params, prompt_ids, max_tokens, stop_ids, tokenizer, stop)
    begin = time.perf_counter()
    step = compose(drafter)
    state = init_decode(
        params,
        drafter,
        capacity=len(prompt_ids) + max_tokens + drafter.width,
        max_tokens=max_tokens,
        stop_ids=params.config.eos_ids if stop_ids is None else stop_ids,
    )
    handle, new = _prefill(params, step, state, prompt_ids)
    first = time.perf_counter()
    ids, accepted, drafted, texts = [], [], [], []
    stream = StopState()
    while True:
        done = handle.look().sampling.remaining[0] == 0
        kept = new
        if tokenizer is not None:
            stream, delta = push_stops(tokenizer, stops, stream, new, bool(done))
            kept = new[: stream.tokens - len(ids)]
            texts.append(delta)
            if on_text is not None and delta:
                on_text(delta)
        ids += kept
        if on_tokens is not None and kept:
            on_tokens(kept)
        if done or stream.matched is not None:
            break
        handle, info = step.step_(params, handle)
        accepted.append(int(info.accepted[0]))
        drafted.append(int(info.drafted[0]))
        new = info.tokens[0, : int(info.rows[0])].tolist()
    state = _cut_back(handle.take(), ids, len(prompt_ids))
    stopped = stream.matched is not None or ids[-1] in state.sampling.stop_ids[0]
    return Generation(
        ids,
        "".join(texts),
        "stop" if stopped else "length",
        accepted,
        drafted,
        len(prompt_ids),
        first - begin,
        time.perf_counter() - first,
        state,
    )


def _prefill(
    params: TargetParams, step: Step, state: DecodeState, prompt: Sequence[int]
) -> tuple[Owned[DecodeState], list[int]]:
    handle = own(state)
    device = params.embed.device
    tokens = torch.tensor([list(prompt)], device=device)
    hidden = tokens
    for chunk in tokens.split(PREFILL_CHUNK, 1):
        count = torch.tensor([chunk.shape[1]], device=device)
        handle, hidden = step.prefill_(params, handle, chunk, count)
    first = params.kernels.argmax(hidden[:, -1], params.head)
    state = handle.take()
    sampling = state.sampling
    ended = (first[:, None] == sampling.stop_ids).any(1)
    remaining = (sampling.remaining - 1).masked_fill(ended, 0)
    sampling = sampling._replace(remaining=remaining)
    return Owned(state._replace(boundary=first, sampling=sampling)), first.tolist()


def _cut_back(state: DecodeState, ids: list[int], prompt: int) -> DecodeState:
    """Lower the lengths to all tokens but the last kept one, which is the boundary."""
    length = state.boundary.new_tensor([prompt + len(ids) - 1])
    dropped = state.target.pages.length - length
    sampling = state.sampling
    sampling = sampling._replace(
        remaining=sampling.remaining + dropped, room=sampling.room + dropped
    )
    return state._replace(
        sampling=sampling,
        target=cut(state.target, length),
        drafter=cut(state.drafter, length),
        boundary=state.boundary.new_tensor([ids[-1]]),
    )


def _check(
    params: TargetParams,
    prompt: Sequence[int],
    max_tokens: int,
    stop_ids: tuple[int, ...] | None,
    tokenizer: Tokenizer | None,
    stop: Sequence[str],
) -> tuple[str, ...]:
    vocab, limit = params.config.vocab, params.config.max_positions
    if not prompt:
        raise RequestError("the prompt is empty; give at least one token")
    for name, ids in (("prompt", prompt), ("stop", stop_ids or ())):
        bad = [i for i in ids if type(i) is not int or not 0 <= i < vocab]
        if bad:
            raise RequestError(
                f"{name} id {bad[0]!r} was given; ids are integers 0…{vocab - 1}"
            )
    if type(max_tokens) is not int or max_tokens < 1:
        raise RequestError(f"max_tokens {max_tokens!r} was given; 1 or more is needed")
    if len(prompt) + max_tokens > limit:
        raise RequestError(
            f"{len(prompt)} prompt tokens and {max_tokens} new ones were asked for; "
            f"the context holds {limit}. Shorten the prompt or lower max_tokens"
        )
    if stop and tokenizer is None:
        raise RequestError("stop strings were given without a tokenizer to find them")
    return check_stops(stop)
