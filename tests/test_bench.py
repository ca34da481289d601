"""The parts of the bench that can be wrong without looking wrong."""

import importlib.util
import io
import json
from pathlib import Path
from types import FunctionType, SimpleNamespace

import pytest
import torch
import typer
from rich.console import Console

import fspec
from fspec.algorithms.mtp import mtp
from fspec.algorithms.step import compose
from fspec.bench.command import bench_app
from fspec.bench.contenders import BASELINE, Contender, Outcome
from fspec.bench.context import Contexts, OneToken, measure_contexts, prefilled
from fspec.bench.cycle import (
    PARTS,
    Breakdown,
    Functions,
    Parts,
    measure_cycle,
    run_cycle,
    split_profile,
)
from fspec.bench.parts import count_calls, shrunken, step_weights
from fspec.bench.prompts import held_out, long_text
from fspec.bench.report import Report, as_json, print_report
from fspec.bench.rows import RowPrice, measure_rows
from fspec.bench.speed import RedCheckError, Speed, race
from fspec.bench.stats import (
    Goal,
    Spread,
    context_goal,
    kv_bytes,
    ratios,
    speed_goal,
    spread,
)
from fspec.config import read_config
from fspec.errors import RequestError
from fspec.integrity import expected_shapes
from fspec.load import embedded_path, load_target
from fspec.state.tree import equal
from fspec.text import load_tokenizer

TEXT = [token % 97 for token in range(90)]


@pytest.fixture(scope="module")
def params():
    return load_target()


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(embedded_path())


# -- maths ---------------------------------------------------------------------------


def test_spread_is_median_least_and_greatest():
    assert spread([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)
    assert spread([4.0, 1.0]) == (2.5, 1.0, 4.0)


def test_ratios_are_paired_by_run():
    # the machine was twice as slow in the second run: the ratio does not see it
    assert ratios([40.0, 20.0, 44.0], [10.0, 5.0, 11.0]) == (4.0, 4.0, 4.0)


def test_kv_bytes_by_hand():
    config = read_config(embedded_path())
    # 4 full layers, K and V, 2 heads of 64 numbers of 4 bytes: 4,096 a token
    assert kv_bytes(config, 1, 4) == 4096
    assert kv_bytes(config, 3072, 4) - kv_bytes(config, 128, 4) == 12_058_624
    assert kv_bytes(config, 1024, 2) == 2 << 20


@pytest.mark.parametrize(
    ("long", "value", "met"), [(0.108, "8.0x", True), (0.109, "9.0x", False)]
)
def test_context_goal_at_its_edge(long, value, met):
    goal = context_goal(0.1, long, extra_bytes=10**6, bandwidth=1e9, most=8.000001)
    assert (goal.value, goal.met) == (value, met)
    assert goal.line().endswith("MISSED") is not met


def test_speed_goal_says_target_and_value():
    assert speed_goal(4.0).line().endswith("target: 4.0x, reached: 4.0x")
    assert speed_goal(3.9).line().endswith("target: 4.0x, reached: 3.9x  MISSED")


# -- the race ------------------------------------------------------------------------


def fake(name, tokens, seconds=1.0, accepted=()):
    """A contender that notes its calls; `tokens` may change from call to call."""
    calls = []

    def run(prompt):
        calls.append(prompt)
        given = tokens(len(calls)) if isinstance(tokens, FunctionType) else tokens
        return Outcome(list(given), seconds, seconds, list(accepted))

    return Contender(name, run), calls


def test_red_check_refuses_to_time():
    good, good_calls = fake("none", [1, 2, 3])
    bad, bad_calls = fake(BASELINE, [1, 2, 4])
    with pytest.raises(RedCheckError, match="prompt 1, from new token 2 on"):
        race([good, bad], [[5], [6]], runs=3)
    assert len(good_calls) == len(bad_calls) == 2  # the check, and no run


def test_tokens_that_change_in_a_later_run_are_red():
    good = fake("none", [1, 2])[0]
    fickle = fake(BASELINE, lambda call: [1, 2] if call < 3 else [1, 3])[0]
    with pytest.raises(RedCheckError):
        race([good, fickle], [[5]], runs=2)


def test_race_counts_tokens_and_seconds():
    fast = fake("mtp", [1, 2, 3, 4, 5], 0.5, accepted=[3, 0])[0]
    slow = fake(BASELINE, [1, 2, 3, 4, 5], 2.0)[0]
    speed = race([fast, slow], [[7], [8]], runs=3)
    assert speed["mtp"].decode.median == 8.0  # 2 prompts x 4 tokens in 1 s
    assert speed["mtp"].end_to_end.median == 5.0  # 10 tokens in 2 s
    assert speed["mtp"].decode_ratio == (4.0, 4.0, 4.0)
    assert speed["mtp"].acceptance_length == 2.5
    assert speed[BASELINE].end_to_end_ratio.median == 1.0
    assert speed[BASELINE].acceptance_length is None


# -- the closer looks ----------------------------------------------------------------


def counted_cycle(params, drafter, text, rows):
    """Run a cycle by hand; return the state after it and its library calls."""
    box, state = [], prefilled(params, drafter, text, [80], 40)[0].take()
    calls = count_calls(lambda: box.append(run_cycle(params, drafter, state, rows)))
    return box[0][0], calls


def test_the_shrunken_target_makes_the_same_calls(params):
    drafter, text = mtp(3), [token % 16 for token in TEXT]
    small, real = shrunken(params), params
    assert (
        counted_cycle(small, drafter, text, 2)[1]
        == (counted_cycle(real, drafter, TEXT, 2)[1])
    )


def test_a_cycle_by_hand_is_a_step(params):
    drafter = mtp(3)
    step, handle = compose(drafter).step_, prefilled(params, drafter, TEXT, [80], 40)[0]
    with torch.no_grad():
        stepped, info = step(params, handle)
    rows = int(info.rows[0])
    by_hand, _ = counted_cycle(params, drafter, TEXT, rows)
    assert equal(stepped.look()[:2], by_hand[:2])
    assert stepped.look().boundary.tolist() == by_hand.boundary.tolist()


def test_named_parts_exist():
    for name in [name for names in PARTS.values() for name in names]:
        path, _, function = name.partition(":")
        found = Path(fspec.__file__).parent / path
        assert found.exists(), name
        assert not function or f"def {function}(" in found.read_text(), name


def code(path, name):
    return SimpleNamespace(co_filename=f"/fspec/fspec/{path}", co_name=name)


def test_profile_is_split_where_a_part_is_entered():
    def call(to, seconds):
        return SimpleNamespace(code=to, totaltime=seconds)

    product = code("kernels/product/vector.py", "product")
    attend = code("kernels/attention/vector.py", "attend")
    group = code("kernels/attention/vector.py", "_attend_group")
    gather = code("state/pages.py", "gather_rows")
    write = code("state/pages.py", "write_rows_")
    trunk = [call(product, 3.0), call(attend, 2.0), call(gather, 0.5), call(write, 1.0)]
    stats = [
        SimpleNamespace(code=code("layers/decoder.py", "trunk"), calls=trunk),
        SimpleNamespace(code=attend, calls=[call(group, 1.5), call("bmm", 0.4)]),
        SimpleNamespace(code=write, calls=None),
    ]
    assert split_profile(stats, 10.0) == (3.0, 2.5, 0.0, 4.5)


def test_step_weights_are_every_projection_once(params):
    shapes = expected_shapes(params.config, mtp=False)
    expected = sum(
        rows * columns
        for name, (rows, *rest) in shapes.items()
        for columns in rest[:1]
        if "_proj" in name or name == "lm_head.weight"
    )
    assert sum(w.numel() for w in step_weights(params)) == expected


def test_measurements_run_and_add_up(params, tokenizer):
    text = long_text(tokenizer, 65)
    cycle = measure_cycle(params, mtp(2), text, rows=2, runs=1, cycles=1)
    assert min(*cycle.parts, *cycle.functions) > 0
    assert cycle.calls > 1000
    contexts = measure_contexts(params, text, steps=1, contexts=(16, 64))
    assert [token.context for token in contexts.tokens] == [16, 64]
    assert contexts.bandwidth > 1e8
    assert measure_rows(params, 1).weight_bytes > 50e6


def test_prompts_have_the_lengths_they_should(tokenizer):
    lengths = [len(tokenizer.encode(prompt)) for prompt in held_out(29)]
    assert min(lengths) == 64
    assert max(lengths) <= 1500
    assert held_out(5) == [held_out(29)[i] for i in (0, 5, 11, 17, 23)]
    assert len(long_text(tokenizer, 20_000)) == 20_000


# -- the report ----------------------------------------------------------------------


def report():
    one = Spread(2.0, 1.0, 3.0)
    parts, dispatch = Parts(1e-3, 2e-3, 3e-3, 4e-3), Parts(0.0, 0.0, 0.0, 0.0)
    functions = Functions(2e-3, 2e-3, 2e-3, 2e-3, 2e-3)
    return Report(
        {"versions": {"fspec": "0"}}
        | dict.fromkeys(("command", "date", "cpu", "dtype"), "text")
        | dict.fromkeys(("cores", "threads", "load"), 2),
        {"runs": 1, "prompts": 1, "max_tokens": 8, "width": 7},
        [81],
        {
            "mtp": Speed(one, one, one, one, 4.5),
            BASELINE: Speed(one, one, one, one, None),
        },
        Contexts(1e10, [OneToken(128, one, 524_288, 5e-5)], speed_goal(4.0)),
        [Breakdown("mtp", 256, 5, parts, dispatch, functions, 4321)],
        RowPrice(one, one, one, 58_900_000),
        [Goal("a goal", "4.0x", "3.0x", False)],
    )


def test_report_has_every_table_and_field():
    console = Console(width=110, record=True, file=io.StringIO())
    print_report(console, report())
    text = console.export_text()
    for part in ("fspec mtp", "524,288", "10.00", "4321", "58.9 MB", "MISSED"):
        assert part in text
    found = json.loads(as_json(report()))
    assert found["speed"]["mtp"]["decode"] == {"median": 2.0, "low": 1.0, "high": 3.0}
    assert found["cycles"][0]["parts"]["products"] == 1e-3


# -- the command ---------------------------------------------------------------------
# by its own app: the jaxtyping hook does not take the callback of the whole `fspec`


def bench(*arguments):
    command = typer.main.get_command(bench_app(dict))
    with command.make_context("bench", ["cpu", *arguments]) as context:
        command.invoke(context)


def test_a_red_check_ends_with_1_and_no_number(monkeypatch, capsys):
    def red(*_):
        raise RedCheckError("mtp gives other tokens")

    monkeypatch.setattr("fspec.bench.command.race", red)
    monkeypatch.setattr("fspec.bench.command.transformers_contender", fake)
    with pytest.raises(typer.Exit) as ended:
        bench("--runs", "1", "--prompts", "1")
    assert ended.value.exit_code == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "fspec: red check: mtp gives other tokens\n"


def test_without_transformers_it_says_what_to_do(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RequestError, match="pip install"):
        bench()


def test_a_folder_that_is_not_there_is_refused_before_the_run():
    with pytest.raises(RequestError, match="no such folder"):
        bench("--json", "/no/such/folder/bench.json")
