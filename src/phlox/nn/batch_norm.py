"""Batch normalisation, with running statistics for inference."""

from __future__ import annotations

import math

import numpy as np

from phlox.backend import DeviceLike, Float
from phlox.backend.parallel import row_group
from phlox.backend.tracing.symbolic import less
from phlox.config import config_of
from phlox.errors import ConfigError, ShapeError
from phlox.module import Module, Param
from phlox.module.param import set_together
from phlox.nn.initializer import Initializer, Ones, Zeros
from phlox.tensor import Tensor, functional, stack, tensor
from phlox.tensor.functional.norm import BatchNorm as Normalised

__all__ = ["BatchNorm", "BatchNormConfig"]


class BatchNorm(Module):
    """(x - mean) / sqrt(var + epsilon) * gamma + beta, over all axes but the channels (Ioffe, Szegedy 2015).

    x is [n, channels, ...] with any number of spatial axes: vectors, sequences, images or volumes. gamma and beta are
    [channels]; `affine=False` omits them.

    In training, the statistics are those of the batch. The running statistics are updated as in PyTorch: running +
    momentum (batch - running), with the unbiased variance. At inference the running statistics are used. They are
    parameters that are saved but not trained, and are f32 even on backends of half precision. With
    `track_running_stats=False` there are none, and the batch statistics are always used.

    The layer is in training if its mode says so (see `Module.training`) or, without a mode, if x is on a tape. Raises
    `ShapeError` in training if there is only one value per channel, which has no variance.

    If each process computes on its rows of a global batch (`with mesh:` on PyTorch and NumPy), each uses the statistics
    of its own rows. With `synchronized=True` the statistics are those of the whole batch; this costs one exchange in
    each direction. On JAX a batch on a mesh is one array, so its statistics are always those of the whole batch.

    >>> import phlox as px
    >>> layer = BatchNorm(1).train()
    >>> layer(px.tensor([[1.0], [3.0]], device=layer.gamma.device)).tolist()
    [[-0.99999..., [0.99999...]
    >>> layer.running_mean.val().tolist(), layer.running_var.val().tolist()
    ([0.2...], [1.1...])
    """

    def __init__(
        self,
        channels: int,
        *,
        epsilon: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        synchronized: bool = False,
        device: DeviceLike | None = None,
    ) -> None:
        if not 0.0 <= momentum <= 1.0:
            raise ConfigError(f"BatchNorm: momentum must be between 0 and 1, got {momentum}")
        shape = (channels,)
        self.channels, self.epsilon, self.momentum, self.synchronized = channels, epsilon, momentum, synchronized
        self.gamma = Param.deferred(shape, Ones(), device=device) if affine else None
        self.beta = Param.deferred(shape, Zeros(), device=device) if affine else None
        tracks = track_running_stats
        self.running_mean = _statistic(shape, Zeros(), device) if tracks else None
        self.running_var = _statistic(shape, Ones(), device) if tracks else None

    def __call__(self, x: Tensor) -> Tensor:
        return self._normalise(x)

    def _normalise(self, x: Tensor) -> Tensor:
        gamma = None if self.gamma is None else self.gamma.val()
        beta = None if self.beta is None else self.beta.val()
        mean, variance, training = self.running_mean, self.running_var, self.is_training(x)
        if mean is None or variance is None:
            return self._normalise_batch(x, gamma, beta).y
        if not training:
            return functional.batch_norm(x, mean.val(), variance.val(), gamma, beta, epsilon=self.epsilon)
        normalised = self._normalise_batch(x, gamma, beta)
        count = math.prod(x.shape) // self.channels * self._processes()
        if (group := row_group()) is not None and group.rows is not None and self.synchronized:
            count = count // group.size // group.rows[group.rank] * sum(group.rows)
        batch, spread = self._statistics(x, normalised), count / (count - 1)
        set_together([self._update(mean, batch[0], 1.0), self._update(variance, batch[1], spread)])
        return normalised.y

    def _normalise_batch(self, x: Tensor, gamma: Tensor | None, beta: Tensor | None) -> Normalised:
        if x.ndim > 1 and x.shape[1] != self.channels:
            raise ShapeError(f"x of shape {x.shape} does not have {self.channels} channels along axis 1")
        processes = self._processes()
        if x.ndim > 1 and less(math.prod(x.shape) * processes, self.channels + 1):
            raise ShapeError(
                f"x of shape {x.shape} has only one value per channel, and so no variance; use a larger batch"
            )
        if processes > 1 and x.ndim > 1:
            return _over_processes(x, gamma, beta, self.epsilon)
        return functional.batch_norm_train(x, gamma, beta, epsilon=self.epsilon)

    def _processes(self) -> int:
        """The number of processes that the statistics combine."""
        group = row_group() if self.synchronized else None
        return 1 if group is None else group.size

    def _statistics(self, x: Tensor, normalised: Normalised) -> tuple[Tensor, Tensor]:
        """Mean and variance of the batch, at full precision at least: half precision would be inaccurate."""
        if x.backend.full_precision() is x.backend or self._processes() > 1:
            return normalised.mean, normalised.variance
        wide, axes = x.detach().to_full_precision(), (0, *range(2, x.ndim))
        return wide.mean(axes), wide.var(axes)

    def _update(self, running: Param, batch: Tensor, correction: float) -> tuple[Param, Tensor]:
        before = running.val()
        return running, before + (batch.detach() * correction - before) * self.momentum


def _over_processes(x: Tensor, gamma: Tensor | None, beta: Tensor | None, epsilon: float) -> Normalised:
    """Normalise x with the mean and the variance of the rows of all processes."""
    wide, axes = x.to_full_precision(), (0, *range(2, x.ndim))
    statistics = stack([wide.mean(axes), wide.var(axes)], 0)
    # Exchanges means and variances: the difference of sums of squares and squared sums would lose digits.
    gathered = Tensor.from_primitive(statistics.backend.all_gather(statistics.primitive), statistics.backend, Float)
    means, variances = gathered[:, 0], gathered[:, 1]
    group = row_group()
    if group is None or group.rows is None:
        mean = means.mean(0)
        variance = (variances + (means - mean).square()).mean(0)
    else:
        shares = np.asarray(group.rows, np.float64) / sum(group.rows)
        weights = tensor(shares[:, None], kind=Float, device=means.device)
        mean = (means * weights).sum(0)
        variance = ((variances + (means - mean).square()) * weights).sum(0)

    def along(scale: Tensor) -> Tensor:
        return scale.to_full_precision().reshape((-1, *[1 for _ in x.shape[2:]]))

    y = (wide - along(mean)) * along((variance + epsilon).rsqrt())
    y = y if gamma is None else y * along(gamma)
    y = y if beta is None else y + along(beta)
    return Normalised(y.from_full_precision(x), mean, variance)


def _statistic(shape: tuple[int, ...], initializer: Initializer, device: DeviceLike | None) -> Param:
    return Param.deferred(shape, initializer, trained=False, device=device, full_precision=True)


class BatchNormConfig(config_of(BatchNorm)):
    """Hyper-parameters of `BatchNorm`."""
