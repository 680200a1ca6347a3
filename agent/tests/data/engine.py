"""A small engine for tests of its supervisor: real process, real HTTP/1.1, misbehaves on request."""

import argparse, json, os, signal, subprocess, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--models", default="tiny")
parser.add_argument("--owner", default="script")
parser.add_argument("--load-s", type=float, default=0)
parser.add_argument("--exit-after-s", type=float)
parser.add_argument("--exit-code", type=int, default=3)
parser.add_argument("--ignore-sigterm", action="store_true")
parser.add_argument("--worker", action="store_true", help="start a child that outlives this process unless killed")
parser.add_argument("--chatter", action="store_true", help="write a lot")
args = parser.parse_args()

print("engine", os.getpid(), "on", args.port, flush=True)
print("a word on stderr", file=sys.stderr, flush=True)
if args.ignore_sigterm:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if args.worker:
    worker = subprocess.Popen(["sleep", "600"])
    print("worker", worker.pid, flush=True)
if args.chatter:
    def chatter():
        while True:
            print("x" * 500, flush=True)
    threading.Thread(target=chatter, daemon=True).start()
if args.exit_after_s is not None:
    def end():
        time.sleep(args.exit_after_s)
        print("last words before the crash", flush=True)
        os._exit(args.exit_code)
    threading.Thread(target=end, daemon=True).start()

state = {"models": args.models.split(","), "aborted": 0, "done": 0, "last": None}
started = time.monotonic()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, value, status=200):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("x-dunlin-load", "an engine's lie")
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/health":
            loading = time.monotonic() - started < args.load_s
            self.answer({"status": "loading" if loading else "ok"}, 503 if loading else 200)
        elif self.path == "/v1/models":
            proxy = {"replicas": 1} if args.owner == "proxy" else {}
            self.answer({"data": [{"id": name, "owned_by": args.owner, **proxy} for name in state["models"]]})
        elif self.path == "/state":
            self.answer(state)
        elif self.path == "/metrics":
            self.send_response(200)
            body = b"script_running 1\nscript_waiting 2\n"
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        else:
            self.answer({"error": "no such path"}, 404)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        asked = json.loads(body or b"{}")
        state["last"] = {"path": self.path, "headers": {k.lower(): v for k, v in self.headers.items()}, "body": asked}
        if "models" in asked:
            state["models"] = asked["models"]
        if asked.get("status"):
            return self.answer({"error": {"message": "as asked"}}, asked["status"])
        if asked.get("hang"):
            return self.wait_for_hang_up()
        if asked.get("sleep"):
            time.sleep(asked["sleep"])
        if asked.get("stream"):
            return self.stream(asked)
        self.answer({"ok": True})
        state["done"] += 1

    def wait_for_hang_up(self):
        # Ends when the other side closes: there is nothing more to read.
        while self.connection.recv(1) != b"":
            pass
        state["aborted"] += 1
        self.close_connection = True

    def stream(self, asked):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            for n in range(asked.get("chunks", 3)):
                piece = f"data: {n}\n\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.flush()
                time.sleep(asked.get("pause", 0))
            if asked.get("linger"):
                piece = b"data: [DONE]\n\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.flush()
                return self.wait_for_hang_up()
            if asked.get("cut"):
                self.close_connection = True
                return
            self.wfile.write(b"0\r\n\r\n")
            state["done"] += 1
        except OSError:
            state["aborted"] += 1
            self.close_connection = True


ThreadingHTTPServer(("127.0.0.1", args.port), Handler).serve_forever()
