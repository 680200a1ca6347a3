"""Ranks texts by how near they are to a question: pip install openai

MODEL must be one that embeds: `demo` does (by the words that two texts share), of real engines those that were started for
it, e.g. llama-server --embedding or vllm serve --task embed.

    OPENAI_BASE_URL=http://127.0.0.1:8480/v1 OPENAI_API_KEY=sk-dunlin-... python embeddings.py MODEL
"""

import sys

if len(sys.argv) != 2:
    print(f"usage: {sys.argv[0]} MODEL   (`dunlin models` lists the models)", file=sys.stderr)
    sys.exit(2)

from openai import OpenAI

QUESTION = "Where do dunlins spend the winter?"
TEXTS = [
    "In winter dunlins stay on mudflats and estuaries.",
    "The proxy waits for a free slot.",
    "Many shorebirds fly south in autumn.",
]

client = OpenAI()
vectors = [item.embedding for item in client.embeddings.create(model=sys.argv[1], input=[QUESTION, *TEXTS]).data]


def near(a, b):
    dot = sum(x * y for x, y in zip(a, b))
    return dot / (sum(x * x for x in a) * sum(y * y for y in b)) ** 0.5


for text, vector in sorted(zip(TEXTS, vectors[1:]), key=lambda pair: -near(vectors[0], pair[1])):
    print(f"{near(vectors[0], vector):6.3f}  {text}")
