#!/usr/bin/env python3
"""Prefix affinity, measured: 40 conversations of 6 turns over two engines, through Dunlin, through round robin, and on one
engine alone.

    examples/bench/prefix.py            # two demo engines with long prompts: where the time goes is visible
    examples/bench/prefix.py --llama    # two real llama-servers with the small model of this repository
    examples/bench/prefix.py --llama FILE.gguf   # the same with a model of yours, and long prompts (--opening)

Prints the share of prompt tokens that the engines had cached, by their own `cached_tokens`, and the time to first token.
Every way starts with fresh engines. Needs only Python 3; DUNLIN is the executable, else target/debug/dunlin;
LLAMA_SERVER is the server, else the one that tests/setup.sh installs.
"""
import argparse, http.client, json, os, pathlib, random, socket, statistics, subprocess, sys, tempfile, threading, time
from concurrent.futures import ThreadPoolExecutor

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
CONVERSATIONS, TURNS, AT_ONCE, MODEL = 40, 6, 4, "bench"
WORDS = "the of and to in is light water grain stone river king house word day night bread field hand fire".split()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def executable(name, otherwise):
    found = os.environ.get(name) or otherwise()
    if not found or not pathlib.Path(found).exists():
        sys.exit(f"{name}: {found} does not exist; build it or set {name}")
    return str(found)


def start(processes, command, environment=None):
    log = open(pathlib.Path(processes.folder) / f"{len(processes)}.log", "wb")
    processes.append(subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **(environment or {})}))


class Processes(list):
    def __enter__(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="dunlin-bench-")
        self.folder = self.temporary.name
        return self

    def __exit__(self, *_):
        for process in reversed(self):
            process.terminate()
        for process in self:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.temporary.cleanup()


def wait_for(port, path, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    sys.exit(f"nothing answers at port {port}, {path}")


def demo_engine(processes, dunlin, kv_tokens):
    port = free_port()
    start(processes, [dunlin, "demo-engine", "--http", f"127.0.0.1:{port}", "--model", MODEL, "--slots", "8",
                      "--ttft-ms", "10", "--prefill-us", "200", "--tokens-per-second", "200", "--kv-tokens", str(kv_tokens)])
    wait_for(port, "/health")
    return port


def llama_server(processes, server, model, window, slots):
    port = free_port()
    folder = str(pathlib.Path(server).parent)
    start(processes, [server, "--host", "127.0.0.1", "--port", str(port), "-m", str(model), "--alias", MODEL, "--metrics",
                      "--slots", "-ngl", "0", "-c", str(window * slots), "-np", str(slots), "-t", "1", "--no-webui"],
          {"LD_LIBRARY_PATH": folder})
    wait_for(port, "/health")
    return port


class Ask:
    """Asks one port after another, in turn."""

    def __init__(self, ports):
        self.ports, self.turn, self.lock = ports, 0, threading.Lock()
        self.prompt = self.cached = 0
        self.first, self.later = [], []

    def __call__(self, messages, nth, answer_tokens):
        with self.lock:
            port = self.ports[self.turn % len(self.ports)]
            self.turn += 1
        body = json.dumps({"model": MODEL, "messages": messages, "stream": True, "max_tokens": answer_tokens,
                           "temperature": 0, "stream_options": {"include_usage": True}})
        began, text, ttft, usage = time.monotonic(), "", None, None
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            sys.exit(f"{answer.status}: {answer.read()[:300]}")
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            piece = "".join(choice["delta"].get("content") or "" for choice in event.get("choices", []))
            if piece and ttft is None:
                ttft = time.monotonic() - began
            text += piece
        connection.close()
        with self.lock:
            (self.first if nth == 0 else self.later).append(ttft if ttft is not None else time.monotonic() - began)
            self.prompt += usage["prompt_tokens"]
            self.cached += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return text


def converse(ask, opening_words, question_words, answer_tokens):
    chance = random.Random(7)
    say = lambda count: " ".join(chance.choice(WORDS) for _ in range(count))
    conversations = [[] for _ in range(CONVERSATIONS)]
    for turn in range(TURNS):
        order = list(range(CONVERSATIONS))
        chance.shuffle(order)
        for n in order:
            words = opening_words if turn == 0 else question_words
            conversations[n].append({"role": "user", "content": f"{n}: {say(words)}"})

        def one(n):
            text = ask(conversations[n], turn, answer_tokens)
            conversations[n].append({"role": "assistant", "content": text})

        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(one, order))


def row(name, ask):
    every = sorted(ask.first + ask.later)
    ms = lambda seconds: f"{seconds * 1000:.0f}"
    p99 = every[int(len(every) * 0.99)]
    rate = ask.cached / max(ask.prompt, 1)
    print(f"| {name} | {rate:.1%} | {ms(statistics.mean(every))} | {ms(p99)} | {ms(statistics.mean(ask.later))} |", flush=True)
    return rate, statistics.mean(every), statistics.mean(ask.later)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    small = REPOSITORY / "tests/data/tinykjv-1m.gguf"
    parser.add_argument("--llama", nargs="?", const=small, type=pathlib.Path, metavar="MODEL",
                        help="real llama-servers instead of demo engines")
    parser.add_argument("--opening", type=int, default=400, metavar="WORDS",
                        help="words that a conversation opens with, for a model of yours (default: 400)")
    args = parser.parse_args()
    llama = args.llama
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    dunlin = executable("DUNLIN", lambda: target / "debug/dunlin")
    if llama:
        cache = pathlib.Path(os.environ.get("DUNLIN_TEST_CACHE", REPOSITORY / "target/clients"))
        installed = lambda: next(iter(cache.glob("venv/lib/*/site-packages/*/bin/llama-server")), cache)
        server = executable("LLAMA_SERVER", installed)

    # One engine alone has the room of two, so that the number of engines is all that differs.
    def engine(processes, times):
        if llama:
            return llama_server(processes, server, llama, window, 4 * times)
        return demo_engine(processes, dunlin, 100_000 * times)

    if llama == small:
        # Trained with a window of 1,024 tokens.
        window, sizes = 1024, (120, 12, 16)
    elif llama:
        window, sizes = 2048, (args.opening, 30, 16)
    else:
        sizes = (2600, 30, 24)
    print("| way | prompt tokens cached | mean TTFT, ms | p99 | mean from the second turn on |\n|---|---|---|---|---|")
    results = {}
    for name in ("one engine alone, twice the size", "round robin over two", "dunlin over two"):
        with Processes() as processes:
            ports = [engine(processes, 2)] if "alone" in name else [engine(processes, 1) for _ in range(2)]
            if "dunlin" in name:
                http_port = free_port()
                engines = [flag for port in ports for flag in ("--engine", f"http://127.0.0.1:{port}")]
                start(processes, [dunlin, "--home", f"{processes.folder}/home", "up", "--no-mdns", "--no-auth", "--http",
                                  f"127.0.0.1:{http_port}", "--listen", "/ip4/127.0.0.1/tcp/0", *engines])
                wait_for(http_port, "/ready")
                time.sleep(2)
                ports = [http_port]
            ask = Ask(ports)
            converse(ask, *sizes)
            results[name] = row(name, ask)
    alone, robin, ours = results.values()
    print(f"\nhit rate: {ours[0] / max(alone[0], 1e-9):.2f} of one engine alone, {ours[0] / max(robin[0], 1e-9):.2f} of round robin; "
          f"time to first token: round robin takes {robin[1] / ours[1]:.1f} times as long, "
          f"{robin[2] / ours[2]:.1f} times from the second turn on")


main()
