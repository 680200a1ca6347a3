#!/usr/bin/env python3
"""Stands in for docker and podman: writes down how it was called, and runs what it was told to on this machine.

A "container" is a process in a session of its own, which outlives the command line that started it, as a daemon's does.
STAND_IN_DIR holds `calls` (one JSON list for each call) and a file for each container that is there.
"""

import json, os, signal, subprocess, sys

folder = os.environ["STAND_IN_DIR"]
args = sys.argv[1:]
with open(os.path.join(folder, "calls"), "a") as calls:
    calls.write(json.dumps(args) + "\n")

VALUED = {"--name", "--label", "--publish", "--stop-timeout", "--gpus", "--device", "--volume", "--env", "--entrypoint"}


def containers():
    for name in sorted(os.listdir(folder)):
        if name.endswith(".container"):
            with open(os.path.join(folder, name)) as file:
                yield os.path.join(folder, name), json.load(file)


def run(rest):
    options = {}
    while rest and rest[0].startswith("-"):
        flag = rest.pop(0)
        if flag in VALUED:
            options.setdefault(flag, []).append(rest.pop(0))
    image, command = rest[0], rest[1:]
    if image.startswith("missing"):
        print("Unable to find image", image, file=sys.stderr)
        sys.exit(125)
    env = dict(os.environ)
    for pair in options.get("--env", []):
        name, equals, value = pair.partition("=")
        if equals:
            env[name] = value
    command = options["--entrypoint"] + command
    inside = subprocess.Popen(command, env=env, start_new_session=True)
    path = os.path.join(folder, options["--name"][0] + ".container")
    with open(path + ".new", "w") as file:
        json.dump({"pid": inside.pid, "name": options["--name"][0], "labels": options["--label"]}, file)
    os.rename(path + ".new", path)
    signal.signal(signal.SIGTERM, lambda *_: inside.send_signal(signal.SIGTERM))
    code = inside.wait()
    if os.path.exists(path):
        os.remove(path)
    sys.exit(code if code >= 0 else 128 - code)


if args[0] == "run":
    run(args[1:])
elif args[0] == "ps":
    wanted = args[args.index("--filter") + 1].removeprefix("label=")
    for _, container in containers():
        if wanted in container["labels"]:
            print(container["name"])
elif args[:2] == ["rm", "--force"]:
    for path, container in list(containers()):
        if container["name"] in args[2:]:
            try:
                os.killpg(container["pid"], signal.SIGKILL)
            except ProcessLookupError:
                pass
            os.remove(path)
else:
    sys.exit(f"no such command: {args}")
