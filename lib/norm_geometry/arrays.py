"""The array backend: the only module that knows whether it was handed numpy or torch.

Everything above it is written once, against the array API standard (https://data-apis.org/array-api/).
"""

from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_torch_array

__all__ = ["Array", "array_namespace", "to_numpy", "upcast"]

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
