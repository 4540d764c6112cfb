"""A worker extension (``--worker-extension-cls load.probe.Probe``): what the plugin is and holds in a worker."""

import multiprocessing


class Probe:
    """Methods that vLLM adds to its worker class."""

    def held_requests(self):
        """How many requests the plugin's rows know."""
        from confident_decoding.plugin.runner import ATTRIBUTE

        return {"requests": len(getattr(self.model_runner.get_model(), ATTRIBUTE).rows._requests)}

    def hooks(self):
        """How this process was started, and whether its model has the plugin's head."""
        head = self.model_runner.get_model().logits_processor._apply_head
        return {"started": type(multiprocessing.current_process()).__name__, "head": type(head).__name__}
