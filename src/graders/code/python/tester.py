"""The process that tests. It never runs the code under test: in the tests, every name of that code is a call into another process. What
comes back is data, so no object can claim to equal everything, and the code cannot read the tests.

Lines that begin with U go to the code under test, those with V to the grader. The first line is R, once the process has started.
"""
import ast
import builtins
import importlib
import json
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import wire

sys.path.pop(0)

# Modules that tests use without importing them.
MODULES = ("math", "cmath", "re", "collections", "itertools", "functools", "operator", "string", "random", "heapq", "bisect", "datetime",
           "decimal", "fractions", "statistics", "copy", "json", "sys", "typing", "numpy", "pandas", "scipy", "pytest", "unittest")
ALIASES = {"np": "numpy", "pd": "pandas"}
# Assertion names. Never looked up in the code under test, whose versions could always pass.
COMPARES = re.compile(r"(assert\w*|expect|isclose|allclose|approx|raises)$")


def free_names(sources):
    loaded, bound = set(), set()
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Name):
                (loaded if isinstance(node.ctx, ast.Load) else bound).add(node.id)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                bound.add(node.name)
            elif isinstance(node, ast.arg):
                bound.add(node.arg)
            elif isinstance(node, ast.alias):
                bound.add((node.asname or node.name).split(".")[0])
    return loaded - bound


def equal(found, expected, tolerance):
    """Compares JSON data: tuples are lists, sets are not, keys are strings. Whole numbers must be equal, others within the tolerance."""
    if isinstance(expected, bool) or isinstance(found, bool) or expected is None or found is None:
        return found is expected
    if isinstance(expected, (int, float)):
        if not isinstance(found, (int, float)):
            return False
        return found == expected or (expected % 1 != 0 and abs(found - expected) <= tolerance * max(1, abs(expected)))
    if isinstance(expected, str):
        return isinstance(found, str) and found == expected
    if isinstance(expected, list):
        return isinstance(found, (list, tuple)) and len(found) == len(expected) and all(equal(a, b, tolerance) for a, b in zip(found, expected))
    if not isinstance(found, dict) or len(found) != len(expected):
        return False
    by_text = {str(key): item for key, item in found.items()}
    return all(key in by_text and equal(by_text[key], item, tolerance) for key, item in expected.items())


def main():
    read = os.fdopen(os.dup(0), "r", encoding="utf-8")
    write = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)

    def say(kind, message):
        write.write(kind + message + "\n")
        write.flush()

    say("R", "")
    given = json.loads(read.readline())
    tests, entry, setup = given["tests"], given["entry"], given["setup"]
    sources = [setup] + [test["source"] for test in tests if "source" in test]
    for source in sources:
        try:
            compile(source, "test.py", "exec")
        except (SyntaxError, ValueError) as error:
            return say("V", json.dumps({"fault": f"a test is not Python: {error}"}))
    peer = wire.Peer(read.readline, lambda text: say("U", text), wire.StandIn)
    scope = {"__name__": "tests"}
    try:
        exec(setup, scope)
    except BaseException as error:
        return say("V", json.dumps({"fault": f"the tests' set-up raised {type(error).__name__}"}))
    names = free_names(sources) - {entry}
    fault = provide(scope, names) or lacking([test["source"] for test in tests if "source" in test])
    if fault:
        return say("V", json.dumps({"fault": fault}))
    course = {"loaded": False, "defined": False}
    why = prepare(peer, scope, given["code"], entry, names, course)
    say("V", json.dumps(course))
    for number, test in enumerate(tests):
        failure = why or run(peer, scope, test, entry, given["tolerance"])
        # Even if the test took it for an exception it expected.
        failure = "the code ended its process" if peer.gone else failure
        say("V", json.dumps({"test": number, "passed": failure is None, "why": failure}))
    say("V", json.dumps({"done": True}))


def provide(scope, names):
    """Binds the modules that tests use, before any code under test runs. Returns a message if one is missing."""
    for name in sorted(names - scope.keys()):
        if name in MODULES or name in ALIASES:
            try:
                scope[name] = importlib.import_module(ALIASES.get(name, name))
            except ImportError:
                return f"a test uses {name}, which is not installed"
        elif COMPARES.match(name) and not hasattr(builtins, name):
            return f"a test uses {name} and does not define it; define or import it in the test or in `setup`"


def lacking(sources):
    """Returns a message if tests import a module that is missing. Checked before any code under test runs: an import that fails later may
    be one that only wrong code leads to. Skips imports in `try`, `with`, `if` and the like: the test may be prepared for their failure.
    """
    if any(re.search(r"\bsys\s*\.\s*(modules|path|meta_path)\b|\bimportlib\b", source) for source in sources):
        return None
    for source in sources:
        for node in imports_in(ast.parse(source)):
            try:
                exec(compile(ast.Module(body=[node], type_ignores=[]), "test.py", "exec"), {"__name__": "tests"})
            except ImportError as error:
                return f"a test imports {error.name or 'something'}, which is not installed"
            except BaseException:
                pass


def imports_in(node):
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        elif not isinstance(child, PREPARED):
            yield from imports_in(child)


PREPARED = tuple(getattr(ast, name) for name in ("Try", "TryStar", "If", "While", "With", "AsyncWith", "Match") if hasattr(ast, name))


def prepare(peer, scope, code, entry, names, course):
    """Binds the names that tests use from the code under test. Built-ins stay Python's: code that redefines `abs` cannot replace it."""
    try:
        peer.ask({"do": "load", "code": code})
        course.update(loaded=True, defined=True)
        for name in sorted(names | ({entry} if entry else set())):
            if name != entry and (name in scope or hasattr(builtins, name)):
                continue
            try:
                scope[name] = peer.ask({"do": "name", "name": name})
            except NameError:
                course["defined"] = False
                if name == entry:
                    return f"the code defines no {entry}"
    except (Exception, wire.Gone) as error:
        return described(error)


def run(peer, scope, test, entry, tolerance):
    try:
        if "source" in test:
            exec(compile(test["source"], "test.py", "exec"), scope)
            if test.get("checks"):
                scope["check"](scope[entry])
            return None
        found = scope[entry](*test["args"])
        return None if equal(found, test["expected"], tolerance) else "another value than expected"
    except SystemExit as end:
        # Raised by the test itself: the code under test cannot raise it here. The exit code has its usual meaning.
        return None if end.code in (None, 0) else "SystemExit"
    except (Exception, wire.Gone) as error:
        return described(error)


def described(error):
    if isinstance(error, wire.Gone):
        return "the code ended its process"
    return type(error).__name__


main()
