"""Which final norms a kernel may compute in the model's place: exactly vLLM's RMSNorm and GemmaRMSNorm."""

from torch import nn

from confident_decoding.model_head import RmsNorm


def fused_norm(norm: nn.Module) -> RmsNorm | None:
    """What ``norm`` computes if it is one of the two with nothing added, else None.

    Asked at each call: the weight may have been replaced since. Source:
    ``model_executor/layers/layernorm.py``.
    """
    from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm

    kind = type(norm)
    if kind not in (RMSNorm, GemmaRMSNorm) or "forward" in vars(norm) or norm._forward_hooks or norm._forward_pre_hooks:
        return None
    if getattr(norm, "variance_size_override", None) is not None or not getattr(norm, "has_weight", True):
        return None
    weight = getattr(norm, "weight", None)
    if not isinstance(weight, nn.Parameter):
        return None
    return RmsNorm(weight.data, float(norm.variance_epsilon), plus_one=kind is GemmaRMSNorm)  # type: ignore[arg-type]
