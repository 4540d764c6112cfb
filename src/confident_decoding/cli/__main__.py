"""``python -m confident_decoding.cli``: the same as the script."""

from confident_decoding.cli import main

main()
