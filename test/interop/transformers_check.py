"""Log-probabilities by transformers and peft, and small random models and adapters made by them.

  logprobs MODEL IN.json OUT.json   {rows: [[id, …], …], whole: n} → {next, whole}: for each row log p(id | ids before it) of all its
                                    ids but the first; for the first n rows the log-probabilities of every token that may follow;
                                    MODEL is a model's folder or an adapter's, which names its base
  make FOLDER IN.json               fields of the config, `model_type`, `dtype`, `seed` and, for several files, `max_shard_size`
  adapt FOLDER IN.json              fields of LoraConfig, `base` and `seed`: an adapter with random matrices
  chat MODEL IN.json OUT.json       [{messages, tools}, …] → their token ids by the folder's own chat template
"""

import json
import os
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer


def read(path):
    with open(path) as file:
        return json.load(file)


def write(path, value):
    with open(path, "w") as file:
        json.dump(value, file)


def load(folder):
    """In float32, whatever the file holds."""
    adapter = os.path.join(folder, "adapter_config.json")
    if not os.path.exists(adapter):
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    from peft import PeftModel

    return PeftModel.from_pretrained(load(read(adapter)["base_model_name_or_path"]), folder).eval()


def log_softmax_rows(folder, rows):
    """One row at a time: no padding that could hide a mistake."""
    model = load(folder)
    with torch.no_grad():
        return [torch.log_softmax(model(torch.tensor([row])).logits[0].double(), dim=-1) for row in rows]


def logprobs(folder, source, target):
    asked = read(source)
    rows = asked["rows"]
    tables = log_softmax_rows(folder, rows)
    following = [[table[i, row[i + 1]].item() for i in range(len(row) - 1)] for row, table in zip(rows, tables)]
    write(target, {"next": following, "whole": [table[-1].tolist() for table in tables[: asked["whole"]]]})


def make(folder, source):
    settings = read(source)
    dtype = getattr(torch, settings.pop("dtype"))
    torch.manual_seed(settings.pop("seed"))
    shards = {name: settings.pop(name) for name in ["max_shard_size"] if name in settings}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings))
    with torch.no_grad():
        # Norms start as ones and biases as zeros, which would hide that they are missing.
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn_like(parameter)
    model.to(dtype).save_pretrained(folder, **shards)


def adapt(folder, source):
    from peft import LoraConfig, get_peft_model

    settings = read(source)
    torch.manual_seed(settings.pop("seed"))
    base = load(settings.pop("base"))
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.1, **settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)


def chat(folder, source, target):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    encode = lambda turns: tokenizer.apply_chat_template(turns["messages"], tools=turns["tools"], return_dict=True)
    write(target, [encode(turns)["input_ids"] for turns in read(source)])


if __name__ == "__main__":
    {"logprobs": logprobs, "make": make, "adapt": adapt, "chat": chat}[sys.argv[1]](*sys.argv[2:])
