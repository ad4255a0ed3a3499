"""The tensors of a model: their names and shapes in a checkpoint, and how weir joins them into its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from weir.models.spec import ModelSpec

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JoinedTensor:
    """One tensor of the decoder, and the checkpoint tensors whose rows it stacks, in order."""

    name: str
    parts: tuple[tuple[str, Shape], ...]

    @property
    def shape(self) -> Shape:
        """The parts' rows summed; the other dimensions are equal."""
        return (sum(shape[0] for _, shape in self.parts), *self.parts[0][1][1:])


def joined_tensors(spec: ModelSpec) -> Iterator[JoinedTensor]:
    """All tensors of the decoder. Q, K and V are one projection, and so are gate and up: fewer, larger products.

    Names: embed, final_norm, lm_head (unless tied to embed) and, for each layer i, layers.i. + attn_norm, qkv,
    qkv_bias, q_norm, k_norm, o, o_bias, mlp_norm, gate_up, down. Projections are [out_features, in_features].
    """
    hidden, vocab = spec.hidden_size, spec.vocab_size
    yield JoinedTensor("embed", (("model.embed_tokens.weight", (vocab, hidden)),))
    for layer in range(spec.num_layers):
        yield from _layer_tensors(spec, f"layers.{layer}.", f"model.layers.{layer}.")
    yield JoinedTensor("final_norm", (("model.norm.weight", (hidden,)),))
    if not spec.tie_word_embeddings:
        yield JoinedTensor("lm_head", (("lm_head.weight", (vocab, hidden)),))


def _layer_tensors(spec: ModelSpec, ours: str, theirs: str) -> Iterator[JoinedTensor]:
    hidden, intermediate = spec.hidden_size, spec.intermediate_size
    q_rows, kv_rows = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    attn, mlp = theirs + "self_attn.", theirs + "mlp."

    def joined(name: str, *parts: tuple[str, Shape]) -> JoinedTensor:
        return JoinedTensor(ours + name, parts)

    yield joined("attn_norm", (theirs + "input_layernorm.weight", (hidden,)))
    rows = {"q_proj": q_rows, "k_proj": kv_rows, "v_proj": kv_rows}
    yield joined("qkv", *((f"{attn}{name}.weight", (count, hidden)) for name, count in rows.items()))
    if spec.qkv_bias:
        yield joined("qkv_bias", *((f"{attn}{name}.bias", (count,)) for name, count in rows.items()))
    if spec.qk_norm:
        yield joined("q_norm", (attn + "q_norm.weight", (spec.head_dim,)))
        yield joined("k_norm", (attn + "k_norm.weight", (spec.head_dim,)))
    yield joined("o", (attn + "o_proj.weight", (hidden, q_rows)))
    if spec.o_bias:
        yield joined("o_bias", (attn + "o_proj.bias", (hidden,)))
    yield joined("mlp_norm", (theirs + "post_attention_layernorm.weight", (hidden,)))
    yield joined("gate_up", *((f"{mlp}{name}.weight", (intermediate, hidden)) for name in ("gate_proj", "up_proj")))
    yield joined("down", (mlp + "down_proj.weight", (hidden, intermediate)))


def num_parameters(spec: ModelSpec) -> int:
    """Elements of all tensors; tied embeddings count once."""
    return sum(prod(tensor.shape) for tensor in joined_tensors(spec))
