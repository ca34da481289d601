"""The command: what it prints, and how it ends; in this process where it can be."""

import io
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest

from fspec.cli import main

COMMAND = [sys.executable, "-m", "fspec.cli"]
TARGET = Path(__file__).parents[2] / "fspec/models/tiny/target"
PROMPT = "def fibonacci(n):\n    # début, 漢字 😀\n"
KEYS = {
    "token_ids",
    "text",
    "finish_reason",
    "drafter",
    "width",
    "cycles",
    "accepted_per_cycle",
    "acceptance_length",
    "prompt_tokens",
    "completion_tokens",
    "seconds_prefill",
    "seconds_decode",
    "versions",
    "threads",
    "device",
    "dtype",
    "model",
}


class Done(NamedTuple):
    returncode: int
    stdout: bytes
    stderr: bytes


def fspec(*arguments, stdin=b"", command="generate"):
    """Run the command here, on streams of its own."""
    streams = [io.BytesIO(stdin), io.BytesIO(), io.BytesIO()]
    texts = [
        io.TextIOWrapper(stream, "utf-8", errors="backslashreplace", newline="")
        for stream in streams
    ]
    patched = dict(zip(("stdin", "stdout", "stderr"), texts, strict=True))
    with mock.patch.multiple(sys, **patched):
        code = main([command, *map(str, arguments)])
    for text in texts[1:]:
        text.flush()
    return Done(code, streams[1].getvalue(), streams[2].getvalue())


def process(*arguments, stdin=b"", command="generate"):
    """Run `fspec` as a process to its end."""
    line = [*COMMAND, command, *map(str, arguments)]
    done = subprocess.run(line, input=stdin, capture_output=True, timeout=120)
    return Done(done.returncode, done.stdout, done.stderr)


def record(*arguments, stdin=b""):
    done = fspec(*arguments, "--json", stdin=stdin)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    assert done.stdout.count(b"\n") == 1
    return json.loads(done.stdout)


def steady(result):
    """The record without what time and the run's own options change."""
    return {key: result[key] for key in ("token_ids", "text", "finish_reason")}


@pytest.fixture(scope="module")
def plain():
    return record("--prompt", PROMPT, "--max-tokens", 24, "--drafter", "none")


def edited(folder, **changes):
    """A copy of the embedded checkpoint whose config says something else."""
    shutil.copytree(TARGET, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def damage_config(folder):
    (folder / "config.json").write_text("{")


def damage_tokenizer(folder):
    (folder / "tokenizer.json").write_text("{")


def lose_tokenizer(folder):
    (folder / "tokenizer.json").unlink()


def lose_shard(folder):
    (folder / "model-00003-of-00003.safetensors").unlink()


def cut_shard(folder):
    shard = folder / "model-00003-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:1000])


def lose_all(folder):
    for file in folder.iterdir():
        file.unlink()


def assert_refused(done, *words):
    """Exit code 2, one line on stderr, nothing on stdout."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == b""
    assert done.stderr.startswith(b"fspec: ")
    assert done.stderr.endswith(b"\n")
    assert done.stderr.count(b"\n") == 1
    assert b"Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr.decode()


P = ("--prompt", "x = 1")
BAD = {
    "no such file": (("-f", "no/such.txt"), "no/such.txt"),
    "a folder as file": (("-f", "."), "."),
    "NUL in the path": (("-f", "a\0b"), "cannot be read"),
    "a path of two lines": (("-f", "no\nsuch"), "no such"),
    "both prompts": ((*P, "-f", "x"), "--prompt"),
    "empty prompt": (("--prompt", ""), "empty"),
    "empty stdin": ((), "stdin"),
    "prompt is not UTF-8": (("--prompt", "x\udcff"), "UTF-8"),
    "stop is not UTF-8": ((*P, "--stop", "\udcff"), "stop"),
    "empty stop": ((*P, "--stop", ""), "stop"),
    "width 0": ((*P, "--width", 0), "--width"),
    "width 16": ((*P, "--width", 16), "--width"),
    "negative width": ((*P, "--width", -1, "--drafter", "lookup"), "--width"),
    "width 16 of none": ((*P, "--width", 16, "--drafter", "none"), "--width"),
    "width is no number": ((*P, "--width", "wide"), "--width"),
    "unknown drafter": ((*P, "--drafter", "eagle"), "eagle"),
    "unknown device": ((*P, "--device", "tpu"), "device tpu", "cpu, cuda, xpu"),
    "no such device": ((*P, "--device", "xpu:99"), "xpu:99"),
    "unknown dtype": ((*P, "--dtype", "float16"), "float16"),
    "no tokens": ((*P, "--max-tokens", 0), "--max-tokens"),
    "negative tokens": ((*P, "--max-tokens", -5), "--max-tokens"),
    "no threads": ((*P, "--threads", 0), "--threads"),
    "unknown option": ((*P, "--speed", 3), "--speed"),
    "a stray argument": ((*P, "more"), "more"),
    "an option without its value": (("--prompt",), "--prompt"),
    "no such model": ((*P, "--model", "no/such"), "no/such"),
    "a file as model": ((*P, "--model", __file__), "--model"),
    "output over the context": ((*P, "--max-tokens", 5000), "4096"),
    "prompt over the context": (("--prompt", "x = 1\n" * 2000), "4096"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_2(case):
    arguments, *words = BAD[case]
    assert_refused(fspec(*arguments), *words)


@pytest.mark.parametrize("command", ["generat", "--nothing"])
def test_unknown_commands(command):
    assert_refused(fspec(command=command), command)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"x = 1\n\xc3", b"\xed\xa0\x80"])
def test_invalid_utf8_is_refused_from_stdin_and_file(data, tmp_path):
    assert_refused(fspec(stdin=data), "stdin", "UTF-8")
    file = tmp_path / "prompt.txt"
    file.write_bytes(data)
    assert_refused(fspec("-f", file), "prompt.txt", "UTF-8")


@pytest.mark.parametrize(
    "damage",
    [damage_config, damage_tokenizer, lose_tokenizer, lose_shard, cut_shard, lose_all],
)
def test_damaged_checkpoints(damage, tmp_path):
    folder = tmp_path / "target"
    shutil.copytree(TARGET, folder)
    damage(folder)
    assert_refused(fspec(*P, "--model", folder))


def test_a_drafter_the_checkpoint_lacks(tmp_path):
    folder = edited(tmp_path / "target", mtp_num_hidden_layers=0)
    index_file = folder / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    if any(name.startswith("mtp.") for name in index["weight_map"]):
        drop_mtp(folder, index_file, index)
    assert_refused(fspec(*P, "--model", folder, "--drafter", "mtp"), "mtp")


def drop_mtp(folder, index_file, index):
    """Take the `mtp.*` tensors out of the shards and the index."""
    from safetensors.torch import load_file, save_file

    for name in set(index["weight_map"].values()):
        tensors = load_file(folder / name)
        kept = {k: v for k, v in tensors.items() if not k.startswith("mtp.")}
        save_file(kept, folder / name, metadata={"format": "pt"})
    places = index["weight_map"].items()
    index["weight_map"] = {k: v for k, v in places if not k.startswith("mtp.")}
    index_file.write_text(json.dumps(index))


def test_json_record(plain):
    assert plain.keys() >= KEYS
    assert plain["completion_tokens"] == len(plain["token_ids"]) == 24
    assert plain["finish_reason"] == "length"
    assert (plain["drafter"], plain["width"]) == ("none", 0)
    assert (plain["dtype"], plain["device"]) == ("float32", "cpu")
    assert plain["model"] == "embedded"
    assert plain["acceptance_length"] == 1
    assert set(plain["accepted_per_cycle"]) == {0}
    assert len(plain["accepted_per_cycle"]) == plain["cycles"]
    assert plain["versions"].keys() >= {"fspec", "torch", "python"}


@pytest.mark.parametrize(("drafter", "width"), [("mtp", 7), ("mtp", 1), ("lookup", 15)])
def test_drafters_give_the_same_bytes(plain, drafter, width):
    other = record(
        *("--prompt", PROMPT, "--max-tokens", 24, "--drafter", drafter),
        *("--width", width),
    )
    assert steady(other) == steady(plain)
    assert (other["drafter"], other["width"]) == (drafter, width)
    accepted = other["accepted_per_cycle"]
    assert all(0 <= count <= width for count in accepted)
    assert 1 + sum(accepted) + len(accepted) >= 24
    mean = sum(accepted) / len(accepted) + 1
    assert other["acceptance_length"] == pytest.approx(mean)


def test_prompt_file_and_stdin_are_equal(plain, tmp_path):
    file = tmp_path / "prompt.py"
    file.write_bytes(PROMPT.encode())
    options = ("--max-tokens", 24)
    assert steady(record("-f", file, *options)) == steady(plain)
    assert steady(record(*options, stdin=PROMPT.encode())) == steady(plain)


def test_streamed_text_is_the_text(plain):
    done = fspec("--prompt", PROMPT, "--max-tokens", 24)
    assert done.returncode == 0
    assert done.stdout.decode() == plain["text"]
    line = done.stderr.decode()
    assert line.count("\n") == 1
    for word in (
        "24 tokens",
        "tokens/s",
        "cycles",
        "acceptance_length",
        "at 1…7",
        "on cpu",
    ):
        assert word in line


def test_stop_strings_cut_text_and_ids(plain):
    text = plain["text"]
    stop = text[len(text) // 2 :][:3]
    cut = record("--prompt", PROMPT, "--max-tokens", 24, "--stop", stop, "--stop", "§")
    assert cut["finish_reason"] == "stop"
    assert cut["text"] == text[: text.index(stop)]
    count = len(cut["token_ids"])
    assert cut["token_ids"] == plain["token_ids"][:count]
    assert cut["completion_tokens"] == count
    streamed = fspec("--prompt", PROMPT, "--max-tokens", 24, "--stop", stop)
    assert streamed.stdout.decode() == cut["text"]


def test_one_token_needs_no_cycle():
    one = record("--prompt", PROMPT, "--max-tokens", 1)
    assert one["completion_tokens"] == 1
    assert (one["cycles"], one["accepted_per_cycle"]) == (0, [])
    assert one["acceptance_length"] is None


def test_threads_and_model_are_reported():
    done = process(
        *("--prompt", PROMPT, "--max-tokens", 2, "--threads", 1, "--json"),
        *("--model", TARGET, "--dtype", "bfloat16"),
    )
    assert (done.returncode, done.stderr) == (0, b"")
    one = json.loads(done.stdout)
    assert (one["threads"], one["dtype"]) == (1, "bfloat16")
    assert one["model"] == str(TARGET)


def test_a_process_behaves_like_main(plain):
    options = ("--max-tokens", 24)
    done = process(*options, stdin=PROMPT.encode())
    assert (done.returncode, done.stdout.decode()) == (0, plain["text"])
    assert done.stderr.count(b"\n") == 1
    assert_refused(process(*options, stdin=b"x = \xff"), "stdin", "UTF-8")
    assert_refused(process("--width", "16\n\udcff"), "--width")


def started():
    """A running `fspec generate` that has written its first byte."""
    line = [*COMMAND, "generate", *P, "--max-tokens", "3000", "--drafter", "none"]
    running = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None
    assert running.stderr is not None
    assert running.stdout.read(1)
    return running, running.stdout, running.stderr


def test_interrupt_is_exit_code_130():
    running, _, _ = started()
    with running:
        running.send_signal(signal.SIGINT)
        assert running.communicate(timeout=60)[1] == b""
        assert running.returncode == 130


def test_a_closed_pipe_ends_quietly():
    running, stdout, stderr = started()
    with running:
        stdout.close()
        assert stderr.read() == b""
        assert running.wait(timeout=60) == 141


def test_demo_shows_the_same_bytes():
    done = fspec("--max-tokens", 12, command="demo")
    assert done.returncode == 0, done.stderr
    for word in ("same bytes: yes", "acceptance length", "one token at a time"):
        assert word in done.stdout.decode()


def test_versions_and_help():
    for command in ("--version", "--help"):
        done = fspec(command=command)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout
