"""Asks several endpoints with many keys, more often than each may, and prints what passed in any minute.

Started by limits.sh. Traffic of a third of the keys is even, of a third skewed to one endpoint, of a third in bursts.
"""

import argparse
import bisect
import json
import queue
import random
import socket
import threading
import time
import urllib.parse
import urllib.request

parser = argparse.ArgumentParser()
parser.add_argument("--admin", required=True)
parser.add_argument("--key", required=True)
parser.add_argument("--minutes", type=float, default=3)
parser.add_argument("--keys", type=int, default=1000)
parser.add_argument("--limit", type=int, default=6)
parser.add_argument("--offered", type=float, default=2, help="how often is asked, as a multiple of the limit")
parser.add_argument("--csv", help="where each key's minutes are written")
parser.add_argument("endpoints", nargs="+")
args = parser.parse_args()

WORKERS = 64
WINDOW = 60.0
# Between two requests of a burst.
BURST_GAP = 0.02
# Before the first request of a minute that counts: endpoints get to know keys, and who asks where.
WARM = 5
rng = random.Random(7)


def make(number):
    body = json.dumps({"name": f"bench {number}", "limits": {"requests_per_minute": args.limit}}).encode()
    headers = {"Authorization": f"Bearer {args.key}", "Content-Type": "application/json"}
    request = urllib.request.Request(args.admin + "/keys", body, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)["key"]


def plan(seconds):
    """Times, keys and endpoints of all requests, and a burst's number."""
    asked = []
    count = len(args.endpoints)
    gap = WINDOW / (args.offered * args.limit)
    for key in range(args.keys):
        home = rng.randrange(count)
        at = rng.random() * (gap if key % 3 < 2 else WINDOW)
        burst = 0
        while at < seconds:
            if key % 3 == 0:
                asked.append((at, key, rng.randrange(count), None))
                at += gap * (0.5 + rng.random())
            elif key % 3 == 1:
                asked.append((at, key, home if rng.random() < 0.9 else rng.randrange(count), None))
                at += gap * (0.5 + rng.random())
            else:
                # All of a minute's at once, at one endpoint or another, and no more before all that passed is older.
                where = rng.randrange(count)
                size = int(args.offered * args.limit)
                asked.extend((at + BURST_GAP * n, key, where, burst) for n in range(size))
                at += WINDOW + BURST_GAP * size + 2
                burst += 1
    asked.sort(key=lambda one: one[0])
    return asked


class Link:
    """One connection to one endpoint, HTTP/1.1 in few instructions: what is measured is not the client."""

    def __init__(self, endpoint):
        self.place = urllib.parse.urlsplit(endpoint)
        self.socket = socket.create_connection((self.place.hostname, self.place.port), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request):
        self.socket.sendall(request)
        said = b""
        while (end := said.find(b"\r\n\r\n")) < 0:
            said += self.more()
        head = said[:end].lower()
        at = head.find(b"content-length:")
        if at < 0:
            raise OSError("an answer without a length")
        left = int(head[at + 15 :].split(b"\r\n", 1)[0]) - (len(said) - end - 4)
        while left > 0:
            left -= len(self.more())
        return int(head[9:12])

    def more(self):
        piece = self.socket.recv(65536)
        if not piece:
            raise OSError("closed")
        return piece

    def close(self):
        self.socket.close()


BODY = json.dumps({"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]})


def request_of(key):
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n"
    return (head + f"content-type: application/json\r\ncontent-length: {len(BODY)}\r\n\r\n{BODY}").encode()


def work(todo, requests, start, seen):
    """Puts (when sent, when answered, key, burst, status) into `seen`."""
    links = {}
    while (one := todo.get()) is not None:
        at, key, where, burst = one
        time.sleep(max(0.0, start + at - time.monotonic()))
        sent = time.monotonic() - start
        status = 0
        for _ in range(2):
            try:
                if where not in links:
                    links[where] = Link(args.endpoints[where])
                status = links[where].ask(requests[key])
                break
            except OSError:
                if where in links:
                    links.pop(where).close()
        seen.append((sent, time.monotonic() - start, key, burst, status))


def most_in_a_minute(spans):
    """Of those that surely passed within one minute: sent after its begin, and answered before its end."""
    answers = sorted(answered for _, answered in spans)
    begins = sorted(sent for sent, _ in spans)
    most = 0
    for begin in begins:
        late = len(spans) - bisect.bisect_right(answers, begin + WINDOW)
        early = bisect.bisect_left(begins, begin)
        most = max(most, len(spans) - late - early)
    return most


def ideal(times):
    """What passes where one endpoint alone counts: a sliding log."""
    passed = []
    for at in times:
        if len(passed) < args.limit or passed[-args.limit] + WINDOW <= at:
            passed.append(at)
    return passed


def fewest_in_a_minute(times, seconds):
    """Of the minutes that begin with each second once all are warm."""
    begins = range(WARM, int(seconds - WINDOW) + 1)
    return min((bisect.bisect_left(times, at + WINDOW) - bisect.bisect_left(times, at) for at in begins), default=0)


began = time.monotonic()
keys = [make(number) for number in range(args.keys)]
print(f"{args.keys} keys made in {time.monotonic() - began:.0f} s, limit {args.limit} requests a minute each", flush=True)
time.sleep(5)

seconds = args.minutes * WINDOW
asked = plan(seconds)
seen = []
todo = queue.SimpleQueue()
start = time.monotonic() + 1
for one in asked:
    todo.put(one)
for _ in range(WORKERS):
    todo.put(None)
requests = [request_of(key) for key in keys]
workers = [threading.Thread(target=work, args=(todo, requests, start, seen)) for _ in range(WORKERS)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
seen.sort()
late = max(sent - one[0] for (sent, *_), one in zip(seen, asked))

statuses = [status for *_, status in seen]
counts = {status: statuses.count(status) for status in sorted(set(statuses))}
print(f"{len(seen)} requests over {seconds:.0f} s at {len(args.endpoints)} endpoints, sent {late:.2f} s late at most: {counts}")
waits = sorted(answered - sent for sent, answered, *_ in seen)
print(f"answered within {waits[len(waits) // 2] * 1e3:.1f} ms (median), {waits[len(waits) * 99 // 100] * 1e3:.0f} ms (p99)")

spans, passed, offered, bursts = [[] for _ in keys], [[] for _ in keys], [[] for _ in keys], {}
for sent, answered, key, burst, status in seen:
    offered[key].append(sent)
    if burst is not None:
        bursts.setdefault((key, burst), []).append(status == 200)
    if status == 200:
        spans[key].append((sent, answered))
        passed[key].append(answered)
passed = [sorted(of) for of in passed]
alone = [ideal(times) for times in offered]
most = [most_in_a_minute(of) for of in spans]
whole = [sum(burst) for burst in bursts.values() if len(burst) >= args.limit]
KINDS = ["even", "skewed", "bursts"]
print(f"{'traffic':8} {'keys':>5} {'most in a minute':>17} {'fewest in a minute':>19} {'of one burst':>13} "
      f"{'passed a minute':>16} {'one endpoint alone':>19}")
for kind, name in enumerate(KINDS):
    these = range(kind, args.keys, 3)
    # Bursts come more than a minute apart: some minutes hold none, so each burst is looked at.
    fewest = min(fewest_in_a_minute(passed[key], seconds) for key in these) if kind < 2 else "-"
    least = min(fewest_in_a_minute(alone[key], seconds) for key in these) if kind < 2 else "-"
    burst = f"{min(whole)}..{max(whole)}" if kind == 2 and whole else "-"
    mean = sum(len(passed[key]) for key in these) / len(these) / args.minutes
    could = sum(len(alone[key]) for key in these) / len(these) / args.minutes
    print(f"{name:8} {len(these):5} {max(most[key] for key in these):17} {fewest!s:>19} {burst:>13} {mean:16.2f} "
          f"{could:12.2f} (>= {least})")
over = [key for key in range(args.keys) if most[key] > args.limit]
print("over the limit in any minute:", ", ".join(f"key {key}: {most[key]}" for key in over) or "no key")

# Each key's minutes, one after the other: how many of the keys had so many pass in the first, the second, ...
minutes = int(args.minutes)
counts = [[sum(1 for at in times if minute * WINDOW <= at < (minute + 1) * WINDOW) for minute in range(minutes)] for times in passed]
print(f"{'passed':>8} " + " ".join(f"{'minute ' + str(minute + 1):>9}" for minute in range(minutes)) + "   keys")
for many in range(max(max(row) for row in counts) + 1):
    row = [sum(1 for key in counts if key[minute] == many) for minute in range(minutes)]
    if any(row):
        print(f"{many:8} " + " ".join(f"{count:9}" for count in row))
if args.csv:
    with open(args.csv, "w") as file:
        file.write("key,traffic,minute,offered,passed\n")
        for key, row in enumerate(counts):
            for minute, count in enumerate(row):
                asked_for = sum(1 for at in offered[key] if minute * WINDOW <= at < (minute + 1) * WINDOW)
                file.write(f"{key},{KINDS[key % 3]},{minute + 1},{asked_for},{count}\n")
    print("each key's minutes:", args.csv)
