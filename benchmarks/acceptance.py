"""How many drafted tokens are accepted, with the selection off and on.

    python -m benchmarks.acceptance                                       on a CPU, n-gram and a draft model
    python -m benchmarks.acceptance --model TARGET --speculation 'eagle3={"method": "eagle3", "model": "HEAD", ...}'

A drafter guesses what the final layer says next, so how often it is right depends on how often the selected layer
says the same. The default draft model is the target itself: its drafts are what standard decoding would say. Greedy
decoding. vLLM's own counters are read before and after.
"""

import argparse
import json
import tempfile
from pathlib import Path

from benchmarks.engine import Engine
from benchmarks.gpu_engine import on
from benchmarks.timing import machine

SETTINGS = {"off": {}, "on": on()}
"""Each is an engine of its own for each kind of speculation."""
LINES = {
    "a table": "Name: {0}. Age: {1}. City: Paris.\n",
    "a log": "2024-05-{1} 10:{1}:00 INFO worker {0} finished the job and waits for the next one\n",
    "code": "def get_{0}(self):\n    return self._{0}[{1}]\n\n",
    "a song": "Row, row, row your {0} gently down the stream, merrily, merrily, life is but a {0}\n",
}
"""Texts whose lines repeat but for a word or two: what looking up n-grams is for."""
WORDS = ("anna", "boat", "cedar", "delta", "eagle", "frost", "grape", "house")
QUESTIONS = (
    "What is gravity?",
    "Write a short poem about the sea.",
    "How do I boil an egg?",
    "List the planets of the solar system.",
)


def texts(tokenizer):
    """Token ids of the prompts, by kind."""
    repetitive = ["".join(line.format(w, 10 + i) for i, w in enumerate(WORDS)) for line in LINES.values()]
    chat = [[{"role": "user", "content": question}] for question in QUESTIONS]
    return {
        "repetitive": [tokenizer(text).input_ids for text in repetitive],
        "questions": [tokenizer.apply_chat_template(c, add_generation_prompt=True)["input_ids"] for c in chat],
    }


def speculations(given, model):
    """Speculative configurations by name."""
    if given:
        return {name: json.loads(text) for name, _, text in (one.partition("=") for one in given)}
    return {
        "ngram": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
        "draft_model": {"method": "draft_model", "model": model, "num_speculative_tokens": 3},
    }


def measured(model, speculation, setting, prompts, args, log):
    """Drafts, drafted tokens and accepted ones of one engine, by kind of prompt."""
    options = {
        "model": model,
        "dtype": args.dtype,
        "max_model_len": 1024,
        "enable_prefix_caching": False,
        "skip_tokenizer_init": True,
        "enforce_eager": not args.compiled,
        "max_num_seqs": 8,
        "disable_log_stats": False,
        "speculative_config": speculation,
        "additional_config": SETTINGS[setting],
    }
    engine = Engine(setting, options, log)
    engine.wait()
    found = {kind: engine.ask(do="drafts", prompts=ids, tokens=args.tokens) for kind, ids in prompts.items()}
    engine.close()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="checkpoint with a tokenizer; default: the embedded SmolLM2-135M-Instruct")
    parser.add_argument("--speculation", action="append", metavar="NAME=JSON", help="speculative_config of vLLM")
    parser.add_argument("--tokens", type=int, default=96, help="generated for each prompt")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--compiled", action="store_true", help="with torch.compile and CUDA graphs")
    parser.add_argument("--out", type=Path, help="also write the numbers as JSON")
    args = parser.parse_args()
    from transformers import AutoTokenizer

    from demo.checkpoint import smollm2

    model = args.model or str(smollm2())
    prompts, table = texts(AutoTokenizer.from_pretrained(model)), {}
    with tempfile.TemporaryDirectory() as folder:
        for name, speculation in speculations(args.speculation, model).items():
            for setting in SETTINGS:
                log = Path(folder) / f"{name}-{setting}.log"
                table[name, setting] = measured(model, speculation, setting, prompts, args, log)
                for kind, counted in table[name, setting].items():
                    share = counted["accepted"] / max(1, counted["drafted"])
                    length = 1 + counted["accepted"] / max(1, counted["drafts"])
                    print(
                        f"{name:12} {kind:10} {setting:3} accepted {counted['accepted']:5} of {counted['drafted']:5} "
                        f"= {share:6.1%}, {length:.2f} tokens a draft",
                        flush=True,
                    )
    if args.out:
        arguments = {"model": Path(model).name, "tokens": args.tokens, "dtype": args.dtype}
        rows = [{"speculation": name, "setting": setting, **row} for (name, setting), row in table.items()]
        args.out.write_text(json.dumps({"machine": machine(), "arguments": arguments, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
