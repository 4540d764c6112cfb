"""The same prompts standard and confident, side by side in one server: ``python ab_requests.py [URL]``.

All requests are in flight at once, so the two kinds share the server's batches.
"""

import asyncio
import sys

from openai import AsyncOpenAI

PROMPTS = ["What is gravity?", "Name three rivers in Europe.", "Why is the sky blue?"]
KINDS = {"standard": {"confident_p": 0.0}, "confident": {}}  # what a request leaves out is the server's


async def main():
    client = AsyncOpenAI(base_url=sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000/v1", api_key="none")
    model = (await client.models.list()).data[0].id

    async def answer(prompt, arguments):
        completion = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=32,
            temperature=0,
            extra_body={"vllm_xargs": arguments} if arguments else None,
        )
        return completion.choices[0].message.content

    answers = await asyncio.gather(*(answer(prompt, kind) for prompt in PROMPTS for kind in KINDS.values()))
    for number, prompt in enumerate(PROMPTS):
        print(prompt)
        for kind, text in zip(KINDS, answers[2 * number : 2 * number + 2], strict=True):
            print(f"  {kind:10} {text!r}")


asyncio.run(main())
