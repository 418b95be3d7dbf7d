"""K3's chat encoding: messages to ids and the assistant's ids back to text, reasoning and tool calls.

A message is  <|open|>message key="value"...<|sep|> body <|close|>message<|sep|> <|end_of_msg|>. An assistant's body has the channels
think, response and tools as nested tags of the same form. Every part of a tag is its own piece of text, encoded alone.
"""
import json

import regex

_EFFORT_NOTE = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
    "supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort={}`.")
_TOOL_CHOICE_NOTES = {
    "required": "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.",
    "none": "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message.",
}
_FORMAT_NOTE = (
    "The system is invoked with `response_format={}`.\nYour response must be raw JSON data without markdown code blocks (```json) or "
    "any additional formatting.")


# ---------------------------------------------------------------------------------------------- pieces
def open_tag(tokenizer, name, attributes=()):
    ids = [tokenizer.open] + tokenizer.encode(name)
    for key, value in attributes:
        escaped = str(value).replace("&", "&amp;").replace('"', "&quot;")
        for part in (f" {key}", '="', escaped, '"'):
            ids += tokenizer.encode(part)
    return ids + [tokenizer.separator]


def close_tag(tokenizer, name):
    return [tokenizer.close] + tokenizer.encode(name) + [tokenizer.separator]


def _message(tokenizer, attributes, text):
    return (open_tag(tokenizer, "message", attributes) + tokenizer.encode(text) + close_tag(tokenizer, "message")
            + [tokenizer.end_of_message])


def _system_note(tokenizer, kind, text):
    return _message(tokenizer, [("role", "system"), ("type", kind)], text)


def _sorted_json(value):
    """Compact JSON, object keys sorted at every depth"""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _type_name(value):
    """Name of an argument's JSON type"""
    if value is None:
        return "null"
    for types, name in ((bool, "boolean"), ((int, float), "number"), (str, "string"), (dict, "object")):
        if isinstance(value, types):
            return name
    return "array"


# ---------------------------------------------------------------------------------------------- messages to ids
def _tool_calls(tokenizer, calls):
    ids = open_tag(tokenizer, "tools")
    for index, call in enumerate(calls, 1):
        function = call.get("function", call)
        ids += open_tag(tokenizer, "call", [("tool", function["name"]), ("index", index)])
        for key, value in function["arguments"].items():
            ids += open_tag(tokenizer, "argument", [("key", key), ("type", _type_name(value))])
            ids += tokenizer.encode(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            ids += close_tag(tokenizer, "argument")
        ids += close_tag(tokenizer, "call")
    return ids + close_tag(tokenizer, "tools")


def _assistant_body(tokenizer, message, thinking):
    ids = []
    if thinking:
        reasoning = message.get("reasoning_content") or ""
        ids += open_tag(tokenizer, "think") + tokenizer.encode(reasoning if reasoning.strip() else "") + close_tag(tokenizer, "think")
    ids += open_tag(tokenizer, "response") + tokenizer.encode(message.get("content") or "") + close_tag(tokenizer, "response")
    if message.get("tool_calls"):
        ids += _tool_calls(tokenizer, message["tool_calls"])
    return ids + close_tag(tokenizer, "message") + [tokenizer.end_of_message]


def encode_chat(tokenizer, messages, tools=None, thinking=True, thinking_effort=None, tool_choice=None, response_format=None,
                response_schema=None, generation_prompt=False):
    """Messages as in OpenAI's API, with `reasoning_content` -> (ids, mask).

    mask is 1 where the model itself must produce the id: an assistant message behind the opening of its first channel. The order is
    tools, effort note, messages, tool-choice note, response-format note, generation prompt.
    """
    ids, mask = [], []

    def put(new_ids, produced=0):
        ids.extend(new_ids)
        mask.extend([produced] * len(new_ids))

    first_channel = open_tag(tokenizer, "think" if thinking else "response")
    assistant = open_tag(tokenizer, "message", [("role", "assistant")])
    if tools:
        put(_system_note(tokenizer, "tool-declare", "# Tools\nHere are the available tools, described in JSONSchema.\n\n"
                         f"```json\n{_sorted_json(tools)}\n```"))
    if thinking and thinking_effort:
        put(_system_note(tokenizer, "thinking-effort", _EFFORT_NOTE.format(thinking_effort)))
    results, calls = 0, None
    for message in messages:
        role = message["role"]
        if role == "assistant":
            results, calls = 0, message.get("tool_calls")
            body = _assistant_body(tokenizer, message, thinking)
            put(assistant + body[:len(first_channel)])
            put(body[len(first_channel):], 1)
        elif role == "tool":
            call = calls[results] if calls else None
            results += 1
            name = message.get("name") or call.get("function", call)["name"]
            put(_message(tokenizer, [("role", "tool"), ("tool", name), ("index", results)], message["content"]))
        else:
            named = [("name", message["name"])] if message.get("name") else []
            put(_message(tokenizer, [("role", role)] + named, message["content"]))
    if tool_choice in _TOOL_CHOICE_NOTES:
        put(_system_note(tokenizer, "tool-choice", _TOOL_CHOICE_NOTES[tool_choice]))
    if response_format in ("json_object", "json_schema"):
        note = _FORMAT_NOTE.format(response_format)
        if response_format == "json_schema":
            note += f"\nThe JSON data must match the following schema:\n```json\n{_sorted_json(response_schema)}\n```"
        put(_system_note(tokenizer, "response-format", note))
    if generation_prompt:
        put(assistant + first_channel)
    return ids, mask


# ---------------------------------------------------------------------------------------------- ids to a message
def _read_tag(tokenizer, ids, start):
    """Tag at ids[start] -> (name, attributes, index behind it)"""
    end = start + 1
    while end < len(ids) and ids[end] != tokenizer.separator:
        end += 1
    head = tokenizer.decode(ids[start + 1:end])
    return head.split(" ")[0], dict(regex.findall(r'(\w+)="([^"]*)"', head)), end + 1


def _argument_value(text, type_name):
    if type_name == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return None


def parse_assistant(tokenizer, ids, thinking=True):
    """Ids generated behind a generation prompt -> dict(reasoning, content, tool_calls, finished)"""
    ids = [int(i) for i in ids]
    message = {"reasoning": "", "content": "", "tool_calls": [], "finished": False}
    channel, body, call, argument = "think" if thinking else "response", [], None, None
    at = 0
    while at < len(ids):
        if ids[at] == tokenizer.end_of_message:
            message["finished"] = True
            break
        if ids[at] not in (tokenizer.open, tokenizer.close):
            body.append(ids[at])
            at += 1
            continue
        opens = ids[at] == tokenizer.open
        name, attributes, at = _read_tag(tokenizer, ids, at)
        if opens:
            channel = name
            if name == "call":
                call = {"name": attributes.get("tool", ""), "arguments": {}}
            elif name == "argument":
                argument = attributes
        else:
            channel, text = None, tokenizer.decode(body)
            if name in ("think", "response"):
                message["reasoning" if name == "think" else "content"] = text
            elif name == "argument" and call is not None and argument is not None:
                call["arguments"][argument.get("key", "")] = _argument_value(text, argument.get("type", ""))
            elif name == "call" and call is not None:
                message["tool_calls"].append(call)
                call = None
        body = []
    if channel == "response" and body:
        message["content"] = tokenizer.decode(body)
    return message
