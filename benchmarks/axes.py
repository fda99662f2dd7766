"""All semi-axes of LayerNorm's ellipsoid from the secular equation against `numpy.linalg.eigvalsh`.

    python benchmarks/axes.py [largest size]

Both alternate in one run on the same gains, which are spread as those of a trained norm are; the ratio is the median
over the pairs. Memory is what each allocates at its peak, eigvalsh's matrix included.
"""

import statistics
import sys
import time
import tracemalloc

import numpy as np

from norm_geometry.ellipsoid import layer_norm_ellipsoid

PAIRS = 9


def eigenvalues(gain: np.ndarray) -> np.ndarray:
    d = len(gain)
    return np.linalg.eigvalsh(np.diag(gain**2) - np.outer(gain, gain) / d)


def seconds(function, gain: np.ndarray) -> float:
    start = time.perf_counter()
    function(gain)
    return time.perf_counter() - start


def peak(function, gain: np.ndarray) -> float:
    """MiB."""
    tracemalloc.start()
    function(gain)
    size = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return size / 2**20


if __name__ == "__main__":
    largest = int(sys.argv[1]) if sys.argv[1:] else 8192
    print("   d   ours, ms  eigvalsh, ms  ratio (least, most)     ours, MiB  eigvalsh, MiB  largest difference")
    for d in (size for size in (64, 128, 256, 512, 1024, 2048, 4096, 8192) if size <= largest):
        gain = np.random.default_rng(d).normal(1, 0.3, d)
        lengths, reference = layer_norm_ellipsoid(gain).axis_lengths, np.sqrt(d * eigenvalues(gain)[:0:-1].clip(0))
        error = np.abs(lengths - reference).max() / reference[0]
        pairs = []
        for i in range(PAIRS):
            order = (layer_norm_ellipsoid, eigenvalues) if i % 2 else (eigenvalues, layer_norm_ellipsoid)
            pair = {function: seconds(function, gain) for function in order}
            pairs.append((pair[layer_norm_ellipsoid], pair[eigenvalues]))
        ratios = sorted(theirs / ours for ours, theirs in pairs)
        ours, theirs = (1000 * statistics.median(times) for times in zip(*pairs, strict=True))
        print(
            f"{d:5} {ours:9.2f} {theirs:13.2f} {statistics.median(ratios):7.1f} ({ratios[0]:.1f}, {ratios[-1]:.1f})"
            f"{peak(layer_norm_ellipsoid, gain):15.2f} {peak(eigenvalues, gain):14.1f} {error:13.1e}",
            flush=True,
        )
