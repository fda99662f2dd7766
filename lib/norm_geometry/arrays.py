"""The array backend: the only module that knows whether it was handed numpy or torch.

Everything above it is written once, against the array API standard (https://data-apis.org/array-api/).
"""

from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_torch_array

__all__ = ["Array", "array_namespace", "histogram", "lengths", "to_numpy", "upcast"]

# numpy.ndarray or torch.Tensor. Naming the second would import torch.
Array = Any


def upcast(x: Array) -> Array:
    """Return `x` in the next wider floating type: half precision in float32, float32 in float64.

    Sums over the hidden dimension then lose nothing of the input's own precision: in particular the mean of a
    constant float32 vector is that constant, exactly. float64 stays float64; devices that do not have it (Apple's
    mps) stay in float32.
    """
    xp = array_namespace(x)
    if not xp.isdtype(x.dtype, "real floating"):
        raise TypeError(f"expected floating-point numbers, got {x.dtype}: convert it, for example with x.astype(float)")
    if x.dtype.itemsize == 2:
        return xp.astype(x, xp.float32)
    if is_torch_array(x) and x.device.type == "mps":
        return x
    return xp.astype(x, xp.float64)


def to_numpy(x: Array) -> np.ndarray:
    """Return `x` as a numpy array of at least float32, wherever it was: numpy has no bfloat16."""
    if is_torch_array(x):
        x = x.detach().cpu()
        return (x.float() if x.dtype.itemsize == 2 else x).numpy()
    x = np.asarray(x)
    return x.astype(np.float32) if x.dtype == np.float16 else x


def histogram(place: Array, counted: Array, bins: int) -> Array:
    """Count, along the last axis, how often each of `bins` places stands in `place` where it is `counted`."""
    xp = array_namespace(place)
    counts = xp.zeros((*place.shape[:-1], bins + 1), dtype=xp.int64, device=place.device)
    place = xp.where(counted, place, bins)  # the last bin takes what does not count
    if is_torch_array(place):
        counts.scatter_add_(-1, place, counts.new_ones(()).expand(place.shape))  # bincount would wait for the device
    else:
        rows = counts.reshape(-1, bins + 1)
        for row, columns in zip(rows, place.reshape(-1, place.shape[-1]), strict=True):
            row += np.bincount(columns, minlength=bins + 1)
    return counts[..., :bins]


def lengths(x: Array) -> Array:
    """‖x‖ along the last axis, also where squares of coordinates leave the floating type's range."""
    xp = array_namespace(x)
    if is_torch_array(x) and x.is_cuda:
        # Squares are formed in registers, so float64 costs no memory traffic and nothing waits for the device.
        return xp.linalg.vector_norm(x, axis=-1, dtype=xp.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        norms = xp.linalg.vector_norm(x, axis=-1)
    if 0 in norms.shape:
        return norms
    limits = xp.finfo(x.dtype)
    smallest = limits.smallest_normal**0.5 / limits.eps
    least, greatest = norms.aminmax() if is_torch_array(x) else (norms.min(), norms.max())
    if not (least >= smallest and greatest < np.inf):  # rare; so it is also where there are NaN
        doubtful = ~(xp.isfinite(norms) & (norms >= smallest))
        # Again in float64 and in units of the largest coordinate.
        rows = to_numpy(x[doubtful]).astype(np.float64)
        largest = np.abs(rows).max(axis=-1, keepdims=True, initial=0.0)
        with np.errstate(invalid="ignore", over="ignore"):
            again = np.linalg.norm(rows / np.where(largest > 0, largest, 1.0), axis=-1) * largest[:, 0]
        norms[doubtful] = xp.asarray(again, dtype=norms.dtype, device=norms.device)
    return norms
