"""Starts SkyRL's Tinker server from the released package; arguments are those of `python -m skyrl.tinker.api`.

What the package expects of its surroundings is given here; its files stay as they are:
- `skyrl.tinker.api` starts its engine with `uv run --extra …`, which needs a source checkout. Here the engine is this
  same file, run by the same Python with the word `engine` first.
- Before Python 3.12 pydantic wants `typing_extensions.TypedDict`, and the package uses the one of `typing`.

The JAX backend compiles a program for every shape it meets: rows of a pass, length of the longest sequence, most tokens
of an answer, number of stop tokens. With TRAINYARD_SHAPES in the environment, a JSON object, shapes are few and known:
everything is padded to `lengths` (ascending), `rows`, `call_tokens` and `sequences`, which changes results by rounding only. The
server then also tells its clients these sizes, which they cannot know otherwise.
"""

import argparse
import json
import os
import signal
import sys
import threading
import typing

if sys.version_info < (3, 12) and sys.argv[1:] != ["check"]:
    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict

SHAPES = json.loads(os.environ.get("TRAINYARD_SHAPES", "null"))
STOPS = 4


def run_engine():
    from skyrl.tinker import engine

    if SHAPES is not None:
        keep_shapes()
    del sys.argv[1]
    engine.main()


def keep_shapes():
    import numpy as np
    from skyrl.backends import jax as backend
    from skyrl.tx.utils import models
    from skyrl.tx.utils.generator import GeneratorMixin

    usual_length = models.round_up_seq_len
    usual_decode = GeneratorMixin._prefill_and_decode
    usual_pass = backend.JaxBackendImpl._model_pass
    most_tokens = SHAPES["call_tokens"]

    def length_of(tokens):
        return next((length for length in SHAPES["lengths"] if tokens <= length), None) or usual_length(tokens)

    def with_rows(array, _shards):
        """Rows of adapter 0, the base model: they are not counted in the mean of a gradient, and their weights are 0."""
        missing = -len(array) % SHAPES["rows"]
        is_neutral = array.dtype.kind == "f" if array.ndim == 2 else array.dtype.kind == "i"
        return np.concatenate([array, np.repeat(array[:1] * (0 if is_neutral else 1), missing, axis=0)])

    def with_copies(rows, count, *, fill):
        """The first row again, with its seed: it ends when that one ends, so that decoding waits for no empty row."""
        return rows + rows[:1] * (count - len(rows))

    def decode(model, ids, mask, _length, new_tokens, adapters, temperatures, keys, stops, *others, **named):
        """More tokens than asked for are cut off by the caller, and −1 is no token."""
        new_tokens = most_tokens if new_tokens <= most_tokens else 1 << (new_tokens - 1).bit_length()
        stops = np.pad(np.asarray(stops), ((0, 0), (0, -stops.shape[1] % STOPS or STOPS * (stops.shape[1] == 0))), constant_values=-1)
        length = ids.shape[1] + new_tokens
        return usual_decode(model, ids, mask, length, new_tokens, adapters, temperatures, keys, stops, *others, **named)

    def model_pass(self, batch, compute):
        """Results leave the device with all their rows: cutting rows off there is one more program for each number."""

        def on_host(*given):
            gradients, *results = compute(*given)
            return gradients, *(np.asarray(result) for result in results)

        return usual_pass(self, batch, on_host)

    models.round_up_seq_len = backend.round_up_seq_len = length_of
    backend.pad_to_fsdp = with_rows
    backend.pad = with_copies
    backend.JaxBackendImpl._model_pass = model_pass
    GeneratorMixin._prefill_and_decode = staticmethod(decode)


def tell_sizes(app):
    """One adapter per model holds what is trained and what is sampled, so samples of older weights cannot be had."""
    path = "/api/v1/get_server_capabilities"

    async def capabilities():
        model = {"model_name": app.state.engine_config.base_model, "max_context_length": SHAPES["lengths"][-1]}
        return {"supported_models": [model], "trainyard": {**SHAPES, "keeps_published": False}}

    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", None) != path]
    app.add_api_route(path, capabilities)


def run_api():
    import uvicorn
    from skyrl.tinker import api
    from skyrl.tinker.config import EngineConfig, add_model, config_to_argv
    from skyrl.utils.log import get_uvicorn_log_config

    parser = argparse.ArgumentParser()
    add_model(parser, EngineConfig)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    given = vars(parser.parse_args())
    api._build_uv_run_cmd_engine = lambda _parent, config: [sys.executable, __file__, "engine", *config_to_argv(config)]
    api.app.state.engine_config = EngineConfig(**{k: v for k, v in given.items() if k in EngineConfig.model_fields})
    if SHAPES is not None:
        tell_sizes(api.app)
        threading.Thread(target=end_with_parent, daemon=True).start()
    # Clients keep connections open between the steps of a run.
    uvicorn.run(
        api.app, host=given["host"], port=given["port"], log_config=get_uvicorn_log_config(), backlog=4096, timeout_keep_alive=75
    )


def end_with_parent():
    """Standard input closes when the process that started this one ends, even if that was killed."""
    sys.stdin.buffer.read()
    os.killpg(os.getpgid(0), signal.SIGKILL)


def check():
    """Prints what is here, as JSON."""
    found = {"version": sys.version_info[:3], "missing": []}
    if sys.version_info >= (3, 12):
        for name in ["jax", "flax", "optax", "orbax.checkpoint", "skyrl.tinker.api", "skyrl.tinker.engine", "skyrl.backends.jax"]:
            try:
                __import__(name)
            except Exception as thrown:
                why = getattr(thrown, "name", None) or f"{name} ({thrown})"[:300]
                found["missing"] += [] if why in found["missing"] else [why]
        if not found["missing"]:
            import importlib.metadata

            import jax

            found.update(skyrl=importlib.metadata.version("skyrl"), platform=jax.default_backend())
    print(json.dumps(found))


if __name__ == "__main__":
    verbs = {"engine": run_engine, "check": check}
    verbs.get(sys.argv[1] if len(sys.argv) > 1 else "", run_api)()
