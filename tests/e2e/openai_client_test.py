"""The official openai client against a Trireme server with k3-nano.

Starts the binary named on the command line on a free port, runs every test, stops it and checks that it ends with status 0.
"""

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request

import openai

START_LIMIT_S = 120
IDLE_LIMIT_S = 60
REQUEST_LIMIT_S = 300  # a slow machine shared with others still answers in this time
KEY = "e2e-key"

QUESTION = "Ben has 3 jars with 8 candles in each one. How many candles does Ben have now?"
LIGHT = "I want you to close the light for 20 minutes with count 1 and also close the light for 45 minutes with count 22."


def tool(name, description, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    tool(
        "send_table",
        "Send the table.",
        minutes={"type": "integer", "description": "Length in minutes"},
        price={"type": "number", "description": "Highest price"},
        city={"type": "string", "description": "City name"},
    ),
    tool(
        "close_light",
        "Close the light.",
        minutes={"type": "integer", "description": "Length in minutes"},
        count={"type": "integer", "description": "How many"},
    ),
    tool("play_song", "Play the song.", day={"type": "string", "description": "Day of the week"}),
]
CALLS = [("close_light", {"minutes": 20, "count": 1}), ("close_light", {"minutes": 45, "count": 22})]


def user(text):
    return [{"role": "user", "content": text}]


def ended(values):
    return sum(value for name, value in values.items() if name.startswith("vllm:request_success_total"))


class Server:
    """The process under test."""

    def __init__(self, binary):
        command = [binary, "serve", "--port", "0", "--api-key", KEY, "--max-running", "16", "--max-queue", "256"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        deadline = time.monotonic() + START_LIMIT_S
        self.url = None
        while self.url is None:
            line = self.process.stdout.readline()
            if not line or time.monotonic() > deadline:
                raise SystemExit("the server did not become ready")
            if match := re.match(r"ready: (http://\S+)", line):
                self.url = match.group(1)

    def metrics(self):
        with urllib.request.urlopen(self.url + "/metrics", timeout=30) as answer:
            text = answer.read().decode()
        values = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[re.sub(r'model_name="[^"]*",?', "", name).replace(",}", "}").replace("{}", "")] = float(value)
        return values

    def wait_idle(self):
        """Waits until nothing runs, every page and slot is back and every request is counted as ended, once.

        Says what is missing otherwise. A request gives its pages back a moment before its end is counted.
        """
        deadline = time.monotonic() + IDLE_LIMIT_S
        while True:
            values = self.metrics()
            busy = {
                name: values[name]
                for name in (
                    "vllm:num_requests_running",
                    "vllm:num_requests_waiting",
                    'k3_mla_pages{state="used"}',
                    'k3_kda_slots{state="used"}',
                    "vllm:kv_cache_usage_perc",
                    "sglang:token_usage",
                )
            }
            busy["requests without an end"] = values["sglang:num_requests_total"] - ended(values)
            if not any(busy.values()):
                assert values['k3_mla_pages{state="free"}'] > 0 and values['k3_kda_slots{state="free"}'] == 16
                return values
            assert time.monotonic() < deadline, f"still taken after {IDLE_LIMIT_S} s: {busy}"
            time.sleep(0.1)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=30)
        assert status == 0, f"the server ended with status {status}"


def test_models(client, server):
    assert [model.id for model in client.models.list()] == ["k3-nano"]
    assert client.models.retrieve("k3-nano").object == "model"


def test_chat(client, server):
    answer = client.chat.completions.create(model="k3-nano", messages=user(QUESTION), temperature=0)
    message = answer.choices[0].message
    assert message.content == "The answer is 24.", message
    assert message.reasoning_content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == 106
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert 0 < answer.usage.completion_tokens_details.reasoning_tokens < answer.usage.completion_tokens
    # The next turn, with the reasoning sent back.
    turns = user(QUESTION) + [message.model_dump(exclude_none=True)] + user("Hello")
    assert client.chat.completions.create(model="k3-nano", messages=turns, temperature=0).choices[0].finish_reason == "stop"


def test_streaming(client, server):
    whole = client.chat.completions.create(model="k3-nano", messages=user(QUESTION), temperature=0)
    content, reasoning, roles, finishes, usages = "", "", [], [], []
    stream = client.chat.completions.create(
        model="k3-nano", messages=user(QUESTION), temperature=0, stream=True, stream_options={"include_usage": True}
    )
    for chunk in stream:
        if chunk.usage:
            usages.append(chunk.usage)
        for choice in chunk.choices:
            roles += [choice.delta.role] if choice.delta.role else []
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            finishes += [choice.finish_reason] if choice.finish_reason else []
    assert content == whole.choices[0].message.content
    assert reasoning == whole.choices[0].message.reasoning_content
    assert (roles, finishes) == (["assistant"], ["stop"])
    assert [usage.total_tokens for usage in usages] == [whole.usage.total_tokens]


def test_tools(client, server):
    answer = client.chat.completions.create(model="k3-nano", messages=user(LIGHT), tools=TOOLS, temperature=0)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    calls = choice.message.tool_calls
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == CALLS
    assert len({call.id for call in calls}) == 2

    streamed = {}
    stream = client.chat.completions.create(model="k3-nano", messages=user(LIGHT), tools=TOOLS, temperature=0, stream=True)
    for chunk in stream:
        for call in chunk.choices[0].delta.tool_calls or []:
            name, arguments = streamed.get(call.index, ("", ""))
            streamed[call.index] = (name + (call.function.name or ""), arguments + (call.function.arguments or ""))
    assert [(name, json.loads(arguments)) for name, arguments in streamed.values()] == CALLS

    # The results go back by id, in any order.
    turns = user(LIGHT) + [choice.message.model_dump(exclude_none=True)]
    turns += [{"role": "tool", "tool_call_id": call.id, "content": "done"} for call in reversed(calls)]
    answer = client.chat.completions.create(model="k3-nano", messages=turns, tools=TOOLS, temperature=0, max_tokens=200)
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")


def test_logprobs(client, server):
    answer = client.chat.completions.create(
        model="k3-nano", messages=user(QUESTION), temperature=0, logprobs=True, top_logprobs=3
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 3 for entry in content)
    assert all(entry.top_logprobs[0].token == entry.token for entry in content)
    answer = client.completions.create(model="k3-nano", prompt="The answer is", temperature=0, max_tokens=4, logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == answer.usage.completion_tokens


def test_completions(client, server):
    answer = client.completions.create(model="k3-nano", prompt=["The answer is", "Once upon"], temperature=0, max_tokens=6, n=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text == answer.choices[1].text
    seeded = [
        client.chat.completions.create(model="k3-nano", messages=user("Tell me a short story."), seed=5, n=3) for _ in range(2)
    ]
    assert [c.message.content for c in seeded[0].choices] == [c.message.content for c in seeded[1].choices]
    stopped = client.chat.completions.create(model="k3-nano", messages=user(QUESTION), temperature=0, stop=["swer"])
    assert stopped.choices[0].message.content == "The an"


def test_errors(client, server):
    def refused(kind, field, **arguments):
        try:
            client.chat.completions.create(**{"model": "k3-nano", "messages": user("hi"), **arguments})
        except kind as error:
            assert field in str(error), error
            return error
        raise AssertionError(f"accepted: {arguments}")

    assert refused(openai.NotFoundError, "gpt-9", model="gpt-9").code == "model_not_found"
    assert refused(openai.BadRequestError, "temperature", temperature=9).param == "temperature"
    assert refused(openai.BadRequestError, "4096", max_tokens=4090).code == "context_length_exceeded"
    refused(openai.BadRequestError, "messages[0]", messages=[{"role": "emperor", "content": "x"}])
    refused(openai.BadRequestError, "tool_choice", tool_choice="required")
    refused(openai.BadRequestError, "tool_choice", tools=TOOLS, tool_choice={"type": "function", "function": {"name": "x"}})
    try:
        openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0).models.list()
        raise AssertionError("a wrong key was accepted")
    except openai.AuthenticationError as error:
        assert error.code == "invalid_api_key"


def test_cancellation(client, server):
    # Such an answer would be thousands of tokens long.
    endless = {"ignore_eos": True}
    stream = client.chat.completions.create(model="k3-nano", messages=user(QUESTION), stream=True, extra_body=endless)
    for count, _ in enumerate(stream):
        if count == 5:
            break
    stream.close()
    values = server.wait_idle()
    cancelled = values["sglang:num_aborted_requests_total"]
    assert cancelled >= 1
    try:
        client.with_options(timeout=1.0, max_retries=0).chat.completions.create(
            model="k3-nano", messages=user(QUESTION), extra_body=endless
        )
        raise AssertionError("the answer came before its time")
    except openai.APITimeoutError:
        pass
    assert server.wait_idle()["sglang:num_aborted_requests_total"] == cancelled + 1


async def one_stream(client, number, cut_after):
    """Reads a stream to its end or to `cut_after` chunks; says how it went."""
    stream = await client.chat.completions.create(
        model="k3-nano", messages=user(f"Ben has {number} cards. Fiona has 26 more cards than Ben. How many cards does Fiona have?"),
        temperature=0, stream=True, max_tokens=300,
    )  # fmt: skip
    finishes, chunks = [], 0
    async for chunk in stream:
        chunks += 1
        finishes += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
        if cut_after is not None and chunks > cut_after:
            await stream.close()
            return "cut"
    return finishes


async def many_streams(server):
    chance = random.Random(20)
    cut = set(chance.sample(range(64), 21))
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key=KEY, timeout=REQUEST_LIMIT_S, max_retries=0) as client:
        tasks = [one_stream(client, 10 + i, chance.randrange(0, 8) if i in cut else None) for i in range(64)]
        results = await asyncio.gather(*tasks)
    for i, result in enumerate(results):
        if i in cut:
            assert result == "cut" or len(result) == 1, (i, result)
        else:
            assert result in (["stop"], ["length"]), (i, result)
    assert sum(result == "cut" for result in results) >= 15


def test_64_streams(client, server):
    before = server.wait_idle()
    asyncio.run(many_streams(server))
    after = server.wait_idle()
    assert after["sglang:num_requests_total"] - before["sglang:num_requests_total"] == 64
    assert ended(after) - ended(before) == 64, "every request ends once"
    # And the server still answers as before.
    test_chat(client, server)


def main():
    binary = os.path.abspath(sys.argv[1])
    server = Server(binary)
    try:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key=KEY, timeout=REQUEST_LIMIT_S, max_retries=0)
        for name, test in list(globals().items()):
            if not name.startswith("test_"):
                continue
            begin = time.monotonic()
            test(client, server)
            server.wait_idle()
            print(f"{name}: passed in {time.monotonic() - begin:.1f} s", flush=True)
        server.stop()
    finally:
        if server.process.poll() is None:
            server.process.kill()
    print("all passed")


if __name__ == "__main__":
    main()
