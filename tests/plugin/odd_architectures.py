"""Names of the architectures in odd_models.py, importable without vLLM."""

ODD = (
    "RescaledForCausalLM",
    "RescaledForwardForCausalLM",
    "TwoNormsForCausalLM",
    "CappedOutsideForCausalLM",
    "ForgetfulForCausalLM",
    "LyingForCausalLM",
)
