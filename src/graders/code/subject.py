"""The process that runs the code under test. It loads the code, calls the function with each list of arguments, and answers with what came
back, as JSON: a line for a line. It knows neither what is expected nor what becomes of its answers, so nothing in it needs protection. It
answers {} where the call failed or returned something that is not data. subject.ts does the same for JavaScript.
"""
import json
import os
import sys
import types

# Taken before the code may replace them: its own mistakes are enough.
loads, dumps = json.loads, json.dumps


def plain(value):
    """Tuples are lists and keys are text; NumPy's values are numbers and lists. Sets, objects and the like make `dumps` fail."""
    if type(value).__module__.split(".")[0] == "numpy" and hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return value


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
    order = loads(read.readline())
    module = sys.modules["solution"] = types.ModuleType("solution")
    loaded = False
    try:
        exec(compile(order["code"], "solution.py", "exec"), module.__dict__)
        loaded = True
    except BaseException:
        pass
    function = module.__dict__.get(order["entry"]) if loaded else None
    say(dumps({"loaded": loaded, "defined": function is not None}))
    for line in iter(read.readline, ""):
        try:
            answer = dumps({"value": plain(function(*loads(line)))}, allow_nan=False)
        except BaseException:
            answer = "{}"
        say(answer)


main()
