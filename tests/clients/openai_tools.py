"""Calls of tools by the official client. Usage: openai_tools.py http://host:port/v1 MODEL

Prints one line a check; fails at the first that does not hold.
"""

import json
import sys

import openai

url, model = sys.argv[1:]
client = openai.OpenAI(base_url=url, api_key="key", max_retries=0, timeout=60)
schema = {
    "type": "object",
    "properties": {"unit": {"type": "string", "enum": ["celsius", "kelvin"]}},
    "required": ["unit"],
}
tools = [{"type": "function", "function": {"name": "weather", "description": "of today", "parameters": schema}}]
messages = [{"role": "user", "content": "how is it?"}]


def check(name, holds):
    if not holds:
        sys.exit(f"FAILED: {name}")
    print(f"ok: {name}")


common = dict(model=model, messages=messages, tools=tools, max_tokens=200, seed=3, parallel_tool_calls=False)
whole = client.chat.completions.create(tool_choice="required", **common)
message = whole.choices[0].message
call = message.tool_calls[0]
check("a call", call.function.name == "weather" and whole.choices[0].finish_reason == "tool_calls")
check("its arguments", json.loads(call.function.arguments)["unit"] in ("celsius", "kelvin"))
check("no content", message.content is None)

with client.chat.completions.stream(tool_choice="required", **common) as stream:
    deltas = [event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"]
    final = stream.get_final_completion().choices[0]
check("streamed", final.message.tool_calls[0].function.arguments == call.function.arguments)
check("in pieces", len(deltas) > 10 and "".join(deltas) == call.function.arguments)
check("streamed end", final.finish_reason == "tool_calls")

history = messages + [message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
after = client.chat.completions.create(**{**common, "messages": history, "max_tokens": 5})
check("the result goes back", after.usage.prompt_tokens > whole.usage.prompt_tokens)

flat = [{"type": "function", "name": "weather", "parameters": schema, "strict": True}]
response = client.responses.create(
    model=model, input="how is it?", tools=flat, max_output_tokens=200,
    tool_choice={"type": "function", "name": "weather"}, parallel_tool_calls=False,
)
item = response.output[0]
check("responses", item.type == "function_call" and json.loads(item.arguments)["unit"])
output = {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}
again = client.responses.create(
    model=model, input=[{"role": "user", "content": "how is it?"}, item, output], tools=flat, max_output_tokens=5
)
check("the output goes back", again.usage.input_tokens > response.usage.input_tokens)
with client.responses.stream(
    model=model, input="how is it?", tools=flat, max_output_tokens=200,
    tool_choice={"type": "function", "name": "weather"}, parallel_tool_calls=False,
) as stream:
    deltas = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
    streamed = stream.get_final_response().output[0]
check("responses in pieces", len(deltas) > 10 and "".join(deltas) == streamed.arguments)
strict = [{"type": "function", "function": {**tools[0]["function"], "strict": True}}]
free = client.chat.completions.create(**{**common, "tools": strict, "max_tokens": 30})
check("strict under auto", free.choices[0].finish_reason in ("stop", "length", "tool_calls"))
structured = client.responses.create(
    model=model, input="how is it?", max_output_tokens=200,
    text={"format": {"type": "json_schema", "name": "unit", "schema": {**schema, "additionalProperties": False}}},
)
check("a schema", json.loads(structured.output_text)["unit"] in ("celsius", "kelvin"))
