"""The vLLM side: hooks per model instance and one in the front-end process (DESIGN section 3)."""
