"""The sweep, from the command line to the table."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from norm_geometry import measure, results
from norm_geometry.hooks import CONTROLS
from norm_geometry.statistics import AngleStatistics, random_directions, uniform_and_random


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "norm_geometry", "measure", *map(str, arguments)], capture_output=True, text=True
    )


def test_the_command_measures_and_repeats_to_the_byte(tmp_path):
    runs = [tmp_path / "first", tmp_path / "second"]
    for folder in runs:
        folder.mkdir()
        done = command("--model", "smollm2-135m", "--tokens", 600, "--out", folder / "t.csv")
        assert done.returncode == 0, done.stderr
        assert "600/600" in done.stderr
        assert "layers.29.post_attention_layernorm" in done.stdout
    assert (runs[0] / "t.csv").read_bytes() == (runs[1] / "t.csv").read_bytes()
    table, provenance = results.load(runs[0] / "t.csv")
    assert len(table) == 61 * 2 * 3
    assert (table["count"] == 600).all()
    assert table["mean"].between(80, 100).all()
    assert provenance["corpus"]["tokens"] == 600
    assert "--tokens 600" in provenance["command"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--model": "nonsense"}, "unknown model 'nonsense'"),
        ({"--tokens": 50_000_000}, "tokens, fewer than the 50,000,000 asked for"),
        ({"--out": "missing/t.csv"}, "cannot write to missing"),
    ],
)
def test_bad_input_gets_one_line_and_leaves_nothing(changes, message, tmp_path):
    arguments = {"--model": "smollm2-135m", "--tokens": 64, "--out": tmp_path / "t.csv"} | changes
    done = command(*(part for pair in arguments.items() for part in pair))
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert message in last
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def tiny():
    torch.manual_seed(0)
    config = AutoConfig.for_model("gpt2", vocab_size=50, n_embd=24, n_layer=2, n_head=2)
    return AutoModelForCausalLM.from_config(config).eval()


def chunks(*lengths):
    generator = np.random.default_rng(0)
    return [generator.integers(0, 50, length) for length in lengths]


def test_the_result_does_not_depend_on_the_batches(tiny):
    texts = chunks(9, 4, 9, 1, 7, 9, 2)
    tables = [measure.tabulate(measure.sweep(tiny, texts, batch_size=n, sample_every=5)) for n in (1, 3, 7)]
    for other in tables[1:]:
        assert (other["count"] == 41).all()
        assert (other["sampled"] == 9).all()
        for column in ("mean", "std", "energy_ratio", "sampled_energy_ratio", "norm_maximum"):
            np.testing.assert_allclose(other[column], tables[0][column], rtol=1e-4, atol=1e-6)


def test_the_rank_is_the_place_among_random_directions(tiny):
    record = measure.sweep(tiny, chunks(40, 40), sample_every=1, seed=3)
    table = measure.tabulate(record).set_index(["site", "side", "direction"])
    random = random_directions(CONTROLS, 24, seed=4)
    for name in record:
        vectors = torch.cat([stored(tiny, chunk, name) for chunk in chunks(40, 40)])
        ratios = AngleStatistics.of(vectors, random).energy_ratio
        for direction, v in uniform_and_random(24).items():
            row = table.loc[name, "before", direction]
            own = AngleStatistics.of(vectors, v[None]).energy_ratio[0]
            assert row["rank"] == 1 + sum(ratios > own)
            np.testing.assert_allclose(row["sampled_energy_ratio"], row["energy_ratio"], rtol=1e-5)
            np.testing.assert_allclose(row["random_energy_ratio_q50"], np.median(ratios), rtol=1e-5)


def stored(model, chunk, name):
    """What the site `name` reads."""
    kept = []
    with model.base_model.get_submodule(name).register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0][0])):
        model(input_ids=torch.from_numpy(chunk)[None])
    return kept[0].detach()


def test_tokens_at_the_start_of_sequences_can_be_left_out(tiny):
    texts = chunks(9, 1, 7)
    table = measure.tabulate(measure.sweep(tiny, texts, batch_size=2, skip=2)).set_index(["site", "side", "direction"])
    vectors = torch.cat([stored(tiny, chunk, "h.1.ln_1")[2:] for chunk in texts])
    expected = AngleStatistics.of(vectors, uniform_and_random(24)["uniform"][None])
    row = table.loc["h.1.ln_1", "before", "uniform"]
    assert row["count"] == expected.count == 12
    np.testing.assert_allclose(row["mean"], expected.mean, rtol=1e-6)


def test_a_layer_norm_leaves_nothing_along_the_uniform_vector(tiny):
    table = measure.tabulate(measure.sweep(tiny, chunks(40)))
    fresh = table[(table["side"] == "after") & (table["direction"] == "uniform")]  # gain 1 and bias 0, before training
    np.testing.assert_allclose(fresh["energy_ratio"], 0, atol=1e-9)
    np.testing.assert_allclose(fresh["norm_q50"], np.sqrt(24), rtol=0.01)
