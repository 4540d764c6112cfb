"""One real image through each multimodal family's own processor, on the tiny checkpoints.

``add_processor(tag, folder)`` writes tokenizer and processor into the folder that vLLM loads;
``inputs(tag, folder)`` gives the same prompt with the same image to vLLM and to transformers.
"""

from dataclasses import dataclass, field

from models.checkpoints import VOCAB

ENGINE = {  # arguments of vllm.LLM
    "language_model_only": False,
    "skip_tokenizer_init": False,
    "limit_mm_per_prompt": {"image": 1, "video": 0},
}


@dataclass(frozen=True)
class Family:
    """The parts of one family's processor.

    Attributes:
        processor: Its class in transformers.
        options: Its arguments.
        parts: Class and arguments of what it is made of, beside the tokenizer.
        marks: The tokens with the ids ``VOCAB - 1``, ``VOCAB - 2``, ..., as the checkpoint's config names them.
        named: Those that the tokenizer itself must know by a name.
        prompt: What stands for the image in a prompt.
    """

    processor: str
    parts: dict
    marks: tuple
    prompt: str
    options: dict = field(default_factory=dict)
    named: dict = field(default_factory=dict)


def _qwen(processor, video_processor):
    sizes = {"patch_size": 8, "size": {"shortest_edge": 16 * 16, "longest_edge": 128 * 128}}
    return Family(
        processor,
        {"image_processor": ("Qwen2VLImageProcessor", sizes), "video_processor": (video_processor, sizes)},
        ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"),
        "<|vision_start|><|image_pad|><|vision_end|>",
    )


QWEN3 = _qwen("Qwen3VLProcessor", "Qwen3VLVideoProcessor")
FAMILIES = {
    "Llama4ForConditionalGeneration": Family(
        "Llama4Processor",
        {"image_processor": ("Llama4ImageProcessor", {"size": {"height": 32, "width": 32}, "max_patches": 4})},
        ("<|patch|>", "<|image_start|>", "<|image_end|>", "<|image|>", "<|tile_x_separator|>", "<|tile_y_separator|>"),
        "<|image|>",
        {"patch_size": 8},
    ),
    "Mistral3ForConditionalGeneration": Family(
        "PixtralProcessor",
        {"image_processor": ("PixtralImageProcessor", {"size": {"longest_edge": 64}, "patch_size": 8})},
        ("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        "[IMG]",
        {"patch_size": 8, "spatial_merge_size": 2},
    ),
    "Qwen2VLForConditionalGeneration": _qwen("Qwen2VLProcessor", "Qwen2VLVideoProcessor"),
    "Qwen2_5_VLForConditionalGeneration": _qwen("Qwen2_5_VLProcessor", "Qwen2VLVideoProcessor"),
    "Qwen3VLForConditionalGeneration": QWEN3,
    "Qwen3VLMoeForConditionalGeneration": QWEN3,
    "Qwen3_5ForConditionalGeneration": QWEN3,
    "Qwen3_5MoeForConditionalGeneration": QWEN3,
    "Gemma3ForConditionalGeneration": Family(
        "Gemma3Processor",
        {"image_processor": ("Gemma3ImageProcessor", {"size": {"height": 64, "width": 64}})},
        # vLLM merges the line breaks around an image as the published tokenizer does.
        ("<image_soft_token>", "<start_of_image>", "<end_of_image>", "\n", "\n\n", "\n\n\n", "\n\n\n\n"),
        "<start_of_image>",
        {"image_seq_length": 16},
        {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"},
    ),
    "Gemma4ForConditionalGeneration": Family(
        "Gemma4Processor",
        {
            "feature_extractor": ("Gemma4AudioFeatureExtractor", {}),
            "image_processor": ("Gemma4ImageProcessor", {"patch_size": 4, "max_soft_tokens": 70}),
            "video_processor": ("Gemma4VideoProcessor", {"patch_size": 4}),
        },
        ("<|image|>", "<|video|>", "<|audio|>", "<|image>", "<image|>", "<|audio>", "<audio|>"),
        "<|image|>",
        {"image_seq_length": 70},
        {
            "image_token": "<|image|>",
            "audio_token": "<|audio|>",
            "boi_token": "<|image>",
            "eoi_token": "<image|>",
            "boa_token": "<|audio>",
            "eoa_token": "<audio|>",
        },
    ),
}


def _tokenizer(family):
    """A token per byte; the vocabulary's end marks images."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = ["<pad>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    unused = [f"<unused{i}>" for i in range(VOCAB - len(known) - len(family.marks))]
    words = [*known, *unused, *reversed(family.marks)]
    # Byte-level BPE, because transformers turns any tokenizer of Qwen3.5 into that.
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False) for mark in family.marks])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        extra_special_tokens=family.named,
    )


def add_processor(tag, folder):
    """Write the family's tokenizer and processor into ``folder``."""
    import transformers

    family = FAMILIES[tag]
    parts = {name: getattr(transformers, kind)(**sizes) for name, (kind, sizes) in family.parts.items()}
    kind = getattr(transformers, family.processor)
    kind(tokenizer=_tokenizer(family), **parts, **family.options).save_pretrained(folder)


def image():
    """70 x 50: a gradient with a rectangle and a disc."""
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (70, 50))
    picture.putdata([(x * 3, y * 5, (x * y) % 256) for y in range(50) for x in range(70)])
    draw = ImageDraw.Draw(picture)
    draw.rectangle((8, 6, 30, 20), fill=(250, 40, 10))
    draw.ellipse((38, 18, 62, 44), fill=(20, 60, 240))
    return picture


def inputs(tag, folder):
    """Prompt for vLLM, its expanded token ids, and ``(ids) -> keyword arguments`` of the transformers model."""
    import torch
    import transformers
    from vllm.platforms import current_platform

    family = FAMILIES[tag]
    text = f"What does {family.prompt} show?"
    processor = getattr(transformers, family.processor).from_pretrained(folder)
    encoded = dict(processor(text=text, images=image(), return_tensors="pt"))
    encoded["pixel_values"] = encoded["pixel_values"].float()  # Llama 4's are bfloat16
    ids = encoded.pop("input_ids")[0].tolist()
    del encoded["attention_mask"]
    if tag == "Gemma3ForConditionalGeneration" and current_platform.is_cpu():
        # Without it transformers, too, lets image tokens see only earlier ones: vLLM's CPU attention has no other mask.
        del encoded["token_type_ids"]

    def model_inputs(sequence):
        """For ``sequence``, the expanded ids and what was generated after them."""
        assert sequence[: len(ids)] == ids, "vLLM and transformers expand the prompt to different tokens"
        more = (0, len(sequence) - len(ids))
        return {
            key: torch.nn.functional.pad(value, more) if key.endswith("token_type_ids") else value
            for key, value in encoded.items()
        }

    return {"prompt": text, "multi_modal_data": {"image": image()}}, ids, model_inputs


def record_entering_streams(model):
    """Make ``hidden_states`` of a transformers model what enters each layer.

    transformers records what a layer returns; Qwen3-VL adds visual features to that on the way to the next one.
    """
    entering, text = [], model.get_decoder()
    for layer in getattr(text, "model", text).layers:
        layer.register_forward_pre_hook(lambda _, args: entering.append(args[0]))

    def replace(_, args, output):
        output.hidden_states = (*entering, output.hidden_states[-1])
        entering.clear()
        return output

    model.register_forward_hook(replace)
