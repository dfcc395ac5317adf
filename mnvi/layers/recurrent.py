r"""Recurrent layers that call their weights as layers, so that these can have a posterior.

torch's versions hand their weights to a function, past any posterior. :func:`mnvi.convert` turns them into the classes
here, whose input weights ``ih``, hidden weights ``hh`` and projections ``hr`` are linear layers that get a posterior
like any other: ``rnn.ih_l0``, ``rnn.hh_l0_reverse`` and so on. Names in the ``state_dict`` stay torch's. Layers that
are left out stay deterministic, and their inputs may be random all the same.

**Weights are shared by all steps, but each step counts as an independent draw**, as in local reparametrisation. What
this costs depends on the inputs. For 16 units at initialisation with :math:`\rho = -3`, the standard deviation of the
last output, against one draw of the weights for all steps (median over units, 5 and 20 steps):

==================  ===========  ===========  ===========
inputs              RNN          LSTM         GRU
==================  ===========  ===========  ===========
new at every step   0.99, 1.01   1.05, 0.95   0.97, 0.98
the same all along  0.94, 1.03   0.61, 0.59   0.59, 0.56
==================  ===========  ===========  ===========

So errors that all steps share, where an LSTM or a GRU sees much the same at every step, come out too small. Against a
new draw at each step the standard deviation is right within 2 %. Within a step, gates count as independent of each
other and of the state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from mnvi.layers.linear import Linear
from mnvi.layers.recurrent_steps import gru_step, lstm_step, rnn_step
from mnvi.layers.torch_names import NamedAsInTorch


class _Part(NamedAsInTorch):
    """``ih_l0.weight`` is ``weight_ih_l0`` in torch's recurrent layers."""

    torch_name = "{key}_{part}"


class Gates(_Part, nn.Linear):
    """Input weights, hidden weights or projection of a recurrent layer."""


class BayesianGates(_Part, Linear):
    """Input weights, hidden weights or projection of a recurrent layer, with a posterior."""


class _Named(nn.Module):
    """Loads what torch's recurrent layers and cells have saved."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        for name in self._modules:
            for part in ("weight", "bias"):
                if (torchs := f"{prefix}{part}_{name}") in state_dict:
                    state_dict[f"{prefix}{name}.{part}"] = state_dict.pop(torchs)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _split(module: nn.Module, names: list[str]) -> None:
    """Replace the parameters of a recurrent layer by linear layers, in place."""
    for name in names:
        weight, bias = module._parameters.pop(f"weight_{name}"), module._parameters.pop(f"bias_{name}", None)
        assert weight is not None
        layer = Gates(weight.shape[1], weight.shape[0], bias=False, device="meta")
        layer.weight = weight
        layer.register_parameter("bias", bias)
        module.add_module(name, layer)
        for part in ("weight", "bias"):
            module._parameters.pop(f"{part}_{name}", None)


class _Cell(_Named, nn.RNNCellBase):
    step: Callable[..., tuple]

    def forward(self, input: Any, hx: Any = None) -> Any:
        if input.dim() not in (1, 2):
            raise ValueError(f"{type(self).__name__}: expected an input of 1 or 2 dimensions, got {input.dim()}")
        states = 2 if isinstance(self, nn.LSTMCell) else 1
        if hx is None:
            zeros = torch.zeros(*input.shape[:-1], self.hidden_size, dtype=input.dtype, device=input.device)
            hx = (zeros,) * states
        elif states == 1:
            hx = (hx,)
        settings = {"nonlinearity": self.nonlinearity} if isinstance(self, nn.RNNCell) else {}
        new = type(self).step(self.ih(input), self.hh(hx[0]), hx, **settings)  # type: ignore[operator]
        return new if states == 2 else new[0]


class RNNCell(_Cell, nn.RNNCell):
    """:class:`torch.nn.RNNCell`, computed by calling its weights as layers; see :mod:`mnvi.layers.recurrent`.

    Args:
        args, kwargs: as in :class:`torch.nn.RNNCell`; inputs and states may be tensors or :class:`mnvi.Gaussian`.

    Example:
        >>> import torch, mnvi
        >>> cell = mnvi.convert(torch.nn.RNNCell(3, 4), mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> cell(torch.ones(2, 3)).var.shape
        torch.Size([2, 4])
    """

    step = staticmethod(rnn_step)


class LSTMCell(_Cell, nn.LSTMCell):
    """:class:`torch.nn.LSTMCell`, computed by calling its weights as layers; see :mod:`mnvi.layers.recurrent`.

    Args:
        args, kwargs: as in :class:`torch.nn.LSTMCell`; inputs and states may be tensors or :class:`mnvi.Gaussian`.

    Example:
        >>> import torch, mnvi
        >>> cell = mnvi.convert(torch.nn.LSTMCell(3, 4), mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> [state.var.shape for state in cell(torch.ones(2, 3))]
        [torch.Size([2, 4]), torch.Size([2, 4])]
    """

    step = staticmethod(lstm_step)


class GRUCell(_Cell, nn.GRUCell):
    """:class:`torch.nn.GRUCell`, computed by calling its weights as layers; see :mod:`mnvi.layers.recurrent`.

    Args:
        args, kwargs: as in :class:`torch.nn.GRUCell`; inputs and states may be tensors or :class:`mnvi.Gaussian`.

    Example:
        >>> import torch, mnvi
        >>> cell = mnvi.convert(torch.nn.GRUCell(3, 4), mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> cell(torch.ones(2, 3)).var.shape
        torch.Size([2, 4])
    """

    step = staticmethod(gru_step)


class _Sequence(_Named, nn.RNNBase):
    step: Callable[..., tuple]

    @property
    def all_weights(self) -> Any:
        layers = [self.get_submodule(name) for name in _names(self)]
        return [[p for p in (layer.weight, layer.bias) if p is not None] for layer in layers]

    def flatten_parameters(self) -> None:
        """Does nothing: the weights are those of separate layers."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        if isinstance(input, PackedSequence):
            raise TypeError(
                f"{type(self).__name__}: a PackedSequence is not supported with a posterior; pass the padded batch, "
                "and read each sequence's output at its last step"
            )
        batched = input.dim() == 3
        if input.dim() not in (2, 3):
            raise ValueError(f"{type(self).__name__}: expected an input of 2 or 3 dimensions, got {input.dim()}")
        states = 2 if isinstance(self, nn.LSTM) else 1
        x = input.transpose(0, 1) if batched and self.batch_first else input  # [steps, batch, in] or [steps, in]
        given = None if hx is None else (hx if states == 2 else (hx,))
        directions = 2 if self.bidirectional else 1
        last: list[tuple] = []
        for layer in range(self.num_layers):
            if layer > 0:
                x = nn.functional.dropout(x, self.dropout, self.training)
            outputs = []
            for direction in range(directions):
                state = self._zeros(x, states) if given is None else tuple(s[len(last)] for s in given)
                out, state = self._run(x, state, f"_l{layer}{'_reverse' * direction}", direction == 1)
                outputs.append(out)
                last.append(state)
            x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        out = x.transpose(0, 1) if batched and self.batch_first else x
        ends = tuple(torch.stack(list(values)) for values in zip(*last, strict=True))
        return out, ends if states == 2 else ends[0]

    def _run(self, x: Any, state: tuple, suffix: str, backwards: bool) -> tuple[Any, tuple]:
        """All steps of one layer in one direction."""
        part = {name: self._modules.get(name + suffix) for name in ("ih", "hh", "hr")}
        settings = {"nonlinearity": self.nonlinearity} if isinstance(self, nn.RNN) else {}
        gates = part["ih"](x)  # type: ignore[misc]  # of all steps at once
        outputs = []
        steps = range(len(x))
        for t in reversed(steps) if backwards else steps:
            state = type(self).step(gates[t], part["hh"](state[0]), state, **settings)  # type: ignore[misc]
            if part["hr"] is not None:
                state = (part["hr"](state[0]), *state[1:])
            outputs.append(state[0])
        return torch.stack(outputs[::-1] if backwards else outputs), state

    def _zeros(self, x: Any, states: int) -> tuple:
        """Initial hidden state and, for an LSTM, cell state."""
        sizes = [self.proj_size or self.hidden_size, self.hidden_size][:states]
        return tuple(torch.zeros(*x.shape[1:-1], size, dtype=x.dtype, device=x.device) for size in sizes)

    def _apply(self, fn: Callable, recurse: bool = True) -> Any:
        return nn.Module._apply(self, fn, recurse)  # torch's also flattens the parameters that are no longer here


class RNN(_Sequence, nn.RNN):
    """:class:`torch.nn.RNN`, computed by calling its weights as layers; see :mod:`mnvi.layers.recurrent`.

    Args:
        args, kwargs: as in :class:`torch.nn.RNN`; inputs and states may be tensors or :class:`mnvi.Gaussian`.

    Example:
        >>> import torch, mnvi
        >>> rnn = mnvi.convert(torch.nn.RNN(3, 4, batch_first=True), mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> out, last = rnn(torch.ones(2, 5, 3))
        >>> out.var.shape, last.var.shape
        (torch.Size([2, 5, 4]), torch.Size([1, 2, 4]))
    """

    step = staticmethod(rnn_step)


class LSTM(_Sequence, nn.LSTM):
    """:class:`torch.nn.LSTM`, computed by calling its weights as layers; see :mod:`mnvi.layers.recurrent`.

    Args:
        args, kwargs: as in :class:`torch.nn.LSTM`; inputs and states may be tensors or :class:`mnvi.Gaussian`.

    Example:
        >>> import torch, mnvi
        >>> lstm = mnvi.convert(torch.nn.LSTM(3, 4, batch_first=True), mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> out, (hidden, cell) = lstm(torch.ones(2, 5, 3))
        >>> out.var.shape, cell.var.shape
        (torch.Size([2, 5, 4]), torch.Size([1, 2, 4]))
        >>> list(lstm.state_dict())
        ['weight_ih_l0', 'bias_ih_l0', 'ih_l0.rho', 'weight_hh_l0', 'bias_hh_l0', 'hh_l0.rho']
    """

    step = staticmethod(lstm_step)


class GRU(_Sequence, nn.GRU):
    """:class:`torch.nn.GRU`, computed by calling its weights as layers; see :mod:`mnvi.layers.recurrent`.

    Args:
        args, kwargs: as in :class:`torch.nn.GRU`; inputs and states may be tensors or :class:`mnvi.Gaussian`.

    Example:
        >>> import torch, mnvi
        >>> gru = mnvi.convert(torch.nn.GRU(3, 4, batch_first=True), mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> out, last = gru(torch.ones(2, 5, 3))
        >>> out.var.shape, last.var.shape
        (torch.Size([2, 5, 4]), torch.Size([1, 2, 4]))
    """

    step = staticmethod(gru_step)


RECURRENT: dict[type[nn.Module], type[nn.Module]] = {
    nn.RNN: RNN,
    nn.LSTM: LSTM,
    nn.GRU: GRU,
    nn.RNNCell: RNNCell,
    nn.LSTMCell: LSTMCell,
    nn.GRUCell: GRUCell,
}


def take_over(module: nn.Module) -> None:
    """Turn one of torch's recurrent layers or cells into the class here, in place.

    Example:
        >>> import torch
        >>> cell = torch.nn.GRUCell(3, 4)
        >>> take_over(cell)
        >>> cell.ih
        Gates(in_features=3, out_features=12, bias=True)
    """
    kind = RECURRENT[type(module)]
    names = _names(module) if isinstance(module, nn.RNNBase) else ["ih", "hh"]
    module.__class__ = kind
    if isinstance(module, nn.RNNBase):
        module._flat_weights, module._flat_weights_names, module._flat_weight_refs = [], [], []
    _split(module, names)


def _names(rnn: nn.RNNBase) -> list[str]:
    suffixes = [
        f"_l{layer}{end}" for layer in range(rnn.num_layers) for end in ("", "_reverse")[: 1 + rnn.bidirectional]
    ]
    parts = ("ih", "hh", "hr") if rnn.proj_size else ("ih", "hh")
    return [part + suffix for suffix in suffixes for part in parts]
