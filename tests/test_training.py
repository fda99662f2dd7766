"""Twins start alike and train as their equations say; what is recorded is right, and a kill loses nothing."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from transformers import get_cosine_with_min_lr_schedule_with_warmup

from norm_geometry import corpus, results, training, twins, windows
from norm_geometry.__main__ import main
from norm_geometry.folding import fold_mean_subtraction

# As small as can be; what is read is the real text.
twins.SIZES["tiny"] = twins.Size(2, 16, 2, 1e-2, length=32, batch=4, steps=40, text="packaged")
MATRICES = ["transformer.wte.weight", "transformer.wpe.weight", "transformer.h.0.attn.c_proj.weight"]


def train(out, **settings):
    torch.set_num_threads(1)
    return training.train(out, **{"size": "tiny", "checkpoint_every": 3600.0} | settings)


@pytest.fixture(scope="module")
def start():
    """Start a run in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["norm_geometry.training"])

    def started(out, **settings):
        process = context.Process(target=train, args=(out,), kwargs=settings)
        process.start()
        return process

    return started


ARMS = {
    "layer": {"norm": "layer"},
    "rms": {"norm": "rms"},
    "layer, sgd": {"norm": "layer", "optimizer": "sgd", "rate": 0.5, "weight_decay": 0.0},
    "layer, sgd, decay": {"norm": "layer", "optimizer": "sgd", "rate": 0.5, "weight_decay": 0.2},
    "rms, sgd": {"norm": "rms", "optimizer": "sgd", "rate": 0.5, "weight_decay": 0.0},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One finished run of each arm."""
    root = tmp_path_factory.mktemp("runs")
    for arm, settings in ARMS.items():
        train(root / arm, **settings)
    return {arm: root / arm for arm in ARMS}


def table(folder, name):
    return results.load(folder / f"{name}.csv").table


def final_writers(folder):
    writers = table(folder, "writers")
    return writers[writers["step"] == writers["step"].max()].set_index("parameter")


def test_twins_differ_in_their_norms_alone():
    layer, rms = (
        dict(twins.gpt2(twins.SIZES["tiny"], norm, 100, seed=3).named_parameters()) for norm in ("layer", "rms")
    )
    norms = {name for name in layer if ".ln_" in name}
    assert layer.keys() - rms.keys() == {name for name in norms if name.endswith("bias")}
    for name in rms.keys() - norms:
        assert torch.equal(layer[name], rms[name])
    kinds = {
        type(m) for m in twins.gpt2(twins.SIZES["tiny"], "rms", 100, seed=3).modules() if "Norm" in type(m).__name__
    }
    assert kinds == {nn.RMSNorm}


@pytest.mark.parametrize(("size", "millions"), [("70m", 71), ("160m", 163), ("410m", 406), ("1b", 1014)])
def test_sizes_have_the_parameters_of_their_names(size, millions):
    with torch.device("meta"):
        model = twins.gpt2(twins.SIZES[size], "layer", 50257, seed=0)
    assert round(model.num_parameters() / 1e6) == millions


def test_the_learning_rate_is_that_of_transformers():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=3e-3)
    schedule = get_cosine_with_min_lr_schedule_with_warmup(optimizer, 4, 200, min_lr_rate=0.1)
    for step in range(200):
        rising = step < 4  # transformers begins with a step of rate zero
        expected = 3e-3 * (step + 1) / 4 if rising else schedule.get_last_lr()[0]
        assert training.learning_rate(step, 200, 3e-3) == pytest.approx(expected)
        optimizer.step()
        schedule.step()


def test_a_run_learns_and_its_twin_reads_the_same_text(folders):
    for arm in ("layer", "rms"):
        losses = table(folders[arm], "losses")
        held_out = losses.dropna(subset="held_out_loss").set_index("step")["held_out_loss"]
        assert list(held_out.index) == [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40]
        assert held_out[0] == pytest.approx(np.log(4096), abs=0.1)
        assert held_out[40] < held_out[0] - 0.5
    first = [table(folders[arm], "losses")["training_loss"][0] for arm in ("layer", "rms")]
    assert first[0] == pytest.approx(first[1], abs=0.01)  # untrained norms of nearly centred vectors are nearly alike


def test_what_is_recorded_is_what_the_model_does(folders):
    model, _ = twins.load(folders["layer"] / "model.safetensors")
    held_out = torch.from_numpy(windows.packaged(32).held_out)
    kept = []
    with model.transformer.h[1].ln_2.register_forward_pre_hook(lambda _, args: kept.append(args[0])), torch.no_grad():
        logits = model(input_ids=held_out).logits
    loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), held_out[:, 1:].flatten())
    losses = table(folders["layer"], "losses").set_index("step")
    assert losses.loc[40, "held_out_loss"] == pytest.approx(loss.item(), abs=0.01)  # the weights are stored in float16
    x = kept[0].flatten(0, 1).double()
    cosines = x.sum(dim=1) / 4 / x.norm(dim=1)
    angles = table(folders["layer"], "angles").set_index(["step", "site", "direction"])
    row = angles.loc[40, "h.1.ln_2", "uniform"]
    assert row["count"] == len(x)
    assert row["mean"] == pytest.approx(torch.rad2deg(torch.acos(cosines)).mean().item(), abs=0.02)
    assert row["energy_ratio"] == pytest.approx(16 * (cosines**2).mean().item(), rel=0.01)
    written = final_writers(folders["layer"])
    w = model.transformer.h[0].mlp.c_proj.weight.detach()
    row = written.loc["transformer.h.0.mlp.c_proj.weight"]
    assert row["length"] == pytest.approx(w.norm().item(), rel=1e-3)
    assert row["along"] == pytest.approx((w.sum(dim=1) / 4).norm().item(), rel=1e-2)


def test_only_layer_norm_keeps_the_gradient_off_the_uniform_vector(folders):
    for arm in ARMS:
        writers = table(folders[arm], "writers").dropna()
        writers = writers[writers["gradient_length"] > 0]
        share = writers["gradient_along"] / writers["gradient_length"]
        assert len(share) > 50
        assert share.max() < 1e-5 if "layer" in arm else share[writers["step"] > 4].min() > 1e-3


def test_what_gradient_descent_leaves_along_the_uniform_vector(folders):
    """Nothing moves it but decay, which shrinks it by 1 − ηλ in each step of rate η."""
    frozen, shrunk, moved = (final_writers(folders[arm]) for arm in ("layer, sgd", "layer, sgd, decay", "rms, sgd"))
    assert (frozen["drift_along"] < 1e-5 * frozen["drift_length"]).all()
    assert (moved["drift_along"] > 1e-3 * moved["drift_length"]).all()
    rates = table(folders["layer, sgd, decay"], "losses")["learning_rate"].dropna()
    np.testing.assert_allclose(
        shrunk.loc[MATRICES, "along"] / frozen.loc[MATRICES, "along"], np.prod(1 - 0.2 * rates), rtol=1e-4
    )
    assert np.prod(1 - 0.2 * rates) < 0.3


def test_fewer_windows_at_once_change_nothing_but_rounding(folders, tmp_path):
    train(tmp_path / "one", norm="layer", at_once=1)
    one, four = (table(folder, "losses")["training_loss"] for folder in (tmp_path / "one", folders["layer"]))
    np.testing.assert_allclose(one, four, rtol=1e-3)


def test_two_processes_train_as_one_does(folders, tmp_path):
    code = "import sys, test_training; test_training.train(sys.argv[1], norm='layer')"
    (tmp_path / "run.py").write_text(code)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "run.py", "two"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(launch, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    two, one = (table(folder, "losses") for folder in (tmp_path / "two", folders["layer"]))
    np.testing.assert_allclose(two["training_loss"], one["training_loss"], rtol=1e-3)
    assert results.load(tmp_path / "two" / "losses.csv").provenance["processes"] == 2


def test_a_killed_run_ends_with_the_same_losses_and_weights(start, folders, tmp_path):
    out, checkpoint = tmp_path / "run", tmp_path / "run" / "checkpoint"
    for life in range(3):
        process = start(out, norm="layer", checkpoint_every=0.0)
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        while not checkpoint.exists() or checkpoint.stat().st_mtime_ns == before:
            time.sleep(0.01)
            assert process.is_alive()
        time.sleep(0.1 * life)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL
    process = start(out, norm="layer")
    process.join()
    assert process.exitcode == 0
    for file in ("losses.csv", "angles.csv", "writers.csv", "model.safetensors"):
        assert (out / file).read_bytes() == (folders["layer"] / file).read_bytes(), file
    assert {path.suffix for path in out.iterdir()} == {".csv", ".json", ".safetensors"}


def refused(capsys, *arguments):
    """The one line in which the command said why it did nothing."""
    status = main(["train", "--size", "tiny", "--norm", "layer", *map(str, arguments)])
    said = capsys.readouterr().err
    assert status == 2, said
    return said.strip().splitlines()[-1].removeprefix("error: ")


def test_a_loss_that_is_no_number_keeps_the_last_good_state(capsys, tmp_path):
    line = refused(capsys, "--learning-rate", 1e20, "--checkpoint-every", 0, "--out", tmp_path / "run")
    assert "a checkpoint from before it is kept; try a learning rate below" in line
    _, described, arrays = (tmp_path / "run" / "checkpoint").read_bytes().split(b"\n", 2)
    assert json.loads(described)["greatest_learning_rate"] == 1e20
    from safetensors.numpy import load

    state = load(arrays)
    assert np.isfinite(state["losses"]).all()
    assert state["done"][0] >= 1


def test_other_folders_and_runs_are_refused(capsys, folders, tmp_path):
    (tmp_path / "thesis.txt").write_text("all of it")
    assert "exists and is not the folder of a training run" in refused(capsys, "--out", tmp_path)
    assert "is not the folder" in refused(capsys, "--out", tmp_path / "thesis.txt")
    assert "holds another run (seed 0, not 5)" in refused(capsys, "--seed", 5, "--out", folders["layer"])
    assert "unknown size 'huge': give one of nano, 70m" in refused(capsys, "--size", "huge", "--out", tmp_path / "new")
    assert "cannot be divided" in refused(capsys, "--at-once", 3, "--out", tmp_path / "new")


def test_a_finished_run_is_read(capsys, folders):
    content = (folders["layer"] / "losses.csv").read_bytes()
    assert main(["train", "--size", "tiny", "--norm", "layer", "--out", str(folders["layer"])]) == 0
    assert "holds this run already" in capsys.readouterr().err
    assert (folders["layer"] / "losses.csv").read_bytes() == content


def test_a_damaged_checkpoint_is_named(capsys, start, tmp_path):
    out = tmp_path / "run"
    process = start(out, norm="layer", checkpoint_every=0.0)
    while not (out / "checkpoint").exists():
        time.sleep(0.01)
    process.kill()
    process.join()
    for file in out.glob("checkpoint*"):
        content = bytearray(file.read_bytes())
        content[-20] ^= 1
        file.write_bytes(content)
    assert "checkpoint is damaged: its SHA-256" in refused(capsys, "--out", out)


@pytest.mark.parametrize(("norm", "arm"), [("layer", "LayerNorm"), ("rms", "RMSNorm")])
def test_the_published_twins_are_those_of_the_published_tables(norm, arm):
    """Their loss is the one recorded; and they can be folded as far as they have means to subtract, and no further."""
    model, _ = twins.published(norm)
    held_out = torch.from_numpy(windows.packaged(256).held_out)
    losses, provenance = results.published("twins-losses")

    @torch.no_grad()
    def loss(model):
        return np.mean([model(input_ids=ids, labels=ids).loss.item() for ids in held_out.split(8)])

    recorded = losses[(losses["arm"] == arm) & (losses["seed"] == 0)].set_index("step")["held_out_loss"]
    assert loss(model) == pytest.approx(recorded[2500], abs=1e-3)  # the weights are published in float16
    assert provenance["held_out_sha256"] == corpus.fingerprint(held_out.numpy())
    if norm == "layer":
        assert loss(fold_mean_subtraction(model)) == pytest.approx(loss(model), abs=1e-6)
    else:
        with pytest.raises(ValueError, match="no LayerNorm"):
            fold_mean_subtraction(model)


def test_a_false_file_is_no_twin(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="is not the model of a twin"):
        twins.load(tmp_path / "model.safetensors")
    with pytest.raises(FileNotFoundError):
        twins.load(tmp_path / "none.safetensors")


def test_documents_of_openwebtext_become_windows(tmp_path):
    tokenizer, training_texts, _ = windows.split(vocabulary=300)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "data").mkdir()
    pd.DataFrame({"text": training_texts[:16]}).to_parquet(tmp_path / "data" / "train.parquet")
    text = windows.openwebtext(64, name=str(tmp_path / "data"), tokenizer=str(tmp_path / "tokenizer.json"))
    some = text.training[np.asarray([3, 0])]
    assert some.shape == (2, 64)
    assert text.held_out.shape[1] == 64
    read = {tokenizer.decode(window) for window in text.training[np.arange(len(text.training))]}
    held_out = [tokenizer.decode(window) for window in text.held_out]
    assert not read & set(held_out)
    everything = " ".join(training_texts[:16])
    assert tokenizer.decode(some[0]).split("<|endoftext|>")[0][2:-2] in everything
