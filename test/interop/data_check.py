"""Loads exported rollouts with the programs that they are for, and compares them with the turns in the store."""

import json
import sys
import time
from pathlib import Path

import datasets
import numpy
import torch

FOLDER, MODEL = Path(sys.argv[1]), sys.argv[2]
STORE = json.loads((FOLDER / "store.json").read_text())


def told(name, check):
    began = time.time()
    try:
        passed, measured = True, check()
    except Exception as error:  # noqa: BLE001
        passed, measured = False, f"{type(error).__name__}: {error}"
    print(json.dumps({"name": name, "passed": passed, "measured": measured, "seconds": time.time() - began}), flush=True)


def expect(found, expected, what):
    if found != expected:
        raise AssertionError(f"{what}: {str(found)[:300]}, expected {str(expected)[:300]}")


def row_of(rollout):
    """Tokens, mask and log-probabilities by the rollout's turns; these conversations do not fork."""
    turns = rollout["turns"]
    tokens = turns[-1]["prompt"] + turns[-1]["sampled"]
    mask, logprobs = [0] * len(tokens), [0.0] * len(tokens)
    for turn in turns:
        start, end = len(turn["prompt"]), len(turn["prompt"]) + len(turn["sampled"])
        expect(tokens[:start], turn["prompt"], "a prompt")
        expect(tokens[start:end], turn["sampled"], "what was sampled")
        mask[start:end] = [1] * (end - start)
        logprobs[start:end] = turn["logprobs"]
    return tokens, mask, logprobs


def bits(numbers):
    return numpy.asarray(numbers, dtype=numpy.float32).tobytes()


def load(kind, name):
    return datasets.load_dataset(kind, data_files=str(FOLDER / name), split="train")


def samples(kind, name):
    rows = load(kind, name)
    for row in rows:
        tokens, mask, logprobs = row_of(STORE[row["rollout_id"]])
        expect(row["tokens"], tokens, "tokens")
        expect(row["mask"], mask, "mask")
        expect(bits(row["logprobs"]), bits(logprobs), "log-probabilities")
        expect(row["reward"], STORE[row["rollout_id"]]["reward"], "reward")
        expect(row["messages"][-1]["content"], STORE[row["rollout_id"]]["turns"][-1]["response"]["content"], "the last message")
    expect(set(rows["rollout_id"]), {id for id, one in STORE.items() if one["reward"] is not None}, "rollouts")
    return f"{len(rows)} rows, {sum(map(sum, rows['mask']))} sampled tokens, to the bit; columns {', '.join(rows.column_names)}"


def same_numbers():
    one, other = load("json", "jsonl.jsonl"), load("parquet", "parquet.parquet")
    expect(other.features["tokens"].feature.dtype, "int32", "type of tokens")
    expect(other.features["logprobs"].feature.dtype, "float32", "type of log-probabilities")
    for a, b in zip(one, other, strict=True):
        expect([bits(a[name] or []) for name in ("logprobs", "advantages")], [bits(b[name] or []) for name in ("logprobs", "advantages")], "numbers")
        expect(a["turns"], b["turns"], "turns")
        expect(a["tools"], b["tools"], "tools")
    return f"{len(one)} rows, {sum(row['advantages'] is not None for row in one)} with advantages"


def trl():
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from trl import SFTConfig, SFTTrainer

    rows = load("parquet", "trl.parquet")
    expected = []
    for row in rows:
        tokens, mask, _ = row_of(STORE[row["rollout_id"]])
        expected.append((tokens, [id if one else -100 for id, one in zip(tokens, mask, strict=True)]))
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1)
    args = SFTConfig(str(FOLDER / "sft"), max_length=None, per_device_train_batch_size=4, num_train_epochs=1, use_cpu=True, bf16=False, report_to="none", disable_tqdm=True, save_strategy="no", logging_strategy="no")
    trainer = SFTTrainer(LlamaForCausalLM(config), args, train_dataset=rows, processing_class=tokenizer)
    found = []
    for batch in trainer.get_train_dataloader():
        for ids, labels, attended in zip(batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True):
            expect(labels[attended == 0].tolist(), [-100] * int((attended == 0).sum()), "labels of padding")
            found.append((ids[attended == 1].tolist(), labels[attended == 1].tolist()))
    expect(sorted(found), sorted(expected), "ids and labels of SFTTrainer's batches")
    trained = trainer.train()
    return f"{len(found)} rows in SFTTrainer's batches, {sum(label != -100 for _, labels in found for label in labels)} trained tokens; {trained.global_step} steps"


def verl_prompts():
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer
    from verl.utils.dataset.rl_dataset import RLHFDataset

    config = OmegaConf.create({"cache_dir": str(FOLDER / "verl"), "max_prompt_length": 512, "filter_overlong_prompts_workers": 1})
    rows = RLHFDataset(str(FOLDER / "verl.parquet"), AutoTokenizer.from_pretrained(MODEL), config)
    expect(len(rows), sum(one["reward"] is not None for one in STORE.values()), "prompts")
    for row in (rows[i] for i in range(len(rows))):
        expect([message["role"] for message in row["raw_prompt"]][-1], "user", "the last role of a prompt")
        expect(row["reward_model"]["ground_truth"], None, "the answer")
    return f"{len(rows)} prompts in RLHFDataset"


def verl_batch():
    from verl import DataProto
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
    from verl.utils.torch_functional import pad_sequence_to_length

    rows = load("parquet", "verl.parquet")
    fields = ["prompt_ids", "response_ids", "response_mask", "response_logprobs", "reward_score", "num_turns"]
    outputs = [AgentLoopOutput(**{name: row[name] for name in fields}, metrics={}).as_dict() for row in rows]
    for row, output in zip(rows, outputs, strict=True):
        rollout = STORE[row["extra_info"]["rollout_id"]]
        tokens, mask, logprobs = row_of(rollout)
        start = mask.index(1)
        expect(output["prompts"].tolist() + output["responses"].tolist(), tokens, "tokens")
        expect(len(output["prompts"]), start, "length of the prompt")
        expect(output["response_mask"].tolist(), mask[start:], "mask")
        expect(bits(output["rollout_log_probs"]), bits(logprobs[start:]), "log-probabilities")
        expect(output["rm_scores"].sum().item(), rollout["reward"], "reward")
        expect((row["uid"], row["num_turns"]), (rollout["groupId"], 2 * len(rollout["turns"])), "group and turns")
    longest = max(len(output["responses"]) for output in outputs)
    names = ["responses", "response_mask", "rollout_log_probs", "rm_scores"]
    tensors = {name: torch.stack([pad_sequence_to_length(output[name][None], longest, 0)[0] for output in outputs]) for name in names}
    batch = DataProto.from_dict(tensors=tensors, non_tensors={"uid": numpy.array(rows["uid"], dtype=object)})
    return f"{len(batch)} rows through AgentLoopOutput into a DataProto, {int(batch.batch['response_mask'].sum())} sampled tokens, to the bit"


def openai():
    from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam
    from pydantic import TypeAdapter

    lines = [json.loads(line) for line in (FOLDER / "openai.jsonl").read_text().splitlines()]
    solved = [one for one in STORE.values() if one["reward"] is not None and one["reward"] >= 1]
    for line in lines:
        expect(set(line) <= {"messages", "tools", "parallel_tool_calls"}, True, "keys")
        expect(line["messages"][-1]["role"], "assistant", "the last role")
        expect({message["role"] for message in line["messages"] if "weight" in message} <= {"assistant"}, True, "roles with a weight")
        TypeAdapter(list[ChatCompletionMessageParam]).validate_python(line["messages"])
        TypeAdapter(list[ChatCompletionFunctionToolParam]).validate_python(line.get("tools", []))
    said = sorted(json.dumps([turn["response"].get("content") for turn in one["turns"]]) for one in solved)
    found = [[message.get("content") for message in line["messages"] if message["role"] == "assistant"] for line in lines]
    expect(sorted(map(json.dumps, found)), said, "what the policy said")
    return f"{len(lines)} conversations, {sum(map(len, found))} answers"


told("datasets loads the JSON Lines", lambda: samples("json", "jsonl.jsonl"))
told("datasets loads the Parquet file", lambda: samples("parquet", "parquet.parquet"))
told("both files hold the same numbers", same_numbers)
told("TRL's SFTTrainer trains what was sampled, and nothing else", trl)
told("verl's RLHFDataset loads the prompts", verl_prompts)
told("verl's AgentLoopOutput and DataProto take the rollouts", verl_batch)
told("conversations fit the OpenAI SDK's types", openai)
