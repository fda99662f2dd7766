"""Checkpoints of a long measurement: written whole or not at all, and refused when damaged or of another measurement.

A checkpoint is one file: a line with the SHA-256 of all that follows, a line of JSON that says which measurement it is
of, and the arrays in the safetensors format. The one before it is kept beside it.
"""

import hashlib
import json
import time
from pathlib import Path
from warnings import warn

import numpy as np
import safetensors.numpy

from norm_geometry.results import partial, write_whole

__all__ = ["Checkpoint", "differences"]


class Checkpoint:
    """Where the state of a measurement is kept while it goes on.

    Args:
        path: of the file.
        run: what describes the measurement, in terms of JSON.
        every: seconds between two checkpoints.
    """

    def __init__(self, path: Path, run: dict, every: float = 60.0):
        self.path, self.previous = path, path.with_name(path.name + ".previous")
        self.run, self.every = run, every
        self._last = time.monotonic()

    def load(self) -> dict[str, np.ndarray] | None:
        """The state that was saved last, the one before if that file is damaged, None if there is neither.

        Raises:
            ValueError: all that is there is damaged, or it is of another measurement.
        """
        damage = ""
        for file in filter(Path.exists, (self.path, self.previous)):
            digest, _, body = file.read_bytes().partition(b"\n")
            if digest != _digest(body):
                damage = damage or f"{file} is damaged: its SHA-256 is not the one recorded in it"
                continue
            described, _, arrays = body.partition(b"\n")
            if unlike := differences(json.loads(described), self.run):
                raise ValueError(f"{file} is of another measurement ({unlike}): delete it, or give another --out")
            if damage:
                warn(f"{damage}; going on from {file.name}", stacklevel=2)
            return safetensors.numpy.load(arrays)
        if damage:
            raise ValueError(f"{damage}; delete it to measure from the beginning")
        return None

    @property
    def due(self) -> bool:
        """Whether the last checkpoint is so old that it is time for another."""
        return time.monotonic() - self._last >= self.every

    def save(self, state: dict[str, np.ndarray]) -> None:
        """Write `state`; the checkpoint that was there is kept as the previous one."""
        body = json.dumps(self.run).encode() + b"\n" + safetensors.numpy.save(state)
        kept = {self.previous: self.path.read_bytes()} if self.path.exists() else {}
        write_whole(kept | {self.path: _digest(body) + b"\n" + body})
        self._last = time.monotonic()

    def delete(self) -> None:
        """Remove both files, and what a kill has left of another."""
        for file in (self.path, self.previous):
            file.unlink(missing_ok=True)
            partial(file).unlink(missing_ok=True)


def differences(found: dict, wanted: dict) -> str:
    """In which entries the description of a measurement that was found differs from the one wanted; "" if in none."""
    found, wanted = _flat(found), _flat(json.loads(json.dumps(wanted)))  # in the types that come back from a file
    unlike = [key for key in wanted if found.get(key) != wanted[key]]
    plain = [key for key in unlike if not key.endswith("sha256")]  # a hash tells nothing beside what it is of
    unlike = plain or unlike
    return ", ".join(f"{key} {found.get(key)}, not {wanted[key]}" for key in unlike)


def _flat(description: dict) -> dict:
    flat = {}
    for key, value in description.items():
        inner = _flat(value) if isinstance(value, dict) else {"": value}
        flat |= {f"{key} {name}".rstrip(): entry for name, entry in inner.items()}
    return flat


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()
