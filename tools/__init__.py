"""Maintenance: set-up, lock file, contracts with vLLM."""
