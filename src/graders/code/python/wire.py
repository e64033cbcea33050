"""Values and calls between the process that tests and the process under test, as lines of JSON.

Data is copied: numbers, strings, lists, tuples, dicts, sets and the like. Everything else stays in place, and the other side gets a
stand-in that forwards requests. No code ever crosses, and nothing is unpickled. Both sides answer requests while they wait for a reply,
so callbacks work.
"""
import json
import operator
import sys
from collections import deque
from decimal import Decimal
from fractions import Fraction
from types import GeneratorType

MOST_DEPTH = 100
MOST_ITEMS = 1_000_000
ITERATORS = (GeneratorType, type(iter([])), type(iter(())), zip, map, filter, enumerate, reversed, type(iter({})), type({}.keys()),
             type({}.values()), type({}.items()))

sys.set_int_max_str_digits(0) if hasattr(sys, "set_int_max_str_digits") else None


class Raised(Exception):
    """An exception of the other side that is not a built-in one."""


class Gone(BaseException):
    """The other process has ended. Not an Exception, so that a test which expects one does not catch it."""


def builtin_exception(name, text):
    import builtins

    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(text)
        except Exception:
            pass
    return Raised(f"{name}: {text}")


class Peer:
    def __init__(self, read, write, stand_in):
        self.read, self.write, self.stand_in = read, write, stand_in
        self.objects = {}
        self.gone = False
        # The names that the other side may look up. Only the subject sets them: the tester can be called back, never inspected.
        self.names = None

    def encode(self, value, depth=0):
        if depth > MOST_DEPTH:
            raise ValueError("nested too deeply")
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if isinstance(value, self.stand_in):
            return {"back": object.__getattribute__(value, "_id")}
        for test, tag in ((tuple, "t"), (set, "s"), (frozenset, "f"), (deque, "q"), (list, "l")):
            if isinstance(value, test):
                return {tag: [self.encode(item, depth + 1) for item in list(value)]}
        if isinstance(value, dict):
            return {"d": [[self.encode(key, depth + 1), self.encode(item, depth + 1)] for key, item in list(value.items())]}
        if isinstance(value, (bytes, bytearray)):
            return {"b": bytes(value).hex()}
        if kind is complex:
            return {"c": [value.real, value.imag]}
        if kind is range:
            return {"r": [value.start, value.stop, value.step]}
        if kind is Decimal:
            return {"D": str(value)}
        if kind is Fraction:
            return {"F": [value.numerator, value.denominator]}
        if isinstance(value, ITERATORS):
            items = []
            for item in value:
                if len(items) >= MOST_ITEMS:
                    raise ValueError("an iterator without an end")
                items.append(self.encode(item, depth + 1))
            return {"i": items}
        for base in (bool, int, float, str):
            if isinstance(value, base):
                return base.__new__(base, value)
        if type(value).__module__.split(".")[0] == "numpy" and hasattr(value, "tolist"):
            return self.encode(value.tolist(), depth + 1)
        self.objects[id(value)] = value
        return {"o": id(value)}

    def decode(self, data):
        if isinstance(data, list):
            raise ValueError("a list without its tag")
        if not isinstance(data, dict):
            return data
        (tag, inner), = data.items()
        if tag == "o":
            return self.stand_in(self, int(inner))
        if tag == "back":
            return self.objects[inner]
        if tag == "d":
            return {self.decode(key): self.decode(item) for key, item in inner}
        if tag in ("t", "s", "f", "q", "l", "i"):
            items = [self.decode(item) for item in inner]
            return {"t": tuple, "s": set, "f": frozenset, "q": deque, "l": list, "i": iter}[tag](items)
        return {"b": bytes.fromhex, "c": lambda parts: complex(*parts), "r": lambda parts: range(*parts), "D": Decimal, "F": lambda parts: Fraction(*parts)}[tag](inner)

    def ask(self, request, originals=()):
        self.write(json.dumps(request))
        while True:
            line = self.read()
            if not line:
                self.gone = True
                raise Gone()
            message = json.loads(line)
            if "do" in message:
                self.write(json.dumps(self.served(message)))
                continue
            for place, changed in message.get("changed", {}).items():
                put_back(originals[int(place)], self.decode(changed))
            if "raised" in message:
                name, text = str(message["raised"][0]), str(message["raised"][1])
                # As in Python's generators: inside `all(map(f, xs))`, StopIteration would end the loop as if every check had passed.
                stops = name == "StopIteration" and request["do"] != "next"
                raise RuntimeError("the function raised StopIteration") if stops else builtin_exception(name, text)
            return self.decode(message["value"])

    def call(self, target, args, kwargs):
        given = {"args": [self.encode(arg) for arg in args], "kwargs": [[key, self.encode(arg)] for key, arg in kwargs.items()]}
        return self.ask({"do": "call", "id": target, **given}, args)

    def served(self, request):
        try:
            return self.answer(request)
        except Gone:
            raise
        except BaseException as error:
            try:
                return {"raised": [type(error).__name__, str(error)[:1000]]}
            except BaseException:
                return {"raised": ["Exception", ""]}

    def answer(self, request):
        do = request["do"]
        if do == "name" and self.names is not None:
            return {"value": self.encode(self.names[request["name"]])} if request["name"] in self.names else {"raised": ["NameError", f"name {request['name']!r} is not defined"]}
        if do != "call" and self.names is None:
            raise PermissionError("only functions that were passed can be called")
        target = self.objects[request["id"]]
        if do == "call":
            args = [self.decode(arg) for arg in request["args"]]
            value = target(*args, **{key: self.decode(arg) for key, arg in request["kwargs"]})
            reply = {"value": self.encode(value)}
            after = {str(place): self.encode(arg) for place, arg in enumerate(args) if isinstance(arg, (list, dict, set, bytearray, deque))}
            changed = {place: data for place, data in after.items() if data != request["args"][int(place)]}
            return {**reply, "changed": changed} if changed else reply
        if do == "get":
            return {"value": self.encode(getattr(target, request["name"]))}
        if do == "set":
            setattr(target, request["name"], self.decode(request["value"]))
            return {"value": None}
        if do == "item":
            return {"value": self.encode(target[self.decode(request["key"])])}
        if do == "put":
            target[self.decode(request["key"])] = self.decode(request["value"])
            return {"value": None}
        if do == "remove":
            del target[self.decode(request["key"])]
            return {"value": None}
        if do == "with" and request["name"] in OPERATORS + COMPARISONS:
            return {"value": self.encode(getattr(operator, request["name"])(target, self.objects[request["other"]]))}
        if do == "isinstance":
            return {"value": isinstance(self.objects[request["other"]], target)}
        simple = {"int": int, "float": float, "abs": abs, "neg": operator.neg, "len": len, "bool": bool, "str": str, "repr": repr, "iter": lambda it: (item for item in it), "next": next}
        return {"value": self.encode(simple[do](target))}


OPERATORS = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "contains")
COMPARISONS = ("eq", "lt", "le", "gt", "ge")


def put_back(original, changed):
    if isinstance(original, (list, bytearray)):
        original[:] = changed
    elif isinstance(original, (dict, set)):
        original.clear()
        original.update(changed)
    elif isinstance(original, deque):
        original.clear()
        original.extend(changed)


class StandIn:
    """Represents an object of the other side. That side evaluates operators between two of its own objects, never with data: an object
    whose `-` and `==` return what the test wants would otherwise pass for every number.
    """

    __slots__ = ("_peer", "_id")

    def __init__(self, peer, target):
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_id", target)

    def __call__(self, *args, **kwargs):
        return self._peer.call(self._id, args, kwargs)

    def __getattr__(self, name):
        return self._peer.ask({"do": "get", "id": self._id, "name": name})

    def __setattr__(self, name, value):
        self._peer.ask({"do": "set", "id": self._id, "name": name, "value": self._peer.encode(value)})

    def __getitem__(self, key):
        return self._peer.ask({"do": "item", "id": self._id, "key": self._peer.encode(key)})

    def __bool__(self):
        return self._peer.ask({"do": "bool", "id": self._id}) is True

    def __str__(self):
        return str(self._peer.ask({"do": "str", "id": self._id}))

    def __repr__(self):
        return str(self._peer.ask({"do": "repr", "id": self._id}))

    def __setitem__(self, key, value):
        self._peer.ask({"do": "put", "id": self._id, "key": self._peer.encode(key), "value": self._peer.encode(value)})

    def __delitem__(self, key):
        self._peer.ask({"do": "remove", "id": self._id, "key": self._peer.encode(key)})

    def __enter__(self):
        return self.__getattr__("__enter__")()

    def __exit__(self, *_):
        # Hides the error and cannot swallow it: it may be the test's own failure.
        self.__getattr__("__exit__")(None, None, None)
        return False

    def __instancecheck__(self, value):
        return isinstance(value, StandIn) and self._peer.ask({"do": "isinstance", "id": self._id, "other": value._id}) is True

    def __contains__(self, item):
        if isinstance(item, StandIn):
            return self._with("contains", item) is True
        return any(item == one for one in self)

    def _with(self, name, other):
        return self._peer.ask({"do": "with", "name": name, "id": self._id, "other": other._id})

    def __eq__(self, other):
        return isinstance(other, StandIn) and (self._id == other._id or self._with("eq", other) is True)

    def __ne__(self, other):
        return not self == other

    def __hash__(self):
        return hash(self._id)


def of_one(name):
    return lambda self: self._peer.ask({"do": name, "id": self._id})


def between_two(name):
    def method(self, other):
        return self._with(name, other) if isinstance(other, StandIn) else NotImplemented

    return method


for each in ("iter", "next", "len", "int", "float", "abs", "neg"):
    setattr(StandIn, f"__{each}__", of_one(each))
for each in OPERATORS + COMPARISONS:
    if each not in ("contains", "eq"):
        setattr(StandIn, f"__{each.rstrip('_')}__", between_two(each))
