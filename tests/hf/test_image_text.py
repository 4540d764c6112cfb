"""An image and a question about it: transformers' path, the vLLM plugin's and the float64 oracle's, token by token."""

import json
import os
import subprocess
import sys

import oracle
import pytest
import torch
import transformers
from conftest import ENGINE_ENV, ROOT
from models import images

import confident_decoding.hf
from hf.common import TIE, UNLIMITED, greedy, load, rows_with
from hf.image_engine import TOKENS

TAG = "Qwen3VLForConditionalGeneration"


@pytest.mark.engine
def test_the_same_tokens(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "hf.image_engine", TAG, str(tmp_path)],
        cwd=ROOT / "tests",
        env={**os.environ, **ENGINE_ENV},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    served = json.loads(done.stdout.splitlines()[-1])
    family = images.FAMILIES[TAG]
    processor = getattr(transformers, family.processor).from_pretrained(tmp_path)
    encoded = processor(text=f"What does {family.prompt} show?", images=images.image(), return_tensors="pt")
    ids = encoded["input_ids"][0].tolist()
    assert served["expanded"] == served["prompt"] == ids
    out = load(tmp_path).generate(
        **encoded,
        custom_generate=confident_decoding.hf.generate,
        confident_config=UNLIMITED,
        return_dict_in_generate=True,
        output_depths=True,
        **greedy(TOKENS),
    )
    tokens, depths = out.sequences[0, len(ids) :].tolist(), [int(depth) for depth in out.confident_depths]
    assert any(depths)
    reference = oracle.TransformersOracle(tmp_path, torch.float32)
    images.record_entering_streams(reference.model)
    more = {
        key: torch.nn.functional.pad(value, (0, TOKENS - 1)) if key.endswith("token_type_ids") else value
        for key, value in encoded.items()
        if key not in ("input_ids", "attention_mask")
    }
    rows = rows_with(reference, [*ids, *tokens[:-1]], len(ids) - 1, **more)
    judged = 0
    for row, token, other, depth in zip(rows, tokens, served["tokens"], depths, strict=True):
        top = row.logits.topk(2).values if isinstance(row.logits, torch.Tensor) else sorted(row.logits)[-2:]
        sure = row.gap > TIE and abs(float(top[0]) - float(top[1])) > TIE
        if sure:
            assert (depth, token) == (row.depth, int(row.logits.argmax()))
            assert other == token
            judged += 1
        elif other != token:
            break  # a tie: from here on they read different texts
    assert judged > TOKENS // 2
