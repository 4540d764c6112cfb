"""Runs inside the workers of a tensor-parallel engine (``LLM.collective_rpc``)."""


def sharded_rows(worker):
    """Logits of sampled rows as batch-sharded sampling asks for them: rows in another order, each rank's own columns.

    Returns the largest difference from ``compute_logits`` of the same rows, and how many rows are not their final
    layer's.
    """
    import torch
    from vllm.distributed import tensor_model_parallel_all_gather

    model = worker.model_runner.get_model()
    installed = model.confident_decoding_installed
    generator = torch.Generator().manual_seed(5)  # equal on every rank
    rows = torch.randn(24, installed.width, generator=generator, dtype=next(model.parameters()).dtype)
    order = torch.randperm(24, generator=generator)
    with torch.inference_mode():
        whole = model.compute_logits(rows)
        local = model.compute_logits_local(rows[order])
        final = model.compute_logits(rows[:, : installed.hidden].contiguous())
        vocabulary = whole.shape[1]
        gathered = tensor_model_parallel_all_gather(local)[:, :vocabulary]
    return float((gathered - whole[order]).abs().max()), int((whole != final).any(1).sum())
