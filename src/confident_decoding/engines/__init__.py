"""What commands and the processes that they start share of a vLLM engine: its options, and how far it is."""
