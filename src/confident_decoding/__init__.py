"""Confident Decoding (arXiv 2606.21906) for unmodified vLLM.

Importing this package imports neither torch nor vLLM: vLLM loads the plugin's entry point in every
process that it starts, and that must cost nothing for users who did not turn the feature on.
"""

__version__ = "0.1.0"
