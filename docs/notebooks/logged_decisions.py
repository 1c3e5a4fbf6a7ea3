# %% [markdown]
# # From a noisy log to a plan
#
# A log has one row for each day: the context, the decision that was made, and
# what it cost, with noise. This goes from there to next week's plan and to a
# measured answer to whether it can be trusted.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

import soctk

random = np.random.default_rng(0)

# %% [markdown]
# ## The log
#
# Three valves between 0 and 1, set by a policy that was sensible but not the
# best. The formula is used for nothing else but to judge the answers at the end.


# %%
def cost(x, context):
    wanted = 0.5 + 0.2 * np.tanh(context @ np.array([[1.0, 0.0, -1.0], [0.0, 1.0, 0.5]]))
    away = x - wanted
    return 3 + 2 * (away**2).sum(axis=-1) + 1.5 * np.linalg.norm(away, axis=-1)


context = random.normal(size=(1500, 2))
x = (0.5 + 0.08 * context[:, :1] + 0.2 * random.normal(size=(1500, 3))).clip(0, 1)
log = pd.DataFrame(context, columns=["load", "wind"])
log[["valve a", "valve b", "valve c"]] = x
log["cost"] = cost(x, context) + 0.1 * random.normal(size=len(log))
log.to_csv("log.csv", index=False)
log.head()

# %% [markdown]
# ## Read it
#
# Columns have roles. A fifth of the days is held out: the model never sees them.

# %%
roles = soctk.Roles(context=("load", "wind"), x=("valve a", "valve b", "valve c"), value="cost")
read = soctk.read_log("log.csv", roles)
train, held_out = read.data.split(seed=0)
print(read.shape)

# %% [markdown]
# ## Learn
#
# The mean of three small models, each from four fifths of the days, which takes a
# second. What they differ by, doubled, is a standard error of the mean's values.

# %%
model = soctk.make_surrogate("soc", dim=3, context_dim=2, max_parameters=200)
report = soctk.fit(model, train, soctk.FitConfig(members=3, starts=1))
mean = report.model
print(f"{len(mean.models)} models, {report.seconds:.1f} s, {report.status}")

# %% [markdown]
# ## Assess
#
# On the held-out days: the noise that no model can predict, the errors beside
# trivial models', what the decisions are expected to cost.

# %%
valves = soctk.Box(3)
found = soctk.assess(mean, held_out, valves, train=train)
print(found)

# %% [markdown]
# ## The plan
#
# Seven days, each decision with its lower bound; `outside` says where a day or
# its decision is far from all that was logged.

# %%
week = pd.DataFrame(random.normal(size=(7, 2)), columns=["load", "wind"])
days = torch.tensor(week.to_numpy())
decision = soctk.minimize(mean, valves, days)
plan = week.assign(**dict(zip(roles.x, decision.x.numpy().T.round(3), strict=True)))
plan["cost"], plan["gap"] = decision.value.detach().numpy().round(3), decision.gap.numpy()
plan["error"] = 2 * mean.spread(decision.x, days).detach().numpy().round(3)
plan["outside"] = decision.outside.numpy()
print(plan.to_string())
assert (decision.status == "optimal").all()

# %% [markdown]
# ## A picture
#
# Left: predictions for held-out days beside what was observed. Right: what the
# plan's decisions cost in truth, beside what the model promised and what the old
# policy would have cost on the same days.

# %%
predicted = mean(held_out.x[:, 0], held_out.context).detach().numpy()
usual = (0.5 + 0.08 * days[:, :1].numpy() + np.zeros((1, 3))).clip(0, 1)
costs = {
    "the usual policy": cost(usual, days.numpy()),
    "the plan, in truth": cost(decision.x.numpy(), days.numpy()),
    "the plan, as promised": plan["cost"].to_numpy(),
}

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
left.plot(predicted, held_out.value[:, 0], ".", markersize=4, color="#1f5fa8")
ends = [predicted.min(), predicted.max()]
left.plot(ends, ends, color="#8a8a8a", linewidth=1)
left.set(xlabel="predicted cost", ylabel="observed cost", title="held-out days")
looks = ({"marker": "s", "color": "#8a8a8a"}, {"marker": "o", "color": "#1f5fa8"}, {"marker": "_", "color": "#c0392b"})
for (name, values), look in zip(costs.items(), looks, strict=True):
    right.plot(range(1, 8), values, linestyle="", markersize=8, markeredgewidth=2, label=name, **look)
right.set(xlabel="day", ylabel="cost", title="next week")
figure.legend(frameon=False, loc="outside lower right", ncols=3, columnspacing=1, handletextpad=0)
for axis in (left, right):
    axis.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
assert costs["the plan, in truth"].mean() < costs["the usual policy"].mean()
