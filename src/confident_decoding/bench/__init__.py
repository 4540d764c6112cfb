"""What a decode step takes with and without Confident Decoding: engines side by side, asked in turn."""
