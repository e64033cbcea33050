"""Log-probabilities by transformers, and small random Llama models made by it.

  logprobs MODEL IN.json OUT.json   {rows: [[id, …], …], whole: n} → {next, whole}: for each row log p(id | ids before it) of all its
                                    ids but the first; for the first n rows the log-probabilities of every token that may follow
  make FOLDER IN.json               fields of LlamaConfig, `dtype` and `seed`
  chat MODEL IN.json OUT.json       [{messages, tools}, …] → their token ids by the folder's own chat template
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM


def read(path):
    with open(path) as file:
        return json.load(file)


def write(path, value):
    with open(path, "w") as file:
        json.dump(value, file)


def log_softmax_rows(folder, rows):
    """float32 arithmetic, one row at a time: no padding that could hide a mistake."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
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
    LlamaForCausalLM(LlamaConfig(**settings)).to(dtype).save_pretrained(folder)


def chat(folder, source, target):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    encode = lambda turns: tokenizer.apply_chat_template(turns["messages"], tools=turns["tools"], return_dict=True)
    write(target, [encode(turns)["input_ids"] for turns in read(source)])


if __name__ == "__main__":
    {"logprobs": logprobs, "make": make, "chat": chat}[sys.argv[1]](*sys.argv[2:])
