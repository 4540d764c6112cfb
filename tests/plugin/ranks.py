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


def start_recording(worker):
    """Keep the depths of every selection from here on, the packed rows of the first ones, and the bytes of gathers."""
    import vllm.distributed

    from confident_decoding import scan

    worker.kept = {"depths": [], "packed": [], "calls": 0, "bytes": 0}
    select, gather = scan.select, vllm.distributed.tensor_model_parallel_all_gather

    def recording(packed, *args, **kwargs):
        selection = select(packed, *args, **kwargs)
        worker.kept["calls"] += 1
        worker.kept["depths"] += selection.depths.tolist()
        if len(worker.kept["packed"]) < 200:
            worker.kept["packed"] += packed.tolist()
        return selection

    def counted(tensor, *args, **kwargs):
        worker.kept["bytes"] += tensor.numel() * tensor.element_size()
        return gather(tensor, *args, **kwargs)

    # The package's name is what statistics are gathered by; logits are gathered by the logits processor's own.
    scan.select, vllm.distributed.tensor_model_parallel_all_gather = recording, counted


def recorded(worker):
    """What this rank has kept."""
    return worker.kept
