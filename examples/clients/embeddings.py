"""Ranks texts by how near they are to a question: pip install openai

    OPENAI_BASE_URL=http://127.0.0.1:8480/v1 OPENAI_API_KEY=sk-dunlin-... python embeddings.py MODEL
"""

import sys

from openai import OpenAI

QUESTION = "Where do dunlins spend the winter?"
TEXTS = [
    "Dunlins winter on mudflats and estuaries.",
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
