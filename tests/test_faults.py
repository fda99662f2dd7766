"""Nothing is lost: kills, damage, full disks, rivals, broken numbers and false files, all of them real."""

import json
import multiprocessing
import os
import pickle
import random
import resource
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import torch
from safetensors.numpy import load as load_arrays
from transformers import AutoConfig, AutoModelForCausalLM

from norm_geometry import corpus, measure, results
from norm_geometry.__main__ import main
from norm_geometry.statistics import AngleStatistics, uniform_and_random

TOKENS, LENGTH = 6400, 8  # 800 batches of one sequence
SETTINGS = {"tokens": TOKENS, "length": LENGTH, "batch_size": 1, "device": "cpu", "checkpoint_every": 0.0}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, smollm2):
    """A small model with random weights in a folder, a real tokenizer with it, and a real text."""
    folder = tmp_path_factory.mktemp("inputs")
    torch.manual_seed(0)
    config = AutoConfig.for_model("gpt2", vocab_size=len(smollm2.tokenizer), n_embd=24, n_layer=2, n_head=2)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "model")
    smollm2.tokenizer.save_pretrained(folder / "model")
    (folder / "text.txt").write_text(next(corpus.packaged_wikipedia()).text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def start(inputs):
    """Start the measurement in a process of its own, which needs no second for its imports."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["norm_geometry.measure"])

    def started(out, **changes):
        arguments = {"text": str(inputs / "text.txt")} | SETTINGS | changes
        process = context.Process(target=measure.measure, args=(str(inputs / "model"), out), kwargs=arguments)
        process.start()
        return process

    return started


def arguments(inputs, out, *further):
    base = ["--model", inputs / "model", "--text", inputs / "text.txt", "--tokens", 640, "--length", 16, "--out", out]
    return [str(part) for part in ("measure", *base, "--checkpoint-every", 0, *further)]


@pytest.fixture
def command(inputs, capsys):
    """The command, within this process: its exit status and what it said."""

    def run(out, *further):
        return main(arguments(inputs, out, *further)), capsys.readouterr().err

    return run


def refused(ended):
    """The one line in which the command said why it did nothing."""
    status, said = ended
    assert status == 2, said
    assert "Traceback" not in said
    return said.strip().splitlines()[-1].removeprefix("error: ")


@pytest.fixture(scope="module")
def uninterrupted(start, tmp_path_factory):
    out = tmp_path_factory.mktemp("uninterrupted") / "t.csv"
    process = start(out, checkpoint_every=3600.0)
    process.join()
    assert process.exitcode == 0
    return out


def batches_in(checkpoint):
    return int(load_arrays(checkpoint.read_bytes().split(b"\n", 2)[2])["batches"][0])


def test_killed_at_twenty_random_moments_the_table_is_the_same_to_the_byte(start, uninterrupted, tmp_path):
    out, checkpoint = tmp_path / "t.csv", tmp_path / "t.csv.checkpoint"
    moments, reached = random.Random(0), [0]
    for life in range(20):
        process = start(out)
        while life % 2 and not (checkpoint.exists() and batches_in(checkpoint) > reached[-1]):
            time.sleep(0.005)  # every second time it is well under way
        time.sleep(moments.uniform(0.0, 0.5))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL  # it had not finished
        reached.append(batches_in(checkpoint) if checkpoint.exists() else 0)
    print("batches saved at each kill:", reached)
    assert reached == sorted(reached)
    assert 10 < reached[-1] < TOKENS // LENGTH
    process = start(out)
    process.join()
    assert process.exitcode == 0
    assert out.read_bytes() == uninterrupted.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv", "t.json"]


@pytest.fixture
def interrupted(start, tmp_path):
    """A folder in which a measurement has been killed after a few checkpoints."""
    process = start(tmp_path / "t.csv")
    while not (tmp_path / "t.csv.checkpoint.previous").exists():
        time.sleep(0.02)
        assert process.is_alive()
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    return tmp_path


def checkpoints(folder):
    """The last checkpoint and the one before it, not the beginning of another that a kill has left."""
    paths = (folder / "t.csv.checkpoint", folder / "t.csv.checkpoint.previous")
    return {path: path.read_bytes() for path in paths}


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, flip_a_bit])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(damage, interrupted, uninterrupted, command):
    damage(interrupted / "t.csv.checkpoint")
    named = r"t\.csv\.checkpoint is damaged: its SHA-256 .*; going on from t\.csv\.checkpoint\.previous"
    with pytest.warns(UserWarning, match=named):
        command(interrupted / "t.csv", "--tokens", TOKENS, "--length", LENGTH, "--batch-size", 1)
    assert (interrupted / "t.csv").read_bytes() == uninterrupted.read_bytes()


def test_without_a_whole_checkpoint_nothing_is_averaged_in(interrupted, command):
    for path in checkpoints(interrupted):
        flip_a_bit(path)
    files = checkpoints(interrupted)
    line = refused(command(interrupted / "t.csv", "--tokens", TOKENS, "--length", LENGTH, "--batch-size", 1))
    assert "t.csv.checkpoint is damaged" in line
    assert "delete it to measure from the beginning" in line
    assert checkpoints(interrupted) == files
    assert not (interrupted / "t.csv").exists()


def test_a_checkpoint_or_table_of_another_measurement_is_refused(interrupted, uninterrupted, command):
    files = checkpoints(interrupted)
    line = refused(command(interrupted / "t.csv", "--seed", 7))
    assert "t.csv.checkpoint is of another measurement" in line
    assert "seed 0, not 7" in line
    assert checkpoints(interrupted) == files
    table = uninterrupted.read_bytes()
    line = refused(command(uninterrupted, "--batch-size", 2))
    assert "t.csv holds another measurement" in line
    assert "batch_size 1, not 2" in line
    assert uninterrupted.read_bytes() == table


def test_a_finished_measurement_is_read_and_a_damaged_one_named(uninterrupted, command, tmp_path):
    for path in (uninterrupted, uninterrupted.with_suffix(".json")):
        shutil.copy(path, tmp_path)
    same = ("--tokens", TOKENS, "--length", LENGTH, "--batch-size", 1)
    status, said = command(tmp_path / "t.csv", *same)
    assert status == 0
    assert "holds this measurement already" in said
    assert (tmp_path / "t.csv").read_bytes() == uninterrupted.read_bytes()
    flip_a_bit(tmp_path / "t.csv")
    assert "t.csv is damaged" in refused(command(tmp_path / "t.csv", *same))


def test_a_second_run_on_the_same_output_is_refused(start, command, tmp_path):
    first = start(tmp_path / "t.csv")
    while not (tmp_path / "t.csv.checkpoint").exists():
        time.sleep(0.02)
    line = refused(command(tmp_path / "t.csv"))
    assert "another process is writing to" in line
    assert first.is_alive()
    first.kill()
    first.join()
    assert batches_in(tmp_path / "t.csv.checkpoint") > 0


def test_a_full_disk_is_said_in_one_line(interrupted, inputs):
    before = checkpoints(interrupted)

    def no_file_beyond_a_kilobyte():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))

    same = arguments(inputs, interrupted / "t.csv", "--tokens", TOKENS, "--length", LENGTH, "--batch-size", 1)
    done = subprocess.run(
        [sys.executable, "-m", "norm_geometry", *same],
        capture_output=True,
        text=True,
        preexec_fn=no_file_beyond_a_kilobyte,
    )
    assert "cannot be written (File too large); what was saved before is whole" in refused(
        (done.returncode, done.stderr)
    )
    assert checkpoints(interrupted) == before
    assert not list(interrupted.glob("*.partial"))


def test_a_folder_that_cannot_be_written_is_said_at_once(command, tmp_path):
    # To root no folder is read-only, but a file is no folder for anybody.
    (tmp_path / "file").write_text("")
    line = refused(command(tmp_path / "file" / "t.csv"))
    assert "cannot write to" in line
    assert (tmp_path / "file").read_text() == ""


def reads(model, site, batch):
    """What a site reads, kept whole."""
    kept = []
    module = model.base_model.get_submodule(site)
    with module.register_forward_pre_hook(lambda _, args: kept.append(args[0].detach())), torch.no_grad():
        model(input_ids=torch.from_numpy(batch))
    return kept[0].flatten(0, 1).double().numpy()


def tiny_llama(dtype=torch.float32):
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", vocab_size=64, **shape)).eval().to(dtype)


def test_broken_vectors_are_counted_and_the_rest_stays_right():
    model = tiny_llama()
    with torch.no_grad():
        model.model.embed_tokens.weight[1] = torch.nan
        model.model.embed_tokens.weight[2] = torch.inf
        model.model.embed_tokens.weight[3] = 0
    ids = np.random.default_rng(0).integers(4, 64, (6, 10))
    ids[0, 3], ids[0, 7], ids[2, 9], ids[3, :4] = 1, 2, 1, 3
    table = measure.tabulate(measure.sweep(model, list(ids), batch_size=3))
    rows = table[(table["side"] == "before") & (table["direction"] == "uniform")].set_index("site")
    first, last = rows.iloc[0], rows.loc["norm"]
    assert (first["zero_count"], first["nonfinite_count"], first["count"]) == (4, 3, 53)
    assert last["nonfinite_count"] >= 8  # attention carries what is not finite to other tokens of the sequence
    for name, row in rows.iterrows():
        vectors = reads(model, name, ids)
        whole = np.isfinite(vectors).all(axis=1) & (vectors != 0).any(axis=1)
        expected = AngleStatistics.of(vectors[whole], uniform_and_random(32)["uniform"][None])
        assert row["count"] == whole.sum() >= 30
        assert row["nonfinite_count"] == (~np.isfinite(vectors).all(axis=1)).sum()
        np.testing.assert_allclose([row["mean"], row["std"]], [expected.mean[0], expected.std[0]], rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_massive_activation_overflows_nothing_in_half_precision(dtype):
    model = tiny_llama(dtype)
    with torch.no_grad():
        model.model.embed_tokens.weight[5, 0] = 26_000.0  # its square is beyond float16
    ids = np.full((2, 6), 9)
    ids[:, 0] = 5
    table = measure.tabulate(measure.sweep(model, list(ids)))
    row = table[(table["side"] == "before") & (table["direction"] == "uniform")].iloc[0]
    assert (row["count"], row["nonfinite_count"]) == (12, 0)
    np.testing.assert_allclose(row["norm_maximum"], 26_000, rtol=0.01)


def test_a_batch_too_large_for_the_memory_is_halved_and_the_result_unchanged():
    # With little room left, one batch of 64 sequences cannot be allocated, and PyTorch's own error is met.
    code = """
import resource, sys, numpy as np, psutil, torch
from transformers import AutoConfig, AutoModelForCausalLM
from norm_geometry import measure
torch.manual_seed(0)
torch.set_num_threads(1)
shape = dict(vocab_size=50, n_embd=24, n_layer=1, n_head=2, n_inner=4096)
model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", **shape)).eval()
chunks = list(np.random.default_rng(0).integers(0, 50, (64, 256)))
wanted = measure.tabulate(measure.sweep(model, chunks, batch_size=4, sample_every=16))
room = psutil.Process().memory_info().vms + 300 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (room, room))
table = measure.tabulate(measure.sweep(model, chunks, batch_size=64, sample_every=16))
assert (table["count"] == 64 * 256).all() and (table["sampled"] == wanted["sampled"]).all()
for column in ("mean", "std", "energy_ratio", "sampled_energy_ratio"):
    np.testing.assert_allclose(table[column], wanted[column], rtol=1e-5, atol=1e-9)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "out of memory: from here on 32 sequences at once" in done.stderr


class Malice:
    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


def test_a_model_that_is_not_what_it_claims_is_refused_and_not_run(command, inputs, tmp_path):
    model, trace = tmp_path / "model", tmp_path / "trace"
    shutil.copytree(inputs / "model", model)
    weights = model / "model.safetensors"
    weights.write_bytes(b"\x00" * 1000)
    line = refused(command(tmp_path / "t.csv", "--model", model))
    assert f"{model} cannot be loaded" in line
    weights.unlink()
    (model / "pytorch_model.bin").write_bytes(pickle.dumps({"transformer.wte.weight": Malice(trace)}))
    line = refused(command(tmp_path / "t.csv", "--model", model))
    assert f"{model} cannot be loaded" in line
    assert not trace.exists()
    pickle.loads((model / "pytorch_model.bin").read_bytes())
    assert trace.exists()  # so it would have done harm


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.gguf", b"GGUF" + b"\xff" * 100, "model.gguf cannot be loaded"),
        ("text.bin", b"\x80\x81\x82", "text.bin is not text in UTF-8"),
        ("text.txt", b"zero \x00 byte", "text.txt is no text: it holds zero bytes"),
        ("text.txt", b"  \n", "text.txt is no text: it is empty"),
        ("text.txt", None, "text.txt cannot be read"),
    ],
)
def test_a_false_file_is_refused_in_one_line(name, content, message, command, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    option = "--model" if name.endswith("gguf") else "--text"
    assert message in refused(command(tmp_path / "t.csv", option, tmp_path / name))
    assert not (tmp_path / "t.csv").exists()


def test_a_model_too_large_for_the_memory_is_refused_before_it_is_loaded(command, inputs, tmp_path):
    shutil.copytree(inputs / "model", tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config |= {"n_embd": 65536, "n_layer": 100, "n_head": 64}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    line = refused(command(tmp_path / "t.csv", "--model", tmp_path / "model"))
    assert "in float32 it needs about" in line
    assert "even bfloat16 needs" in line


def test_two_processes_killed_and_resumed_give_what_one_gives(inputs, uninterrupted, tmp_path):
    out = tmp_path / "t.csv"
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "norm_geometry", "measure"]
    arguments = {"model": inputs / "model", "text": inputs / "text.txt", "out": out, "checkpoint-every": 0}
    arguments |= {"tokens": TOKENS, "length": LENGTH, "batch-size": 3}
    line = [*launch, *(str(part) for name, value in arguments.items() for part in (f"--{name}", value))]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    launched = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=one_thread)
    parts = [tmp_path / f"t.csv.checkpoint-{i}-of-2" for i in (1, 2)]
    while not all(part.exists() for part in parts):
        time.sleep(0.02)
        assert launched.poll() is None
    processes = psutil.Process(launched.pid).children(recursive=True)
    for process in (launched, *processes):
        process.kill()
    launched.wait()
    psutil.wait_procs(processes)
    assert all(0 < batches_in(part) < TOKENS / LENGTH / 3 / 2 for part in parts)

    done = subprocess.run(line, capture_output=True, text=True, env=one_thread)
    assert done.returncode == 0, done.stderr
    together, provenance = results.load(out)
    alone, _ = results.load(uninterrupted)
    assert provenance["processes"] == 2
    exact = ["site", "side", "direction", "count", "sampled", "zero_count", "nonfinite_count"]
    assert together[exact].equals(alone[exact])
    numbers = ["mean", "std", "minimum", "maximum", "energy_ratio", "sampled_energy_ratio", "norm_maximum"]
    np.testing.assert_allclose(
        together[numbers], alone[numbers], rtol=1e-5, atol=1e-6
    )  # fresh norms leave 1e-6° along 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv", "t.json"]
