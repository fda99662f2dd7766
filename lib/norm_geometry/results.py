"""Save and load measurements: a tidy table (CSV) and, beside it, where the numbers come from (JSON).

save(table, provenance, "out/gpt2.csv")     # writes out/gpt2.csv and out/gpt2.json
table, provenance = load("out/gpt2.csv")    # refuses a file that is not what was written
table, provenance = published("smollm2-135m")   # the book's own measurement
"""

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from filelock import FileLock, Timeout

__all__ = ["Results", "check_writable", "load", "locked", "partial", "published", "save", "write_whole"]

# The book's data: there where the library is used from a clone of the repository, as in Colab.
DATA = Path(__file__).parents[2] / "data"


class Results(NamedTuple):
    """A table with one row per (site, before/after, direction), and its provenance."""

    table: pd.DataFrame
    provenance: dict


def save(table: pd.DataFrame, provenance: dict, path: str | Path) -> None:
    """Write `table` to `path` and `provenance`, with the table's SHA-256, to the JSON file beside it.

    Numbers keep 9 significant digits. Both files appear whole, or neither does.
    """
    path = Path(path)
    content = table.to_csv(index=False, float_format="%.9g", lineterminator="\n").encode()
    provenance = provenance | {"table_sha256": hashlib.sha256(content).hexdigest()}
    beside = (json.dumps(provenance, indent=1, ensure_ascii=False) + "\n").encode()
    write_whole({path.with_suffix(".json"): beside, path: content})


def load(path: str | Path) -> Results:
    """Read what `save` wrote.

    Raises:
        FileNotFoundError: the table or the JSON file beside it is missing.
        ValueError: either is damaged, or they do not belong together.
    """
    path = Path(path)
    beside = path.with_suffix(".json")
    for file in (path, beside):
        if not file.is_file():
            raise FileNotFoundError(f"{file} does not exist: measure it with `python -m norm_geometry measure`")
    content = path.read_bytes()
    try:
        provenance = json.loads(beside.read_bytes())
        expected = provenance["table_sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{beside} is damaged: it is not the provenance of a measurement; delete both and measure again"
        ) from error
    if hashlib.sha256(content).hexdigest() != expected:
        raise ValueError(
            f"{path} is damaged: its SHA-256 is not the one recorded in {beside.name}; delete both and measure again"
        )
    return Results(pd.read_csv(io.BytesIO(content)), provenance)


def published(name: str) -> Results:
    """Load the book's own measurement of the model called `name`, from data/measurements/ of the repository."""
    if not DATA.is_dir():
        raise FileNotFoundError("the book's measurements lie in its repository: clone it, then `pip install -e .`")
    return load(DATA / "measurements" / f"{name}.csv")


def check_writable(path: str | Path) -> None:
    """Raise OSError, in one line, unless a file can be written at `path`: asked before hours of measuring."""
    path = Path(path)
    if path.is_dir() or path.suffix != ".csv":
        raise OSError(f"{path} cannot hold the results: give the name of a .csv file")
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise OSError(f"cannot write to {path.parent}: {error.strerror}; give another --out") from error


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Keep every other process from writing to `out`; the system releases the lock when this one ends or is killed.

    Raises RuntimeError if another process has it.
    """
    file = out.with_name(out.name + ".lock")
    try:
        with FileLock(file, timeout=0):
            try:
                yield
            finally:
                file.unlink(missing_ok=True)
    except Timeout as error:
        raise RuntimeError(f"another process is writing to {out}: wait for it, or give another --out") from error


def write_whole(contents: dict[Path, bytes]) -> None:
    """Write every file under another name, then put all in place: a full disk or a kill leaves what was there.

    Raises OSError, in one line, when there is no room.
    """
    try:
        for path, content in contents.items():
            with partial(path).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for path in contents:
            partial(path).replace(path)
    except OSError as error:
        raise OSError(f"{path} cannot be written ({error.strerror}); what was saved before is whole") from error
    finally:
        for path in contents:
            partial(path).unlink(missing_ok=True)


def partial(path: Path) -> Path:
    """Where a file lies until it is whole."""
    return path.with_name(path.name + ".partial")
