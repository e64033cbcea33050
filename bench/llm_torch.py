"""PyTorch's side of `npm run bench -- llm --against torch`: eager float32, a frozen base and an adapter through peft.

One process for the whole run. Reads one JSON command a line, answers with one JSON object a line. `seconds` is what the work
took, without reading the command; `cpuSeconds` what all threads computed (or spun). Attention is what transformers takes by
itself (sdpa).
"""
import json
import sys
import time

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()


def timed(work):
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return {"seconds": time.perf_counter() - wall, "cpuSeconds": time.process_time() - cpu}


class Torch:
    """`adapter` is a PEFT folder over the Hugging Face folder `base`."""

    def __init__(self, base, adapter, threads, adam):
        torch.set_num_threads(threads)
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        self.model = PeftModel.from_pretrained(model, adapter, is_trainable=True)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=adam["learningRate"],
            betas=(adam["beta1"], adam["beta2"]),
            eps=adam["epsilon"],
            weight_decay=adam["weightDecay"],
        )
        self.max_norm = adam["maxGradNorm"]

    def log_probabilities(self, tokens, trained):
        """Of the last `trained` tokens of every row. Logits are computed for those only, and the last token is not read."""
        logits = self.model(input_ids=tokens[:, :-1], use_cache=False, logits_to_keep=trained).logits
        targets = tokens[:, -trained:]
        return -torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)

    def score(self, tokens, trained):
        with torch.no_grad():
            return {"logprobs": self.log_probabilities(torch.tensor(tokens), trained).tolist()}

    def train(self, tokens, trained, rows):
        """One step, `rows` sequences at a time."""
        tokens = torch.tensor(tokens)
        self.model.train()

        def step():
            for part in tokens.split(rows):
                loss = -self.log_probabilities(part, trained).sum() / (len(tokens) * trained)
                loss.backward()
            torch.nn.utils.clip_grad_norm_(self.parameters, self.max_norm)
            self.optimizer.step()
            self.optimizer.zero_grad()

        return timed(step)

    def prefill(self, tokens):
        tokens = torch.tensor(tokens)
        self.model.eval()
        with torch.no_grad():
            return timed(lambda: self.model(input_ids=tokens, use_cache=True, logits_to_keep=1).logits.argmax(-1))

    def decode(self, tokens, new):
        """A static batch, drawn from the whole distribution, as ours; `min_new_tokens` suppresses the end token."""
        tokens = torch.tensor(tokens)
        self.model.eval()
        limits = {"min_new_tokens": new, "max_new_tokens": new, "eos_token_id": 2, "pad_token_id": 0}
        sampling = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
        given = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), **limits, **sampling}
        with torch.no_grad():
            return timed(lambda: self.model.generate(**given))


def main():
    side = None
    for line in sys.stdin:
        command = json.loads(line)
        verb = command.pop("do")
        if verb == "open":
            side = Torch(**command)
            answer = {"version": torch.__version__}
        else:
            answer = getattr(side, verb)(**command)
        print(json.dumps(answer), flush=True)


main()
