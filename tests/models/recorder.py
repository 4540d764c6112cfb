"""Runs inside a vLLM worker (``LLM.collective_rpc``): keeps what the selection saw and chose."""


def start(worker):
    """Record every selection from here on."""
    from confident_decoding import scan

    worker.records, original = [], scan.select

    def select(packed, plan, head, *args):
        selection = original(packed, plan, head, *args)
        worker.records.append((selecting_head(worker).rows, packed.clone(), selection.depths, selection.entropies))
        worker.head_is_a_matrix = head.weight is not None
        return selection

    worker.stop_recording = lambda: setattr(scan, "select", original)
    scan.select = select

    def keep_output(layer, args, output):
        hidden, residual = output if isinstance(output, tuple) else (output, None)
        # Copies: the fused norms of vLLM write to their arguments.
        worker.last_output = hidden.clone(), None if residual is None else residual.clone()

    parts = anatomy(worker)
    worker.last_layer = parts.layers[-1].register_forward_hook(keep_output)


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
                    "eps": torch.finfo(logits.dtype).eps,
                }
            )
    return calls


def head_is_a_matrix(worker):
    """Whether the latest selection could read the output head as a plain matrix."""
    return worker.head_is_a_matrix


def last_stream_error(worker):
    """Largest difference between norm(stream after the last layer) and the final state of the latest forward."""
    import torch

    from confident_decoding.plugin.reduced_streams import reduced

    with torch.inference_mode():
        parts = anatomy(worker)
        hidden, residual = worker.last_output
        final = worker.records[-1][1][-1:, : hidden.shape[1]]
        # Some layers return, beside the stream, the one that they were given.
        streams = [hidden] if residual is None else [reduced(parts, hidden) + residual, hidden.clone()]
        return min((parts.final_state(stream[-1:].clone()) - final).abs().max().item() for stream in streams)


def anatomy(worker):
    from confident_decoding.plugin.anatomy import dissect

    return dissect(worker.model_runner.get_model(), selecting_head(worker)._plan.num_layers)


def selecting_head(worker):
    from confident_decoding.plugin.anatomy import logits_processor

    return logits_processor(worker.model_runner.get_model())._apply_head


def untouched(worker):
    """Whether the served model is stock in every respect: its class, forwards, head and capture."""
    return _is_stock(worker.model_runner.get_model())


def draft_untouched(worker):
    """Load a second model of the same class as a drafter is loaded; whether it is stock."""
    import copy

    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader import get_model

    config = copy.copy(worker.vllm_config)
    config.compilation_config = copy.copy(config.compilation_config)
    config.compilation_config.static_forward_context = {}
    with set_current_vllm_config(config):
        draft = get_model(vllm_config=config, model_config=copy.copy(config.model_config))
    return _is_stock(draft)


def _is_stock(model):
    import sys

    from confident_decoding.plugin.anatomy import inner_model, language_model

    language = language_model(model)
    for part in (model, language, inner_model(model)):
        registered = getattr(sys.modules[type(part).__module__], type(part).__name__)
        if type(part) is not registered or getattr(part, "aux_hidden_state_layers", ()):
            return False
    buffers = [name for name, _ in model.named_buffers() if "confident" in name]
    return not buffers and not any("_apply_head" in vars(module) for module in model.modules())
