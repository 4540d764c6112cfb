"""What ``--enable-lora`` costs beside the selection: with no adapter, one on attention, and one on the head as well.

    python -m benchmarks.adapters                  the embedded SmolLM2-135M-Instruct on a CPU

vLLM wraps the logits processor on every server with ``--enable-lora``. While an adapter in a slot has weights for the
output head, each candidate is a head call of its own there; otherwise the rows go past the wrapper.
"""

import argparse
import json
import tempfile
from pathlib import Path

from benchmarks.engine import Engine
from benchmarks.gpu_engine import on
from benchmarks.timing import machine
from confident_decoding.bench.results import medians

RANK = 8
TARGETS = {"attention": ("q_proj", "v_proj"), "head": ("q_proj", "v_proj", "lm_head")}
ENGINES = {"off": ({}, False), "on": (on(), False), "off, LoRA": ({}, True), "on, LoRA": (on(), True)}
"""Additional configuration, and whether the server takes adapters."""
CASES = {
    "no `--enable-lora`": "{}",
    "`--enable-lora`, no adapter": "{}, LoRA",
    "an adapter on attention": "{}, LoRA, attention adapter",
    "an adapter on the head as well": "{}, LoRA, head adapter",
}
"""What is compared with the selection on and off."""


def write_adapter(model, folder, targets):
    """A random adapter on ``targets`` of every layer of ``model``, in ``folder``; returns its path."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    generator, tensors = torch.Generator().manual_seed(0), {}
    tied = json.loads((Path(model) / "config.json").read_text()).get("tie_word_embeddings", False)
    for shard in sorted(Path(model).glob("*.safetensors")):
        with safe_open(shard, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (a file, no dictionary)
                module = name.removesuffix(".weight")
                if tied and module == "model.embed_tokens":  # the head's weight too, under this name alone
                    module = "lm_head"
                if module.split(".")[-1] in targets:
                    rows, columns = file.get_slice(name).get_shape()
                    for part, shape in {"lora_A": (RANK, columns), "lora_B": (rows, RANK)}.items():
                        noise = torch.randn(shape, generator=generator) * 0.02
                        tensors[f"base_model.model.{module}.{part}.weight"] = noise
    folder.mkdir()
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 2 * RANK, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps({**settings, "target_modules": list(targets)}))
    save_file(tensors, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})
    return str(folder)


def measure(engines, adapters, args):
    """Rounds of ms by engine, without and with each adapter where there can be one, and by batch."""
    rounds = []
    for number in range(-1, args.rounds):  # the first one warms up
        times = {}
        for kind, path in {None: None, **adapters}.items():
            for name, engine in engines.items():  # what is compared is asked one after the other
                if path and not ENGINES[name][1]:
                    continue
                if path:
                    engine.ask(do="adapter", load=path)
                times[f"{name}, {kind} adapter" if path else name] = {
                    batch: engine.ask(do="step", batch=batch, tokens=args.tokens, adapter=path)["ms"]
                    for batch in args.batch
                }
                if path:
                    engine.ask(do="adapter", load=None)
        if number >= 0:
            rounds.append(times)
        print(f"round {number + 1}/{args.rounds}: {times}", flush=True)
    return rounds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="checkpoint folder; default: the embedded SmolLM2-135M-Instruct")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--compiled", action="store_true", help="with torch.compile and CUDA graphs")
    parser.add_argument("--out", type=Path, help="also write the numbers as JSON")
    args = parser.parse_args()
    from demo.checkpoint import smollm2

    model = args.model or str(smollm2())
    with tempfile.TemporaryDirectory() as folder:
        adapters = {kind: write_adapter(model, Path(folder) / kind, targets) for kind, targets in TARGETS.items()}
        options = {
            "model": model,
            "dtype": args.dtype,
            "max_model_len": 512,
            "enable_prefix_caching": False,
            "skip_tokenizer_init": True,
            "enforce_eager": not args.compiled,
            "max_num_seqs": max(8, *args.batch),
        }
        engines = {}
        for name, (config, takes_adapters) in ENGINES.items():
            # A slot to spare: docs/limits.md.
            lora = {"enable_lora": True, "max_loras": 2, "max_lora_rank": RANK} if takes_adapters else {}
            given = {**options, **lora, "additional_config": config}
            engines[name] = Engine(name, given, Path(folder) / f"{name}.log")
        for engine in engines.values():
            engine.wait()
        rounds = measure(engines, adapters, args)
        for engine in engines.values():
            engine.close()
    table = {
        case: medians([{"stock": r[name.format("off")], "on": r[name.format("on")]} for r in rounds])
        for case, name in CASES.items()
    }
    for case, row in table.items():
        cells = (f"  B={b}: {c['ratio']:.2f}x ({c['least']:.2f} to {c['most']:.2f})" for b, c in row["on"].items())
        print(f"{case:32}" + "".join(cells))
    if args.out:
        arguments = {"model": Path(model).name, "batch": args.batch, "tokens": args.tokens, "dtype": args.dtype}
        result = {"machine": machine(), "arguments": arguments, "median": table, "rounds": rounds}
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
