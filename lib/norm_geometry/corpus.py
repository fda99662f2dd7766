"""A reproducible stream of token batches from Wikipedia.

articles = corpus.packaged_wikipedia()                                # or online_wikipedia(), through the network
chunks = corpus.tokenize(articles, tokenizer, length=512, tokens=100_000)    # raises here, before any model runs
for batch in corpus.batches(chunks, batch_size=8):                    # {"input_ids": …, "attention_mask": …}
    model(**{name: torch.from_numpy(array) for name, array in batch.items()})
corpus.fingerprint(chunks)                                            # says in a result what exactly was read
"""

import bz2
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
from jaxtyping import Int

from norm_geometry.wikitext import plain_text

__all__ = [
    "Article",
    "articles",
    "batches",
    "fingerprint",
    "online_wikipedia",
    "packaged_wikipedia",
    "text_file",
    "tokenize",
]

# 106 pages, of which two have less prose than this: a disambiguation and a stub of a few sentences.
SHORTEST_ARTICLE = 500
DUMP = "test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"


class Article(NamedTuple):
    title: str
    text: str


def packaged_wikipedia() -> Iterator[Article]:
    """Yield the articles of the shortened English Wikipedia (2016) inside gensim's wheel, cleaned, in its order.

    These are 104 articles: the pages of the main namespace that are neither redirects nor shorter than 500 characters.
    Raises ModuleNotFoundError when gensim is not installed; gensim itself is never imported, which would take seconds.
    """
    gensim = find_spec("gensim")
    if gensim is None:
        raise ModuleNotFoundError("the packaged Wikipedia text lies in gensim's wheel: pip install --no-deps gensim")
    with bz2.open(Path(gensim.submodule_search_locations[0], DUMP)) as dump:
        for _, element in ElementTree.iterparse(dump):
            if not element.tag.endswith("}page"):
                continue
            if element.findtext("{*}ns") == "0" and element.find("{*}redirect") is None:
                text = plain_text(element.findtext("{*}revision/{*}text"))
                if len(text) >= SHORTEST_ARTICLE:
                    yield Article(element.findtext("{*}title"), text)
            element.clear()


def online_wikipedia(config: str = "20231101.en", name: str = "wikimedia/wikipedia") -> Iterator[Article]:
    """Yield the articles of a whole Wikipedia, streamed from the Hugging Face Hub, where they are plain text already.

    `name` may also be a local folder of that form.
    Raises ModuleNotFoundError without the package datasets, ConnectionError when the Hub cannot be read.
    """
    try:
        import datasets
        from huggingface_hub import HfApi
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("online_wikipedia needs the package datasets: pip install datasets") from error
    try:
        if not Path(name).is_dir():
            HfApi().dataset_info(name)  # asked first: without network the stream itself retries for half a minute
        for row in datasets.load_dataset(name, config, split="train", streaming=True):
            yield Article(row["title"], row["text"])
    # The Hub's client raises errors of its own, of Python and of its transport, and has changed the last one before.
    except Exception as error:
        advice = "packaged_wikipedia() needs no network"
        raise ConnectionError(f"cannot stream {name} {config} ({error}): {advice}") from error


def text_file(path: str | Path) -> Iterator[Article]:
    """Yield the content of a text file in UTF-8 as one article.

    Raises ValueError when the file is missing, empty or not such a text.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): give packaged, online or a text file") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8 (byte {error.start}): convert it first") from error
    if "\0" in text or not text.strip():
        raise ValueError(f"{path} is no text: it {'holds zero bytes' if text.strip() else 'is empty'}")
    yield Article(path.stem, text)


def articles(source: str) -> tuple[str, Iterator[Article]]:
    """What `source` names, "packaged", "online" or a text file: its description and its articles."""
    if source == "packaged":
        return f"enwiki dump packaged in gensim {version('gensim')}", packaged_wikipedia()
    if source == "online":
        return "wikimedia/wikipedia 20231101.en", online_wikipedia()
    return f"file {Path(source).name}", text_file(source)


def tokenize(
    articles: Iterable[Article], tokenizer: Any, *, length: int = 512, tokens: int | None = None
) -> list[Int[np.ndarray, "_"]]:
    """Return the token ids of the articles' texts, cut into consecutive chunks of at most `length`.

    Each article is tokenized by itself, with the special tokens that the tokenizer adds, and no chunk holds parts of
    two. The first `tokens` tokens are taken, exactly (the last chunk is cut), and no article after them is read.

    Raises:
        ValueError: the articles have fewer tokens than asked for, or `length` or `tokens` is not positive.
    """
    if length < 1 or (tokens is not None and tokens < 1):
        raise ValueError(f"length and tokens must be positive, got length={length}, tokens={tokens}")
    chunks, count = [], 0
    for article in articles:
        # verbose=False: the text is longer than the model's context on purpose, it is cut right here.
        ids = np.asarray(tokenizer(article.text, verbose=False)["input_ids"], dtype=np.int64)
        if tokens is not None:
            ids = ids[: tokens - count]
        chunks += [ids[start : start + length] for start in range(0, len(ids), length)]
        count += len(ids)
        if count == tokens:
            return chunks
    if tokens is not None:
        raise ValueError(f"the articles have {count:,} tokens, fewer than the {tokens:,} asked for")
    return chunks


def batches(
    chunks: Sequence[Int[np.ndarray, "_"]], batch_size: int = 8
) -> Iterator[dict[str, Int[np.ndarray, "batch longest"]]]:
    """Yield the chunks in their order as {"input_ids", "attention_mask"}, padded on the right to the longest of each.

    The padding is id 0, which every vocabulary has, under a mask of 0.
    """
    if batch_size < 1:
        raise ValueError(f"a batch holds at least one sequence, got batch_size={batch_size}")
    for start in range(0, len(chunks), batch_size):
        group = chunks[start : start + batch_size]
        input_ids = np.zeros((len(group), max(map(len, group))), dtype=np.int64)
        attention_mask = np.zeros_like(input_ids)
        for row, chunk in enumerate(group):
            input_ids[row, : len(chunk)] = chunk
            attention_mask[row, : len(chunk)] = 1
        yield {"input_ids": input_ids, "attention_mask": attention_mask}


def fingerprint(chunks: Iterable[Int[np.ndarray, "_"]]) -> str:
    """Return the SHA-256, in hexadecimal, of the chunks: of each its length, then its ids, as little-endian int64."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(np.asarray([len(chunk), *chunk], dtype="<i8").tobytes())
    return digest.hexdigest()
