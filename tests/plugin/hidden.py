"""A process in which the plugin seems not to be installed."""

import importlib.metadata
import sys


def hide_plugin():
    """Make the plugin as absent as if it had been uninstalled: no distribution, no module."""
    found = importlib.metadata.MetadataPathFinder.find_distributions

    def without_ours(*args, **kwargs):
        return (d for d in found(*args, **kwargs) if d.metadata["Name"] != "confident-decoding")

    for finder in sys.meta_path:
        if hasattr(finder, "find_distributions"):
            finder.find_distributions = without_ours
    importlib.metadata.MetadataPathFinder.find_distributions = without_ours
    sys.modules["confident_decoding"] = None
    try:
        importlib.metadata.distribution("confident-decoding")
    except importlib.metadata.PackageNotFoundError:
        return
    raise AssertionError("the plugin is still installed")
