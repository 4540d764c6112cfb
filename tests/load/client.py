"""Asks a server many things at once; some clients leave before the answer."""

import asyncio
import json
from dataclasses import dataclass, field

import httpx


@dataclass
class Choice:
    """One sample of an answer, as far as it was received."""

    tokens: list = field(default_factory=list)
    text: str = ""
    logprobs: list = field(default_factory=list)
    finish_reason: str | None = None


@dataclass
class Answer:
    """What came back: the status, and the samples by their index; ``left`` if the client was gone before the end."""

    status: int
    choices: dict
    left: bool = False
    error: str = ""


def at_once(url, asks, in_flight, done=lambda count: None):
    """Answers in the order of ``asks``, ``in_flight`` of them at a time; ``done`` is told how many are over."""
    return asyncio.run(_at_once(url, asks, in_flight, done))


async def _at_once(url, asks, in_flight, done):
    answers, waiting, over = [None] * len(asks), iter(enumerate(asks)), 0
    limits = httpx.Limits(max_connections=in_flight, max_keepalive_connections=in_flight)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:

        async def work():
            nonlocal over
            for place, ask in waiting:
                answers[place] = await _ask(client, ask)
                over += 1
                done(over)

        await asyncio.gather(*(work() for _ in range(in_flight)))
    return answers


async def _ask(client, ask):
    if ask.body["stream"]:
        return await _stream(client, ask)
    call = client.post("/v1/completions", json=ask.body)
    if ask.leaves_after is not None:
        try:
            reply = await asyncio.wait_for(call, ask.leaves_after / 100)
        except TimeoutError:
            return Answer(0, {}, left=True)
    else:
        reply = await call
    if reply.status_code != 200:
        return Answer(reply.status_code, {}, error=reply.text)
    answer = Answer(200, {})
    _add(answer, reply.json())
    return answer


async def _stream(client, ask):
    async with client.stream("POST", "/v1/completions", json=ask.body) as reply:
        answer = Answer(reply.status_code, {})
        if reply.status_code != 200:
            answer.error = (await reply.aread()).decode()
            return answer
        chunks = 0
        async for line in _lines(reply):
            if line == b"data: [DONE]":
                return answer
            if not line.startswith(b"data: "):
                continue
            chunk = json.loads(line.removeprefix(b"data: "))
            if "error" in chunk:
                answer.status, answer.error = 500, line.decode()
                return answer
            _add(answer, chunk)
            chunks += 1
            if chunks == ask.leaves_after:
                answer.left = True
                return answer
    answer.error = "the stream ended without its end mark"
    return answer


async def _lines(reply):
    """Lines of bytes. (httpx's own end at each of Unicode's line ends, which are text here.)"""
    rest = b""
    async for piece in reply.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line


def _add(answer, reply):
    for piece in reply["choices"]:
        choice = answer.choices.setdefault(piece["index"], Choice())
        choice.tokens += piece.get("token_ids") or []
        choice.text += piece["text"]
        choice.logprobs += (piece.get("logprobs") or {}).get("token_logprobs", [])
        choice.finish_reason = piece["finish_reason"] or choice.finish_reason
