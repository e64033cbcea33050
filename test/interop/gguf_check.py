"""Tensors of a Llama's GGUF file by Python's gguf package, under Hugging Face's names and in its order of rows.

  hashes FILE.gguf OUT.json   {name: SHA-256 of the float32 numbers, …}
"""

import hashlib
import json
import re
import sys

import numpy
from gguf import MODEL_ARCH, GGUFReader, dequantize, get_tensor_name_map

LAYER = r"input_layernorm|post_attention_layernorm|self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj"
NAMES = rf"lm_head|model\.(embed_tokens|norm|layers\.\d+\.({LAYER}))"


def hugging_face_order(rows, heads):
    """Undoes the interleaving of llama.cpp's converter: a head's two halves come one after the other again."""
    return rows.reshape(heads, rows.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def hashes(source, target):
    reader = GGUFReader(source)
    field = lambda name: reader.get_field(f"llama.{name}").contents()
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, field("block_count")).mapping
    known = {ours: theirs for theirs, (_, ours) in names.items() if re.fullmatch(NAMES, theirs)}
    found = {}
    for tensor in reader.tensors:
        stem, _, kind = tensor.name.rpartition(".")
        rows = dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        if stem.endswith("attn_q"):
            rows = hugging_face_order(rows, field("attention.head_count"))
        if stem.endswith("attn_k"):
            rows = hugging_face_order(rows, field("attention.head_count_kv"))
        found[f"{known[stem]}.{kind}"] = hashlib.sha256(numpy.ascontiguousarray(rows).tobytes()).hexdigest()
    with open(target, "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    {"hashes": hashes}[sys.argv[1]](*sys.argv[2:])
