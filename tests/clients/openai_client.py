"""Drives a server with the official client. Usage: openai_client.py http://host:port/v1 MODEL

Prints one line a check; fails at the first that does not hold.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import openai

url, model = sys.argv[1:]
client = openai.OpenAI(base_url=url, api_key="key", max_retries=0, timeout=60)
messages = [{"role": "user", "content": "tell me a riddle"}]


def check(name, holds):
    if not holds:
        sys.exit(f"FAILED: {name}")
    print(f"ok: {name}")


names = [m.id for m in client.models.list()]
check("models", names == [model])
check("one model", client.models.retrieve(model).id == model)

whole = client.chat.completions.create(model=model, messages=messages, max_tokens=12, seed=3)
choice = whole.choices[0]
check("chat", choice.message.role == "assistant" and choice.finish_reason in ("stop", "length"))
check("usage", whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens)

pieces = list(
    client.chat.completions.create(
        model=model, messages=messages, max_tokens=12, seed=3, stream=True,
        stream_options={"include_usage": True},
    )
)
text = "".join(p.choices[0].delta.content or "" for p in pieces if p.choices)
check("stream is the whole", text == choice.message.content)
check("usage at the end", pieces[-1].choices == [] and pieces[-1].usage.total_tokens == whole.usage.total_tokens)
check("no usage before", all(p.usage is None for p in pieces[:-1]))

probable = client.chat.completions.create(
    model=model, messages=messages, max_tokens=4, logprobs=True, top_logprobs=3, temperature=0,
    extra_body={"top_k": 5, "ignore_eos": True, "min_p": 0.01, "repetition_penalty": 1.1},
)
content = probable.choices[0].logprobs.content
check("logprobs", len(content) == 4 and all(len(t.top_logprobs) == 3 for t in content))
check("no warnings for known extras", getattr(probable, "warnings", None) is None)

several = client.completions.create(model=model, prompt=["one", "two"], n=2, max_tokens=5, seed=1)
check("prompts times n", [c.index for c in several.choices] == [0, 1, 2, 3])
legacy = client.completions.create(model=model, prompt="abc", max_tokens=3, logprobs=2, echo=True)
check("echo", legacy.choices[0].text.startswith("abc"))
check("legacy logprobs", legacy.choices[0].logprobs.token_logprobs[0] is None)

vectors = client.embeddings.create(model=model, input=["one", "two"])
check("embeddings", len(vectors.data) == 2 and abs(sum(x * x for x in vectors.data[0].embedding) - 1) < 1e-5)
response = client.responses.create(model=model, input="tell me a riddle", max_output_tokens=12)
check("responses", response.output_text is not None and response.usage.output_tokens <= 12)
kinds = [e.type for e in client.responses.create(model=model, input="hi", max_output_tokens=4, stream=True)]
check("streamed responses", kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"))

for name, kind, call in [
    ("unknown model", openai.NotFoundError,
     lambda: client.chat.completions.create(model="other", messages=messages)),
    ("bad temperature", openai.BadRequestError,
     lambda: client.chat.completions.create(model=model, messages=messages, temperature=-1)),
    ("too long", openai.BadRequestError,
     lambda: client.completions.create(model=model, prompt=[5] * 5000)),
]:
    try:
        call()
        check(name, False)
    except kind as error:
        check(name, error.body["message"] and "param" in error.body)


def ask(i):
    one = client.completions.create(
        model=model, prompt=f"question {i % 4}", max_tokens=16, seed=i % 4, temperature=0.9
    )
    return i % 4, one.choices[0].text


with ThreadPoolExecutor(16) as pool:
    answers = list(pool.map(ask, range(48)))
check("48 at once, four answers", len(set(answers)) == 4)
client.completions.with_streaming_response.create(
    model=model, prompt="abandoned", max_tokens=100, stream=True
).__enter__().close()
check("after an abandoned stream", client.models.list().data[0].id == model)
