"""Attention that calls its projections as layers, so that they can have a posterior."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mnvi.layers.linear import Linear
from mnvi.layers.torch_names import NamedAsInTorch
from mnvi.rules.attention import as_additive, attend_in_heads, reported_weights


class _Part(NamedAsInTorch):
    """``in_proj.weight`` is ``in_proj_weight`` in :class:`torch.nn.MultiheadAttention`."""

    torch_name = "{part}_{key}"


class Projection(_Part, nn.Linear):
    """An input projection of :class:`MultiheadAttention`."""


class BayesianProjection(_Part, Linear):
    """An input projection of :class:`MultiheadAttention` with a posterior over its weights."""


class MultiheadAttention(nn.MultiheadAttention):
    """:class:`torch.nn.MultiheadAttention`, computed by calling its projections.

    torch's version hands the weights of its projections to a function, past any posterior. :func:`mnvi.convert` turns
    it into this class, where ``in_proj`` (or ``q_proj``, ``k_proj``, ``v_proj``, when keys or values have another
    width) and ``out_proj`` are layers that get a posterior like any other. Names in the ``state_dict`` stay torch's.
    With separate projections the input biases are deterministic. :mod:`mnvi.rules.attention` describes how means and
    variances go through the attention itself.

    Args:
        args, kwargs: as in :class:`torch.nn.MultiheadAttention`.

    Example:
        >>> import torch, mnvi
        >>> torchs = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        >>> attention = mnvi.convert(torchs, mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> sorted(set(attention.state_dict()) - set(torchs.state_dict()))
        ['in_proj.rho', 'out_proj.rho']
        >>> x = torch.ones(1, 5, 8)
        >>> out, weights = attention(x, x, x)
        >>> out.var.shape, weights.var.shape
        (torch.Size([1, 5, 8]), torch.Size([1, 5, 5]))
    """

    in_proj: nn.Linear
    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear

    @classmethod
    def take_over(cls, attention: nn.MultiheadAttention) -> None:
        """Turn torch's attention into this class, in place."""
        names = ["in_proj"] if attention._qkv_same_embed_dim else ["q_proj", "k_proj", "v_proj"]
        for name in ("in_proj", "q_proj", "k_proj", "v_proj"):
            weight = attention._parameters.pop(f"{name}_weight")
            if name in names:
                assert weight is not None
                bias = attention._parameters.pop("in_proj_bias") if name == "in_proj" else None
                attention.add_module(name, _as_layer(weight, bias))
        attention.out_proj.__class__ = nn.Linear  # type: ignore[assignment]  # torch's subclass adds only a name
        attention.__class__ = cls

    @property
    def in_proj_weight(self) -> Tensor | None:  # type: ignore[override]
        return self.in_proj.weight if self._qkv_same_embed_dim else None

    @property
    def in_proj_bias(self) -> Tensor | None:  # type: ignore[override]
        return self.in_proj.bias if self._qkv_same_embed_dim else self._parameters["in_proj_bias"]

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Any:
        if is_causal and attn_mask is None:
            raise ValueError("MultiheadAttention: is_causal=True is only a hint; pass the attn_mask too")
        batched = query.dim() == 3
        if not batched or not self.batch_first:
            order = (lambda x: x.transpose(0, 1)) if batched else (lambda x: x[None])
            # one object stays one object, so that it is projected only once
            ordered = {id(x): order(x) for x in (query, key, value)}
            query, key, value = (ordered[id(x)] for x in (query, key, value))
        if key_padding_mask is not None and not batched:
            key_padding_mask = key_padding_mask[None]
        out, weights = attend_in_heads(
            *self._projected(query, key, value), self.num_heads,
            bias_k=self.bias_k, bias_v=self.bias_v, add_zero_attn=self.add_zero_attn,
            dropout_p=self.dropout if self.training else 0.0,
            key_padding_mask=as_additive(key_padding_mask, query.dtype), attn_mask=as_additive(attn_mask, query.dtype),
        )  # fmt: skip
        out = self.out_proj(out)
        if not batched:
            out = out[0]
        elif not self.batch_first:
            out = out.transpose(0, 1)
        return out, reported_weights(weights, need_weights, average_attn_weights, batched)

    def _projected(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        if self._qkv_same_embed_dim:
            different = {id(x): x for x in (query, key, value)}
            projected = {name: self.in_proj(x).chunk(3, -1) for name, x in different.items()}
            return projected[id(query)][0], projected[id(key)][1], projected[id(value)][2]
        q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        if (bias := self.in_proj_bias) is None:
            return q, k, v
        bias_q, bias_k, bias_v = bias.chunk(3)
        return q + bias_q, k + bias_k, v + bias_v

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        for name in ("in_proj", "q_proj", "k_proj", "v_proj"):
            for part in ("weight", "bias"):
                if name in self._modules and f"{prefix}{name}_{part}" in state_dict:
                    state_dict[f"{prefix}{name}.{part}"] = state_dict.pop(f"{prefix}{name}_{part}")
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _as_layer(weight: nn.Parameter, bias: nn.Parameter | None) -> Projection:
    layer = Projection(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = weight
    layer.register_parameter("bias", bias)
    return layer
