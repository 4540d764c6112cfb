"""``python -m hf.image_engine TAG FOLDER``: what vLLM with the plugin answers about an image, as a line of JSON."""

import json
import os
import sys
from pathlib import Path

from models.engines import ENV, with_engine

TOKENS = 12


def main():
    os.environ.update({key: value for key, value in ENV.items() if key not in os.environ})
    from models import images
    from models.checkpoints import CHECKPOINTS, build
    from vllm import SamplingParams

    tag, folder = sys.argv[1], Path(sys.argv[2])
    build(tag, folder)
    images.add_processor(tag, folder)
    prompt, ids, _ = images.inputs(tag, folder)
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)

    def ask(llm):
        (output,) = llm.generate([prompt], params, use_tqdm=False)
        return list(output.prompt_token_ids), list(output.outputs[0].token_ids)

    config = {"enable_multi_layer_entropy_selection": True, "trough_max_backtrack_layers": -1}
    expanded, tokens = with_engine(ask, folder, CHECKPOINTS[tag], "float32", config, images.ENGINE)
    print(json.dumps({"prompt": ids, "expanded": expanded, "tokens": tokens}))


if __name__ == "__main__":
    main()
