"""Without vLLM: ``python transformers_generate.py MODEL``."""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

import confident_decoding.hf

tokenizer, model = AutoTokenizer.from_pretrained(sys.argv[1]), AutoModelForCausalLM.from_pretrained(sys.argv[1])
inputs = tokenizer(
    ["The capital of France is", "Water boils at"], return_tensors="pt", padding=True, padding_side="left"
)
out = model.generate(
    **inputs,
    custom_generate=confident_decoding.hf.generate,
    confident_config={"select_method": "trough"},
    output_depths=True,
    return_dict_in_generate=True,
    max_new_tokens=16,
    do_sample=False,
)
for row, text in enumerate(tokenizer.batch_decode(out.sequences, skip_special_tokens=True)):
    print(f"{text!r}, depths {[int(depths[row]) for depths in out.confident_depths]}")
