"""Starts SkyRL's Tinker server from the released package; arguments are those of `python -m skyrl.tinker.api`.

Two things the package expects of its surroundings are given here; its own code stays as it is:
- `skyrl.tinker.api` starts its engine with `uv run --extra …`, which needs a source checkout. Here the engine is this
  same file, run by the same Python with the word `engine` first.
- Before Python 3.12 pydantic wants `typing_extensions.TypedDict`, and the package uses the one of `typing`.
"""

import argparse
import sys
import typing

if sys.version_info < (3, 12):
    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict


def run_engine():
    from skyrl.tinker import engine

    del sys.argv[1]
    engine.main()


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
    uvicorn.run(api.app, host=given["host"], port=given["port"], log_config=get_uvicorn_log_config())


if __name__ == "__main__":
    run_engine() if sys.argv[1:2] == ["engine"] else run_api()
