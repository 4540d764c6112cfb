"""What the selection does on a model, token by token: traces, figures, a report. ``confident-decoding analyze``."""
