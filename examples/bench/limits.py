"""Asks several endpoints with many keys, twice as often as each may, and prints what passed in any minute.

Started by limits.sh. Traffic of a third of the keys is even, of a third skewed to one endpoint, of a third in bursts.
"""

import argparse
import bisect
import http.client
import json
import queue
import random
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
parser.add_argument("endpoints", nargs="+")
args = parser.parse_args()

WORKERS = 48
WINDOW = 60.0
rng = random.Random(7)


def make(number):
    body = json.dumps({"name": f"bench {number}", "limits": {"requests_per_minute": args.limit}}).encode()
    headers = {"Authorization": f"Bearer {args.key}", "Content-Type": "application/json"}
    request = urllib.request.Request(args.admin + "/keys", body, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)["key"]


def plan(seconds):
    """Times, keys and endpoints of all requests: twice the limit of each key."""
    asked = []
    count = len(args.endpoints)
    for key in range(args.keys):
        home = rng.randrange(count)
        at = rng.random() * WINDOW / (2 * args.limit)
        while at < seconds:
            if key % 3 == 0:
                asked.append((at, key, rng.randrange(count)))
                at += WINDOW / (2 * args.limit) * (0.5 + rng.random())
            elif key % 3 == 1:
                asked.append((at, key, home if rng.random() < 0.9 else rng.randrange(count)))
                at += WINDOW / (2 * args.limit) * (0.5 + rng.random())
            else:
                # All of a minute's at once, at one endpoint or another.
                where = rng.randrange(count)
                asked.extend((at + 0.02 * n, key, where) for n in range(2 * args.limit))
                at += WINDOW * 1.05
    asked.sort()
    return asked


def work(todo, keys, start, passed, statuses):
    links = {}
    body = json.dumps({"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]})
    while (one := todo.get()) is not None:
        at, key, where = one
        time.sleep(max(0.0, start + at - time.monotonic()))
        for attempt in range(2):
            if where not in links:
                place = urllib.parse.urlsplit(args.endpoints[where])
                links[where] = http.client.HTTPConnection(place.hostname, place.port, timeout=30)
            try:
                headers = {"Authorization": f"Bearer {keys[key]}", "Content-Type": "application/json"}
                links[where].request("POST", "/v1/chat/completions", body, headers)
                answer = links[where].getresponse()
                answer.read()
                break
            except (OSError, http.client.HTTPException):
                links.pop(where).close()
        else:
            statuses.append(0)
            continue
        statuses.append(answer.status)
        if answer.status == 200:
            passed[key].append(time.monotonic() - start)


def most_in_a_minute(times):
    return max((bisect.bisect_right(times, at) - bisect.bisect_right(times, at - WINDOW) for at in times), default=0)


def fewest_in_a_minute(times, seconds):
    """Of the minutes that begin with each second once all are warm."""
    begins = range(5, int(seconds - WINDOW) + 1)
    return min(bisect.bisect_left(times, at + WINDOW) - bisect.bisect_left(times, at) for at in begins)


began = time.monotonic()
keys = [make(number) for number in range(args.keys)]
print(f"{args.keys} keys made in {time.monotonic() - began:.0f} s, limit {args.limit} requests a minute each")
time.sleep(5)

seconds = args.minutes * WINDOW
asked = plan(seconds)
passed = [[] for _ in keys]
statuses = []
todo = queue.Queue()
start = time.monotonic() + 1
for one in asked:
    todo.put(one)
for _ in range(WORKERS):
    todo.put(None)
workers = [threading.Thread(target=work, args=(todo, keys, start, passed, statuses)) for _ in range(WORKERS)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
late = time.monotonic() - start - asked[-1][0]

for times in passed:
    times.sort()
counts = {status: statuses.count(status) for status in sorted(set(statuses))}
print(f"{len(asked)} requests over {seconds:.0f} s at {len(args.endpoints)} endpoints, the last {late:.1f} s late: {counts}")
print(f"{'traffic':10} {'keys':>5} {'most in a minute':>17} {'fewest in a minute':>19} {'passed per minute':>18}")
for kind, name in enumerate(["even", "skewed", "bursts"]):
    these = [passed[key] for key in range(args.keys) if key % 3 == kind]
    most = max(most_in_a_minute(times) for times in these)
    # Bursts come a little more than a minute apart: some minutes hold none.
    fewest = min(fewest_in_a_minute(times, seconds) for times in these) if kind < 2 else "-"
    mean = sum(len(times) for times in these) / len(these) / args.minutes
    print(f"{name:10} {len(these):5} {most:17} {fewest!s:>19} {mean:18.2f}")
over = [key for key, times in enumerate(passed) if most_in_a_minute(times) > args.limit]
print("over the limit in any minute:", ", ".join(f"key {key}: {most_in_a_minute(passed[key])}" for key in over) or "no key")
