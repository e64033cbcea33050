"""The official Tinker client trains and samples against a Tinker server; address and key come from TINKER_BASE_URL and TINKER_API_KEY.

  official_client.py BASE_MODEL TOKENIZER_FOLDER

Prints one JSON object a line: {"name", "passed", "measured", "seconds"}. Nothing here knows whose server it is.
"""

import json
import math
import multiprocessing
import sys
import time
import traceback

import tinker
from tinker import types
from transformers import AutoTokenizer

ADAM = types.AdamParams(learning_rate=1e-3, beta1=0.9, beta2=0.95, eps=1e-8)


class Conversation:
    """A prompt and the answer to it, as token ids."""

    def __init__(self, tokenizer, prompt, answer):
        self.prompt = tokenizer.encode(f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n")
        self.answer = tokenizer.encode(f"{answer}<|im_end|>")

    def datum(self, **inputs):
        """Position i of every input belongs to the token after tokens[i]; context counts nothing."""
        tokens = self.prompt + self.answer
        context = [0.0] * (len(self.prompt) - 1)
        padded = {name: context + list(values) for name, values in inputs.items()}
        return types.Datum(types.ModelInput.from_ints(tokens[:-1]), {"target_tokens": tokens[1:], **padded})

    def supervised(self):
        return self.datum(weights=[1.0] * len(self.answer))


def answer_logprob(trainer, conversation):
    """Sum over the answer, under the weights being trained."""
    output = trainer.forward([conversation.supervised()], "cross_entropy").result()
    return sum(output.loss_fn_outputs[0]["logprobs"].tolist()[len(conversation.prompt) - 1 :])


def close(a, b, tolerance=1e-4):
    assert math.isfinite(a) and abs(a - b) <= tolerance, f"{a} and {b} are further apart than {tolerance}"


def capabilities(state):
    names = [model.model_name for model in state.service.get_server_capabilities().supported_models]
    assert state.base_model in names, names
    return f"models {names}"


def supervised_steps(state):
    """Forward-backward and step are sent together, as the client's guide advises; losses come back afterwards."""
    state.trainer = state.service.create_lora_training_client(base_model=state.base_model, rank=8)
    data = [conversation.supervised() for conversation in state.conversations]
    pending = [(state.trainer.forward_backward(data, "cross_entropy"), state.trainer.optim_step(ADAM)) for _ in range(12)]
    losses = []
    for passed, stepped in pending:
        losses.append(passed.result().metrics["loss:sum"])
        stepped.result()
    assert all(map(math.isfinite, losses)) and losses[-1] < losses[0] / 2, losses
    return f"12 steps, loss {losses[0]:.2f} → {losses[-1]:.2f}"


def save_and_go_on(state):
    """The same step from the saved state gives the same weights as the step that went on, if the optimizer came along."""
    data = [conversation.supervised() for conversation in state.conversations]
    path = state.trainer.save_state("half-way").result().path
    copies = {
        "with": state.service.create_training_client_from_state_with_optimizer(path),
        "without": state.service.create_training_client_from_state(path),
    }
    before = answer_logprob(state.trainer, state.conversations[0])
    for trainer in copies.values():
        close(answer_logprob(trainer, state.conversations[0]), before)
    for trainer in [state.trainer, *copies.values()]:
        trainer.forward_backward(data, "cross_entropy")
        trainer.optim_step(ADAM).result()
    after = {name: answer_logprob(trainer, state.conversations[0]) for name, trainer in copies.items()}
    original = answer_logprob(state.trainer, state.conversations[0])
    close(after["with"], original, 1e-5)
    assert abs(after["without"] - original) > 1e-5, "a fresh optimizer made the very same step"
    return f"{path}; one step later {original:.5f}, {after['with']:.5f} with the optimizer, {after['without']:.5f} without"


def sampling(state):
    conversation = state.conversations[0]
    sampler = state.trainer.save_weights_and_get_sampling_client()
    prompt = types.ModelInput.from_ints(conversation.prompt)
    end = state.tokenizer.eos_token_id
    params = types.SamplingParams(max_tokens=40, temperature=0.0, stop=[end])
    best = sampler.sample(prompt, num_samples=1, sampling_params=params).result().sequences[0]
    assert best.tokens == conversation.answer, (state.tokenizer.decode(best.tokens), "was not what was trained")
    close(sum(best.logprobs), answer_logprob(state.trainer, conversation))
    params = types.SamplingParams(max_tokens=4, temperature=1.0, seed=7)
    several = [[s.tokens for s in sampler.sample(prompt, num_samples=4, sampling_params=params).result().sequences] for _ in range(2)]
    assert several[0] == several[1] and len(several[0]) == 4, several
    return f"greedy answer {state.tokenizer.decode(best.tokens)!r}, 4 samples twice the same by seed"


def sample_greedily(sampler, prompt):
    if isinstance(sampler, str):
        sampler = tinker.SamplingClient.from_sampler_handle(sampler)
    params = types.SamplingParams(max_tokens=8, temperature=0.0)
    pending = [sampler.sample(types.ModelInput.from_ints(prompt), num_samples=1, sampling_params=params) for _ in range(4)]
    return [future.result(timeout=60).sequences[0].tokens for future in pending]


def other_processes(state):
    """Copies of a sampling client number their requests from a place of their own, mostly beyond 2 to the 53rd."""
    sampler = state.trainer.save_weights_and_get_sampling_client()
    prompt = state.conversations[0].prompt
    here = sample_greedily(sampler, prompt)
    copies = [(sampler, prompt), (sampler.get_sampler_handle(), prompt)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for there in pool.starmap(sample_greedily, copies):
            assert there == here, (there, here)
    return "pickled, and by handle: 4 samples each, as in this process"


def prompt_logprobs(state):
    conversation = state.conversations[1]
    sampler = state.trainer.save_weights_and_get_sampling_client()
    tokens = conversation.prompt + conversation.answer
    logprobs = sampler.compute_logprobs(types.ModelInput.from_ints(tokens)).result()
    assert logprobs[0] is None and len(logprobs) == len(tokens), logprobs
    close(sum(logprobs[len(conversation.prompt) :]), answer_logprob(state.trainer, conversation))
    return f"{len(tokens)} tokens, as forward gives them"


def importance_sampling_steps(state):
    """The reward is 1 for samples that begin with one certain token, less the mean: its probability rises."""
    trainer = state.service.create_lora_training_client(base_model=state.base_model, rank=8)
    prompt = state.conversations[0].prompt
    model_input = types.ModelInput.from_ints(prompt)
    wanted = None
    for step in range(8):
        sampler = trainer.save_weights_and_get_sampling_client()
        params = types.SamplingParams(max_tokens=1, temperature=1.0, seed=step)
        drawn = sampler.sample(model_input, num_samples=64, sampling_params=params).result().sequences
        firsts = [sequence.tokens[0] for sequence in drawn]
        if wanted is None:
            # Neither the likeliest nor the rarest, so that there is something to learn and something to learn from.
            counts = sorted(set(firsts), key=firsts.count)
            wanted = counts[len(counts) // 2]
            before = logprob_of(trainer, prompt, wanted)
        rewards = [float(token == wanted) for token in firsts]
        mean = sum(rewards) / len(rewards)
        data = []
        for sequence, reward in zip(drawn, rewards):
            tokens = prompt + sequence.tokens
            context = [0.0] * (len(prompt) - 1)
            inputs = {
                "target_tokens": tokens[1:],
                "logprobs": context + list(sequence.logprobs),
                "advantages": context + [(reward - mean) / len(drawn)],
            }
            data.append(types.Datum(types.ModelInput.from_ints(tokens[:-1]), inputs))
        output = trainer.forward_backward(data, "importance_sampling").result()
        again = [o["logprobs"].tolist()[-1] for o in output.loss_fn_outputs]
        for ours, sequence in zip(again, drawn):
            close(ours, sequence.logprobs[0])
        trainer.optim_step(ADAM).result()
    before, after = math.exp(before), math.exp(logprob_of(trainer, prompt, wanted))
    assert after > before + 0.25 * (1 - before), (before, after)
    return f"8 steps of 64 samples, probability of the rewarded token {before:.3f} → {after:.3f}"


def logprob_of(trainer, prompt, token):
    datum = types.Datum(types.ModelInput.from_ints(prompt), {"target_tokens": prompt[1:] + [token], "weights": [1.0] * len(prompt)})
    return trainer.forward([datum], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].tolist()[-1]


def custom_loss_step(state):
    """Forward, a loss in torch, then weighted cross-entropy: the gradient is that of cross_entropy, so the weights are too."""
    data = [conversation.supervised() for conversation in state.conversations]

    def negative_log_likelihood(data, logprobs):
        weights = [datum.loss_fn_inputs["weights"].to_torch() for datum in data]
        return -sum((w * lp).sum() for w, lp in zip(weights, logprobs)), {}

    by_name = state.service.create_lora_training_client(base_model=state.base_model, rank=8)
    by_hand = state.service.create_lora_training_client(base_model=state.base_model, rank=8)
    by_name.forward_backward(data, "cross_entropy").result()
    by_hand.forward_backward_custom(data, negative_log_likelihood).result()
    results = []
    for trainer in (by_name, by_hand):
        trainer.optim_step(ADAM).result()
        results.append(answer_logprob(trainer, state.conversations[0]))
    close(results[0], results[1])
    return f"one step, then log p of an answer {results[0]:.4f} by name, {results[1]:.4f} by torch"


def refused(state):
    """What cannot be trained is refused with a reason, and the model stays usable."""
    conversation = state.conversations[0]
    before = answer_logprob(state.trainer, conversation)
    bad = conversation.datum(logprobs=[0.0] * len(conversation.answer), advantages=[float("nan")] * len(conversation.answer))
    try:
        state.trainer.forward_backward([bad], "importance_sampling").result()
    except tinker.TinkerError as error:
        close(answer_logprob(state.trainer, conversation), before)
        return f"NaN advantages: {type(error).__name__} {str(error)[:120]!r}"
    raise AssertionError("NaN advantages were accepted")


def refused_part(state):
    """More rows than fit into one request, and a second request that is refused: the client is told, and goes on."""
    conversation = state.conversations[0]
    image = types.ModelInput(chunks=[types.ImageChunk(data=b"x", format="png", expected_tokens=1)])
    bad = types.Datum(image, {"target_tokens": [1], "weights": [1.0]})
    try:
        state.trainer.forward_backward([conversation.supervised()] * 600 + [bad], "cross_entropy").result(timeout=60)
    except tinker.BadRequestError:
        assert math.isfinite(state.trainer.forward([conversation.supervised()], "cross_entropy").result(timeout=60).metrics["loss:sum"])
        return "601 rows, the last one an image: refused, and the next pass is computed"
    raise AssertionError("an image was accepted")


CHECKS = [
    ("capabilities name the base model", capabilities),
    ("supervised steps: the loss falls", supervised_steps),
    ("save_state, and training clients from it with and without optimizer", save_and_go_on),
    ("save_weights_and_get_sampling_client: samples are of the trained weights", sampling),
    ("a sampling client samples from other processes, pickled and by handle", other_processes),
    ("compute_logprobs agrees with forward", prompt_logprobs),
    ("importance_sampling steps on sampled data: what is rewarded gets likelier", importance_sampling_steps),
    ("forward_backward_custom, with a loss in torch", custom_loss_step),
    ("bad data is refused with a reason", refused),
    ("a batch of several requests, one of them refused", refused_part),
]


class State:
    def __init__(self, base_model, folder):
        self.base_model = base_model
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.service = tinker.ServiceClient()
        questions = [("What is the capital of France?", "Paris"), ("2 + 2?", "4"), ("Say hello.", "hello there"), ("Colour of snow?", "white")]
        self.conversations = [Conversation(self.tokenizer, *pair) for pair in questions]


def main():
    state = State(*sys.argv[1:])
    for name, check in CHECKS:
        began = time.monotonic()
        try:
            result = {"name": name, "passed": True, "measured": check(state)}
        except Exception:
            result = {"name": name, "passed": False, "measured": traceback.format_exc()}
        print(json.dumps({**result, "seconds": time.monotonic() - began}, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
