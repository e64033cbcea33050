"""How far our losses, gradients and advantages are from those of verl, TRL and AReaL, and from torch's autograd.

  losses_check.py IN.json OUT.json    [{rows, losses, advantages, dpo, entropy, overlong}, …], one for each seed →
                                      [{name, theirs, difference, numbers, largest}, …]

Everything is computed in float64 where their code lets it be. Rows of different lengths are padded with numbers that would show.
"""

import importlib.metadata
import json
import math
import os
import sys
import types
from collections import defaultdict
from types import SimpleNamespace

import numpy
import torch
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.grpo_trainer import GRPOTrainer
from verl.trainer.ppo import core_algos, rollout_corr_helper
from verl.workers.config import ActorConfig, PolicyLossConfig

NEVER = 1e9
LOW, HIGH = 0.2, 0.28


def areal_functional():
    """AReaL's own file of functions. Its packages, which load everything, are stood in for: of them it needs two names, for types."""
    root = str(importlib.metadata.distribution("areal").locate_file("areal"))
    for name in ("areal", "areal.api", "areal.utils", "areal.utils.functional"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [os.path.join(root, *name.split(".")[1:])]
    for name, what in (("areal.api.cli_args", "RejectionSamplingConfig"), ("areal.utils.data", "KLEstimator")):
        sys.modules[name] = types.ModuleType(name)
        setattr(sys.modules[name], what, SimpleNamespace)
    import areal.utils.functional.functional as functional

    return functional


areal = areal_functional()
found = defaultdict(lambda: {"difference": 0.0, "numbers": 0, "largest": 0.0})


def compare(name, theirs, expected, ours):
    expected, ours = (numpy.asarray(values, dtype=numpy.float64).ravel() for values in (expected, ours))
    assert expected.shape == ours.shape, (name, expected.shape, ours.shape)
    row = found[(name, theirs)]
    # A NaN must not get lost in a maximum.
    difference = numpy.abs(expected - ours) / numpy.maximum(1, numpy.abs(expected))
    row["difference"] = max(row["difference"], float(difference.max()) if numpy.isfinite(difference).all() else math.inf)
    row["numbers"] += expected.size
    row["largest"] = max(row["largest"], float(numpy.abs(expected).max()))


def padded(rows, name):
    width = max(len(row[name]) for row in rows) + 2
    return torch.tensor([row[name] + [-0.77] * (width - len(row[name])) for row in rows], dtype=torch.float64)


class Inputs:
    def __init__(self, rows):
        self.lp = padded(rows, "logprobs").requires_grad_()
        self.s, self.prox, self.ref, self.A = (padded(rows, name) for name in ("sampled", "proximal", "reference", "advantages"))
        lengths = torch.tensor([len(row["logprobs"]) for row in rows])
        self.mask = (torch.arange(self.lp.shape[1])[None, :] < lengths[:, None]).double()
        self.count = self.mask.sum()


def actor(**more):
    return ActorConfig(
        **{"strategy": "fsdp", "rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1, "clip_ratio_low": LOW, "clip_ratio_high": HIGH, **more}
    )


def verl(function, **more):
    return lambda x: function(x.s, x.lp, x.A, x.mask, "token-sum", actor(**more))[0]


def verl_weighted(threshold):
    """Truncated importance sampling (one bound) or IcePop (two), between the engine and the policy that the step is clipped around."""

    def loss(x):
        weights, _ = rollout_corr_helper.compute_rollout_correction_weights(x.prox - x.s, x.mask, "token", threshold)
        vanilla = core_algos.compute_policy_loss_vanilla
        return vanilla(x.prox, x.lp, x.A, x.mask, "token-sum", actor(clip_ratio_c=NEVER), rollout_is_weights=weights)[0]

    return loss


def verl_kl(estimator):
    return lambda x: 0.7 * (core_algos.kl_penalty(x.lp, x.ref, estimator) * x.mask).sum()


def areal_ppo(level, action, upper, lower=None, c_clip=None, recomputed=True):
    def loss(x):
        config = SimpleNamespace(level=level, action=action, metric="ratio", agg="mean", upper=upper, lower=lower)
        prox = x.prox if recomputed else x.lp.detach()
        value, _ = areal.ppo_actor_loss_fn(x.lp, prox, x.s, x.A, LOW, x.mask.bool(), HIGH, c_clip, config)
        # AReaL divides by the tokens from before masking.
        return value * x.count

    return loss


class Silent:
    """What a TRL trainer asks of accelerate in one process."""

    device, num_processes, sync_gradients = "cpu", 1, True
    gather = gather_for_metrics = staticmethod(lambda value: value)
    reduce = staticmethod(lambda value, reduction=None: value)


def trl_grpo(loss_type, high=HIGH, beta=0.0, delta=None):
    def loss(x):
        ids = torch.zeros_like(x.mask, dtype=torch.long)
        args = SimpleNamespace(delta=delta, use_bias_correction_kl=False, steps_per_generation=1)
        trainer = SimpleNamespace(
            **{"loss_type": loss_type, "epsilon_low": LOW, "epsilon_high": high, "beta": beta, "args": args, "accelerator": Silent},
            **{"importance_sampling_level": "token", "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None},
            **{"use_vllm": False, "aux_loss_enabled": False, "_entropy_bonus_enabled": False},
            **{"model": SimpleNamespace(training=True), "current_gradient_accumulation_steps": 1, "max_completion_length": 100},
            **{"_metrics": {"train": defaultdict(list)}},
            _get_per_token_logps_and_entropies=lambda *_, **__: (x.lp, torch.zeros_like(x.lp), None),
        )
        inputs = {"prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1], "completion_ids": ids, "completion_mask": x.mask}
        inputs |= {"advantages": x.A, "old_per_token_logps": x.s, "ref_per_token_logps": x.ref, "num_items_in_batch": x.count}
        divisor = x.mask.shape[0] * 100 if loss_type == "dr_grpo" else x.count
        return GRPOTrainer._compute_loss(trainer, None, inputs) * divisor

    return loss


vanilla = core_algos.compute_policy_loss_vanilla
LOSSES = [
    ("ppo", "verl compute_policy_loss_vanilla", verl(vanilla, clip_ratio_c=NEVER)),
    ("ppo", "TRL GRPOTrainer._compute_loss, dr_grpo", trl_grpo("dr_grpo")),
    ("ppo", "TRL GRPOTrainer._compute_loss, dapo", trl_grpo("dapo")),
    ("ppo, dual clip", "verl compute_policy_loss_vanilla, clip_ratio_c", verl(vanilla, clip_ratio_c=3.0)),
    ("ppo, dual clip", "TRL GRPOTrainer._compute_loss, delta", trl_grpo("dapo", delta=3.0)),
    ("importance_sampling", "torch autograd of −exp(lp − s)·A", lambda x: -(torch.exp(x.lp - x.s) * x.A * x.mask).sum()),
    ("gspo", "verl compute_policy_loss_gspo", verl(core_algos.compute_policy_loss_gspo)),
    ("cispo", "verl compute_policy_loss_cispo", verl(core_algos.compute_policy_loss_cispo)),
    ("cispo, upper bound alone", "TRL GRPOTrainer._compute_loss, cispo", trl_grpo("cispo", high=2.0)),
    ("dro", "verl compute_policy_loss_dro", verl(core_algos.compute_policy_loss_dro, policy_loss=PolicyLossConfig(dro_beta=0.3))),
    ("decoupled_ppo, token truncate", "AReaL ppo_actor_loss_fn, token clamp", areal_ppo("token", "clamp", 5.0)),
    ("decoupled_ppo, token truncate", "verl compute_rollout_correction_weights", verl_weighted(5.0)),
    (
        "decoupled_ppo, token truncate, floor, dual clip",
        "AReaL ppo_actor_loss_fn, token clamp, c_clip",
        areal_ppo("token", "clamp", 2.0, 0.5, 1.5),
    ),
    ("decoupled_ppo, token mask", "AReaL ppo_actor_loss_fn, token mask", areal_ppo("token", "mask", 2.0, 0.5)),
    ("decoupled_ppo, token mask", "verl compute_rollout_correction_weights, two bounds", verl_weighted("0.5_2.0")),
    ("decoupled_ppo, sequence truncate", "AReaL ppo_actor_loss_fn, sequence clamp", areal_ppo("sequence", "clamp", 1.1)),
    ("decoupled_ppo, sequence mask", "AReaL ppo_actor_loss_fn, sequence mask", areal_ppo("sequence", "mask", 1.1)),
    (
        "decoupled_ppo, no proximal policy",
        "AReaL ppo_actor_loss_fn, proximal = current",
        areal_ppo("token", "clamp", 5.0, recomputed=False),
    ),
    ("kl k1", "verl kl_penalty k1+", verl_kl("k1+")),
    ("kl k2", "verl kl_penalty k2", verl_kl("k2")),
    ("kl k3", "verl kl_penalty k3", verl_kl("k3")),
    ("ppo with kl k3", "TRL GRPOTrainer._compute_loss, beta", trl_grpo("dapo", beta=0.1)),
]


def check_losses(case):
    for name, theirs, function in LOSSES:
        x = Inputs(case["rows"])
        loss = function(x)
        (gradient,) = torch.autograd.grad(loss, x.lp)
        assert gradient[x.mask == 0].abs().max() == 0, (name, "padding has a gradient")
        ours = case["losses"][name]
        compare(name, theirs, [loss.item()], [ours["loss"]])
        for row, own in zip(gradient, ours["gradients"], strict=True):
            compare(name, theirs, row[: len(own)], own)


def check_advantages(case):
    rollouts, ours = case["rollouts"], case["ours"]
    lengths = torch.tensor([one["length"] for one in rollouts])
    mask = (torch.arange(int(lengths.max()) + 2)[None, :] < lengths[:, None]).double()
    rewards = torch.zeros_like(mask)
    rewards[torch.arange(len(rollouts)), lengths - 1] = torch.tensor([one["reward"] for one in rollouts], dtype=torch.float64)
    index = numpy.array([one["group"] for one in rollouts])
    grpo = core_algos.compute_grpo_outcome_advantage
    by = {
        "dr-grpo": ("verl compute_grpo_outcome_advantage, without std", lambda: grpo(rewards, mask, index, norm_adv_by_std_in_grpo=False)),
        "rloo": ("verl compute_rloo_outcome_advantage", lambda: core_algos.compute_rloo_outcome_advantage(rewards, mask, index)),
        "reinforce++": (
            "verl compute_reinforce_plus_plus_baseline_outcome_advantage",
            lambda: core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage(rewards, mask, index),
        ),
        "grpo": ("verl compute_grpo_outcome_advantage × (deviation of n − 1 + 1e-6) / (of n + 1e-4)", lambda: grpo(rewards, mask, index)),
    }
    for name, (theirs, function) in by.items():
        expected = function()[0][:, 0].numpy()
        if name == "grpo":
            for group in set(index):
                values = rewards.sum(-1).numpy()[index == group]
                expected[index == group] *= (values.std(ddof=1) + 1e-6) / (values.std() + 1e-4)
        compare(f"advantages by {name}", theirs, expected, ours[name])


def check_dpo(case):
    """A pair's chosen rollout and its rejected one, each with all of its samples in one row, as TRL has them."""
    lp = [torch.tensor(one, dtype=torch.float64, requires_grad=True) for one in case["current"]]
    ref = [torch.tensor(one, dtype=torch.float64) for one in case["reference"]]
    groups = sorted({one["groupId"] for one in case["of"]})

    def rows(values):
        joined = [
            torch.cat([one for one, of in zip(values, case["of"]) if of["groupId"] == group and of["isPreferred"] == wanted])
            for wanted in (True, False)
            for group in groups
        ]
        return torch.nn.utils.rnn.pad_sequence(joined, batch_first=True)

    current, reference = rows(lp), rows(ref)
    mask = torch.nn.functional.pad((current != 0).long(), (1, 0))
    blank = torch.zeros_like(current)
    told = {"entropy": blank, "mean_logits": blank, "is_top1": blank.bool()}
    answers = [SimpleNamespace(log_probs=values, **told) for values in (current, reference)]
    trainer = SimpleNamespace(
        **{"accelerator": Silent, "model": SimpleNamespace(training=True), "aux_loss_enabled": False, "ld_alpha": None},
        **{"precompute_ref_logps": True, "f_divergence_type": "reverse_kl", "loss_types": ["sigmoid"], "loss_weights": [1.0]},
        **{"beta": case["beta"], "use_weighting": False, "_metrics": {"train": defaultdict(list)}, "_total_train_tokens": 0, "_tp_size": 1},
    )
    chosen, rejected = reference.sum(1).chunk(2)
    inputs = {"input_ids": torch.zeros_like(mask), "attention_mask": torch.ones_like(mask), "completion_mask": mask}
    inputs |= {"ref_chosen_logps": chosen, "ref_rejected_logps": rejected}
    by_trl = DPOTrainer._compute_loss(trainer, lambda **_: answers[0], inputs, False)
    best, worst = (current - reference).sum(1).chunk(2)
    by_areal = areal.dpo_preference_loss(best - worst, beta=case["beta"]).mean()
    for theirs, loss in (("TRL DPOTrainer._compute_loss, sigmoid", by_trl), ("AReaL dpo_preference_loss", by_areal)):
        compare("dpo", theirs, [loss.item()], [case["loss"]])
        for expected, own in zip(torch.autograd.grad(loss, lp, retain_graph=True), case["gradients"], strict=True):
            compare("dpo", theirs, expected, own)


def check_entropy(case):
    logits = torch.tensor(case["logits"], dtype=torch.float64, requires_grad=True)
    entropy = torch.distributions.Categorical(logits=logits).entropy()
    (expected,) = torch.autograd.grad(-case["coefficient"] * entropy, logits)
    for name, sampler in (("onPolicy", case["logits"]), ("offPolicy", case["others"])):
        chances = torch.softmax(torch.tensor(sampler, dtype=torch.float64), 0)
        derivatives = torch.tensor(case[name], dtype=torch.float64)
        # The mean, over every token that could have been sampled, of its derivative times the gradient of its log-probability.
        (mean,) = torch.autograd.grad((chances * derivatives * torch.log_softmax(logits, 0)).sum(), logits)
        title = f"entropy, sampled by {'the policy' if name == 'onPolicy' else 'another policy'}"
        compare(title, "torch autograd of Categorical.entropy", expected, mean)


def check_overlong(cases):
    lengths = [one["length"] for one in cases]
    mask = torch.arange(100)[None, :] < torch.tensor(lengths)[:, None]
    data = {"rewards": torch.zeros(len(lengths), dtype=torch.float64), "input_ids": mask, "loss_mask": mask}
    expected = areal.reward_overlong_penalty(data, 36, 0.7, 100)["rewards"]
    compare("overlong penalty", "AReaL reward_overlong_penalty", expected, [one["penalty"] for one in cases])


source, target = sys.argv[1:]
with open(source) as file:
    for case in json.load(file):
        check_losses(case)
        check_advantages(case["advantages"])
        check_dpo(case["dpo"])
        check_entropy(case["entropy"])
        check_overlong(case["overlong"])
with open(target, "w") as file:
    json.dump([{"name": name, "theirs": theirs, **row} for (name, theirs), row in found.items()], file)
