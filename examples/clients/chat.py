"""Streams an answer through the official OpenAI SDK: pip install openai

    OPENAI_BASE_URL=http://127.0.0.1:8480/v1 OPENAI_API_KEY=sk-dunlin-... python chat.py MODEL QUESTION
"""

import sys

if len(sys.argv) < 3:
    print(f"usage: {sys.argv[0]} MODEL QUESTION   (`dunlin models` lists the models)", file=sys.stderr)
    sys.exit(2)
model, question = sys.argv[1], " ".join(sys.argv[2:])

from openai import OpenAI

client = OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY

response = client.chat.completions.with_raw_response.create(
    model=model, messages=[{"role": "user", "content": question}], max_tokens=200, stream=True
)
for chunk in response.parse():
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print(f"\n\nanswered by replica {response.headers.get('x-dunlin-replica')}")
