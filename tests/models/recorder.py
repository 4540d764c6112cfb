"""Runs inside a vLLM worker (``LLM.collective_rpc``): keeps what the selection saw and chose."""


def start(worker):
    """Record every selection from here on."""
    from confident_decoding import scan

    worker.records, original = [], scan.select

    def select(packed, plan, head, *args):
        selection = original(packed, plan, head, *args)
        worker.records.append((selecting_head(worker).rows, packed.clone(), selection.depths, selection.entropies))
        return selection

    worker.stop_recording = lambda: setattr(scan, "select", original)
    scan.select = select

    def keep_streams(layer, args, output):
        hidden, residual = output if isinstance(output, tuple) else (output, None)
        # Some layers return, beside the stream, the one that they were given.
        worker.last_streams = [hidden] if residual is None else [hidden + residual, hidden.clone()]

    parts = anatomy(worker)
    worker.last_layer = parts.layers[-1].register_forward_hook(keep_streams)


def fetch(worker):
    """What was recorded, per call: every candidate as the head takes it, and its stock logits."""
    import torch

    worker.stop_recording()
    worker.last_layer.remove()
    model, head, parts = worker.model_runner.get_model(), selecting_head(worker), anatomy(worker)
    calls = []
    with torch.inference_mode():
        for rows, packed, depths, entropies in worker.records:
            n = packed.shape[1] // head._hidden
            final, *raw = packed.view(len(packed), n, -1).unbind(1)
            states = torch.stack([final, *(parts.final_state(state.contiguous()) for state in raw)])
            logits = torch.stack([model.compute_logits(state.contiguous()) for state in states])
            calls.append(
                {
                    "rows": rows,
                    "states": states.float().cpu().numpy(),
                    "logits": logits.float().cpu().numpy(),
                    "depths": depths.cpu().numpy(),
                    "entropies": entropies.float().cpu().numpy(),
                }
            )
    return calls


def last_stream_error(worker):
    """Largest difference between norm(stream after the last layer) and the final state of the latest forward."""
    import torch

    with torch.inference_mode():
        final_state = anatomy(worker).final_state
        final = worker.records[-1][1][-1:, : worker.last_streams[0].shape[1]]
        return min((final_state(stream[-1:].clone()) - final).abs().max().item() for stream in worker.last_streams)


def anatomy(worker):
    from confident_decoding.plugin.anatomy import dissect

    return dissect(worker.model_runner.get_model(), selecting_head(worker)._plan.num_layers)


def selecting_head(worker):
    from confident_decoding.plugin.anatomy import _logits_processor

    return _logits_processor(worker.model_runner.get_model())._apply_head
