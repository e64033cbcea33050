"""TensorBoard's own reader on a folder of event files; prints its scalars as JSON: tag -> [[step, value, time], ...]."""

import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

accumulator = EventAccumulator(sys.argv[1])
accumulator.Reload()
tags = accumulator.Tags()["scalars"]
print(json.dumps({tag: [[one.step, one.value, one.wall_time] for one in accumulator.Scalars(tag)] for tag in tags}))
