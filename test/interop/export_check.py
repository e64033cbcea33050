"""The other side of exported weights: a base model and a random adapter made by transformers and PEFT, and log-probabilities by both.

  prepare MODEL.gguf FOLDER       → FOLDER/base (float32), FOLDER/base.gguf (float32), FOLDER/adapter (by PEFT), FOLDER/prompts.json (ids)
  logprobs FOLDER OUT.json MODEL [ADAPTER]   → after each prompt, the log-probability of every token that may follow
"""

import json
import sys
from pathlib import Path

import gguf
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PROMPTS = [
    "The capital of France is",
    "Water boils at a temperature of",
    "def fibonacci(n):\n    if n < 2:\n        return",
    "1, 2, 4, 8, 16,",
    "<|im_start|>user\nHow much is a velvet carpet?<|im_end|>\n<|im_start|>assistant\n",
    '<tool_call>{"name": "lookup", "arguments": {"item":',
    "Once upon a time, in a village by the sea, there lived an old",
    "The three laws of motion were stated by",
    "To be, or not to be, that is the",
    "SELECT name, price FROM items WHERE price >",
    "Dear Sir or Madam,\n\nI am writing to",
    "Die Katze sitzt auf dem",
]


def prepare(source, folder):
    source, folder = Path(source), Path(folder)
    where = {"gguf_file": source.name}
    loaded = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **where)
    # transformers does not save what it loaded from a GGUF file, though it holds plain floats.
    vars(loaded.config).pop("quantization_config", None)
    model = AutoModelForCausalLM.from_config(loaded.config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(folder / "base")
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **where)
    tokenizer.save_pretrained(folder / "base")
    (folder / "prompts.json").write_text(json.dumps([tokenizer(text)["input_ids"] for text in PROMPTS]))
    torch.manual_seed(11)
    settings = LoraConfig(r=8, lora_alpha=24, target_modules=TARGETS, lora_dropout=0.05, init_lora_weights=False, task_type="CAUSAL_LM")
    adapted = get_peft_model(model, settings)
    with torch.no_grad():
        for name, weights in adapted.named_parameters():
            if ".lora_B." in name:
                weights.copy_(torch.randn_like(weights) * 0.02)
    adapted.peft_config["default"].base_model_name_or_path = str(folder / "base")
    adapted.save_pretrained(folder / "adapter")
    unpack(source, folder / "base.gguf")


def unpack(source, target):
    """The same file with every tensor in float32."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type", "general.quantization_version"):
            kind = field.types[0]
            writer.add_key_value(name, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype("float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logprobs(folder, target, base, adapter=None):
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = (model if adapter is None else PeftModel.from_pretrained(model, adapter)).eval()
    rows = json.loads((Path(folder) / "prompts.json").read_text())
    with torch.no_grad():
        tables = [torch.log_softmax(model(torch.tensor([row])).logits[0, -1].double(), dim=-1) for row in rows]
    Path(target).write_text(json.dumps([table.tolist() for table in tables]))


if __name__ == "__main__":
    {"prepare": prepare, "logprobs": logprobs}[sys.argv[1]](*sys.argv[2:])
