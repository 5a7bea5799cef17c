"""Stacks of many networks of one shape, linear layers and RealNVP: one optimizer trains all.

Weights lie along a first axis.

A step of ten networks with ten thousand weights each costs little more than a step of one: most of the time goes into
starting operations. Networks in a stack do not affect one another. The loss is a sum over them, Adam works elementwise,
and each network has its own seed, so training in a stack gives the same network as training alone.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class StackedLinear(nn.Module):
    """S linear layers: x_s W_s + b_s.

    Weights and biases start as those of `torch.nn.Linear`: uniform in +- 1 / sqrt(in_features).

    Args:
        generators: one per layer; layer s starts from numbers of the s-th alone. Or only S: all start from torch's own.
    """

    def __init__(self, in_features: int, out_features: int, generators: Sequence[torch.Generator] | int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(in_features)
        self.weight = nn.Parameter(uniform((in_features, out_features), bound, generators))
        self.bias = nn.Parameter(uniform((1, out_features), bound, generators))

    def forward(self, values: Tensor) -> Tensor:
        """Return the output, (S, B, out), of values (S or 1, B, in)."""
        # The fused product does not broadcast.
        if len(values) == len(self.weight):
            return torch.baddbmm(self.bias, values, self.weight)
        return values @ self.weight + self.bias


def uniform(shape: Sequence[int], bound: float, generators: Sequence[torch.Generator] | int) -> Tensor:
    """Return uniform numbers in +- bound, (S, *shape); part s is drawn from the s-th generator.

    Args:
        shape: Shape of each part.
        generators: S, one for each part; or only S, for torch's own.
    """
    if isinstance(generators, int):
        return torch.empty(generators, *shape).uniform_(-bound, bound)
    return torch.stack([(2 * torch.rand(*shape, generator=generator) - 1) * bound for generator in generators])


class StackedBatchNorm(nn.Module):
    """S batch normalizations side by side, each with statistics of its own, (S, n, d).

    The batch's mean and variance are used in training and running ones in evaluation, as by `torch.nn.BatchNorm1d`.

    Args:
        replicas: S.
        features: d.
        momentum: share of a new batch in the running statistics.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, replicas: int, features: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.weight = nn.Parameter(torch.ones(replicas, 1, features))
        self.bias = nn.Parameter(torch.zeros(replicas, 1, features))
        self.register_buffer("mean", torch.zeros(replicas, 1, features))
        self.register_buffer("variance", torch.ones(replicas, 1, features))

    def forward(self, x: Tensor) -> Tensor:
        """Return values normalized over n, (S, n, d); x is (S, n, d)."""
        if not self.training:
            mean, variance = self.mean, self.variance
        else:
            variance, mean = torch.var_mean(x, dim=1, keepdim=True, correction=0)
            with torch.no_grad():
                # Running variances are unbiased ones.
                unbiased = variance * (x.shape[1] / max(1, x.shape[1] - 1))
                self.mean.lerp_(mean, self.momentum)
                self.variance.lerp_(unbiased, self.momentum)
        scale = self.weight * (variance + self.eps).rsqrt()
        return torch.addcmul(self.bias - scale * mean, scale, x)


class AffineCoupling(nn.Module):
    """x = m z + (1 - m) (z exp(s(m z)) + t(m z)): the entries kept by the mask m decide how the others change.

    s and t are networks of batch norm, a linear layer with ReLU, two more of the same width, and a linear layer; s
    ends in tanh.

    Args:
        dimension: d.
        hidden: width of s and t.
        mask: (d,) of 0 and 1; 1 is kept.
        replicas: S.

    Source: Dinh et al., "Density estimation using Real NVP", 2017; reference code annealed_vi_gmms.
    """

    mask: Tensor

    def __init__(self, dimension: int, hidden: int, mask: Tensor, replicas: int = 1) -> None:
        super().__init__()
        self.register_buffer("mask", mask.clone().float())
        self.scale = _network(replicas, dimension, hidden)
        self.shift = _network(replicas, dimension, hidden)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the image of z, (S, n, d), and log |det dx/dz|, (S, n); z is (S, n, d)."""
        kept, changed = self.mask * z, 1 - self.mask
        scale = changed * torch.tanh(self.scale(kept))
        return z * scale.exp() + changed * self.shift(kept), scale.sum(-1)


def _network(replicas: int, dimension: int, hidden: int) -> nn.Sequential:
    layers: list[nn.Module] = [StackedBatchNorm(replicas, dimension)]
    width = dimension
    for _ in range(3):
        layers += [StackedLinear(width, hidden, replicas), nn.ReLU()]
        width = hidden
    return nn.Sequential(*layers, StackedLinear(hidden, dimension, replicas))


class RealNVP(nn.Module):
    """Affine couplings with alternating masks over a standard normal base: samples and their densities.

    S replicas have separate parameters: the gradient of a sum of their losses is that of each.

    Args:
        couplings: Number of affine couplings.
        hidden: Width of their networks.
        dimension: d.
        replicas: S.
    """

    def __init__(self, dimension: int, couplings: int = 8, hidden: int = 512, replicas: int = 1) -> None:
        super().__init__()
        self.dimension, self.replicas = dimension, replicas
        even = (torch.arange(dimension) % 2 == 0).float()
        masks = [even if k % 2 == 0 else 1 - even for k in range(couplings)]
        self.couplings = nn.ModuleList(AffineCoupling(dimension, hidden, m, replicas) for m in masks)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images x of base samples, (S, n, d), and log |det dx/dz|, (S, n) nats; z is (S, n, d)."""
        log_det = z.new_zeros(z.shape[:-1])
        for coupling in self.couplings:
            z, part = coupling(z)
            log_det = log_det + part
        return z, log_det

    def sample(self, count: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return n samples of every replica, (S, n, d), and their log densities, (S, n) nats, with gradient.

        Args:
            count: Number of samples, n.
            generator: Generator of the noise; None: torch's own.
        """
        like = next(self.parameters())
        z = torch.randn(self.replicas, count, self.dimension, generator=generator, dtype=like.dtype, device=like.device)
        x, log_det = self(z)
        log_density = -0.5 * (z.square().sum(-1) + z.shape[-1] * math.log(2 * math.pi))
        return x, log_density - log_det
