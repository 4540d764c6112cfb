"""A tokenizer for the tiny checkpoints, so that features which read or write text can be tested on them."""

import json
from pathlib import Path

from models.row import VOCAB

SPECIAL = ("<pad>", "<bos>", "<eos>", "<|im_start|>", "<|im_end|>")
"""Ids 0 to 4; the first three are those of the checkpoints' configurations."""
THINK, END_OF_THINKING = "<think>", "</think>"
"""Ids 5 and 6; no special tokens, as in the models that have them."""
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + ':' + (m['content'] or '') + '<|im_end|>' }}{% endfor %}"
    "{{ '<|im_start|>assistant:' }}"
)
"""Tools are not written into the prompt: a random model would not read them."""


def add_tokenizer(folder):
    """Write a byte-level tokenizer of 512 ids beside a checkpoint; returns the folder.

    256 bytes, and pairs of them, so that a text has many ways to be tokenized and a grammar's mask has many ids.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = [*SPECIAL, THINK, END_OF_THINKING, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    letters = "etaoinshrdlucmf"
    merges = [('"', ":"), ('"', ","), ('"', "}"), ("{", '"'), ("Ġ", '"'), *((a, b) for a in '":Ġ' for b in letters)]
    merges = [*merges, *((a, b) for a in letters for b in letters)][: VOCAB - len(tokens)]
    tokens += ["".join(pair) for pair in merges]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in (THINK, END_OF_THINKING)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", chat_template=CHAT_TEMPLATE
    )
    assert len(fast) == VOCAB
    fast.save_pretrained(folder)
    # Older releases look for the template here.
    settings = Path(folder, "tokenizer_config.json")
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "chat_template": CHAT_TEMPLATE}))
    return folder
