"""Names of the architectures in odd_models.py, importable without vLLM."""

ODD = ("RescaledForCausalLM", "CappedOutsideForCausalLM", "ForgetfulForCausalLM", "LyingForCausalLM")
