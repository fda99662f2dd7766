"""Models load by name; what cannot be had is said in one line, at once."""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from norm_geometry import models
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


def test_a_local_folder_loads_by_its_path(tmp_path, smollm2):
    config = AutoConfig.for_model("gpt2", vocab_size=len(smollm2.tokenizer), n_embd=16, n_layer=1, n_head=2)
    saved = AutoModelForCausalLM.from_config(config)
    saved.save_pretrained(tmp_path)
    smollm2.tokenizer.save_pretrained(tmp_path)
    model, tokenizer, provenance = models.load(str(tmp_path), device="cpu")
    assert torch.equal(model.transformer.wte.weight, saved.transformer.wte.weight)
    assert tokenizer(TEXT)["input_ids"] == smollm2.tokenizer(TEXT)["input_ids"]
    assert provenance["folder"] == tmp_path.name
    assert not model.training


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(
        ValueError, match=r"unknown model 'gpt5'.*smollm2-135m, all-minilm-l6-v2, gpt2-xl, .*llama-3-8b"
    ):
        models.load("gpt5")


def test_an_empty_folder_is_named(tmp_path):
    with pytest.raises(RuntimeError, match=tmp_path.name) as error:
        models.load(str(tmp_path))
    assert "\n" not in str(error.value)


class Hub(BaseHTTPRequestHandler):
    """Answers as the Hugging Face Hub does: an error code in a header."""

    def do_GET(self):
        code, status = ("GatedRepo", 403) if "meta-llama" in self.path else ("RepoNotFound", 404)
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(json.dumps({}).encode())

    def log_message(self, *args):
        pass


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


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
