"""One step of each recurrent layer: from the gates and the old state to the new state; values may be random."""

from __future__ import annotations

from typing import Any

import torch

from mnvi.values.gaussian import Gaussian


def rnn_step(gates: Any, hidden_gates: Any, state: tuple, nonlinearity: str = "tanh") -> tuple:
    """One step of :class:`torch.nn.RNN`: the new state, a tuple of one value."""
    return (getattr(torch, nonlinearity)(gates + hidden_gates),)


def lstm_step(gates: Any, hidden_gates: Any, state: tuple) -> tuple:
    r"""One step of :class:`torch.nn.LSTM`: hidden and cell state.

    .. math:: c' = \sigma(f) c + \sigma(i) \tanh(g), \qquad h' = \sigma(o) \tanh(c')
    """
    i, f, g, o = (gates + hidden_gates).chunk(4, -1)
    cell = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


def gru_step(gates: Any, hidden_gates: Any, state: tuple) -> tuple:
    r"""One step of :class:`torch.nn.GRU`.

    .. math:: n = \tanh(g_n + \sigma(g_r + h_r)\, h_n), \qquad h' = (1 - z) n + z h, \quad z = \sigma(g_z + h_z)
    """
    g_r, g_z, g_n = gates.chunk(3, -1)
    h_r, h_z, h_n = hidden_gates.chunk(3, -1)
    new = torch.tanh(g_n + torch.sigmoid(g_r + h_r) * h_n)
    return (interpolated(torch.sigmoid(g_z + h_z), new, state[0]),)


def interpolated(z: Any, new: Any, old: Any) -> Any:
    r""":math:`(1 - z)\,n + z\,h`, in which z occurs twice; exact for independent z, n and h.

    .. math:: V = E[(1-z)^2]\,V[n] + E[z^2]\,V[h] + V[z]\,(E[h] - E[n])^2

    Example:
        >>> import torch, mnvi
        >>> half = mnvi.Gaussian(torch.tensor([0.5]), torch.tensor([0.0]))
        >>> one = mnvi.Gaussian(torch.zeros(1), torch.ones(1))
        >>> interpolated(half, one, mnvi.Gaussian(torch.ones(1), torch.ones(1))).var
        tensor([0.5000])
    """
    if not any(isinstance(value, Gaussian) for value in (z, new, old)):
        return (1 - z) * new + z * old
    (mz, vz), (mn, vn), (mh, vh) = (_moments(value) for value in (z, new, old))
    mean = (1 - mz) * mn + mz * mh
    var = ((1 - mz).square() + vz) * vn + (mz.square() + vz) * vh + vz * (mh - mn).square()
    return Gaussian.trusted(mean, var)


def _moments(value: Any) -> tuple[Any, Any]:
    return (value.mean, value.var) if isinstance(value, Gaussian) else (value, 0.0)
