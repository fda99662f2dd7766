"""Fold the mean subtraction of a model's LayerNorms into its weights: an RMSNorm model that computes the same.

    rms_model = fold_mean_subtraction(model, untie=True)

All readers of the residual stream subtract what was written to it along 1, so it may as well not be written. And a
LayerNorm that reads vectors orthogonal to 1 is an RMSNorm with the same gain and bias.
Source: Jiang et al. (2023), https://arxiv.org/abs/2305.14858.
"""

import copy
from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from norm_geometry.sites import find_norms

__all__ = ["RMSNorm", "fold_mean_subtraction", "swap", "writers"]

OUTPUT_AXIS = {nn.Linear: 0, Conv1D: 1, nn.Embedding: 1}  # of the weight
ROUNDING = 1e-3  # a share along 1 below this is taken for none; of other vectors it is near 1/√d


class RMSNorm(nn.RMSNorm):
    """G · x / √(‖x‖²/d + ε) + b, with the gain G, the bias b and the ε of a LayerNorm."""

    def __init__(self, norm: nn.LayerNorm):
        super().__init__(norm.normalized_shape, norm.eps, elementwise_affine=False)
        self.weight, self.bias = norm.weight, norm.bias

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        y = super().forward(x)
        return y if self.bias is None else y + self.bias


def swap(model: PreTrainedModel, names: Iterable[str] | None = None) -> PreTrainedModel:
    """A copy of `model` with the LayerNorms called `names`, by default all on its residual stream, made `RMSNorm`s.

    Raises ValueError if there is none, or if one of them is no `torch.nn.LayerNorm`.
    """
    layer_norms = [site.name for site in find_norms(model) if (site.kind, site.place) == ("layer", "residual")]
    model = copy.deepcopy(model)
    for name in layer_norms if names is None else names:
        norm = model.get_submodule(name)
        if not isinstance(norm, nn.LayerNorm):
            raise ValueError(f"{name} is a {type(norm).__name__}, not a torch.nn.LayerNorm: it cannot be swapped")
        model.set_submodule(name, RMSNorm(norm))
    if not layer_norms:
        raise ValueError(f"{type(model).__name__} has no LayerNorm on its residual stream: there is no mean to fold")
    return model


def writers(model: PreTrainedModel) -> list[str]:
    """The linear and embedding modules whose outputs, as all their readers are LayerNorms, need no component along 1.

    They are found by what they do: the gradient of a random function of the model's output with respect to theirs, at
    each of some random tokens, is orthogonal to 1. Of queries, keys and values it is not.
    """
    width = next(site.width for site in find_norms(model) if site.place == "residual")
    outputs = {}

    def keep(name):
        def hook(module, inputs, output):
            if output.shape[-1] == width:
                outputs[name] = output if output.requires_grad else output.requires_grad_()

        return hook

    modules = {name: module for name, module in model.named_modules() if isinstance(module, (*OUTPUT_AXIS,))}
    handles = [module.register_forward_hook(keep(name)) for name, module in modules.items()]
    with torch.enable_grad():
        output = model(input_ids=_random_tokens(model))[0]
        some = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
        gradients = torch.autograd.grad((output * some).sum(), list(outputs.values()), allow_unused=True)
    for handle in handles:
        handle.remove()
    reached = {name: g for name, g in zip(outputs, gradients, strict=True) if g is not None}
    return [name for name, gradient in reached.items() if _orthogonal(gradient)]


def fold_mean_subtraction(model: PreTrainedModel, *, untie: bool = False) -> PreTrainedModel:
    """A copy of a pre-norm `model` with RMSNorms in place of LayerNorms and the same outputs, to rounding.

    What its `writers` write is centred: W ↦ (I − 11ᵀ/d) W and b ↦ (I − 11ᵀ/d) b; gains and biases of norms stay.

    Args:
        untie: allow an output head that shares its weights with the embedding, which is centred, to get its own.

    Raises:
        ValueError: there is no LayerNorm; the head is tied and `untie` is not set; or a norm reads what cannot be
            centred, as in a post-norm model, where it reads the output of another norm.
    """
    layer_norms = [site.name for site in find_norms(model) if (site.kind, site.place) == ("layer", "residual")]
    folded = swap(model)
    head, embedding = folded.get_output_embeddings(), folded.get_input_embeddings()
    if head is not None and head.weight is embedding.weight:
        if not untie:
            raise ValueError(
                f"the output head of {type(model).__name__} is its embedding, and only one of them may be centred: "
                f"set untie=True, which adds {head.weight.numel():,} parameters"
            )
        head.weight = nn.Parameter(head.weight.detach().clone())
        folded.config.tie_word_embeddings = False
    with torch.no_grad():
        for name in writers(model):
            module = folded.get_submodule(name)
            axis = next(axis for kind, axis in OUTPUT_AXIS.items() if isinstance(module, kind))
            module.weight -= module.weight.mean(dim=axis, keepdim=True)
            if getattr(module, "bias", None) is not None:
                module.bias -= module.bias.mean()
    _check_centred(folded, layer_norms)
    return folded


def _check_centred(model: PreTrainedModel, names: list[str]) -> None:
    read = {}
    handles = [
        model.get_submodule(name).register_forward_pre_hook(lambda _, args, name=name: read.update({name: args[0]}))
        for name in names
    ]
    with torch.no_grad():
        model(input_ids=_random_tokens(model))
    for handle in handles:
        handle.remove()
    for name, x in read.items():
        if not _orthogonal(x):
            raise ValueError(
                f"{name} of {type(model).__name__} reads vectors with a component along 1 even after all that can be "
                "centred is: as in a post-norm model, its mean subtraction cannot be folded"
            )


def _orthogonal(x: Tensor) -> bool:
    """Whether vectors have no component along 1, to rounding."""
    return (x.sum(dim=-1).norm() / x.shape[-1] ** 0.5 <= ROUNDING * x.norm()).item()


def _random_tokens(model: PreTrainedModel) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    vocabulary = model.config.get_text_config().vocab_size
    return torch.randint(vocabulary, (2, 16), generator=generator).to(next(model.parameters()).device)
