"""LayerNorm and RMSNorm as compositions of three maps, and BatchNorm beside them.

    layer_norm = scale_and_shift ∘ normalize ∘ project
    rms_norm   = scale_and_shift ∘ normalize

Every function acts on the last axis, takes numpy arrays and torch tensors alike, and returns the type it was given.
The arithmetic is done in the next wider type, up to float64, and rounded once at the end.

Sources: Ba, Kiros and Hinton (2016), https://arxiv.org/abs/1607.06450; Zhang and Sennrich (2019),
https://arxiv.org/abs/1910.07467; Ioffe and Szegedy (2015), https://arxiv.org/abs/1502.03167; the decomposition after
Gupta et al. (2024), https://arxiv.org/abs/2409.12951, section 2.2.
"""

from jaxtyping import Float

from norm_geometry.arrays import Array, array_namespace, upcast

__all__ = ["batch_norm", "layer_norm", "normalize", "project", "rms_norm", "scale_and_shift"]


def project(x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
    """Remove the component along the uniform vector: P x = x − (x·1̂) 1̂, with 1̂ = (1, …, 1)/√d.

    The same as subtracting from every coordinate the mean of the coordinates (Gupta et al. 2024, equation 8).
    """
    return _rounded_like(x, _project(_wide(x)))


def normalize(x: Float[Array, "*batch d"], eps: float = 0.0) -> Float[Array, "*batch d"]:
    """Put `x` on the sphere of radius √d: x / √(‖x‖²/d + ε), which for ε = 0 is √d · x/‖x‖.

    With ε > 0 the result lies strictly inside the sphere. The zero vector stays where it is. Neither the squares of
    huge nor those of tiny coordinates leave the number format.
    """
    return _rounded_like(x, _normalize(_wide(x), eps))


def scale_and_shift(
    x: Float[Array, "*batch d"],
    gain: Float[Array, " d"] | None = None,
    bias: Float[Array, " d"] | None = None,
) -> Float[Array, "*batch d"]:
    """The learned affine map G x + b, with G = diag(gain). A missing gain is 1, a missing bias 0."""
    return _rounded_like(x, _scale_and_shift(_wide(x), gain, bias))


def layer_norm(
    x: Float[Array, "*batch d"],
    gain: Float[Array, " d"] | None = None,
    bias: Float[Array, " d"] | None = None,
    eps: float = 1e-5,
) -> Float[Array, "*batch d"]:
    """LayerNorm: G · P x / √(‖P x‖²/d + ε) + b, where ‖P x‖²/d is the variance of the coordinates.

    This is `torch.nn.LayerNorm(d, eps)`: ε stands inside the root. A constant vector is mapped to the bias.

    Raises:
        ValueError: the last axis is empty, or gain or bias have another length than it.
        TypeError: `x` is not floating-point.
    """
    return _rounded_like(x, _scale_and_shift(_normalize(_project(_wide(x)), eps), gain, bias))


def rms_norm(
    x: Float[Array, "*batch d"],
    gain: Float[Array, " d"] | None = None,
    eps: float = 1e-6,
) -> Float[Array, "*batch d"]:
    """RMSNorm: G · x / √(‖x‖²/d + ε): LayerNorm without the projection and without the bias.

    This is `torch.nn.RMSNorm(d, eps)` and transformers' `LlamaRMSNorm`. `GemmaRMSNorm` stores w and multiplies by
    1 + w: pass gain = 1 + w. Raises as `layer_norm` does.
    """
    return _rounded_like(x, _scale_and_shift(_normalize(_wide(x), eps), gain, None))


def batch_norm(
    x: Float[Array, "*batch d"],
    mean: Float[Array, " d"] | None = None,
    variance: Float[Array, " d"] | None = None,
    gain: Float[Array, " d"] | None = None,
    bias: Float[Array, " d"] | None = None,
    eps: float = 1e-5,
) -> Float[Array, "*batch d"]:
    """BatchNorm: G · (x − E) / √(Var + ε) + b, with one mean and one variance for each coordinate.

    Given `mean` and `variance` (inference) it is an affine map. Without them (training) both are taken over all
    leading axes of `x`, the variance with denominator n.
    """
    if (mean is None) != (variance is None):
        raise ValueError("batch_norm needs both mean and variance, or neither")
    wide = _wide(x)
    xp = array_namespace(wide)
    if mean is None:
        axes = tuple(range(wide.ndim - 1))
        mean, variance = xp.mean(wide, axis=axes), xp.var(wide, axis=axes)
    standardized = (wide - upcast(mean)) / xp.sqrt(upcast(variance) + eps)
    return _rounded_like(x, _scale_and_shift(standardized, gain, bias))


def _wide(x: Array) -> Array:
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"expected vectors along the last axis, got an array of shape {tuple(x.shape)}")
    return upcast(x)


def _rounded_like(x: Array, wide: Array) -> Array:
    return array_namespace(x).astype(wide, x.dtype)


def _project(x: Array) -> Array:
    # Measured from the first coordinate, a constant vector is zero, and its mean is exact even in float64.
    from_first = x - x[..., :1]
    return from_first - array_namespace(x).mean(from_first, axis=-1, keepdims=True)


def _normalize(x: Array, eps: float) -> Array:
    xp = array_namespace(x)
    # Measured in units of its largest coordinate (or of √ε, if that is larger) a vector has squares within range.
    unit = xp.clip(xp.max(xp.abs(x), axis=-1, keepdims=True), min=eps**0.5)
    unit = xp.where(unit > 0, unit, 1.0)
    scaled = x / unit
    rms = xp.sqrt(xp.mean(scaled * scaled, axis=-1, keepdims=True) + (eps**0.5 / unit) ** 2)
    return scaled / xp.where(rms > 0, rms, 1.0)


def _scale_and_shift(x: Array, gain: Array | None, bias: Array | None) -> Array:
    for name, parameter in (("gain", gain), ("bias", bias)):
        if parameter is not None and tuple(parameter.shape) != (x.shape[-1],):
            raise ValueError(
                f"{name} has shape {tuple(parameter.shape)}, but the vectors have length {x.shape[-1]}: "
                f"pass one {name} for each coordinate"
            )
    if gain is not None:
        x = x * upcast(gain)
    if bias is not None:
        x = x + upcast(bias)
    return x
