"""The process under test: runs the code and answers calls to it. Its answers are treated as mere values."""
import os
import sys
import types

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import json
import wire

sys.path.pop(0)


def main():
    read = os.fdopen(os.dup(0), "r", encoding="utf-8")
    write = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    # What the code prints is discarded.
    os.dup2(null, 1)

    def say(text):
        write.write(text + "\n")
        write.flush()

    say("ready")
    peer = wire.Peer(read.readline, say, wire.StandIn)
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    peer.names = module.__dict__

    def load(code):
        exec(compile(code, "solution.py", "exec"), module.__dict__)

    for line in iter(read.readline, ""):
        request = json.loads(line)
        if request["do"] == "load":
            peer.objects[0] = load
            request = {"do": "call", "id": 0, "args": [request["code"]], "kwargs": []}
        say(json.dumps(peer.served(request)))


main()
