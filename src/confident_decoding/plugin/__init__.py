"""The vLLM side: hooks per model instance and one in the front-end process (docs/design.md)."""
