"""Text to train on, in windows of one length: the packaged Wikipedia, or OpenWebText through the network."""

from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int
from tokenizers import ByteLevelBPETokenizer, Tokenizer

from norm_geometry.corpus import packaged_wikipedia

__all__ = ["Windows", "openwebtext", "packaged", "split"]

HELD_OUT = 64  # windows


class Windows(NamedTuple):
    """Token ids to train on and to test with, the tokenizer they are of, and where the text is from."""

    training: Sequence[Any]  # indexed by an array of n numbers it gives ids of shape (n, length)
    held_out: Int[np.ndarray, "windows length"]
    tokenizer: Tokenizer
    text: str


@cache
def split(vocabulary: int = 4096) -> tuple[Tokenizer, list[str], list[str]]:
    """A byte-pair tokenizer, the packaged articles that it was trained on, and every eighth one, held out from that."""
    texts = [article.text for article in packaged_wikipedia()]
    held_out = texts[7::8]
    training = [text for text in texts if text not in held_out]
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(training, vocabulary, special_tokens=["<|endoftext|>"], show_progress=False)
    return Tokenizer.from_str(tokenizer.to_str()), training, held_out


def packaged(length: int) -> Windows:
    """The packaged Wikipedia in a byte-pair vocabulary of its own; articles are held out whole."""
    tokenizer, training, held_out = split()
    text = f"enwiki dump packaged in gensim {version('gensim')}"
    return Windows(_cut(tokenizer, training, length), _cut(tokenizer, held_out, length)[:HELD_OUT], tokenizer, text)


def openwebtext(length: int, name: str = "Skylion007/openwebtext", tokenizer: str = "openai-community/gpt2") -> Windows:
    """OpenWebText in GPT-2's vocabulary, through the package datasets; documents are held out whole.

    `name` may also be a local folder of that form, and `tokenizer` a local file.

    Raises ModuleNotFoundError without that package, ConnectionError when the Hugging Face Hub cannot be read.
    """
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("OpenWebText needs the package datasets: pip install datasets") from error
    try:
        known = Tokenizer.from_file(tokenizer) if Path(tokenizer).is_file() else Tokenizer.from_pretrained(tokenizer)
        revision = None if Path(name).is_dir() else "refs/convert/parquet"
        documents = datasets.load_dataset(name, revision=revision, split="train")
    except Exception as error:  # the Hub's client raises errors of its own, of Python and of its transport
        raise ConnectionError(f"cannot read {name} ({error}): --size nano needs no network") from error
    parts = documents.train_test_split(test_size=min(1000, len(documents) // 8), seed=0).map(
        lambda batch: {"ids": _cut(known, batch["text"], length)},
        batched=True,
        remove_columns=documents.column_names,
    )
    return Windows(_Column(parts["train"]), _Column(parts["test"])[np.arange(HELD_OUT)], known, name)


def _cut(tokenizer: Tokenizer, texts: list[str], length: int) -> Int[np.ndarray, "windows length"]:
    """All texts, each ended by <|endoftext|>, in one row, cut into windows; what is left at the end is dropped."""
    end = tokenizer.token_to_id("<|endoftext|>")
    row = np.concatenate([[*encoded.ids, end] for encoded in tokenizer.encode_batch(texts)])
    return row[: len(row) // length * length].reshape(-1, length)


class _Column:
    """The column `ids` of a dataset, by the numbers of its rows."""

    def __init__(self, dataset: Any):
        self.dataset = dataset.with_format("numpy")

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, rows: Int[np.ndarray, " n"]) -> Int[np.ndarray, "n length"]:
        return np.stack(list(self.dataset[rows]["ids"]))
