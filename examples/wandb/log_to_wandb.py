"""Logs a run of Trainyard to Weights & Biases, from its JSON events on stdin.

    pip install wandb
    trainyard train agent.ts --json | python log_to_wandb.py --project my-agent

Of a run that is over: python log_to_wandb.py < runs/<name>/events.jsonl. Offline: WANDB_MODE=offline.
"""

import argparse
import json
import sys

import wandb

parser = argparse.ArgumentParser()
parser.add_argument("--project", default="trainyard")
options = parser.parse_args()


def numbers(value, path):
    """The numbers in an event by their path, such as train/parts/format; of an interval, its two ends."""
    if isinstance(value, list):
        value = {"low": value[0], "high": value[1]} if len(value) == 2 else {}
    if isinstance(value, dict):
        return {key: number for name, own in value.items() for key, number in numbers(own, f"{path}/{name}").items()}
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return {path: value} if is_number else {}


run = None
failed = False
for line in sys.stdin:
    event = json.loads(line)
    kind = event.pop("type")
    event.pop("at", None)
    if kind in ("run-start", "eval-start", "sft-start"):
        if run is None:
            run = wandb.init(project=options.project, name=event["run"], config=event)
            # Steps of teaching and training are counted apart.
            for prefix in ("train", "eval", "sft"):
                run.define_metric(f"{prefix}/*", step_metric=f"{prefix}/step")
    elif run is None:
        print(line, end="", file=sys.stderr)
    elif kind == "step-end":
        run.log(numbers(event, "train"))
    elif kind == "eval-end":
        run.log({**numbers(event["score"], "eval"), "eval/step": event["step"]})
    elif kind == "sft-step":
        run.log(numbers(event, "sft"))
    elif kind in ("warning", "error"):
        failed = failed or kind == "error"
        print(f"{kind} {event['code']}: {event['message']}", file=sys.stderr)
    elif kind == "done":
        run.summary.update(numbers(event, "done"))
if run is not None:
    run.finish(exit_code=1 if failed else 0)
