"""Shares of rows at depth 0 to 9."""

HISTOGRAMS = {
    "paper": [0.885, 0.08, 0.02, 0.01, *[0.005 / 6] * 6],
    "smollm2": [0.418, 0.140, 0.158, 0.147, 0.055, 0.018, 0.037, 0.013, 0.004, 0.010],
}
"""As the paper reports for large models, and as measured on SmolLM2-135M."""
