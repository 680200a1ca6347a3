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
parser.add_argument("--csv", help="where each key's minutes are written")
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
        sent = time.monotonic() - start
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
            passed[key].append((sent, time.monotonic() - start))


def most_in_a_minute(spans):
    """Of those that surely passed within one minute: sent after its begin, and answered before its end."""
    answers = sorted(answered for _, answered in spans)
    most = 0
    for begin, _ in spans:
        late = len(spans) - bisect.bisect_right(answers, begin + WINDOW)
        early = sum(1 for sent, _ in spans if sent < begin)
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

spans = passed
passed = [sorted(answered for _, answered in of) for of in spans]
counts = {status: statuses.count(status) for status in sorted(set(statuses))}
print(f"{len(asked)} requests over {seconds:.0f} s at {len(args.endpoints)} endpoints, the last {late:.1f} s late: {counts}")
offered = [[] for _ in keys]
for at, key, _ in asked:
    offered[key].append(at)
alone = [ideal(times) for times in offered]
KINDS = ["even", "skewed", "bursts"]
print(f"{'traffic':10} {'keys':>5} {'most in a minute':>17} {'fewest in a minute':>19} {'passed per minute':>18} {'one endpoint alone':>19}")
for kind, name in enumerate(KINDS):
    these = [passed[key] for key in range(args.keys) if key % 3 == kind]
    most = max(most_in_a_minute(spans[key]) for key in range(args.keys) if key % 3 == kind)
    # Bursts come a little more than a minute apart: some minutes hold none.
    fewest = min(fewest_in_a_minute(times, seconds) for times in these) if kind < 2 else "-"
    mean = sum(len(times) for times in these) / len(these) / args.minutes
    best = [alone[key] for key in range(args.keys) if key % 3 == kind]
    least = min(fewest_in_a_minute(times, seconds) for times in best) if kind < 2 else "-"
    could = sum(len(times) for times in best) / len(best) / args.minutes
    print(f"{name:10} {len(these):5} {most:17} {fewest!s:>19} {mean:18.2f} {could:12.2f} (>= {least})")
over = [key for key, of in enumerate(spans) if most_in_a_minute(of) > args.limit]
print("over the limit in any minute:", ", ".join(f"key {key}: {most_in_a_minute(spans[key])}" for key in over) or "no key")

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
